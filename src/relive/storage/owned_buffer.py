"""A replay buffer whose index and rows change together, each time inside one write transaction of a store.

Lock order: the store's writer first, then the buffer's lock. The lock is taken inside the transaction and held until
that has ended, so nothing is drawn that is not kept; and whoever holds the lock must never wait for the writer.
"""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from relive.buffer import BufferSettingError, ReplayBuffer, Selector
from relive.buffer._core import Index
from relive.buffer.checks import keepable
from relive.buffer.priority_rule import PriorityRule
from relive.buffer.rows import NO_IDS, Changes, Ids
from relive.buffer.workers import leave_forks
from relive.experience import Transition
from relive.storage import record
from relive.storage.buffer_state import BufferState, from_bytes, restore_index
from relive.storage.limits import Limits
from relive.storage.record import Row
from relive.storage.rows import DurableRows, Experiences
from relive.storage.sampling import SavedIndex
from relive.storage.sqlite import SqliteStorage
from relive.storage.stored import Stored
from relive.storage.transaction import Transaction
from relive.storage.writer import Written

DEFAULT_CAPACITY = 1_000_000
"""Most experiences kept in a new store for which no capacity is given."""

_PART = 4096  # experiences looked at together when a sampler wants to see all that is stored


class OwnedBuffer(ReplayBuffer):
    """The part of `relive.Memory` that works inside transactions; see there for the arguments."""

    def __init__(
        self,
        storage: SqliteStorage,
        *,
        capacity: int | None,
        sampler: Selector | None,
        remover: Selector | None,
        priority: Callable[[Transition], float] | PriorityRule | None,
        seed: int | None,
        max_bytes: int | None,
        max_age: float | None,
    ) -> None:
        for name, limit in (("max_bytes", max_bytes), ("max_age", max_age)):
            if limit is not None and not (isinstance(limit, int | float) and 0 < limit < float("inf")):
                raise BufferSettingError(f"{name} is {limit!r}; it must be a number above 0 and finite, or None.")
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes >= 2**63):
            raise BufferSettingError(f"max_bytes is {max_bytes}; it must be a whole number below 2**63, or None.")
        self.storage = storage
        self._most_bytes = max_bytes
        self._most_microseconds = None if max_age is None else max(1, round(max_age * 1e6))
        self._expiry: int | None = None  # when the oldest leaves, in microseconds since 1970 UTC
        saved = storage.load_index()
        state = from_bytes(saved.state)
        if capacity is None:
            capacity = DEFAULT_CAPACITY if state is None else state.capacity
        self._durable = DurableRows(storage, lambda ids: self._index.find(ids))
        super().__init__(
            capacity, storage=self._durable, sampler=sampler, remover=remover, priority=priority, seed=seed
        )
        self._followed = 0  # change number up to which the index knows what happened
        self._kept_number = 0  # the same as of the last commit
        leave_forks(self)
        storage.hold_at_forks(self._lock)
        if storage.owns_index:
            self._write(self._restore, follow=False).result()
            storage.keep_limits_by(lambda transaction: self._inside(transaction, lambda _: None))

    def _write(
        self,
        call: Callable[[Transaction], Any],
        encoded: Mapping[int, Row] = MappingProxyType({}),
        *,
        follow: bool = True,
        whole_state: bool = False,
    ) -> Written:
        """Has `call` run by the writer, under the buffer's lock, after the index was brought up to date."""

        def act(transaction: Transaction) -> Any:
            return self._inside(transaction, call, encoded, follow=follow, whole_state=whole_state)

        return self.storage.write(act, len(encoded) or 1, sum(map(record.size, encoded.values())))

    def _inside(
        self,
        transaction: Transaction,
        call: Callable[[Transaction], Any],
        encoded: Mapping[int, Row] = MappingProxyType({}),
        *,
        follow: bool = True,
        whole_state: bool = False,
    ) -> Any:
        self._lock.acquire()
        transaction.on_end(self._ended)
        was_ring = self._index.is_ring
        news = self._news(transaction) if follow else None
        self._durable.begin(transaction, encoded, news)
        if news is not None:
            self._apply_news(news)
        result = call(transaction)
        self._durable.note_added()
        self._enforce_limits(transaction)
        if was_ring and not self._index.is_ring:
            self._durable.note_ring_end(self._index.free_slots(), self._capacity)
        if follow:
            self._followed = transaction.number
        self._durable.save(self._state(whole=whole_state).to_bytes())
        return result

    def _enforce_limits(self, transaction: Transaction) -> None:
        """Removes what is too much or too old; what alone is larger than all may be leaves at once."""
        if self._most_microseconds is not None:
            expired = transaction.expired(time.time_ns() // 1000 - self._most_microseconds)
            ReplayBuffer.remove(self, np.array(expired, np.int64))
            oldest = transaction.oldest()
            self._expiry = None if oldest is None else oldest + self._most_microseconds
        while self._most_bytes is not None and transaction.payload_bytes > self._most_bytes and self._index.size:
            surplus = transaction.payload_bytes - self._most_bytes
            count = min(self._index.size, max(1, surplus * transaction.rows // transaction.payload_bytes))
            ReplayBuffer.remove(self, self._victims(count))

    def _ended(self, committed: bool) -> None:
        """After the commit or the rollback; once for each act of the transaction."""
        try:
            touched = self._durable.end()
            if committed:
                self._kept_number = self._followed
            else:
                self._followed = self._kept_number
                if touched:
                    self._reload()
        finally:
            self._lock.release()

    def _news(self, transaction: Transaction) -> Changes | None:
        """What others did since the index was last brought up to date."""
        if transaction.number == self._followed:
            return None
        found = transaction.changes(self._followed)
        if found.complete:
            inserted, removed, rewarded = (
                np.array(ids, np.int64) for ids in (found.added, found.removed, found.rewarded)
            )
            inserted = inserted[inserted >= self._index.next_id]
        else:  # too long ago for the store to know: compare all
            known, stored = self._index.ids(), transaction.ids()
            removed = np.setdiff1d(known, stored, assume_unique=True)
            inserted = stored[stored >= self._index.next_id]
            rewarded = np.intersect1d(known, stored, assume_unique=True)
        return Changes(
            evicted=removed,
            inserted=inserted,
            inserted_priorities=transaction.asked_priorities(inserted),
            rewarded=rewarded if self._followers or self._evaluation.exists else NO_IDS,
        )

    def _apply_news(self, news: Changes) -> None:
        self._durable.note_gone(np.unique(news.evicted))
        ReplayBuffer.follow(self)
        self._durable.note_taken(news.inserted, self._index.priorities(news.inserted))

    def _refresh(self) -> None:
        if self._durable.is_open:  # else the draw goes by what it has; `follow` has just looked
            super()._refresh()

    def _state(self, *, whole: bool) -> BufferState:
        slots = self._index.find(self._index.ids()) if whole and self._evaluation.rule is not None else NO_IDS
        return BufferState(
            rule=self._evaluation.state_dict(slots) if whole else None,
            capacity=self._capacity,
            ring=self._index.is_ring,
            free_rank=self._durable.free_rank,
            free_bottom=self._durable.free_bottom,
            next_id=self._index.next_id,
            random=[int(word) for word in self._index.random_state],
            followed=self._followed,
            sampler=(self._sampler.saved_as, self._sampler.state_dict()),
            remover=(self._remover.saved_as, self._remover.state_dict()),
            counters={
                "added": self._added,
                "sampled": self._sampled,
                "stale_updates": self._stale_updates,
            },
        )

    # ---- Loading

    def _restore(self, transaction: Transaction) -> None:
        """Takes up the index where its last owner left it, and says what the store may hold from now on."""
        transaction.set_limits(Limits(self._capacity, self._most_bytes, self._most_microseconds))
        saved = transaction.load_index()
        state = from_bytes(saved.state)
        if state is None:
            return
        self._count(state)
        if state.capacity != self._capacity or not restore_index(self._index, saved, state):
            self._lay_out_anew(transaction, saved)
        self._tell_all(transaction.read, state, saved)
        self._index.random_state = state.random
        for selector, (saved_as, own_state) in ((self._sampler, state.sampler), (self._remover, state.remover)):
            if selector.saved_as == saved_as:
                selector.load_state_dict(own_state)

    def _reload(self) -> None:
        """Undoes in the index what was rolled back in the store. The random stream and the selectors go on."""
        random = self._index.random_state
        self._index = self._view.index = Index(self._capacity, self._index.alpha, 0)
        self._followed = self._kept_number = 0
        saved = self.storage.load_index()
        state = from_bytes(saved.state)
        if state is not None and restore_index(self._index, saved, state):
            self._count(state)
            self._tell_all(self.storage.read, state, saved)
        self._index.random_state = random

    def _count(self, state: BufferState) -> None:
        self._added = state.counters["added"]
        self._sampled = state.counters["sampled"]
        self._stale_updates = state.counters["stale_updates"]
        self._followed = self._kept_number = state.followed
        self._durable.ring = state.ring
        self._durable.free_rank = state.free_rank
        self._durable.free_bottom = state.free_bottom

    def _lay_out_anew(self, transaction: Transaction, saved: SavedIndex) -> None:
        """Fills the empty index in the order of ids, for another capacity; the oldest leave if there are too many."""
        taken = np.flatnonzero((saved.ids > 0) & np.isin(saved.ids, transaction.ids()))
        order = taken[np.argsort(saved.ids[taken])]
        surplus = max(0, len(order) - self._capacity)
        transaction.evict(saved.ids[order[:surplus]].tolist())
        ids, priorities = saved.ids[order[surplus:]], keepable(saved.priorities[order[surplus:]], self._index.alpha)
        transaction.clear_index()
        self._durable.ring, self._durable.free_rank = True, 0
        self._index.replace(NO_IDS, ids, priorities)
        self._durable.note_taken(ids, priorities)

    def _tell_all(self, read: Callable[[Ids], list[Stored | None]], state: BufferState, saved: SavedIndex) -> None:
        """Tells selectors and rule what is stored, as far as they keep state of their own."""
        if not self._watched:
            return
        order = np.argsort(saved.ids)
        order = order[self._index.find(saved.ids[order]) >= 0]
        self._keep_raw(saved.ids[order], saved.priorities[order].astype(np.float64))
        for selector in self._followers:
            selector.reset()
        self._evaluation.load_state_dict(None, NO_IDS, ())
        ids = self._index.ids()
        for start in range(0, len(ids), _PART):
            stored = [one for one in read(ids[start : start + _PART]) if one is not None]
            here = np.array([one.id for one in stored], np.int64)
            experiences = Experiences(stored)
            for selector in self._followers:
                selector.insert(here, self._view.priorities(here), experiences)
            self._evaluation.join(self._index.find(here), experiences)
            gone = np.setdiff1d(ids[start : start + _PART], here)
            if len(gone):  # removed by another process since the index was saved
                self._durable.note_gone(gone)
                self._index.replace(gone, NO_IDS, None)
                if self._view.raw is not None:
                    self._view.raw.replace(gone, NO_IDS, None)
        if self._evaluation.rule is None:
            return
        if state.rule is not None and self._index.size == len(ids):
            slots = self._index.find(ids)
            self._evaluation.rule.load_state_dict(state.rule["rule"], slots)
            self._evaluation.rule.refreshed()
        else:  # what the rule knew of them is lost: the priorities stand until a reward or TD error arrives
            self._evaluation.set_by_hand(self._index, self._index.ids())
