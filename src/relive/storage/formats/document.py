"""Cutting a JSON document into records while it streams in, without parsing it.

A document is an array whose elements are the records, or objects one after another, each spread over lines as it
pleases. Brackets are counted outside strings; what a record holds is somebody else's business.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

LARGEST_RECORD = 256 << 20
"""Bytes; a record beyond it is refused, and the rest of the file is read."""

_TOKEN = re.compile(rb'["\[\]{}]')
_STRING_REST = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_OPEN = (b"{", b"[")
TOO_LARGE = f"it is larger than {LARGEST_RECORD >> 20} MB"


class Chunk(NamedTuple):
    """The bytes of one record.

    Attributes:
        line: The line of the file that it begins on, from 1.
        data: Its bytes; ``None`` where they could not be had.
        problem: Why not; empty otherwise.
    """

    line: int
    data: bytes | None
    problem: str = ""


class Scanner:
    """Takes a document piece by piece and gives back each record as soon as it is whole."""

    def __init__(self) -> None:
        self._depth = 0  # of open brackets
        self._between = 0  # the depth at which records stand: 1 inside an array, 0 outside
        self._in_string = False
        self._line = 1  # at the start of what was not yet looked at
        self._begun = 0  # the line that the present record began on; 0: between records
        self._parts: list[bytes] = []
        self._size = 0
        self._rest = b""  # an escape cut in two by the end of a piece

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        """The records that end within `piece`, and what else stands between records."""
        text = self._rest + piece
        self._rest = b""
        at = kept = 0  # how far `text` was looked at, and how far it was put away
        while True:
            if self._in_string:
                at = _STRING_REST.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string
                if at == len(text) or text[at] != 0x22:
                    self._rest = text[at:]
                    break
                self._in_string = False
                at += 1
            match = _TOKEN.search(text, at)
            if match is None:
                at = len(text)
                break
            at = match.end()
            if match[0] == b'"':
                self._in_string = True
            elif match[0] in _OPEN:
                if self._begun == 0 and self._depth == 0 and match[0] == b"[":
                    self._between = 1
                    yield from self._skip(text[kept : match.start()])
                    kept = at
                elif self._depth == self._between and self._begun == 0:
                    yield from self._skip(text[kept : match.start()])
                    kept, self._begun = match.start(), self._line
                self._depth += 1
            else:
                self._depth = max(self._depth - 1, 0)
                if self._begun and self._depth == self._between:
                    yield self._take(text[kept:at])
                    kept = at
                elif self._depth == 0:
                    yield from self._skip(text[kept : match.start()])
                    kept, self._between = at, 0
        end = len(text) - len(self._rest)
        if self._begun or self._in_string:
            self._keep(text[kept:end])
        else:
            yield from self._skip(text[kept:end])

    def finish(self) -> Iterator[Chunk]:
        """The record that the end of the file cut off, or what else is wrong there."""
        if self._begun:
            yield self._take(self._rest)
        elif self._depth:
            yield Chunk(self._line, None, "the file is cut off: its array is not closed")

    def _skip(self, text: bytes) -> Iterator[Chunk]:
        """What stands between two records should be a comma; anything else is a record that no format knows."""
        line = self._line
        self._line += text.count(b"\n")
        parts, self._parts, self._size = [*self._parts, text], [], 0
        if rest := b"".join(parts).strip(b", \t\r\n"):
            yield Chunk(line, rest)

    def _keep(self, text: bytes) -> None:
        self._line += text.count(b"\n")
        self._size += len(text)
        if self._size <= LARGEST_RECORD:
            self._parts.append(text)

    def _take(self, text: bytes) -> Chunk:
        self._keep(text)
        whole = self._size <= LARGEST_RECORD
        chunk = Chunk(self._begun, b"".join(self._parts)) if whole else Chunk(self._begun, None, TOO_LARGE)
        self._begun, self._parts, self._size = 0, [], 0
        return chunk
