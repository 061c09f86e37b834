"""Values as people read them, in a terminal and on a page. What is not known is a dash, never 0."""

import math
from typing import Any

import msgspec

UNKNOWN = "–"


def number(value: float | None, digits: int = 2) -> str:
    """A number; an unknown one, NaN and infinities are a dash."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def count(value: int | None) -> str:
    """A whole number."""
    return UNKNOWN if value is None else f"{value:,}"


def dollars(nano_usd: float | None) -> str:
    """A price in nano-USD as dollars."""
    return UNKNOWN if nano_usd is None else f"${nano_usd / 1e9:,.6f}".rstrip("0").rstrip(".")


def share(value: float | None, digits: int = 1) -> str:
    """A share of the whole, in percent."""
    return UNKNOWN if value is None else f"{value:.{digits}%}"


def points(value: float | None) -> str:
    """A difference of two shares, in points of a hundred, with its sign."""
    return UNKNOWN if value is None else f"{100 * value:+.1f}"


def one_line(value: Any, width: int) -> str:
    """A value on one line of at most `width` characters; control characters are shown as spaces."""
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode(errors="replace")
    text = text[: 8 * width]  # what lies beyond cannot be shown, however many spaces there are
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def gist(value: Any) -> Any:
    """The part of a state or action that a person recognises it by: the last message's text, or the tools it calls."""
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("content"), str) and value["content"]:
        return value["content"]
    calls = value.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    named = [f"{one.get('name')}({one.get('arguments')})" for one in functions if isinstance(one, dict)]
    return " ".join(named) or value
