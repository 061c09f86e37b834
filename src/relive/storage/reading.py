"""Reading rows of a store, by id or by a query; any connection will do."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from relive.errors import InvalidExperienceError
from relive.experience import Outcome
from relive.storage import codec, record
from relive.storage.codec import Decompressor, TraceRow
from relive.storage.connection import bounded, fetch
from relive.storage.errors import DamagedStoreError
from relive.storage.record import OUTCOME_NUMBERS
from relive.storage.stored import CODEC, FLAGS, ID, SELECTED, Body, Stored
from relive.storage.text import match_query

_SELECT = f"SELECT {', '.join(SELECTED)}"
_BY_ID = f"{_SELECT} FROM carray(?) c JOIN experience e ON e.id = c.value JOIN payload p ON p.id = e.id"
_LATE = "SELECT n.id, n.codec, n.body FROM carray(?) c JOIN next_state n ON n.id = c.value"
_TRACES = """SELECT t.id, t.length, t.parts, t.temperature, t.top_p, t.tokenizer, t.body
    FROM carray(?) c JOIN token_trace t ON t.id = c.value"""


class Query(msgspec.Struct, kw_only=True, frozen=True):
    """Which experiences; every condition given must hold. See `SqliteStorage.query`."""

    agent: str | None = None
    episode_id: str | None = None
    group_id: str | None = None
    parent: int | None = None
    outcome: Outcome | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    policy: str | None = None
    policy_version: int | None = None
    tag: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: bool | str | None = None
    text: str | None = None

    def where(self) -> tuple[str, list[Any]] | None:
        """The SQL condition on ``e`` and its values; ``None``: nothing can match."""
        if any(number is not None and not _is_int64(number) for number in (self.parent, self.policy_version)):
            return None
        terms: list[str] = []
        values: list[Any] = []

        def add(term: str, value: Any) -> None:
            if value is not None:
                terms.append(term)
                values.append(codec.clean_text(value) if isinstance(value, str) else value)

        add("e.agent = ?", self.agent)
        add("e.episode_id = ?", self.episode_id)
        add("e.group_id = ?", self.group_id)
        add("e.parent = ?", self.parent)
        add("e.outcome = ?", None if self.outcome is None else _outcome(self.outcome))
        add("e.reward >= ?", self.min_reward)
        add("e.reward <= ?", self.max_reward)
        add("e.policy = ?", self.policy)
        add("e.policy_version = ?", self.policy_version)
        add("e.id IN (SELECT id FROM tag WHERE name = ?)", self.tag)
        add("e.created_at >= ?", None if self.since is None else record.microseconds(self.since))
        add("e.created_at < ?", None if self.until is None else record.microseconds(self.until))
        if isinstance(self.error, str):
            add("instr(e.error, ?)", self.error)
        elif self.error is not None:
            terms.append("e.error IS NOT NULL" if self.error else "e.error IS NULL")
        if self.text is not None:
            match = match_query(self.text)
            if match is None:
                return None
            add("e.id IN (SELECT rowid FROM state_text WHERE state_text MATCH ?)", match)
        return " AND ".join(terms) or "1", values


class Reader:
    """Turns rows of one store into `Stored`; safe to use from any thread."""

    def __init__(self) -> None:
        self._decompress = Decompressor()

    def read(self, connection: apsw.Connection, ids: Sequence[int] | npt.NDArray[np.int64]) -> list[Stored | None]:
        """Experiences in the order of `ids`; ``None`` where there is none."""
        wanted = int64(ids)
        if not len(wanted):
            return []
        rows = fetch(connection, _BY_ID, (apsw.carray(np.sort(wanted)),))  # neighbours in the file share pages
        found = {stored.id: stored for stored in self._stored(connection, rows)}
        return [found.get(number) for number in wanted.tolist()]

    def query(
        self, connection: apsw.Connection, query: Query, *, after: int | None, limit: int, newest_first: bool
    ) -> list[Stored]:
        """One page of a query, in the order of ids."""
        condition = query.where()
        if condition is None:
            return []
        where, values = condition
        if after is not None:
            where += " AND e.id < ?" if newest_first else " AND e.id > ?"
            values.append(bounded(after))
        rows = connection.execute(
            f"{_SELECT} FROM experience e JOIN payload p ON p.id = e.id WHERE {where} "
            f"ORDER BY e.id {'DESC' if newest_first else 'ASC'} LIMIT ?",
            (*values, bounded(limit)),
        ).fetchall()
        return self._stored(connection, rows)

    def count(self, connection: apsw.Connection, query: Query) -> int:
        """How many experiences a query finds."""
        condition = query.where()
        if condition is None:
            return 0
        where, values = condition
        return int(connection.execute(f"SELECT count(*) FROM experience e WHERE {where}", values).get)  # noqa: S608

    def search(
        self, connection: apsw.Connection, text: str, outcome: Outcome | None, agent: str | None, limit: int
    ) -> list[tuple[int, float]]:
        """(id, BM25 score) of the states most like a text, the best first, older ones first among equals."""
        match = match_query(text)
        if match is None:
            return []
        where, values = Query(outcome=outcome, agent=agent).where() or ("1", [])
        join = "" if where == "1" else f"JOIN experience e ON e.id = state_text.rowid AND {where}"
        return fetch(
            connection,
            f"SELECT state_text.rowid, -bm25(state_text) AS score FROM state_text {join} "  # noqa: S608 - bound
            "WHERE state_text MATCH ? ORDER BY score DESC, state_text.rowid LIMIT ?",
            (*values, match, bounded(limit)),
        )

    def tags(self, connection: apsw.Connection, number: int) -> set[str]:
        """The tags of one experience."""
        text = connection.execute("SELECT tags FROM experience WHERE id = ?", (number,)).get
        return set() if text is None else set(msgspec.json.decode(text))

    def _stored(self, connection: apsw.Connection, rows: list[Any]) -> list[Stored]:
        decompress = self._decompress
        for codec_number in {row[CODEC] for row in rows}:
            self._check_codec(connection, codec_number)
        extras = {row[ID]: row[FLAGS] for row in rows if row[FLAGS] & (record.HAS_TOKENS | record.HAS_LATE_NEXT_STATE)}
        if not extras:
            return [Stored(row, decompress) for row in rows]
        traces: dict[int, TraceRow] = {}
        with_tokens = [number for number, flags in extras.items() if flags & record.HAS_TOKENS]
        if with_tokens:
            for number, *columns in fetch(connection, _TRACES, (apsw.carray(int64(with_tokens)),)):
                traces[number] = TraceRow(*columns)
        waited = [number for number, flags in extras.items() if flags & record.HAS_LATE_NEXT_STATE]
        late: dict[int, Body] = {}
        if waited:
            for number, codec_number, body in fetch(connection, _LATE, (apsw.carray(int64(waited)),)):
                self._check_codec(connection, codec_number)
                late[number] = codec_number, body
        return [Stored(row, decompress, traces.get(row[ID]), late.get(row[ID])) for row in rows]

    def _check_codec(self, connection: apsw.Connection, codec_number: int) -> None:
        if self._decompress.knows(codec_number):
            return
        dictionary = connection.execute("SELECT body FROM dictionary WHERE id = ?", (codec_number,)).get
        if dictionary is None:
            raise DamagedStoreError(
                f"The store lacks dictionary {codec_number}, which some payloads need; `relive check` says which."
            )
        self._decompress.learn(codec_number, dictionary)


def int64(ids: Iterable[int]) -> npt.NDArray[np.int64]:
    """Ids as an array; a number that no id can be becomes one that none is."""
    if isinstance(ids, np.ndarray):
        return np.ascontiguousarray(ids, np.int64)
    ids = list(ids)
    try:
        return np.array(ids, np.int64)
    except OverflowError:
        return np.array([number if _is_int64(number) else 0 for number in ids], np.int64)


def _is_int64(number: int) -> bool:
    return bounded(number) == number


def _outcome(name: Outcome) -> int:
    number = OUTCOME_NUMBERS.get(name)
    if number is None:
        raise InvalidExperienceError(f"outcome is {name!r}; it must be success, failure or unknown.")
    return number
