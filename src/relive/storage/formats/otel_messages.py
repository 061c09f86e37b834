"""Messages of the OpenTelemetry GenAI conventions as chat messages.

An attribute holds messages as JSON text (most exporters) or in structured form (OTLP's typed values); both are taken.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from relive.storage.formats import jsontext
from relive.storage.formats.jsontext import BadRecordError

_ROLES = {"human": "user", "ai": "assistant", "model": "assistant"}
_ABSENT = msgspec.Raw()  # JSON text is never empty


class ChatMessage(NamedTuple):
    """One chat message.

    Attributes:
        role: Who says it.
        text: The whole message as JSON text.
    """

    role: str
    text: bytes


class _Part(msgspec.Struct):
    type: str = ""
    content: msgspec.Raw = msgspec.Raw(b"null")
    id: str | None = None
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    response: msgspec.Raw = _ABSENT
    result: msgspec.Raw = _ABSENT  # what early instrumentations call the response


class _Message(msgspec.Struct):
    role: str
    parts: list[msgspec.Raw] = []


class _Tool(msgspec.Struct):
    type: str = ""
    name: str | None = None
    description: msgspec.Raw = _ABSENT
    parameters: msgspec.Raw = _ABSENT


class KeyValue(msgspec.Struct):
    """One attribute of OTLP."""

    key: str
    value: "AnyValue | None" = None


class AnyValue(msgspec.Struct, rename="camel"):
    """A typed value of OTLP in its JSON form; at most one field is set."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None  # 64-bit numbers travel as text
    double_value: float | str | None = None  # so do NaN and the infinities
    array_value: "ArrayValue | None" = None
    kvlist_value: "KeyValueList | None" = None
    bytes_value: str | None = None


class ArrayValue(msgspec.Struct):
    """A list of OTLP."""

    values: list[AnyValue] = []


class KeyValueList(msgspec.Struct):
    """A map of OTLP."""

    values: list[KeyValue] = []


def attributes(entries: list[KeyValue]) -> dict[str, Any]:
    """Attributes as Python values.

    Raises:
        ValueError: a number is none.
    """
    return {entry.key: _plain(entry.value) for entry in entries}


def _plain(value: AnyValue | None) -> Any:
    if value is None:
        return None
    if value.int_value is not None:
        return int(value.int_value)
    if value.double_value is not None:
        return float(value.double_value)
    if value.array_value is not None:
        return [_plain(item) for item in value.array_value.values]
    if value.kvlist_value is not None:
        return attributes(value.kvlist_value.values)
    return value.string_value if value.bool_value is None else value.bool_value


def chat(value: Any, name: str) -> list[ChatMessage]:
    """The chat messages of an attribute.

    Args:
        value: Its Python value; ``None``: it is not there.
        name: The attribute's name, for what is wrong with it.

    Raises:
        BadRecordError: it holds no messages of the conventions.
    """
    if value is None:
        return []
    try:
        messages = msgspec.json.decode(_json(value), type=list[_Message])
        return [made for message in messages for made in _chat(message)]
    except (msgspec.DecodeError, BadRecordError) as error:
        raise BadRecordError(f"its {name} is no list of messages: {error}") from error


def system(value: Any) -> list[bytes]:
    """The system message of ``gen_ai.system_instructions``, as JSON text; none where there are none."""
    if value is None:
        return []
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return [msgspec.json.encode({"role": "system", "content": value})]
    try:
        parts = msgspec.json.decode(_json(value), type=list[msgspec.Raw])
        return [message.text for message in _chat(_Message("system", parts))]
    except (msgspec.DecodeError, BadRecordError) as error:
        raise BadRecordError(f"its gen_ai.system_instructions is no list of parts: {error}") from error


def tools(value: Any) -> bytes | None:
    """JSON text of ``gen_ai.tool.definitions`` as a chat request has them; ``None``: there are none."""
    if value is None:
        return None
    try:
        definitions = msgspec.json.decode(_json(value), type=list[msgspec.Raw])
        return msgspec.json.encode([_tool(definition) for definition in definitions])
    except (msgspec.DecodeError, BadRecordError) as error:
        raise BadRecordError(f"its gen_ai.tool.definitions is no list of tools: {error}") from error


def _json(value: Any) -> bytes:
    """An attribute's value as JSON text: the text it holds, or its structured form written down."""
    if isinstance(value, str):
        return jsontext.read(value.encode()).text
    return msgspec.json.encode(value)


def _chat(message: _Message) -> Iterator[ChatMessage]:
    """A message's parts; each result of a tool is a message of its own."""
    role = _ROLES.get(message.role.lower(), message.role)
    content: list[Any] = []
    calls: list[dict[str, Any]] = []
    reasoning: list[Any] = []
    results = 0
    for number, raw in enumerate(message.parts, 1):
        part = msgspec.json.decode(raw, type=_Part)
        if part.type == "tool_call":
            function = {"name": part.name, "arguments": _as_text(part.arguments)}
            calls.append({"id": part.id or f"call_{number}", "type": "function", "function": function})
        elif part.type == "tool_call_response":
            results += 1
            said = {
                "role": "tool",
                "tool_call_id": part.id,
                "content": _as_text(part.response) or _as_text(part.result),
            }
            yield ChatMessage("tool", msgspec.json.encode(said))
        elif part.type == "reasoning":
            reasoning.append(part.content)
        elif part.type == "text":
            content.append({"type": "text", "text": part.content})
        else:
            content.append(raw)
    if results and not content and not calls:
        return
    only_text = len(content) == 1 and isinstance(content[0], dict)
    result: dict[str, Any] = {"role": role, "content": content[0]["text"] if only_text else (content or None)}
    if reasoning:
        result["reasoning_content"] = reasoning[0] if len(reasoning) == 1 else reasoning
    if calls:
        result["tool_calls"] = calls
    yield ChatMessage(role, msgspec.json.encode(result))


def _tool(definition: msgspec.Raw) -> Any:
    tool = msgspec.json.decode(definition, type=_Tool)
    if tool.type != "function" or tool.name is None:
        return definition
    function: dict[str, Any] = {"name": tool.name}
    if bytes(tool.description):
        function["description"] = tool.description
    if bytes(tool.parameters):
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _as_text(raw: msgspec.Raw) -> str:
    """What a chat message holds as text: text as it is, any other JSON value as its JSON text."""
    text = bytes(raw)
    return str(msgspec.json.decode(text)) if text.startswith(b'"') else text.decode()
