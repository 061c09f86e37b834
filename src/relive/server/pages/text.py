"""Texts from outside as they are put on a page: whatever a reader could not see, or would see elsewhere, is named.

Control characters, letters without a shape and those that turn the direction of what follows (the means of hiding
instructions in a text) are written out as ``⟨U+202E⟩``. What joins letters or emoji (U+200C, U+200D) stays. Escaping is
the templates' business; it comes after this.
"""

import json
import re
from typing import Any, NamedTuple

from markupsafe import Markup

MOST_CHARACTERS = 20_000
"""Of a longer text its head and tail are shown."""

_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


class Cut(NamedTuple):
    """A text of which the middle may be left out.

    Attributes:
        head: Its beginning, or all of it.
        left_out: How many characters follow that are not shown.
        tail: Its end, after those.
    """

    head: str
    left_out: int = 0
    tail: str = ""


class Number(str):
    """A number of a JSON text, digit by digit as it stands there."""

    __slots__ = ()


def seen(value: Any) -> Any:
    """A text with all that nobody sees named; anything else as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", value)


def cut(text: str, limit: int = MOST_CHARACTERS) -> Cut:
    """A text with at most `limit` characters: head and tail, and how many are left out between them."""
    if len(text) <= limit:
        return Cut(text)
    tail = limit // 5
    return Cut(text[: limit - tail], len(text) - limit, text[-tail:] if tail else "")


def parse(text: bytes) -> Any:
    """The value of a JSON text, with its numbers as they stand there: none is rounded, whatever its size.

    Raises:
        ValueError: it is none.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number)


def pretty(value: Any, indent: str = "") -> str:
    """A value that `parse` gave, as JSON for people."""
    if isinstance(value, Number):
        return str(value)
    inner = indent + "  "
    if isinstance(value, dict) and value:
        entries = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {pretty(v, inner)}" for key, v in value.items()]
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(inner + pretty(v, inner) for v in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)
