"""Reading the pages of a SQLite file one by one, for a file that SQLite itself can no longer read.

Only what recovery needs: the rows of ordinary tables (those with a rowid), with everything that could be wrong checked
before it is used. Nothing here trusts a number that it finds; a page that makes no sense gives no rows.

The format is described in "Database File Format" (sqlite.org/fileformat2.html), sections 1.3, 1.5, 1.6 and 2.1.
"""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

MAGIC = b"SQLite format 3\x00"
_INTERIOR_TABLE, _LEAF_TABLE = 0x05, 0x0D
_INTERIOR_INDEX, _LEAF_INDEX = 0x02, 0x0A
_INTEGER_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_MOST_COLUMNS = 2000


class PageRow(NamedTuple):
    """One row as its page holds it.

    Attributes:
        rowid: Its rowid; a column that is the rowid holds ``None``.
        values: Its columns.
    """

    rowid: int
    values: tuple[Any, ...]


class _DamagedError(Exception):
    """Bytes that cannot be what they should be."""


class Pages:
    """The pages of a database file, from 1; those after the end of a file that was cut short are missing.

    Args:
        path: The file.
        page_size: Bytes of a page, where the file's own header cannot be read.
    """

    def __init__(self, path: Path, page_size: int) -> None:
        self._file = path.open("rb")
        try:
            self._bytes = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except BaseException:
            self._file.close()
            raise
        header = self._bytes[:100]
        self.readable_header = header[:16] == MAGIC and len(header) == 100
        self.page_size = page_size
        reserved = 0
        if self.readable_header:
            stated = int.from_bytes(header[16:18], "big")
            stated = 65536 if stated == 1 else stated
            if stated >= 512 and stated & (stated - 1) == 0:
                self.page_size, reserved = stated, header[20]
        self._usable = self.page_size - reserved
        self.count = len(self._bytes) // self.page_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bytes.close()
        self._file.close()

    def tree(self, root: int) -> tuple[list[int], bool]:
        """The leaves that can be reached from the root of a table or index, in order, and whether these are all."""
        leaves: list[int] = []
        whole = True
        seen: set[int] = set()
        stack = [root]
        while stack:
            number = stack.pop()
            kind = self._kind(number)
            if number in seen or kind not in (_INTERIOR_TABLE, _LEAF_TABLE, _INTERIOR_INDEX, _LEAF_INDEX):
                whole = False
                continue
            seen.add(number)
            if kind in (_LEAF_TABLE, _LEAF_INDEX):
                leaves.append(number)
                continue
            try:
                stack.extend(reversed(self._children(number)))
            except _DamagedError:
                whole = False
        return leaves, whole

    def free(self) -> set[int]:
        """Pages on the list of free ones, as far as that can be followed: what they hold was deleted."""
        free: set[int] = set()
        trunk = int.from_bytes(self._bytes[32:36], "big")
        while 0 < trunk <= self.count and trunk not in free:
            free.add(trunk)
            page = self._page(trunk)
            following, entries = struct.unpack_from(">II", page)
            if entries > self._usable // 4 - 2:
                break
            free.update(struct.unpack_from(f">{entries}I", page, 8))
            trunk = following
        return free

    def table_leaves(self) -> Iterator[int]:
        """All pages that look like a leaf of a table."""
        return (number for number in range(1, self.count + 1) if self._kind(number) == _LEAF_TABLE)

    def rows(self, leaf: int) -> Iterator[PageRow]:
        """The rows of a table's leaf that can be read."""
        try:
            pointers = self._pointers(leaf, 8)
        except _DamagedError:
            return
        page = self._page(leaf)
        for pointer in pointers:
            try:
                row = self._row(page, pointer)
            except (_DamagedError, IndexError, UnicodeDecodeError, struct.error):
                continue
            yield row

    def _page(self, number: int) -> bytes:
        return self._bytes[(number - 1) * self.page_size : number * self.page_size]

    def _start(self, number: int) -> int:
        """Where the page's own header begins: after the file's header on page 1."""
        return 100 if number == 1 else 0

    def _kind(self, number: int) -> int:
        if not 1 <= number <= self.count:
            return -1
        return self._bytes[(number - 1) * self.page_size + self._start(number)]

    def _pointers(self, number: int, header: int) -> tuple[int, ...]:
        """Where the cells of a page begin."""
        page, start = self._page(number), self._start(number)
        (cells,) = struct.unpack_from(">H", page, start + 3)
        first = start + header
        if first + 2 * cells > self._usable:
            raise _DamagedError
        pointers = struct.unpack_from(f">{cells}H", page, first)
        if any(not first + 2 * cells <= pointer < self._usable for pointer in pointers):
            raise _DamagedError
        return pointers

    def _children(self, number: int) -> list[int]:
        page = self._page(number)
        children = [struct.unpack_from(">I", page, pointer)[0] for pointer in self._pointers(number, 12)]
        return [*children, *struct.unpack_from(">I", page, self._start(number) + 8)]

    def _row(self, page: bytes, pointer: int) -> PageRow:
        size, at = _varint(page, pointer)
        rowid, at = _varint(page, at)
        if rowid >= 1 << 63:
            rowid -= 1 << 64
        if size > len(self._bytes):
            raise _DamagedError
        return PageRow(rowid, _record(self._payload(page, at, size)))

    def _payload(self, page: bytes, at: int, size: int) -> bytes:
        """A cell's payload; what does not fit on the page goes on in a chain of others."""
        usable = self._usable
        most = usable - 35
        local = size
        if size > most:
            least = (usable - 12) * 32 // 255 - 23
            local = least + (size - least) % (usable - 4)
            if local > most:
                local = least
        payload = page[at : at + local]
        if len(payload) < local:
            raise _DamagedError
        if local == size:
            return payload
        parts = [payload]
        missing = size - local
        (following,) = struct.unpack_from(">I", page, at + local)
        while missing > 0:
            if not 1 < following <= self.count:
                raise _DamagedError
            overflow = self._page(following)
            part = overflow[4 : min(usable, 4 + missing)]
            parts.append(part)
            missing -= len(part)
            (following,) = struct.unpack_from(">I", overflow)
        return b"".join(parts)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    return value << 8 | data[at], at + 1


def _record(payload: bytes) -> tuple[Any, ...]:
    """The columns of a record (section 2.1)."""
    end, at = _varint(payload, 0)
    if end > len(payload):
        raise _DamagedError
    values: list[Any] = []
    body = end
    while at < end:
        kind, at = _varint(payload, at)
        if kind == 0:
            values.append(None)
        elif kind in _INTEGER_SIZES:
            size = _INTEGER_SIZES[kind]
            values.append(int.from_bytes(payload[body : body + size], "big", signed=True))
            body += size
        elif kind == 7:
            values.append(struct.unpack_from(">d", payload, body)[0])
            body += 8
        elif kind in (8, 9):
            values.append(kind - 8)
        elif kind >= 12:
            size = (kind - 12) // 2
            content = payload[body : body + size]
            values.append(content.decode() if kind % 2 else content)
            body += size
        else:
            raise _DamagedError
        if body > len(payload) or len(values) > _MOST_COLUMNS:
            raise _DamagedError
    if body != len(payload) or at != end:
        raise _DamagedError
    return tuple(values)
