"""The rows of a `ReplayBuffer` that live in a store, and the buffer's index saved beside them.

Everything the buffer does to its rows happens inside one write transaction of the store, begun and ended by
`relive.memory`. What changed in the index (which id is in which slot, with which priority) is noted on the way and
saved in the same transaction.

A free slot is saved as 0, or, if it was freed when the index was no ring any more, as -(rank). Those with a rank are
taken again first, in the order of falling rank, then the others, as the ring would have taken them: the one before
`free_bottom`, going round, is the last.
"""

# ruff: noqa: ARG002  (the protocol passes more than rows with ids of their own need)

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from relive.buffer.rows import Changes, Floats, Ids, Summary
from relive.experience import Transition
from relive.storage.errors import StorageError
from relive.storage.record import Row
from relive.storage.sampling import IndexChange
from relive.storage.sqlite import SqliteStorage
from relive.storage.stored import Stored
from relive.storage.transaction import Transaction


class GoneError(StorageError):
    """A drawn experience was removed by another process in the moment of the draw."""


class Experiences(Sequence[Transition]):
    """Drawn experiences; each is parsed when it is first looked at."""

    __slots__ = ("_stored",)

    def __init__(self, stored: Sequence[Stored]) -> None:
        self._stored = stored

    @property
    def stored(self) -> Sequence[Stored]:
        """The same as they lie in the store, with what is kept beside them."""
        return self._stored

    @overload
    def __getitem__(self, position: int) -> Transition: ...
    @overload
    def __getitem__(self, position: slice) -> list[Transition]: ...
    def __getitem__(self, position: int | slice) -> Transition | list[Transition]:
        if isinstance(position, slice):
            return [stored.transition for stored in self._stored[position]]
        return self._stored[position].transition

    def __len__(self) -> int:
        return len(self._stored)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # experiences can be changed

    def __repr__(self) -> str:
        return f"Experiences({len(self)})"


class DurableRows:
    """Rows in a store; see the module's text. Used under the buffer's lock only.

    Args:
        storage: The store.
        find: The slot of each id in the buffer's index, -1 where it is not there.
    """

    keeps_priorities = True
    has_own_ids = True

    def __init__(self, storage: SqliteStorage, find: Callable[[Ids], Ids]) -> None:
        self._storage = storage
        self._find = find
        self._transaction: Transaction | None = None
        self._encoded: dict[int, Row] = {}  # by the identity of the experience
        self._noted: list[IndexChange] = []
        self._added: list[tuple[Ids, Floats]] = []
        self._touched = False
        self._news: Changes | None = None
        self.ring = True
        self.free_rank = 0  # of the slot freed last
        self.free_bottom = 0

    @property
    def is_open(self) -> bool:
        """Whether a transaction is under way."""
        return self._transaction is not None

    def begin(
        self, transaction: Transaction, encoded: Mapping[int, Row] = MappingProxyType({}), news: Changes | None = None
    ) -> None:
        """Opens the rows for writing: what may be appended, by ``id(experience)``, and what others did."""
        self._transaction = transaction
        self._encoded = dict(encoded)
        self._noted = []
        self._added = []
        self._news = news

    def save(self, state: bytes) -> None:
        """Writes what changed in the index since `begin`, and the buffer's own state, into the transaction."""
        transaction = self._open()
        for change in self._noted:
            transaction.save_index(change)
        transaction.save_index(None, state)

    def end(self) -> bool:
        """Closes the rows for writing; whether anything of the index was changed since the last `end`."""
        touched, self._touched = self._touched, False
        self._transaction = None
        self._encoded = {}
        self._noted = []
        self._added = []
        self._news = None
        return touched

    def append(self, experiences: Sequence[Any], priorities: Floats | None, victims: Ids, slots: Ids) -> Ids:
        """Writes what was given to `begin` for these experiences, and removes the victims; the new ids."""
        transaction = self._open()
        rows = [self._encoded[id(experience)] for experience in experiences]
        if len(victims):
            self.evict(victims, self._find(victims))
        ids = np.array(transaction.append(rows), np.int64)
        self._added.append((ids, np.zeros(len(ids)) if priorities is None else priorities))
        return ids

    def note_added(self) -> None:
        """Notes where the index has put what was appended since `begin`; a slot freed before may be taken again."""
        for ids, priorities in self._added:
            self.note_taken(ids, priorities)
        self._added = []

    def note_taken(self, ids: Ids, priorities: Floats) -> None:
        """Notes the slots and priorities of those ids that are in the index."""
        slots = self._find(ids)
        here = slots >= 0
        self._note(IndexChange(slots[here].astype(np.int32), priorities[here].astype(np.float32), ids[here]))

    def evict(self, ids: Ids, slots: Ids) -> None:
        """Removes rows."""
        self._open().evict(ids.tolist())
        self._note_freed(slots[slots >= 0])

    def note_gone(self, ids: Ids) -> None:
        """Notes the slots of ids that others removed, before the index lets go of them."""
        slots = self._find(ids)
        self._note_freed(slots[slots >= 0])

    def note_ring_end(self, free: Ids, capacity: int) -> None:
        """Notes what is free, the one taken next last, when the index has just ceased to be a ring."""
        self.ring = False
        if not len(free):
            return
        steps = (free[:-1] - free[1:]) % capacity != 1
        ring_part = int(np.argmax(steps)) + 1 if steps.any() else len(free)  # the rest was freed since
        self.free_bottom = int(free[0])
        self.free_rank = len(free) - ring_part
        ranks = -np.arange(1, self.free_rank + 1, dtype=np.int64)
        self._note(IndexChange(free[ring_part:].astype(np.int32), np.zeros(self.free_rank, np.float32), ranks))

    def get(self, ids: Ids, slots: Ids) -> Experiences:
        """The experiences with these ids.

        Raises:
            GoneError: one was removed by another process meanwhile.
        """
        source = self._storage if self._transaction is None else self._transaction
        stored = source.read(ids)
        present = [one for one in stored if one is not None]
        if len(present) < len(stored):
            raise GoneError("An experience was removed by another process in this moment; draw again.")
        return Experiences(present)

    def set_priorities(self, ids: Ids, priorities: Floats) -> None:
        """Notes the new priorities."""
        self._open()
        self._note(IndexChange(self._find(ids).astype(np.int32), priorities.astype(np.float32)))

    def changes(self) -> Changes | None:
        """What others did, once, inside a transaction."""
        news, self._news = self._news, None
        return news

    def summary(self, ids: Ids, slots: Ids) -> Summary:
        """Rewards and costs of all that is stored."""
        stats = self._storage.stats()
        return Summary(
            reward_min=stats.reward_min,
            reward_mean=stats.reward_mean,
            reward_max=stats.reward_max,
            unknown_rewards=stats.experiences - stats.rewards,
            cost=stats.cost,
        )

    def nbytes(self) -> int:
        """Size of the experiences in the store, compressed."""
        return self._storage.payload_bytes()

    def state_dict(self, ids: Ids, slots: Ids) -> dict[str, Any]:
        """Empty: the store keeps the rows."""
        return {}

    def load_state_dict(self, state: dict[str, Any], ids: Ids, slots: Ids) -> None:
        """Nothing to do: the store keeps the rows."""

    def _note(self, change: IndexChange) -> None:
        if len(change.slots):
            self._noted.append(change)
            self._touched = True

    def _open(self) -> Transaction:
        if self._transaction is None:
            raise StorageError("Rows of a store are written inside a transaction only.")
        return self._transaction

    def _note_freed(self, slots: npt.NDArray[np.int64]) -> None:
        if not len(slots):
            return
        ids = np.zeros(len(slots), np.int64)
        if not self.ring:  # the first of them is the first to be taken again
            ids = -(self.free_rank + np.arange(len(slots), 0, -1, dtype=np.int64))
            self.free_rank += len(slots)
        self._note(IndexChange(slots.astype(np.int32), np.zeros(len(slots), np.float32), ids))
