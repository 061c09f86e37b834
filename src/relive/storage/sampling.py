"""The sampling index on disk: which experience is in which slot, with which priority, and the sampler's own state.

Slots are kept in chunks of `CHUNK` entries. A change is first one small row of a log, written in the transaction that
caused it; once the log is long it is folded into the chunks. Chunks and log together are always what the owner of the
index knew when that transaction was committed, slot by slot: so the draws after reopening are the draws that would
have come next.
"""

from typing import Any, NamedTuple

import apsw
import numpy as np
import numpy.typing as npt

from relive.buffer.checks import keepable
from relive.storage.damage import damage_to, damaged
from relive.storage.schema import CHUNK
from relive.storage.stored import Stored

_MOST_SLOTS = 1 << 28  # more than any store has; damaged bytes must not ask for all the memory
_FOLD_ROWS = 256
_FOLD_BYTES = 1 << 21

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


class IndexChange(NamedTuple):
    """Slots of the sampling index that changed.

    Attributes:
        slots: int32 ``[n]``, which slots; a later entry for the same slot wins.
        priorities: float32 ``[n]``, their raw priorities now (0 where a slot was freed).
        ids: int64 ``[n]``, who is there now (0 or less: nobody); ``None``: nobody moved.
    """

    slots: Int32
    priorities: Float32
    ids: Int64 | None = None


class SavedIndex(NamedTuple):
    """The sampling index as it was saved last.

    Attributes:
        ids: int64 ``[slots]``; 0 or less: the slot is free.
        priorities: float32 ``[slots]``.
        state: What the sampler saved with it; empty: it never did.
    """

    ids: Int64
    priorities: Float32
    state: bytes


def log_change(connection: apsw.Connection, change: IndexChange) -> None:
    """Writes a change; must run inside a write transaction."""
    connection.execute(
        "INSERT INTO index_log(slots, ids, priorities) VALUES (?, ?, ?)",
        (
            change.slots.astype("<i4").tobytes(),
            None if change.ids is None else change.ids.astype("<i8").tobytes(),
            change.priorities.astype("<f4").tobytes(),
        ),
    )


def save_state(connection: apsw.Connection, state: bytes) -> None:
    """Replaces the sampler's own state; must run inside a write transaction."""
    connection.execute("INSERT OR REPLACE INTO index_state VALUES (1, ?)", (state,))


def fold_if_long(connection: apsw.Connection) -> None:
    """Folds the log into the chunks once it is long; must run inside a write transaction."""
    rows, size = connection.execute(
        "SELECT count(*), coalesce(sum(length(slots) + length(priorities)), 0) FROM index_log"
    ).get
    if rows >= _FOLD_ROWS or size >= _FOLD_BYTES:
        fold(connection)


def fold(connection: apsw.Connection) -> None:
    """Folds the log into the chunks; must run inside a write transaction."""
    ids: dict[int, Int64] = {}
    priorities: dict[int, Float32] = {}
    for change in _log(connection):
        chunks = change.slots // CHUNK
        for chunk in np.unique(chunks).tolist():
            here = chunks == chunk
            places = change.slots[here] - chunk * CHUNK
            if chunk not in priorities:
                priorities[chunk] = _chunk(connection, "index_priorities", chunk, "<f4")
            priorities[chunk][places] = change.priorities[here]
            if change.ids is not None:
                if chunk not in ids:
                    ids[chunk] = _chunk(connection, "index_ids", chunk, "<i8")
                ids[chunk][places] = change.ids[here]
    connection.executemany(
        "INSERT OR REPLACE INTO index_priorities VALUES (?, ?)", [(c, a.tobytes()) for c, a in priorities.items()]
    )
    connection.executemany("INSERT OR REPLACE INTO index_ids VALUES (?, ?)", [(c, a.tobytes()) for c, a in ids.items()])
    connection.execute("DELETE FROM index_log")


def clear(connection: apsw.Connection) -> None:
    """Forgets the saved index; must run inside a write transaction."""
    for table in ("index_ids", "index_priorities", "index_log", "index_state"):
        connection.execute(f"DELETE FROM {table}")  # noqa: S608 - names from the line above


def load(connection: apsw.Connection) -> SavedIndex:
    """The index as saved last; must run inside a transaction, so that chunks and log belong together.

    Raises:
        DamagedStoreError: it is not what was saved.
    """
    with damage_to("The sampling index"):
        return _load(connection)


def _load(connection: apsw.Connection) -> SavedIndex:
    log = list(_log(connection))
    chunks = [int(row[0]) for row in connection.execute("SELECT chunk FROM index_ids ORDER BY chunk")]
    slots = max([0, *((c + 1) * CHUNK for c in chunks), *(int(c.slots.max(initial=-1)) + 1 for c in log)])
    if slots > _MOST_SLOTS:
        raise damaged("The sampling index")
    ids = np.zeros(slots, np.int64)
    priorities = np.zeros(slots, np.float32)
    for chunk, body in connection.execute("SELECT chunk, body FROM index_ids"):
        ids[chunk * CHUNK : (chunk + 1) * CHUNK] = np.frombuffer(body, "<i8")
    for chunk, body in connection.execute("SELECT chunk, body FROM index_priorities"):
        priorities[chunk * CHUNK : (chunk + 1) * CHUNK] = np.frombuffer(body, "<f4")
    for change in log:
        priorities[change.slots] = change.priorities
        if change.ids is not None:
            ids[change.slots] = change.ids
    state = connection.execute("SELECT body FROM index_state").get
    return SavedIndex(ids, _sound(priorities), state or b"")


def _sound(priorities: Float32) -> Float32:
    """The priorities as an index takes them: damaged bytes may be anything."""
    return keepable(np.nan_to_num(priorities, nan=0.0)).astype(np.float32)


def _log(connection: apsw.Connection) -> list[IndexChange]:
    return [
        IndexChange(
            np.frombuffer(slots, "<i4"),
            np.frombuffer(priorities, "<f4"),
            None if ids is None else np.frombuffer(ids, "<i8"),
        )
        for slots, ids, priorities in connection.execute("SELECT slots, ids, priorities FROM index_log ORDER BY number")
    ]


def _chunk(connection: apsw.Connection, table: str, chunk: int, dtype: str) -> npt.NDArray[Any]:
    body = connection.execute(f"SELECT body FROM {table} WHERE chunk = ?", (chunk,)).get  # noqa: S608 - two callers above
    return np.zeros(CHUNK, dtype) if body is None else np.frombuffer(body, dtype).copy()


def fill_priorities(connection: apsw.Connection, found: list[Stored]) -> None:
    """Gives each experience its priority in the index; those not in it keep the one they were appended with.

    A page of a query is small beside the index: of the priorities only the chunks are read in which it has a slot.
    """
    with damage_to("The sampling index"):
        priorities = _priorities_of(connection, np.sort([stored.id for stored in found]))
    for stored in found:
        stored.priority = priorities.get(stored.id, stored.priority)


def _priorities_of(connection: apsw.Connection, wanted: Int64) -> dict[int, float]:
    """The priorities of those of some ids (increasing) that are in the index."""
    there: dict[int, int] = {}  # the id in each slot that has one of them
    priorities: dict[int, float] = {}  # by slot
    for chunk, body in connection.execute("SELECT chunk, body FROM index_ids"):
        ids = np.frombuffer(body, "<i8")
        near = np.flatnonzero((ids >= wanted[0]) & (ids <= wanted[-1]))
        places = near[np.isin(ids[near], wanted)]
        if len(places):
            slots = (places + int(chunk) * CHUNK).tolist()
            there.update(zip(slots, ids[places].tolist(), strict=True))
            known = _chunk(connection, "index_priorities", chunk, "<f4")[places]
            priorities.update(zip(slots, known.tolist(), strict=True))
    for change in _log(connection):
        concerned = np.isin(change.slots, list(there))
        if change.ids is not None:
            concerned |= np.isin(change.ids, wanted)
        slots = change.slots[concerned].tolist()
        if change.ids is not None:
            there.update(zip(slots, change.ids[concerned].tolist(), strict=True))
        priorities.update(zip(slots, change.priorities[concerned].tolist(), strict=True))
    values = _sound(np.array([priorities[slot] for slot in there], np.float32))
    return dict(zip(there.values(), values.tolist(), strict=True))
