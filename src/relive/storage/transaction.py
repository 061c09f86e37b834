"""One write transaction: everything that may be written to a store is written through here, while the lock is held."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from relive.storage import audit, limits, sampling
from relive.storage import feedback as feedback_rule
from relive.storage.codec import Compressor, TraceRow
from relive.storage.connection import fetch
from relive.storage.damage import damage_to
from relive.storage.limits import Limits
from relive.storage.protocol import Changes
from relive.storage.reading import Reader, int64
from relive.storage.record import COLUMNS, HAS_LATE_NEXT_STATE, HAS_NEXT_STATE, Row
from relive.storage.sampling import IndexChange, SavedIndex
from relive.storage.stored import Stored

ADDED, REWARDED, REMOVED = 0, 1, 2
"""Kinds of entries in the table ``change``."""

KEPT_CHANGES = 65_536
"""Change numbers a follower may lag behind before it must look at everything again."""

_COLUMNS = ("id", "bytes", "priority", "uid", "stored_at", *COLUMNS)
_BODY = ("id", "codec", "body")
_TRACE = ("id", *TraceRow._fields)
_TOGETHER = 32  # rows of one statement
_DELETE = tuple(
    f"DELETE FROM {table} WHERE {key} IN (SELECT value FROM carray(?))"  # noqa: S608 - names from the tuple below
    for table, key in (
        ("experience", "id"),
        ("payload", "id"),
        ("next_state", "id"),
        ("token_trace", "id"),
        ("state_text", "rowid"),
    )
)


_STATE = """SELECT next_id, rows, bytes, evicted, (SELECT max(id) FROM dictionary), (SELECT max(number) FROM change),
    (SELECT stored_at FROM experience ORDER BY id DESC LIMIT 1),
    EXISTS (SELECT 1 FROM feedback WHERE episode_id IS NOT NULL),
    (SELECT max(experience_id) FROM feedback WHERE experience_id IS NOT NULL),
    (SELECT value FROM setting WHERE name = 'limits') FROM total"""


class Transaction:
    """The write side of a store inside one transaction; made by the writer, valid until its end.

    Attributes:
        limits: What the store may hold.
        keep_limits: Removes what is too much, before the commit of a transaction that added something.
    """

    def __init__(self, connection: apsw.Connection, reader: Reader, compress: Compressor) -> None:
        self.connection = connection
        self._reader = reader
        self.compress = compress
        self._ends: list[Callable[[bool], None]] = []
        state = fetch(connection, _STATE)[0]
        self._next_id, self._rows, self._bytes, self._evicted = self._totals = state[:4]
        self.dictionary: int | None = state[4]
        self._number: int = state[5] or 0
        self._newest: int = state[6] or 0  # when the newest experience was stored
        self._feedback_waits = bool(state[7]) or (state[8] or 0) >= self._next_id
        self.limits = limits.decoded(state[9])
        self.keep_limits: Callable[[Transaction], None] = limits.remove_oldest
        self._first_number = self._number + 1
        self._index_changed = False
        self._clock: int | None = None

    @property
    def rows(self) -> int:
        """How many experiences are stored now."""
        return int(self._rows)

    @property
    def payload_bytes(self) -> int:
        """Size of all payloads and tokens now."""
        return int(self._bytes)

    @property
    def number(self) -> int:
        """The newest change number, this transaction's own included."""
        return self._number

    def append(self, rows: Sequence[Row]) -> list[int | None]:
        """Writes rows; the answer has each one's id, ``None`` for a uid that is there already."""
        ids: list[int | None] = []
        new: list[tuple[int, Row]] = []
        first = number = self._next_id
        seen: set[bytes] = set()
        for row in rows:
            if row.uid is not None and (row.uid in seen or self.id_of(row.uid) is not None):
                ids.append(None)
                continue
            if row.uid is not None:
                seen.add(row.uid)
            ids.append(number)
            new.append((number, row))
            number += 1
        if not new:
            return ids
        bodies = self.compress.many([row.payload for _, row in new])
        sizes = [
            len(body) + (0 if row.trace is None else len(row.trace.body))
            for (_, row), (_, body) in zip(new, bodies, strict=True)
        ]
        now = self._now()
        self._insert(
            "experience",
            _COLUMNS,
            [(n, size, row.priority, row.uid, now, *row.columns) for (n, row), size in zip(new, sizes, strict=True)],
        )
        self._insert("payload", _BODY, [(n, codec, body) for (n, _), (codec, body) in zip(new, bodies, strict=True)])
        self._insert("token_trace", _TRACE, [(n, *row.trace) for n, row in new if row.trace is not None])
        self._insert("tag", ("name", "id"), [(tag, n) for n, row in new for tag in row.tags])
        self._insert("state_text", ("rowid", "words"), [(n, row.words) for n, row in new if row.words])
        self._next_id = number
        self._rows += len(new)
        self._bytes += sum(sizes)
        if self._feedback_waits:
            feedback_rule.settle(self.connection, feedback_rule.waiting_for(self.connection, first, number - 1))
        self._note(ADDED, first, number - 1)
        return ids

    def evict(self, ids: Iterable[int]) -> int:
        """Removes experiences with all that belongs to them; returns how many were there."""
        wanted = int64(ids)
        if not len(wanted):
            return 0
        found = fetch(
            self.connection,
            "SELECT e.id, e.bytes, e.tags, e.episode_id FROM carray(?) c JOIN experience e ON e.id = c.value",
            (apsw.carray(np.unique(wanted)),),
        )
        if not found:
            return 0
        there = np.array([row[0] for row in found], np.int64)
        tagged = [row[0] for row in found if row[2] is not None]
        for number in tagged:
            names = self._reader.tags(self.connection, number)
            self.connection.executemany("DELETE FROM tag WHERE name = ? AND id = ?", [(name, number) for name in names])
        for statement in _DELETE:
            self.connection.execute(statement, (apsw.carray(there),))
        feedback_rule.remove(self.connection, there, {row[3] for row in found})
        self._rows -= len(there)
        self._bytes -= sum(row[1] for row in found)
        self._evicted += len(there)
        self._note_ids(REMOVED, there)
        return len(there)

    def feedback(self, values: tuple[Any, ...]) -> int:
        """Writes one feedback, settles rewards and outcomes; returns how many stored experiences it is about."""
        self._feedback_waits = True
        before = feedback_rule.said(self.connection, values)
        ids = feedback_rule.write(self.connection, values, time.time_ns() // 1000)
        after = feedback_rule.said(self.connection, values)
        if after is not None:  # else it was about something that is gone
            experience_id, episode_id, source, key = values[:4]
            about = (
                f"episode {audit.reference(self.connection, episode_id)}"
                if episode_id is not None
                else f"experience {experience_id}"
            )
            self.audit("feedback", who=source, target=f"{about}: {key}", before=before, after=after)
        if ids:
            feedback_rule.settle(self.connection, ids)
            self._note_ids(REWARDED, np.array(ids, np.int64))
        return len(ids)

    def set_reward_rule(self, settings: Mapping[str, Any]) -> int:
        """Changes the settings of the reward rule and settles all that has feedback; returns how many that were."""
        weights, success_at = feedback_rule.reward_rule(self.connection)
        before = {"reward_weights": weights, "success_at": success_at}
        self.audit("settings", target="reward rule", before={name: before[name] for name in settings}, after=settings)
        self.connection.executemany(
            "INSERT OR REPLACE INTO setting VALUES (?, ?)",
            [(name, msgspec.json.encode(value).decode()) for name, value in settings.items()],
        )
        ids = feedback_rule.all_with_feedback(self.connection)
        if ids:
            feedback_rule.settle(self.connection, ids)
            self._note_ids(REWARDED, np.array(ids, np.int64))
        return len(ids)

    def set_limits(self, new: Limits) -> None:
        """Sets what the store may hold, for whoever writes to it."""
        if new != self.limits:
            limits.save(self.connection, new)
            self.limits = new

    def expired(self, before: int) -> list[int]:
        """Ids of what was stored before a time (microseconds since 1970 UTC): the oldest, as times rise with ids."""
        expired: list[int] = []
        for number, stored_at in self.connection.execute("SELECT id, stored_at FROM experience ORDER BY id"):
            if stored_at >= before:
                break
            expired.append(number)
        return expired

    def oldest(self) -> int | None:
        """When the oldest experience was stored, in microseconds since 1970 UTC; ``None``: there is none."""
        oldest: int | None = self.connection.execute("SELECT stored_at FROM experience ORDER BY id LIMIT 1").get
        return oldest

    def set_next_state(self, number: int, text: bytes) -> bool:
        """Keeps the next state (JSON text) of an experience that has none; False: it is gone or has one already."""
        flags = self.connection.execute("SELECT flags FROM experience WHERE id = ?", (number,)).get
        if flags is None or flags & (HAS_NEXT_STATE | HAS_LATE_NEXT_STATE):
            return False
        codec, body = self.compress(text)
        self.connection.execute("INSERT INTO next_state VALUES (?, ?, ?)", (number, codec, body))
        self.connection.execute(
            "UPDATE experience SET flags = flags | ?, bytes = bytes + ? WHERE id = ?",
            (HAS_LATE_NEXT_STATE, len(body), number),
        )
        self._bytes += len(body)
        self._note(REWARDED, number, number)
        return True

    def audit(
        self, action: str, *, who: str | None = None, target: str = "", before: Any = None, after: Any = None
    ) -> None:
        """Adds an entry to the audit; see `audit.add`."""
        now = time.time_ns() // 1000
        audit.add(self.connection, action, at=now, who=who, target=target, before=before, after=after)

    def note_bytes(self, difference: int) -> None:
        """Counts a change in the size of payloads that was made past this class."""
        self._bytes += difference

    def changes(self, since: int) -> Changes:
        """What happened since, what this transaction did so far included."""
        return changes_since(self.connection, since)

    def read(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> list[Stored | None]:
        """Experiences by id; ``None`` where there is none."""
        return self._reader.read(self.connection, ids)

    def asked_priorities(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The priority each experience was appended with; NaN where none was asked for."""
        if not len(ids):
            return np.empty(0)
        found = dict(
            fetch(
                self.connection,
                "SELECT e.id, e.priority FROM carray(?) c JOIN experience e ON e.id = c.value",
                (apsw.carray(ids),),
            )
        )
        return np.array([np.nan if found.get(number) is None else found[number] for number in ids.tolist()])

    def id_of(self, uid: bytes) -> int | None:
        """The id of the experience with this uid; ``None``: there is none."""
        number: int | None = self.connection.execute("SELECT id FROM experience WHERE uid = ?", (uid,)).get
        return number

    def ids(self) -> npt.NDArray[np.int64]:
        """All stored ids, increasing."""
        return np.array([row[0] for row in fetch(self.connection, "SELECT id FROM experience ORDER BY id")], np.int64)

    def load_index(self) -> SavedIndex:
        """The sampling index as saved last."""
        return sampling.load(self.connection)

    def save_index(self, change: IndexChange | None, state: bytes | None = None) -> None:
        """Saves changed slots, and the sampler's own state."""
        if change is not None and len(change.slots):
            sampling.log_change(self.connection, change)
            self._index_changed = True
        if state is not None:
            sampling.save_state(self.connection, state)

    def clear_index(self) -> None:
        """Forgets the saved sampling index."""
        sampling.clear(self.connection)

    def on_end(self, call: Callable[[bool], None]) -> None:
        """Has `call` called with True after the commit, with False after a rollback."""
        self._ends.append(call)

    def finish(self) -> None:
        """Keeps the limits and writes what is kept once a transaction; the writer commits next."""
        grew = self._next_id > self._totals[0] or self._bytes > self._totals[2]
        if grew and self.limits.exceeded(self):
            self.keep_limits(self)
            limits.remove_oldest(self)  # what whoever keeps them does not know of
        totals = (self._next_id, self._rows, self._bytes, self._evicted)
        if totals != self._totals:
            self.connection.execute("UPDATE total SET next_id = ?, rows = ?, bytes = ?, evicted = ?", totals)
        if self._number // 1024 != (self._first_number - 1) // 1024:
            self.connection.execute("DELETE FROM change WHERE number <= ?", (self._number - KEPT_CHANGES,))
        if self._index_changed:
            sampling.fold_if_long(self.connection)

    def end(self, *, committed: bool) -> None:
        """Tells those who asked how it ended, the last to ask first."""
        while self._ends:
            self._ends.pop()(committed)

    def _insert(self, table: str, columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> None:
        """Inserts rows, many to a statement: apsw lets go of the interpreter and takes it back once a statement."""
        done, together = 0, _TOGETHER
        while done < len(rows):
            while together > len(rows) - done:
                together //= 2
            values = [value for row in rows[done : done + together] for value in row]
            self.connection.execute(_insertion(table, columns, together), values)
            done += together

    def _now(self) -> int:
        """Microseconds since 1970 UTC, but never less than what was stored before: clocks are set back."""
        if self._clock is None:
            self._clock = max(time.time_ns() // 1000, self._newest)
        return self._clock

    def _note(self, kind: int, first: int, last: int, ids: bytes | None = None) -> None:
        self._number += 1
        self.connection.execute("INSERT INTO change VALUES (?, ?, ?, ?, ?)", (self._number, kind, first, last, ids))

    def _note_ids(self, kind: int, ids: npt.NDArray[np.int64]) -> None:
        first, last = int(ids[0]), int(ids[-1])
        contiguous = last - first + 1 == len(ids)
        self._note(kind, first, last, None if contiguous else ids.astype("<i8").tobytes())


@cache
def _insertion(table: str, columns: tuple[str, ...], rows: int) -> str:
    places = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table}({', '.join(columns)}) VALUES {', '.join([places] * rows)}"  # noqa: S608 - own names


def changes_since(connection: apsw.Connection, since: int) -> Changes:
    """What the table ``change`` holds after a number; must run inside a transaction."""
    rows = fetch(
        connection, "SELECT number, kind, first, last, ids FROM change WHERE number > ? ORDER BY number", (since,)
    )
    if not rows:
        newest = connection.execute("SELECT coalesce(max(number), 0) FROM change").get
        return Changes(newest, [], [], [], complete=newest == since)  # an older copy of the file may have come back
    touched: dict[int, set[int]] = defaultdict(set)
    for _, kind, first, last, listed in rows:
        with damage_to("The list of changes"):
            touched[kind].update(range(first, last + 1) if listed is None else np.frombuffer(listed, "<i8").tolist())
    removed = touched[REMOVED]
    return Changes(
        rows[-1][0],
        sorted(touched[ADDED] - removed),
        sorted(touched[REWARDED] - removed),
        sorted(removed),
        complete=rows[0][0] == since + 1,
    )
