"""Whatever is not understood: passed through, and recorded as it came, as far as it is text of reasonable size."""

import hashlib
from typing import Any

import msgspec

from relive.gateway.dialects.reader import AnswerReader, parse
from relive.gateway.sse import Event

LARGEST = 1 << 20
"""Bytes of a body that is kept; of a longer one its size and hash."""


class RawReader(AnswerReader):
    """Keeps an answer as `raw_value` gives it, a stream as the list of its events' data."""

    def __init__(self) -> None:
        super().__init__()
        self._value: Any = None
        self._events: list[Any] = []
        self._kept = 0

    def action(self) -> Any:
        """The body or the events; ``None``: nothing came."""
        return self._events or self._value

    def read_body(self, body: bytes) -> None:
        """Takes a whole answer."""
        if body:
            self._value = raw_value(body)
        self.ended = True

    def read_event(self, event: Event) -> None:
        """Takes one event; after `LARGEST` bytes the rest is left out."""
        self.ended = True  # no such API has an end that could be waited for
        if event.data is not None and self._kept < LARGEST:
            self._kept += len(event.data)
            self._events.append(raw_value(event.data))


def raw_value(body: bytes) -> Any:
    """A body as a JSON value: JSON byte for byte, other text as a string, the rest as its size and SHA-256."""
    if len(body) <= LARGEST:
        if parse(body) is not None:
            try:
                return msgspec.Raw(msgspec.json.format(body, indent=-1))
            except msgspec.DecodeError:
                return parse(body)
        try:
            return body.decode()
        except UnicodeDecodeError:
            pass
    return {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
