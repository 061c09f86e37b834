"""Looks a store through without changing it: the database itself, what belongs together, and every payload."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec
import numpy as np

from relive.storage import codec, record, sampling
from relive.storage.codec import Decompressor
from relive.storage.connection import check_path, connect, errors_of, fetch, prepare
from relive.storage.errors import DamagedStoreError
from relive.storage.identity import LENGTH
from relive.storage.record import COLUMNS, HAS_LATE_NEXT_STATE, HAS_TOKENS
from relive.storage.salvage import Row
from relive.storage.schema import CHUNK, FIRST_DICTIONARY

Progress = Callable[[str, int, int], None]
"""Called with what is being looked at, how much of it is done, and how much there is (0: not known)."""

_MOST_EXAMPLES = 5
_MOST_DAMAGE = 20
_SLACK = 64  # chunks; a sampling index has few holes

_DANGLING = {
    "{n:,} experiences have no payload{ids}.": """SELECT id FROM experience
        WHERE NOT EXISTS (SELECT 1 FROM payload p WHERE p.id = experience.id)""",
    "{n:,} payloads belong to no experience{ids}.": """SELECT id FROM payload
        WHERE NOT EXISTS (SELECT 1 FROM experience e WHERE e.id = payload.id)""",
    "{n:,} experiences have lost their tokens{ids}.": """SELECT id FROM experience WHERE flags & :tokens
        AND NOT EXISTS (SELECT 1 FROM token_trace t WHERE t.id = experience.id)""",
    "{n:,} token traces belong to no experience{ids}.": """SELECT id FROM token_trace
        WHERE NOT EXISTS (SELECT 1 FROM experience e WHERE e.id = token_trace.id AND e.flags & :tokens)""",
    "{n:,} experiences have lost their late next state{ids}.": """SELECT id FROM experience WHERE flags & :late
        AND NOT EXISTS (SELECT 1 FROM next_state n WHERE n.id = experience.id)""",
    "{n:,} next states belong to no experience{ids}.": """SELECT id FROM next_state
        WHERE NOT EXISTS (SELECT 1 FROM experience e WHERE e.id = next_state.id)""",
    "{n:,} payloads need a dictionary that is gone{ids}.": """SELECT id FROM payload WHERE codec >= :first
        AND NOT EXISTS (SELECT 1 FROM dictionary d WHERE d.id = payload.codec)""",
    "{n:,} next states need a dictionary that is gone{ids}.": """SELECT id FROM next_state WHERE codec >= :first
        AND NOT EXISTS (SELECT 1 FROM dictionary d WHERE d.id = next_state.codec)""",
    "{n:,} tags belong to no experience{ids}.": """SELECT id FROM tag
        WHERE NOT EXISTS (SELECT 1 FROM experience e WHERE e.id = tag.id)""",
    "{n:,} experiences are missing from the list of their tags{ids}.": """SELECT DISTINCT e.id
        FROM experience e, json_each(CASE WHEN json_valid(e.tags) THEN e.tags ELSE '[]' END) j WHERE NOT EXISTS
        (SELECT 1 FROM tag t WHERE t.id = e.id AND t.name = j.value)""",
    "{n:,} pieces of feedback are about experiences that were removed{ids}.": """SELECT experience_id FROM feedback
        WHERE experience_id < (SELECT next_id FROM total)
        AND NOT EXISTS (SELECT 1 FROM experience e WHERE e.id = feedback.experience_id)""",
    "{n:,} entries of the text index belong to no experience{ids}.": """SELECT id FROM state_text_docsize
        WHERE NOT EXISTS (SELECT 1 FROM experience e WHERE e.id = state_text_docsize.id)""",
    "{n:,} experiences have an id that may be given out again{ids}.": """SELECT id FROM experience
        WHERE id >= (SELECT next_id FROM total)""",
    "{n:,} experiences have an identity of the wrong length{ids}.": """SELECT id FROM experience
        WHERE length(uid) != :length""",
}


_NUMBERS = {"tokens": HAS_TOKENS, "late": HAS_LATE_NEXT_STATE, "length": LENGTH, "first": FIRST_DICTIONARY}


class Body(NamedTuple):
    """A body that could be read.

    Attributes:
        value: The JSON value that it holds.
    """

    value: Any


class CheckReport(msgspec.Struct):
    """What a check found.

    Attributes:
        path: The store.
        experiences: How many it holds; ``None``: it could not be read.
        problems: What is wrong, one sentence each; empty: nothing is.
    """

    path: str
    experiences: int | None = None
    problems: list[str] = []


def check(path: Path, *, quick: bool = False, progress: Progress = lambda *_: None) -> CheckReport:
    """Looks a store through; others may go on using it.

    Args:
        path: The store.
        quick: Leave out what takes long: the order of the indexes, and reading every payload.
        progress: Called now and then.

    Raises:
        StoragePathError: there is no such file.
        NotAStoreError: the file is something else.
        NewerStoreError: a newer Relive wrote it.
    """
    report = CheckReport(str(path))
    try:
        check_path(path, readonly=True)
        with errors_of(path), closing(connect(path, readonly=True)) as connection:
            prepare(connection, path, readonly=True)
            connection.execute("BEGIN")  # one view of it all, whoever writes meanwhile
            report.experiences = int(connection.execute("SELECT count(*) FROM experience").get)
            for problem in _problems(connection, report.experiences, quick=quick, progress=progress):
                report.problems.append(problem)
    except DamagedStoreError as error:
        report.problems.append(str(error))
    except UnicodeDecodeError:
        report.problems.append(f"The database in {path} is damaged: it holds text that is none.")
    return report


def _problems(connection: apsw.Connection, rows: int, *, quick: bool, progress: Progress) -> Iterator[str]:
    progress("the database", 0, 0)
    pragma = "quick_check" if quick else "integrity_check"
    for (line,) in fetch(connection, f"PRAGMA {pragma}({_MOST_DAMAGE})"):
        if line != "ok":
            yield f"SQLite finds damage: {line}."
    progress("what belongs together", 0, 0)
    yield from _dangling(connection)
    yield from _counters(connection)
    yield from index_problems(connection)
    if not quick:
        yield from _contents(connection, rows, progress)


def _dangling(connection: apsw.Connection) -> Iterator[str]:
    for sentence, query in _DANGLING.items():
        found = connection.execute(query, _NUMBERS)
        examples = [row[0] for row in islice(found, _MOST_EXAMPLES)]
        if examples:
            count = len(examples) + sum(1 for _ in found)
            yield sentence.format(n=count, ids=_listed(examples, count))


def _listed(ids: list[int], count: int) -> str:
    return f" ({', '.join(map(str, ids))}{', …' if count > len(ids) else ''})"


def _counters(connection: apsw.Connection) -> Iterator[str]:
    rows, size = connection.execute("SELECT rows, bytes FROM total").get
    real_rows, real_size = connection.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM experience").get
    if rows != real_rows:
        yield f"The counter says {rows:,} experiences, but there are {real_rows:,}."
    if size != real_size:
        yield f"The counter says {size:,} bytes of payloads, but they are {real_size:,}."


def index_problems(connection: apsw.Connection) -> list[str]:
    """What is wrong with the saved sampling index, one sentence each; bounded in memory whatever it holds."""
    chunks = [int(row[0]) for row in fetch(connection, "SELECT chunk FROM index_ids ORDER BY chunk")]
    bad = connection.execute(
        """SELECT (SELECT count(*) FROM index_ids WHERE length(body) != ?1 * 8)
        + (SELECT count(*) FROM index_priorities WHERE length(body) != ?1 * 4)
        + (SELECT count(*) FROM index_log WHERE length(slots) % 4 OR length(slots) != length(priorities)
           OR length(ids) != 2 * length(slots))""",
        (CHUNK,),
    ).get
    most = (len(chunks) + _SLACK) * CHUNK
    low, high = _slots(connection)
    if bad or low < 0 or high >= most or any(not 0 <= chunk < len(chunks) + _SLACK for chunk in chunks):
        return ["The saved sampling index is damaged."]
    saved = sampling.load(connection)
    problems = []
    if not (np.isfinite(saved.priorities) & (saved.priorities >= 0)).all():
        problems.append("The saved sampling index holds priorities that are none.")
    taken = saved.ids[saved.ids > 0]
    if len(np.unique(taken)) != len(taken):
        problems.append("The saved sampling index holds an experience twice.")
    return problems


def _slots(connection: apsw.Connection) -> tuple[int, int]:
    """The lowest and the highest slot that the log of the sampling index names."""
    low = high = 0
    for (slots,) in connection.execute("SELECT slots FROM index_log WHERE length(slots) % 4 = 0"):
        numbers = np.frombuffer(slots, "<i4")
        low, high = min(low, int(numbers.min(initial=0))), max(high, int(numbers.max(initial=0)))
    return low, high


def _contents(connection: apsw.Connection, rows: int, progress: Progress) -> Iterator[str]:
    """Reads every payload and every token trace."""
    decompress = Decompressor()
    for number, body in fetch(connection, "SELECT id, body FROM dictionary"):
        decompress.learn(number, body)

    columns = ", ".join(COLUMNS)
    records = connection.execute(f"SELECT id, {columns} FROM experience ORDER BY id")  # noqa: S608 - our own names
    yield from _unreadable("experiences", records, lambda row: is_experience(row[1:]), rows, progress)
    for table in ("payload", "next_state"):
        count = rows if table == "payload" else int(connection.execute("SELECT count(*) FROM next_state").get)
        found = connection.execute(f"SELECT * FROM {table} ORDER BY id")  # noqa: S608 - names from this loop
        yield from _unreadable(table.replace("_", " ") + "s", found, partial(_reads, decompress), count, progress)
    traces = int(connection.execute("SELECT count(*) FROM token_trace").get)
    found = connection.execute("SELECT * FROM token_trace ORDER BY id")
    yield from _unreadable("token traces", found, is_trace, traces, progress)


def _reads(decompress: Decompressor, row: Row) -> bool:
    """Whether a body is readable; one whose dictionary is gone is no matter of its own."""
    return not decompress.knows(row[1]) or body(decompress, row) is not None


def body(decompress: Decompressor, row: Row) -> Body | None:
    """What a row of the table ``payload`` or ``next_state`` holds; ``None``: it cannot be read."""
    try:
        return Body(codec.decode_json(decompress(row[1], row[2])))
    except Exception:  # noqa: BLE001 - whatever zstandard and the JSON readers make of damaged bytes
        return None


def is_experience(columns: Row) -> bool:
    """Whether these are the columns (`record.COLUMNS`) of an experience that can be read."""
    try:
        return all(isinstance(tag, str) for tag in record.decode(columns, {}, None).tags)
    except Exception:  # noqa: BLE001 - whatever damaged columns lead to
        return False


def is_trace(row: Row) -> bool:
    """Whether a row of the table ``token_trace`` can be read."""
    try:
        codec.decode_trace(codec.TraceRow(*row[1:]))
    except Exception:  # noqa: BLE001 - whatever NumPy makes of damaged bytes
        return False
    return True


def _unreadable(
    what: str, rows: Iterable[Row], reads: Callable[[Row], bool], total: int, progress: Progress
) -> Iterator[str]:
    bad: list[int] = []
    count = 0
    for done, row in enumerate(rows):
        if done % 1024 == 0:
            progress(what, done, total)
        if not reads(row):
            count += 1
            if len(bad) < _MOST_EXAMPLES:
                bad.append(row[0])
    if count:
        yield f"{count:,} {what} cannot be read{_listed(bad, count)}."
