"""A client's request: what it asks for, what of it the agent saw, and how it is sent on.

Every field is kept as its own JSON text. A field that nobody changes reaches the upstream and the record byte for byte,
so numbers of any size and precision stay exact.
"""

import json
from typing import Any

import msgspec

from relive.gateway.dialects import DIALECTS, RAW, Dialect
from relive.gateway.dialects.raw import raw_value
from relive.gateway.dialects.reader import parse

_NOT_PARAMETERS = frozenset({"model", "stream", "stream_options", "metadata", "user"})


class CallRequest:
    """One request.

    Attributes:
        path: Its path, without a query.
        dialect: The API that it speaks.
        body: Its bytes.
        fields: Its top-level fields; empty where the body is no JSON object.
        understood: The path is one that is understood, and the body is a JSON object.
        model: The model it names; ``None``: none.
        stream: Whether it wants the answer in pieces.
    """

    def __init__(self, path: str, body: bytes) -> None:
        self.path = path
        self.body = body
        self.dialect: Dialect = DIALECTS.get(path, RAW)
        fields = _fields(body)
        self.fields: dict[str, msgspec.Raw] = fields or {}
        self.understood = self.dialect is not RAW and fields is not None
        model = self.value("model")
        self.model: str | None = model if isinstance(model, str) and model else None
        self.stream = self.value("stream") is True
        self._parts = self.dialect.state(self.fields) if self.understood else {}

    def value(self, name: str) -> Any:
        """A field's value; ``None``: it has none."""
        raw = self.fields.get(name)
        return None if raw is None else parse(bytes(raw))

    def state(self) -> Any:
        """What the agent saw: messages and tools, or the whole body where it is not understood."""
        if not self.understood:
            return {"path": self.path, "request": raw_value(self.body)}
        state = msgspec.json.encode(self._parts)
        # a pretty-printed request would break files of one record a line
        return msgspec.Raw(msgspec.json.format(state, indent=-1) if b"\n" in state else state)

    def messages(self) -> list[Any] | None:
        """The conversation so far as chat messages; ``None``: it is none."""
        raw = self._parts.get("messages")
        messages = None if raw is None else parse(bytes(raw))
        return messages if isinstance(messages, list) else None

    def last_messages(self, count: int) -> bytes:
        """JSON text of an object with the last messages of the conversation, byte for byte."""
        raw = self._parts.get("messages", msgspec.Raw(b"[]"))
        last = [bytes(message) for message in msgspec.json.decode(raw, type=list[msgspec.Raw])[-count:]]
        return b'{"messages":[%s]}' % b",".join(last)

    def parameters(self) -> dict[str, msgspec.Raw]:
        """How the answer was to be made (temperature, response format …): fields that are neither state nor routing."""
        left_out = self.dialect.shown | _NOT_PARAMETERS
        return {name: raw for name, raw in self.fields.items() if name not in left_out} if self.understood else {}

    def number(self, name: str) -> float | None:
        """A field that is a number; ``None``: it is not given."""
        value = self.value(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def answer_limit(self) -> int | None:
        """The most tokens that the answer may have; ``None``: the client sets no limit."""
        given = (self.value(name) for name in self.dialect.limits)
        return next((value for value in given if type(value) is int and value > 0), None)

    def answers(self) -> int:
        """How many answers it asks for, each of which may be as long as `answer_limit` says."""
        if not self.understood:
            return 1
        given = [value for name in ("n", "best_of") if type(value := self.value(name)) is int]
        prompts = self.value("prompt")  # of text completions there may be many, each a text or a list of token ids
        many = isinstance(prompts, list) and not all(type(item) is int for item in prompts)
        return max([1, *given]) * (len(prompts) if many and prompts else 1)

    def asks_for_usage(self) -> bool:
        """Whether the client itself wants the chunk with the usage at a stream's end."""
        options = self.value("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    def needs_usage_asked(self) -> bool:
        """Whether its stream tells no usage unless the gateway asks for it."""
        return self.stream and self.dialect.usage_on_request and not self.asks_for_usage()

    def sent(self, *, model: str | None = None, ask_for_usage: bool = False) -> bytes:
        """The body for the upstream: the client's bytes, unless a field is changed.

        Args:
            model: The model's name at the upstream; ``None``: as the client has it.
            ask_for_usage: Ask for the chunk with the usage.
        """
        changes: dict[str, Any] = {}
        if model is not None and model != self.model and (self.understood or self.model is not None):
            changes["model"] = model
        if ask_for_usage and self.fields:
            options = self.value("stream_options")
            changes["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return msgspec.json.encode({**self.fields, **changes}) if changes else self.body


def _fields(body: bytes) -> dict[str, msgspec.Raw] | None:
    """Each top-level field's JSON text; ``None`` for what is no JSON object in UTF-8."""
    try:
        body.decode()  # a reader that skips values does not look at their encoding
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return None
    except UnicodeDecodeError:
        return None
    except (msgspec.DecodeError, RecursionError):
        value = parse(body)  # half of a surrogate pair, which clients do send
        if not isinstance(value, dict):
            return None
        return {name: msgspec.Raw(json.dumps(item).encode()) for name, item in value.items()}
    return {name: raw.copy() for name, raw in found.items()}
