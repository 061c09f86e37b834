"""`relive.open`: a `ReplayBuffer` over the durable store.

One process at a time *owns* the sampling index of a store: it draws, sets priorities and evicts. It follows what others
appended, rewarded or removed before each draw and each write of its own. Invariants:

- Each call that writes is one transaction: rows, evictions, priorities and the state of the draws are kept together or
  not at all.
- The buffer's lock is held until that transaction has ended, so nothing is drawn that is not kept. It is taken inside
  the transaction, never before: whoever holds the lock must not wait for the writer.
- Reopening gives the draws that would have come next after the last write (what was only drawn since then is drawn
  again, unless `Memory.flush` or `Memory.close` kept it).
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from relive.buffer import Batch, BufferStateError, BufferStats, ReplayBuffer, Selector
from relive.buffer._core import Index
from relive.buffer.rows import NO_IDS, Changes, Ids
from relive.experience import Feedback, Outcome, Transition
from relive.storage.buffer_state import BufferState, from_bytes, restore_index
from relive.storage.connection import Durability
from relive.storage.errors import ClosedStoreError, NotOwnerError
from relive.storage.protocol import Stored
from relive.storage.record import Redact, Row
from relive.storage.rows import DurableRows, Experiences, GoneError
from relive.storage.sampling import SavedIndex
from relive.storage.sqlite import SqliteStorage
from relive.storage.transaction import Transaction

DEFAULT_CAPACITY = 1_000_000
"""Most experiences kept in a new store for which no capacity is given."""

_TRIES = 16  # draws, when each time another process removed something drawn in that very moment
_PART = 4096  # experiences looked at together when a sampler wants to see all that is stored


def open(  # noqa: A001 - read as `relive.open`
    path: str | os.PathLike[str],
    *,
    capacity: int | None = None,
    sampler: Selector | None = None,
    remover: Selector | None = None,
    priority: Callable[[Transition], float] | None = None,
    seed: int | None = 0,
    readonly: bool = False,
    follower: bool = False,
    durability: Durability = "process",
    text_index: bool = True,
    redact: Redact | None = None,
) -> "Memory":
    """Opens the memory in a file, or makes it.

    Args:
        path: The file; its folder must exist.
        capacity: Most experiences kept; ``None``: as many as when it was last opened, else `DEFAULT_CAPACITY`. If it is
            less than what is stored, the oldest are removed.
        sampler: What is drawn; ``None``: `Prioritized` with its defaults.
        remover: What leaves when it is full; ``None``: the oldest.
        priority: Rule that gives an experience its raw priority, evaluated again when a reward arrives.
        seed: Seed of a new memory's random stream; a stored one goes on where it was.
        readonly: Only look: nothing is written to the file, nothing is drawn.
        follower: Record, give feedback and look, but leave the drawing to another process.
        durability: ``"process"``: what was added survives ``kill -9``; ``"power"``: it survives power loss too.
        text_index: Whether `Memory.search` finds what is added.
        redact: Takes out of an experience what must not reach the disk.

    Raises:
        IndexOwnedError: another process (or this one) has it open already as its owner; the error says who.
        StorageError: the path cannot hold a store, or holds something else; each kind has its own class.
    """
    storage = SqliteStorage(path, durability=durability, readonly=readonly, text_index=text_index, redact=redact)
    try:
        if not (readonly or follower):
            storage.claim()
        return Memory(storage, capacity=capacity, sampler=sampler, remover=remover, priority=priority, seed=seed)
    except BaseException:
        storage.close()
        raise


class Memory(ReplayBuffer):
    """A `ReplayBuffer` whose experiences are in a store; made by `open`.

    Without the ownership of the sampling index (`storage.owns_index`) it records, takes feedback and looks, but does
    not draw; so also in a forked child of its owner.

    Args:
        storage: The store. If it owns the sampling index, so does the memory.
        capacity: See `open`, as for all others.
        sampler: What is drawn.
        remover: What leaves when it is full.
        priority: Rule for raw priorities.
        seed: Seed of a new memory's random stream.

    Attributes:
        storage: The store.
    """

    def __init__(
        self,
        storage: SqliteStorage,
        *,
        capacity: int | None = None,
        sampler: Selector | None = None,
        remover: Selector | None = None,
        priority: Callable[[Transition], float] | None = None,
        seed: int | None = 0,
    ) -> None:
        self.storage = storage
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
        if storage.owns_index:
            self._write(self._restore, follow=False).result()
            self.follow()

    # ---- Adding

    def add(self, experience: Transition, priority: float | None = None) -> int:
        """Adds one experience and returns its id once it is kept; what has to leave leaves in the same transaction.

        Args:
            experience: What happened.
            priority: Raw priority, at least 0; ``None``: the rule, else the largest one stored.

        Raises:
            InvalidExperienceError: it cannot be stored.
            InvalidPriorityError: the priority is NaN, infinite, negative or too large; nothing was added.
            StorageError: it could not be kept; nothing was added.
        """
        return int(self.add_batch([experience], None if priority is None else [priority])[0])

    def add_batch(self, experiences: Sequence[Transition], priorities: npt.ArrayLike | None = None) -> Ids:
        """Adds experiences in one transaction, all or none; see `ReplayBuffer.add_batch`."""
        return self.add_soon(experiences, priorities).result()

    def add_soon(self, experiences: Sequence[Transition], priorities: npt.ArrayLike | None = None) -> "Future[Ids]":
        """Like `add_batch`, but returns at once; the future has the ids when they are kept."""
        if not self.storage.owns_index:
            given = None if priorities is None else np.asarray(priorities, np.float64).tolist()
            return _then(self.storage.append_soon(experiences, priorities=given), _as_ids)
        encoded = self.storage.encode(experiences)
        return self._write(lambda _: ReplayBuffer.add_batch(self, experiences, priorities), encoded)

    # ---- Drawing

    def sample(self, batch_size: int, *, strict: bool = False) -> Batch:
        """Draws experiences by the sampler's rule, of all that anyone had added before; see `ReplayBuffer.sample`.

        The batch's experiences are parsed when they are looked at.

        Raises:
            NotOwnerError: this memory does not own the sampling index.
            NotEnoughExperiencesError: `strict`, and there are fewer.
        """
        for _ in range(_TRIES):
            self.follow()
            try:
                return super().sample(batch_size, strict=strict)
            except GoneError:
                continue
        raise GoneError("Other processes remove experiences faster than they can be drawn; draw again.")

    def follow(self) -> None:
        """Brings the index up to date with what others did; each draw does so by itself.

        Raises:
            NotOwnerError: this memory does not own the sampling index.
        """
        self._require_owner()
        if self.storage.change_number() != self._followed:
            self._write(lambda _: None).result()

    # ---- What becomes known later

    def update_priorities(
        self, ids: npt.ArrayLike, priorities: npt.ArrayLike | None = None, *, td_errors: npt.ArrayLike | None = None
    ) -> int:
        """Sets priorities and returns once they are kept; see `ReplayBuffer.update_priorities`.

        Raises:
            NotOwnerError: this memory does not own the sampling index.
            InvalidPriorityError: a value is bad; no priority was changed.
        """
        self._require_owner()
        done: Future[int] = self._write(
            lambda _: ReplayBuffer.update_priorities(self, ids, priorities, td_errors=td_errors)
        )
        return done.result()

    def feedback(
        self,
        about: int | Feedback,
        reward: float | None = None,
        *,
        source: str = "user",
        key: str = "reward",
        comment: str | None = None,
        demonstration: Any = None,
    ) -> int:
        """Says what became known about an experience or an episode; its priority follows from the rule anew.

        Args:
            about: The experience's id, or a whole `Feedback`.
            reward: The reward by this source.
            source: Who says so; the same source and key replaces what it said before.
            key: Which aspect.
            comment: Free text for people.
            demonstration: The right action.

        Returns:
            How many stored experiences it is about.
        """
        if not isinstance(about, Feedback):
            about = Feedback(
                experience_id=int(about),
                reward=reward,
                source=source,
                key=key,
                comment=comment,
                demonstration=demonstration,
            )
        count = self.storage.feedback(about)
        if count and self.storage.owns_index:
            self.follow()
        return count

    def remove(self, ids: npt.ArrayLike) -> int:
        """Takes experiences out for good, and returns how many were still there.

        Raises:
            NotOwnerError: this memory does not own the sampling index.
        """
        self._require_owner()
        done: Future[int] = self._write(lambda _: ReplayBuffer.remove(self, ids))
        return done.result()

    # ---- Looking

    def get(self, ids: Sequence[int] | Ids) -> list[Transition | None]:
        """Experiences by id, with reward and outcome as they hold now; ``None`` where there is none."""
        return self.storage.get(ids)

    def query(self, **conditions: Any) -> list[Stored]:
        """One page of what is stored; see `SqliteStorage.query` for the conditions."""
        return self.storage.query(**conditions)

    def search(
        self, text: str, *, outcome: Outcome | None = None, agent: str | None = None, limit: int = 10
    ) -> list[tuple[int, float]]:
        """The experiences whose states are most like a text: (id, score), the best first."""
        return self.storage.search(text, outcome=outcome, agent=agent, limit=limit)

    def __len__(self) -> int:
        return super().__len__() if self.storage.owns_index else len(self.storage)

    def stats(self) -> BufferStats:
        """Counts, rewards and costs of what is stored. O(size)."""
        if self.storage.owns_index:
            return super().stats()
        found = self.storage.stats()
        _, priorities = self.storage.priorities()
        return BufferStats(
            size=found.experiences,
            capacity=self.capacity,
            bytes=found.payload_bytes,
            added=found.experiences + found.evicted,
            evicted=found.evicted,
            sampled=0,
            stale_updates=0,
            mean_priority=float(f"{priorities.mean(dtype=np.float64):.7g}") if len(priorities) else None,
            reward_min=found.reward_min,
            reward_mean=found.reward_mean,
            reward_max=found.reward_max,
            unknown_rewards=found.experiences - found.rewards,
            cost=found.cost,
            experiences_per_dollar=found.experiences / (found.cost * 1e-9) if found.cost else None,
        )

    # ---- Life

    def flush(self) -> None:
        """Returns once everything handed in before, and how far the draws have come, is kept."""
        if self.storage.owns_index:
            self._write(lambda _: None).result()
        self.storage.flush()

    def close(self) -> None:
        """Keeps what is pending and lets go of the file; a second call does nothing."""
        if not self.storage.closed and self.storage.owns_index:
            self.flush()
        self.storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def load_state_dict(self, state: dict[str, Any]) -> NoReturn:  # noqa: ARG002 - as in `ReplayBuffer`
        """Refused: the store keeps the state.

        Raises:
            BufferStateError: always.
        """
        raise BufferStateError("A memory keeps its state in its file; copy the file with `relive backup` instead.")

    # ---- Inside a transaction

    def _write(
        self, call: Callable[[Transaction], Any], encoded: Sequence[Row] = (), *, follow: bool = True
    ) -> "Future[Any]":
        """Has `call` run by the writer, under the buffer's lock, after the index was brought up to date."""

        def act(transaction: Transaction) -> Any:
            self._lock.acquire()
            transaction.on_end(self._ended)
            was_ring = self._index.is_ring
            news = self._news(transaction) if follow else None
            self._durable.begin(transaction, encoded, news)
            if news is not None:
                self._apply_news(news)
            result = call(transaction)
            self._durable.note_added()
            if was_ring and not self._index.is_ring:
                self._durable.note_free_stack(self._index.free_slots())
            if follow:
                self._followed = transaction.number
            self._durable.save(self._state().to_bytes())
            return result

        return self.storage.write(act, len(encoded) or 1)

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
            rewarded=NO_IDS if self._priority_rule is None else rewarded,
        )

    def _apply_news(self, news: Changes) -> None:
        self._durable.note_gone(np.unique(news.evicted))
        ReplayBuffer.follow(self)
        self._durable.note_taken(news.inserted, self._index.priorities(news.inserted))

    def _state(self) -> BufferState:
        return BufferState(
            capacity=self._capacity,
            ring=self._index.is_ring,
            free_rank=self._durable.free_rank,
            next_id=self._index.next_id,
            random=[int(word) for word in self._index.random_state],
            followed=self._followed,
            sampler=(type(self._sampler).__name__, self._sampler.state_dict()),
            remover=(type(self._remover).__name__, self._remover.state_dict()),
            counters={
                "added": self._added,
                "evicted": self._evicted,
                "sampled": self._sampled,
                "stale_updates": self._stale_updates,
            },
        )

    # ---- Loading

    def _restore(self, transaction: Transaction) -> None:
        """Takes up the index where its last owner left it."""
        saved = transaction.load_index()
        state = from_bytes(saved.state)
        if state is None:
            return
        self._count(state)
        if state.capacity != self._capacity or not restore_index(self._index, saved, state):
            self._lay_out_anew(transaction, saved)
        self._tell_selectors(transaction.read)
        self._index.random_state = state.random
        for selector, (name, own_state) in ((self._sampler, state.sampler), (self._remover, state.remover)):
            if type(selector).__name__ == name:
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
            self._tell_selectors(self.storage.read)
        self._index.random_state = random

    def _count(self, state: BufferState) -> None:
        self._added = state.counters["added"]
        self._evicted = state.counters["evicted"]
        self._sampled = state.counters["sampled"]
        self._stale_updates = state.counters["stale_updates"]
        self._followed = self._kept_number = state.followed
        self._durable.free_rank = state.free_rank

    def _lay_out_anew(self, transaction: Transaction, saved: SavedIndex) -> None:
        """Fills the empty index in the order of ids, for another capacity; the oldest leave if there are too many."""
        taken = np.flatnonzero((saved.ids > 0) & np.isin(saved.ids, transaction.ids()))
        order = taken[np.argsort(saved.ids[taken])]
        surplus = max(0, len(order) - self._capacity)
        transaction.evict(saved.ids[order[:surplus]].tolist())
        self._evicted += surplus
        ids, priorities = saved.ids[order[surplus:]], saved.priorities[order[surplus:]].astype(np.float64)
        transaction.clear_index()
        self._durable.free_rank = 0
        self._index.replace(NO_IDS, ids, priorities)
        self._durable.note_taken(ids, priorities)

    def _tell_selectors(self, read: Callable[[Ids], list[Stored | None]]) -> None:
        """Tells the selectors that keep state of their own all that is stored."""
        for selector in self._followers:
            selector.reset()
        if not self._followers:
            return
        ids = self._index.ids()
        for start in range(0, len(ids), _PART):
            stored = [one for one in read(ids[start : start + _PART]) if one is not None]
            here = np.array([one.id for one in stored], np.int64)
            for selector in self._followers:
                selector.insert(here, self._index.priorities(here), Experiences(stored))
            gone = np.setdiff1d(ids[start : start + _PART], here)
            if len(gone):  # removed by another process since the index was saved
                self._durable.note_gone(gone)
                self._index.replace(gone, NO_IDS, None)

    def _require_owner(self) -> None:
        if self.storage.owns_index:
            return
        if self.storage.closed:
            raise ClosedStoreError(f"The memory in {self.storage.path} is closed; open it again.")
        raise NotOwnerError(
            f"This memory of {self.storage.path} records and looks only: it was opened with readonly=True or "
            "follower=True, or by the process that this one was forked from. Draw where it is open as its owner."
        )


def _as_ids(ids: list[int | None]) -> Ids:
    return np.array(ids, np.int64)


def _then(future: "Future[Any]", convert: Callable[[Any], Any]) -> "Future[Any]":
    """A future of the converted result."""
    result: Future[Any] = Future()

    def finish(done: "Future[Any]") -> None:
        error = done.exception()
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(convert(done.result()))

    future.add_done_callback(finish)
    return result
