"""Server-sent events from bytes that arrive in pieces of any size.

`EventReader` knows nothing about models: bytes in, whole events out, whatever the line ends (LF, CRLF, CR) and wherever
the pieces were cut. Each event keeps the very bytes that it came in, so that a stream can be forwarded without some of
its events and otherwise unchanged: the bytes of all events and of `EventReader.rest` together are the bytes fed in.
"""

import re
from typing import NamedTuple

LARGEST_EVENT = 16 << 20
"""Bytes of one event; what goes on longer without an end is no event stream."""

_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event.

    Attributes:
        name: Its ``event`` field; empty where it has none.
        data: Its ``data`` lines joined by line feeds; ``None``: it has none (a comment that keeps the connection open).
        raw: The bytes it came in, up to and with the empty line at its end.
    """

    name: bytes
    data: bytes | None
    raw: bytes


class EventReader:
    """Takes a stream apart; `rest` is what was fed and belongs to no whole event yet."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._started = False
        self._carriage_returns = False

    @property
    def rest(self) -> bytes:
        """The bytes after the last whole event."""
        return bytes(self._buffer)

    def feed(self, piece: bytes) -> list[Event]:
        """The events that the piece completes.

        Raises:
            ValueError: more than `LARGEST_EVENT` bytes came without an event's end.
        """
        buffer = self._buffer
        buffer += piece
        self._carriage_returns = self._carriage_returns or b"\r" in piece
        events: list[Event] = []
        start = 0
        while True:
            end = self._end(max(start, self._searched))
            if end < 0:
                break
            events.append(self._event(bytes(buffer[start:end])))
            start = self._searched = end
        if start:
            del buffer[:start]
        self._searched = max(0, len(buffer) - 3)  # an end is at most four bytes long
        if len(buffer) > LARGEST_EVENT:
            raise ValueError(f"No event ends within {LARGEST_EVENT >> 20} MiB.")
        return events

    def close(self) -> list[Event]:
        """The event left at the end of a stream that did not close it with an empty line; servers do so."""
        raw = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return [self._event(raw)] if raw.strip() else []

    def _end(self, start: int) -> int:
        """Where the next event ends; -1: it has not arrived whole. A last CR may be the first half of a CRLF."""
        buffer = self._buffer
        if not self._carriage_returns:
            found = buffer.find(b"\n\n", start)
            return found + 2 if found >= 0 else -1
        match = _END.search(buffer, start)
        if match is None or (match.end() == len(buffer) and buffer.endswith(b"\r")):
            return -1
        return match.end()

    def _event(self, raw: bytes) -> Event:
        text = raw
        if not self._started:
            self._started = True
            text = text.removeprefix(_BYTE_ORDER_MARK)
        if text.startswith(b"data: ") and text.find(b"\n", 6) == len(text) - 2 and b"\r" not in text:
            return Event(b"", text[6:-2], raw)  # nearly all events of nearly all servers
        name, data = b"", []
        for line in _LINE_END.split(text):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
        return Event(name, b"\n".join(data) if data else None, raw)
