"""Saves what is left of a damaged store into a new file, and says what was saved and what was lost.

The damaged file is never written to, nor is anything put beside it. Where SQLite can still read a table, its rows are
taken as they are; where it cannot, the table's pages are read one by one, and so are pages that no table leads to any
more. Pages that were freed are left alone: what they hold was evicted or forgotten. (Where the file's first page is
lost, so is the list of free pages, and experiences that were evicted may come back; forgotten ones were overwritten.)

An experience is saved if its row and its payload can be read; payloads and tokens carry checksums, the other columns do
not, so a flipped byte in a name or a reward stays unnoticed. What can be made from that is made anew: the indexes, the
tags, the text index. Priorities and the order of sampling are kept only if nothing else was lost.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path

import apsw
import msgspec

from relive.errors import ReliveError
from relive.experience import Transition
from relive.storage import audit, playbook_tables
from relive.storage.check import Body, body, index_problems, is_experience, is_trace
from relive.storage.codec import Decompressor
from relive.storage.connection import PAGE_SIZE, check_path, connect, errors_of, fetch, immediate, prepare
from relive.storage.errors import DamagedStoreError, NotAStoreError, StoragePathError
from relive.storage.new_file import put, refuse_side_files, unfinished
from relive.storage.pages import MAGIC, Pages
from relive.storage.record import COLUMNS, HAS_LATE_NEXT_STATE, HAS_TOKENS
from relive.storage.salvage import Row, Salvage, Shape, shapes
from relive.storage.text import index_text

Tell = Callable[[str], None]
"""Called with what is being done next."""

_BATCH = 2_000
_FIRST = ("dictionary", "experience", "payload", "next_state")  # payloads are read with the dictionaries
_SAMPLING = ("index_ids", "index_priorities", "index_log", "index_state")
_MADE_ANEW = ("total", "tag", "change", *_SAMPLING)
_WITHOUT_PAYLOAD = "id NOT IN (SELECT id FROM payload)"


class RecoveryReport(msgspec.Struct):
    """What became of a damaged store.

    Attributes:
        saved: Experiences saved.
        lost: Experiences lost; ``None``: nobody can say how many there were.
        damage: What else was found damaged or was lost, one sentence each.
    """

    saved: int
    lost: int | None
    damage: list[str]

    @property
    def complete(self) -> bool:
        """Whether nothing was lost."""
        return self.lost == 0 and not self.damage


def recover(old: Path, new: Path, *, tell: Tell = lambda _: None) -> RecoveryReport:
    """Writes all of `old` that can be read to the new file `new`.

    Nothing else should use `old` meanwhile. An empty file is a store without experiences, of which nothing is lost.

    Args:
        old: The damaged store; it is not changed.
        new: Where to; there must be no file yet, nor anything of an older one beside it. It is there whole once this
            returns, or not at all.
        tell: Called with what is being done next.

    Raises:
        StoragePathError: there is no `old`, or `new` cannot be written.
        NotAStoreError: `old` is no store, not even a damaged one.
        NewerStoreError: a newer Relive wrote it.
        StorageFullError: no room left for the new file.
    """
    is_store = _is_store(old)
    if new.exists():
        raise StoragePathError(f"{new} is there already; choose another path for what is saved.")
    refuse_side_files(new)
    check_path(new, readonly=False)
    with unfinished(new) as made:
        with errors_of(new), closing(connect(made)) as target:
            prepare(target, made, readonly=False)
            if old.stat().st_size:
                with (
                    _with_log(old, new.parent, tell) as source,
                    Pages(source, PAGE_SIZE) as pages,
                    closing(Salvage(source, pages, shapes(target))) as salvage,
                ):
                    report = _Recovery(salvage, target, tell).run()
            else:
                report = RecoveryReport(0, 0, [])
            if report.saved == 0 and not is_store:
                raise NotAStoreError(f"{old} is not a Relive store, and no experience was found in it.")
            with immediate(target):
                now, source_path = time.time_ns() // 1000, str(old.absolute())
                audit.add(target, "recover", at=now, target=source_path, after=msgspec.to_builtins(report))
            target.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        put(made, new, report.saved)
    return report


def _is_store(old: Path) -> bool:
    """Whether the file says that it is a store; one that does not may still be one whose first page is gone."""
    try:
        check_path(old, readonly=True)
    except DamagedStoreError:
        return True
    except NotAStoreError:
        with old.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                raise  # another program's database
        return False
    return True


@contextmanager
def _with_log(old: Path, folder: Path, tell: Tell) -> Iterator[Path]:
    """The file to read: `old` itself, or a copy into which its write-ahead log was worked, if it has one."""
    log = Path(f"{old}-wal")
    if not log.exists() or not log.stat().st_size:
        yield old
        return
    tell("copying the store and its write-ahead log")
    with tempfile.TemporaryDirectory(prefix=".relive-recover-", dir=folder) as place:
        copy = Path(place) / "copy.db"
        shutil.copyfile(old, copy)
        shutil.copyfile(log, f"{copy}-wal")
        with suppress(apsw.Error), closing(apsw.Connection(str(copy))) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # a log that SQLite refuses adds nothing
        yield copy


class _Recovery:
    """One recovery, from a salvaged store into an empty one."""

    def __init__(self, salvage: Salvage, target: apsw.Connection, tell: Tell) -> None:
        self._salvage = salvage
        self._target = target
        self._tell = tell
        self._shapes = shapes(target)
        self._decompress = Decompressor()
        self._damage: list[str] = []

    def run(self) -> RecoveryReport:
        others = [name for name in self._shapes if not name.startswith(("state_text", "lesson_text"))]
        for name in [*_FIRST, *(name for name in others if name not in _FIRST and name not in _MADE_ANEW)]:
            self._tell(f"saving {name.replace('_', ' ')}")
            self._save(name)
        self._tell("putting together what belongs together")
        before = self._counters()
        if before is None:
            self._damage.append("The counters are damaged: nobody can say how many experiences there were.")
        with immediate(self._target):
            self._join()
            saved = self._count(before or (0, 0, 0))
        lost = None if before is None else max(before[0] - saved, 0)
        if lost == 0 and not self._damage:
            self._save_sampling()
        else:
            self._damage.append("Priorities and the order of sampling start anew.")
        if self._salvage.value("SELECT count(*) FROM (SELECT 1 FROM state_text_docsize LIMIT 1)") != 0:
            self._tell("making the text index")
            self._index_text()
        with immediate(self._target):
            playbook_tables.index_words(self._target)
        return RecoveryReport(saved, lost, self._damage)

    def _save(self, name: str) -> None:
        shape = self._shapes[name]
        rows: Iterable[Row] = self._salvage.rows(shape)
        if name == "dictionary":
            rows = self._learnt(rows)
        elif name == "experience":
            places = [shape.columns.index(column) for column in COLUMNS]
            rows = (row for row in rows if is_experience(tuple(row[at] for at in places)))
        elif name == "payload":
            rows = (row for row in rows if _is_payload(self._body(row)))
        elif name == "next_state":
            rows = (row for row in rows if (found := self._body(row)) is not None and not _is_payload(found))
        elif name == "token_trace":
            rows = (row for row in rows if is_trace(row))
        saved = self._write(shape, rows)
        if not self._salvage.whole(name):
            self._damage.append(f"The table {name} is damaged; {saved:,} of its rows were saved.")

    def _write(self, shape: Shape, rows: Iterable[Row]) -> int:
        """Writes rows, the first of those with the same key; returns how many the table has then."""
        columns, places = ", ".join(shape.columns), ", ".join("?" * len(shape.columns))
        insert = f"INSERT OR {'REPLACE' if shape.name == 'setting' else 'IGNORE'} INTO {shape.name}({columns}) VALUES ({places})"  # noqa: S608, E501
        rows = iter(rows)
        while batch := list(islice(rows, _BATCH)):
            try:
                with immediate(self._target):
                    self._target.executemany(insert, batch)
            except apsw.ConstraintError:
                with immediate(self._target):
                    for row in batch:
                        with suppress(apsw.ConstraintError):  # a damaged row that does not fit the table
                            self._target.execute(insert, row)
        return int(self._target.execute(f"SELECT count(*) FROM {shape.name}").get)  # noqa: S608

    def _learnt(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self._decompress.learn(row[0], row[2])
            yield row

    def _body(self, row: Row) -> Body | None:
        return body(self._decompress, row) if self._decompress.knows(row[1]) else None

    def _join(self) -> None:
        """Removes what belongs to nothing any more, and makes what can be made."""
        run = self._target.execute
        without_payload = run(f"SELECT count(*) FROM experience WHERE {_WITHOUT_PAYLOAD}").get  # noqa: S608
        if without_payload:
            self._damage.append(f"The payloads of {without_payload:,} experiences could not be read.")
            run(f"DELETE FROM experience WHERE {_WITHOUT_PAYLOAD}")  # noqa: S608
        for table, what in (("payload", "payloads"), ("next_state", "next states"), ("token_trace", "token traces")):
            orphans = run(f"SELECT count(*) FROM {table} WHERE id NOT IN (SELECT id FROM experience)").get  # noqa: S608
            if orphans:
                self._damage.append(f"{orphans:,} {what} could be read whose experiences could not.")
                run(f"DELETE FROM {table} WHERE id NOT IN (SELECT id FROM experience)")  # noqa: S608
        for table, flag, what in (
            ("token_trace", HAS_TOKENS, "tokens"),
            ("next_state", HAS_LATE_NEXT_STATE, "late next states"),
        ):
            run(
                f"UPDATE experience SET flags = flags & ~?1 WHERE flags & ?1 AND id NOT IN (SELECT id FROM {table})",  # noqa: S608
                (flag,),
            )
            if bare := self._target.changes():
                self._damage.append(f"{bare:,} experiences were saved without their {what}.")
        run("INSERT OR IGNORE INTO tag SELECT j.value, e.id FROM experience e, json_each(e.tags) j")

    def _counters(self) -> tuple[int, int, int] | None:
        """Rows, next id and evicted rows as the damaged store counted them; ``None``: they cannot be read."""
        found = self._salvage.value("SELECT rows, next_id, evicted FROM total")
        sound = isinstance(found, tuple) and len(found) == 3 and all(isinstance(n, int) and n >= 0 for n in found)
        return found if sound else None

    def _count(self, before: tuple[int, int, int]) -> int:
        """Sets the counters; returns how many experiences there are. No id is given out again."""
        _, next_id, evicted = before
        saved, size, highest = self._target.execute(
            "SELECT count(*), coalesce(sum(bytes), 0), coalesce(max(id), 0) FROM experience"
        ).get
        self._target.execute(
            "UPDATE total SET next_id = ?, rows = ?, bytes = ?, evicted = ?",
            (max(next_id, highest + 1), saved, size, evicted),
        )
        return int(saved)

    def _save_sampling(self) -> None:
        for name in _SAMPLING:
            self._write(self._shapes[name], self._salvage.rows(self._shapes[name]))
        if all(self._salvage.whole(name) for name in _SAMPLING) and not index_problems(self._target):
            return
        self._damage.append("Priorities and the order of sampling are damaged; both start anew.")
        with immediate(self._target):
            for name in _SAMPLING:
                self._target.execute(f"DELETE FROM {name}")  # noqa: S608 - names from this module

    def _index_text(self) -> None:
        after = 0
        while rows := fetch(self._target, "SELECT * FROM payload WHERE id > ? ORDER BY id LIMIT 2000", (after,)):
            after = rows[-1][0]
            words = [(row[0], found) for row in rows if (found := _words(self._body(row)))]
            with immediate(self._target):
                self._target.executemany("INSERT INTO state_text(rowid, words) VALUES (?, ?)", words)


def _is_payload(found: Body | None) -> bool:
    return found is not None and isinstance(found.value, dict) and {"state", "action"} <= found.value.keys()


def _words(found: Body | None) -> str:
    with suppress(ReliveError, ValueError):
        return "" if found is None else index_text(Transition(state=found.value["state"], action=None))
    return ""
