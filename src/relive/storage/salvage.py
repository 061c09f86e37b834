"""The rows of a damaged store, table by table: by SQL where SQLite can read them, page by page where it cannot."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from relive.storage.connection import fetch
from relive.storage.pages import PageRow, Pages

Row = tuple[Any, ...]

_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "INTEGER": int,
    "REAL": (float, int),  # SQLite keeps a whole number as an integer
    "TEXT": str,
    "BLOB": bytes,
}
_UNREADABLE = (apsw.Error, UnicodeDecodeError)  # damaged text is no UTF-8
_FIRST_TIME = 10**12  # microseconds since 1970: tells a dictionary's time from a payload's codec


class Shape(NamedTuple):
    """What the rows of a table look like.

    Attributes:
        name: The table.
        columns: Names of its columns, in order.
        types: Their declared types.
        required: Which of them are never null.
        key: Position of the column that is the rowid; ``None``: there is none.
    """

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    required: tuple[bool, ...]
    key: int | None

    def fits(self, values: Row) -> bool:
        """Whether these could be the columns of a row of this table; a column that is the rowid may be left out."""
        if len(values) != len(self.columns):
            return False
        for at, value in enumerate(values):
            if value is None:
                if self.required[at]:
                    return False
            elif not isinstance(value, _PYTHON_TYPES.get(self.types[at], object)):
                return False
        if self.name in ("payload", "next_state"):
            return bool(values[1] < _FIRST_TIME)
        return self.name != "dictionary" or bool(values[1] >= _FIRST_TIME)


def shapes(connection: apsw.Connection) -> dict[str, Shape]:
    """The ordinary tables of a store, by name."""
    result: dict[str, Shape] = {}
    for name, without_rowid in fetch(
        connection,
        """SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table'
        AND name NOT LIKE 'sqlite_%' ORDER BY name""",
    ):
        columns = fetch(connection, 'SELECT name, type, "notnull", pk FROM pragma_table_info(?)', (name,))
        key = next((at for at, c in enumerate(columns) if c[3] and c[1] == "INTEGER" and not without_rowid), None)
        result[name] = Shape(
            name,
            tuple(c[0] for c in columns),
            tuple(c[1] for c in columns),
            tuple(bool(c[2]) for c in columns),
            key,
        )
    return result


class Salvage:
    """A damaged store, open for reading; nothing is written, not even beside it.

    Args:
        path: The file.
        pages: Its pages.
        expected: The tables that a store of this version has, for a file that can no longer say.
    """

    def __init__(self, path: Path, pages: Pages, expected: dict[str, Shape]) -> None:
        self._pages = pages
        self._connection: apsw.Connection | None = None
        self._roots: dict[str, int] = {}
        self._shapes = expected
        self._damaged: set[str] = set()
        self._orphans: list[int] | None = None
        uri = f"{path.absolute().as_uri()}?immutable=1"
        connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            connection.pragma("writable_schema", True)  # else SQLite reads nothing of a file that was cut short
            roots = fetch(connection, "SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0")
            self._shapes = shapes(connection)
            self._roots = dict(roots)
            self._connection = connection
        except _UNREADABLE:
            connection.close()

    def close(self) -> None:
        """Lets go of the file."""
        if self._connection is not None:
            self._connection.close()

    def rows(self, shape: Shape) -> Iterator[Row]:
        """The rows of a table that can be read, each with the columns of `shape`; the same one may come twice.

        Payloads and next states look alike: a row of the one may come among those of the other.
        """
        name = shape.name
        ours = self._shapes.get(name)
        if ours is None:
            return  # an older store, which had no such table
        places = [ours.columns.index(column) if column in ours.columns else None for column in shape.columns]
        if self._connection is not None:
            try:
                for row in self._connection.execute(f'SELECT * FROM "{name}"'):  # noqa: S608 - a table's name
                    if ours.fits(row):
                        yield tuple(None if at is None else row[at] for at in places)
                    else:
                        self._damaged.add(name)
                return
            except _UNREADABLE:
                pass
        self._damaged.add(name)
        for found in self._from_pages(ours):
            row = found.values
            if ours.key is not None:
                row = (*row[: ours.key], found.rowid, *row[ours.key + 1 :])
            yield tuple(None if at is None else row[at] for at in places)

    def whole(self, name: str) -> bool:
        """Whether all that `rows` gave of a table was read by SQL, so that nothing is missing."""
        return name not in self._damaged

    def value(self, query: str) -> Any:
        """The row or value that a query gives; ``None`` if it cannot be had."""
        if self._connection is None:
            return None
        try:
            return self._connection.execute(query).get
        except _UNREADABLE:
            return None

    def _from_pages(self, shape: Shape) -> Iterator[PageRow]:
        if shape.key is None:
            return  # rows without a rowid are kept elsewhere
        root = self._roots.get(shape.name)
        leaves = self._pages.tree(root)[0] if root is not None else []
        for leaf in leaves:
            for row in self._pages.rows(leaf):
                values = (*row.values, *[None] * (len(shape.columns) - len(row.values)))  # columns added later
                if shape.fits(values):
                    yield PageRow(row.rowid, values)
        for leaf in self._lost_leaves():
            yield from (row for row in self._pages.rows(leaf) if shape.fits(row.values))

    def _lost_leaves(self) -> list[int]:
        """Leaves of tables that no table leads to any more and that were not freed."""
        if self._orphans is None:
            reached = self._pages.free()
            for root in self._roots.values():
                reached.update(self._pages.tree(root)[0])
            self._orphans = [leaf for leaf in self._pages.table_leaves() if leaf not in reached]
        return self._orphans
