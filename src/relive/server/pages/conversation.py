"""An experience as a conversation: who said what, which tools were called, and what they gave back.

Messages of OpenAI's and Anthropic's APIs are understood; whatever is of another shape is shown as the JSON that it is.
Nothing is left out unless there is too much of it, and then the page says how much.
"""

from collections.abc import Iterator
from typing import Any, TypeGuard

import msgspec

from relive.server.pages.text import Cut, Number, cut, parse, pretty
from relive.storage import Stored

MOST_PIECES = 400
"""Pieces of one experience that are shown, from the beginning and the end."""

MOST_SHOWN = 600_000
"""Characters of one experience that are shown."""

_FROM_THE_START = 40
_TEXTS = ("reasoning_content", "reasoning", "thinking", "refusal")
_SHOWN = frozenset({"role", "content", "tool_calls", "name", "tool_call_id", *_TEXTS})
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One block of the page.

    Attributes:
        who: The role that it is drawn as: one of the known ones, or ``data``.
        title: What stands over it.
        text: What it says.
        code: Whether it is set as code.
        folded: Whether it is closed at first.
    """

    who: str
    title: str
    text: Cut
    code: bool = False
    folded: bool = False


class Conversation(msgspec.Struct, frozen=True):
    """What is shown of an experience.

    Attributes:
        first: From its beginning.
        left_out: How many pieces come then that are not shown.
        last: The others, to the end.
    """

    first: list[Piece]
    left_out: int
    last: list[Piece]


def conversation(stored: Stored) -> Conversation:
    """The conversation of an experience.

    Raises:
        DamagedStoreError: its payload cannot be read.
    """
    text = stored.json()
    try:
        payload = parse(text)
        pieces = list(_pieces(payload))
    except (ValueError, RecursionError):  # nested deeper than can be walked through
        pieces = [_Long("data", "record", text.decode(errors="replace"), code=True)]
    kept_last = MOST_PIECES - _FROM_THE_START
    left_out = max(len(pieces) - MOST_PIECES, 0)
    first, last = (pieces, []) if not left_out else (pieces[:_FROM_THE_START], pieces[-kept_last:])
    limit = max(min(MOST_SHOWN // max(len(first) + len(last), 1), 20_000), 1_000)
    return Conversation([one.cut(limit) for one in first], left_out, [one.cut(limit) for one in last])


class _Long(msgspec.Struct, frozen=True):
    """A piece with the whole of its text."""

    who: str
    title: str
    text: str
    code: bool = False
    folded: bool = False

    def cut(self, limit: int) -> Piece:
        return Piece(who=self.who, title=self.title, text=cut(self.text, limit), code=self.code, folded=self.folded)


def _pieces(payload: dict[str, Any]) -> Iterator[_Long]:
    state = payload.get("state")
    before: dict[str, Any] = {}
    messages = state
    if isinstance(state, dict) and isinstance(state.get("messages"), list):
        messages = state["messages"]
        before = {name: value for name, value in state.items() if name != "messages"}
    for name, value in before.items():
        if name == "system":
            yield from _message({"role": "system", "content": value}, "system")
        else:
            yield _value("data", name, value, folded=True)
    if _is_messages(messages):
        for message in messages:
            yield from _message(message, str(message["role"]))
    else:
        yield _value("data", "state", state)
    action = payload.get("action")
    if isinstance(action, dict) and ("role" in action or isinstance(action.get("content"), str)):
        yield from _message(action, "answer")
    elif action is not None:
        yield _value("assistant", "action", action)
    if payload.get("next_state") is not None:
        yield _value("data", "what it saw next", payload["next_state"], folded=True)
    if payload.get("info"):
        yield _value("data", "about the call", payload["info"], folded=True)


def _is_messages(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) and "role" in m for m in value)


def _message(message: dict[str, Any], title: str) -> Iterator[_Long]:
    """All that a message holds."""
    role = message.get("role", "assistant")
    who = role if role in _ROLES else "data"
    name = message.get("name") or message.get("tool_call_id")
    title = f"{title} · {name}" if isinstance(name, str) else title
    for key in _TEXTS:
        if message.get(key):
            yield _value(who, f"{title} · {key.replace('_', ' ')}", message[key])
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        yield from _part(who, title, part)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield _call(who, function.get("name"), function.get("arguments"))
        else:
            yield _value("data", "tool call", call)
    rest = {key: value for key, value in message.items() if key not in _SHOWN and value}
    if rest:
        yield _value("data", f"{title} · more", rest, folded=True)


def _part(who: str, title: str, part: Any) -> Iterator[_Long]:
    """One part of a message's content."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        yield _Long(who, title, part["text"])
    elif kind == "thinking" and isinstance(part.get("thinking"), str):
        yield _Long(who, f"{title} · thinking", part["thinking"])
    elif kind == "tool_use":
        yield _call(who, part.get("name"), part.get("input"))
    elif kind == "tool_result":
        inner = part.get("content")
        for one in inner if isinstance(inner, list) else [inner]:
            yield from _part("tool", f"result · {part.get('tool_use_id', '')}", one)
    elif part is not None:
        yield _value(who, title, part)


def _call(who: str, name: Any, arguments: Any) -> _Long:
    """A tool call; arguments that are text stay as the model wrote them."""
    return _Long(who, f"calls {name}", arguments if _is_text(arguments) else pretty(arguments), code=True)


def _value(who: str, title: str, value: Any, *, folded: bool = False) -> _Long:
    if _is_text(value):
        return _Long(who, title, value, folded=folded)
    return _Long(who, title, pretty(value), code=True, folded=folded)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, Number)
