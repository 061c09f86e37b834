"""ShareGPT: conversations of ``{"from": ..., "value": ...}`` turns, one a line or all in one array.

Turns become chat messages: ``human`` the user's, ``gpt`` the assistant's, ``function_call`` a tool call of the
assistant, ``observation`` its result. A turn's text is kept character for character, a call's arguments digit
for digit.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from relive.storage.formats import conversation, jsontext
from relive.storage.formats.found import Identity, Ignored, Item, each
from relive.storage.formats.jsontext import BadRecordError, Json
from relive.storage.formats.source import Source

NAME = "sharegpt"
EXAMPLE = '{"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}'

_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bard": "assistant", "bing": "assistant", "system": "system", "function_call": "assistant",
    "observation": "tool", "tool": "tool", "function_response": "tool",
}  # fmt: skip


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


def matches(record: dict[str, Any]) -> bool:
    """Whether a record looks like one of this format."""
    return isinstance(record.get("conversations"), list)


def read(source: Source) -> Iterator[Item]:
    """The experiences of a file."""
    identity = Identity()

    def convert(line: int, record: Json) -> Iterator[Item]:
        value: dict[str, Any] = record.value
        messages = _messages(value)
        roles = conversation.roles_of(messages)
        record_id = identity(record.text)
        base = conversation.common(value, record_id, source)
        beside = {"tools": _tools(value["tools"], record.text)} if value.get("tools") else {}
        known = {"conversations", "system", "tools", "reward", "model", "id", *conversation.COMMON}
        for name in value.keys() - known:
            yield Ignored(f"field {name}")
        yield from conversation.found(
            line,
            record_id,
            [msgspec.json.encode(message) for message in messages],
            roles,
            base,
            beside=beside,
            final_reward=base.reward,
        )

    return each(source, convert)


def _messages(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The turns as chat messages."""
    turns = record.get("conversations")
    if not isinstance(turns, list):
        raise BadRecordError("it holds no list of conversations")
    messages: list[dict[str, Any]] = []
    system = record.get("system")
    if isinstance(system, str) and system:
        messages.append({"role": "system", "content": system})
    call_id: str | None = None
    for number, turn in enumerate(turns, 1):
        speaker = turn.get("from") if isinstance(turn, dict) else None
        text = turn.get("value") if isinstance(turn, dict) else None
        role = _ROLES.get(speaker) if isinstance(speaker, str) else None
        if role is None or not isinstance(text, str):
            raise BadRecordError(f'turn {number} is not {{"from": one of {", ".join(_ROLES)}; "value": text}}')
        if speaker == "function_call":
            call_id = f"call_{number}"
            messages.append(_call(text, call_id))
        elif role == "tool":
            messages.append({"role": role, "tool_call_id": call_id, "content": text})
        else:
            messages.append({"role": role, "content": text})
    return messages


def _call(text: str, call_id: str) -> dict[str, Any]:
    """The assistant's message for the text of a call; where that is no JSON, its plain text."""
    try:
        call = msgspec.json.decode(text.encode(), type=_Call)
    except msgspec.DecodeError:
        return {"role": "assistant", "content": text}
    function = {"name": call.name, "arguments": bytes(call.arguments).decode()}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def _tools(tools: Any, record: bytes) -> bytes:
    """JSON text of the tools, which some files hold as text and others as JSON."""
    if isinstance(tools, str):
        with suppress(BadRecordError):
            return jsontext.read(tools.encode()).text
    return conversation.raw_fields(record)["tools"]
