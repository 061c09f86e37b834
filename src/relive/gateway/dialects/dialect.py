"""Which API is spoken at which path, and what of a request the agent saw."""

import posixpath
from collections.abc import Callable, Mapping

import msgspec

from relive.gateway.dialects.chat import ChatReader
from relive.gateway.dialects.completions import CompletionReader, EmbeddingReader
from relive.gateway.dialects.messages import MessageReader
from relive.gateway.dialects.raw import RawReader
from relive.gateway.dialects.reader import AnswerReader, parse
from relive.gateway.dialects.responses import ResponseReader, as_messages
from relive.storage.codec import encode_json

Fields = Mapping[str, msgspec.Raw]
"""A request's top-level fields, each as its own JSON text."""


class Dialect(msgspec.Struct, frozen=True):
    """One API.

    Attributes:
        name: Its short name.
        reader: Reads its answers.
        state: The parts of the state from a request's fields: what the agent saw, as JSON text by name.
        shown: Fields that `state` takes; the others are parameters of the call.
        usage_on_request: Streams hold usage only if ``stream_options.include_usage`` asks for it.
        limits: Names of the fields that limit the answer's length in tokens; the first that is given counts.
        writes: Whether its answers are made of tokens.
    """

    name: str
    reader: Callable[[], AnswerReader]
    state: Callable[[Fields], dict[str, msgspec.Raw]]
    shown: frozenset[str]
    usage_on_request: bool = False
    limits: tuple[str, ...] = ()
    writes: bool = True


def _chat_state(fields: Fields) -> dict[str, msgspec.Raw]:
    return {name: fields[name] for name in ("messages", "tools", "functions") if name in fields}


def _messages_state(fields: Fields) -> dict[str, msgspec.Raw]:
    """Anthropic's system prompt stands apart; here it is the first message, as everywhere else."""
    state = {name: fields[name] for name in ("messages", "tools") if name in fields}
    if "system" in fields and "messages" in fields:
        state["messages"] = _with_system(fields["system"], bytes(fields["messages"]))
    return state


def _responses_state(fields: Fields) -> dict[str, msgspec.Raw]:
    """The input as chat messages where it can be said so, else as it is."""
    state: dict[str, msgspec.Raw] = {}
    given = parse(bytes(fields["input"])) if "input" in fields else None
    messages = None
    if isinstance(given, str):
        messages = [{"role": "user", "content": given}]
    elif isinstance(given, list) and all(isinstance(item, dict) for item in given):
        messages = as_messages(given)
    if messages is None:
        state.update({name: fields[name] for name in ("instructions", "input") if name in fields})
    elif "instructions" in fields and bytes(fields["instructions"]) != b"null":
        state["messages"] = _with_system(fields["instructions"], encode_json(messages))
    else:
        state["messages"] = msgspec.Raw(encode_json(messages))
    if "tools" in fields:
        state["tools"] = fields["tools"]
    return state


def _with_system(system: msgspec.Raw, messages: bytes) -> msgspec.Raw:
    rest = messages.strip().removeprefix(b"[").lstrip()
    comma = b"" if rest == b"]" else b","
    return msgspec.Raw(b'[{"role":"system","content":%s}%s%s' % (bytes(system), comma, rest))


def _fields(*names: str) -> Callable[[Fields], dict[str, msgspec.Raw]]:
    return lambda fields: {name: fields[name] for name in names if name in fields}


RAW = Dialect("raw", RawReader, _fields(), frozenset())
"""What is not understood."""

DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": Dialect(
        "chat",
        ChatReader,
        _chat_state,
        frozenset({"messages", "tools", "functions"}),
        usage_on_request=True,
        limits=("max_completion_tokens", "max_tokens"),
    ),
    "/v1/completions": Dialect(
        "completions",
        CompletionReader,
        _fields("prompt", "suffix"),
        frozenset({"prompt", "suffix"}),
        usage_on_request=True,
        limits=("max_tokens",),
    ),
    "/v1/embeddings": Dialect("embeddings", EmbeddingReader, _fields("input"), frozenset({"input"}), writes=False),
    "/v1/responses": Dialect(
        "responses",
        ResponseReader,
        _responses_state,
        frozenset({"input", "instructions", "tools"}),
        limits=("max_output_tokens",),
    ),
    "/v1/messages": Dialect(
        "messages",
        MessageReader,
        _messages_state,
        frozenset({"messages", "system", "tools"}),
        limits=("max_tokens",),
    ),
}
"""By the path at the gateway."""


def meant_path(path: str) -> str:
    """The path of an understood API that another spelling of it means to many servers; every other path as it is.

    A call that an upstream answers like any other must be read, priced and recorded like any other.
    """
    plain = posixpath.normpath(path).lower()
    return plain if plain in DIALECTS else path
