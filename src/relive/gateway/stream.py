"""A streamed answer's bytes: what of them goes on now, and its events, read when somebody looks.

Forwarding comes first and costs next to nothing; reading is put off until the reader is asked for, or until so much has
piled up that reading it at once would hold up others.
"""

from relive.gateway.dialects.reader import AnswerReader, is_only_usage
from relive.gateway.sse import EventReader

MOST_UNREAD = 32 << 10
"""Bytes that may wait to be read."""


class StreamedAnswer:
    """One streamed answer.

    Args:
        reader: Gets the events.
        drop_usage: Leave out of what goes on the event that is nothing but usage.

    Attributes:
        broken: It is no event stream; nothing more is read.
    """

    def __init__(self, reader: AnswerReader, *, drop_usage: bool) -> None:
        self.broken = False
        self._reader = reader
        self._drop_usage = drop_usage
        self._events = EventReader()
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._cutter = EventReader()
        self._cutting = False  # whether the cutter holds the beginning of an event

    def feed(self, text: bytes) -> bytes:
        """Takes the next bytes; gives those that go on."""
        self._unread.append(text)
        self._unread_bytes += len(text)
        if self._unread_bytes > MOST_UNREAD:
            self.read()
        if not self._drop_usage:
            return text
        if not self._cutting and text.endswith(b"\n\n") and b'"usage"' not in text:
            return text  # whole events, none of them usage
        try:
            events = self._cutter.feed(text)
        except ValueError:
            self._drop_usage = False
            return self._cutter.rest
        self._cutting = bool(self._cutter.rest)
        return b"".join(event.raw for event in events if not is_only_usage(event))

    def read(self) -> None:
        """Brings the reader up to date with all that came."""
        if not self._unread:
            return
        text = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread, self._unread_bytes = [], 0
        if self.broken:
            return
        try:
            events = self._events.feed(text)
        except ValueError:
            self.broken = True
            return
        for event in events:
            self._reader.read_event(event)

    def end(self) -> bytes:
        """The upstream has said all; gives what was held back."""
        self.read()
        for event in [] if self.broken else self._events.close():
            self._reader.read_event(event)
        return self.held()

    def held(self) -> bytes:
        """What was held back and goes on at the end, or when nothing more is read."""
        rest = self._cutter.rest
        last = self._cutter.close()
        self._drop_usage = self._cutting = False
        return b"" if any(map(is_only_usage, last)) else rest
