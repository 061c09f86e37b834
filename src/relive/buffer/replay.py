"""`ReplayBuffer`: keeps experiences up to a capacity and draws those that are worth replaying.

Invariants:

- A call that is refused has changed nothing: priorities are checked before any write, and rows are written before the
  index, which cannot fail.
- Ids increase in the order of insertion and are never given twice, so an update for what has left can do no harm.
- The same seed, experiences and calls give the same draws, across `state_dict` and `load_state_dict`. The global random
  states are neither read nor changed.
"""

import operator
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer._core import Index
from relive.buffer.arrays import ArrayStorage, Columns
from relive.buffer.batch import Batch, BlockBatch, BufferStats
from relive.buffer.blocks import HEADS
from relive.buffer.checks import count_of, float_of, floats_of, ids_of, part_of, positive, refusal
from relive.buffer.errors import (
    BufferSettingError,
    BufferStateError,
    InvalidPriorityError,
    NotEnoughExperiencesError,
)
from relive.buffer.native_selectors import Fifo, Prioritized, Uniform
from relive.buffer.rows import NO_IDS, Changes, Experiences, Floats, Ids, ObjectRows, Rows
from relive.buffer.selector import BufferView, Selector

STATE_VERSION = 1
"""Version of the shape of `ReplayBuffer.state_dict`."""


class ReplayBuffer:
    """A bounded memory of experiences with prioritized draws. Safe to use from many threads.

    Args:
        capacity: Most experiences stored, at least 1.
        storage: Where experiences are kept; ``None``: Python objects in a list.
        sampler: What is drawn; ``None``: `Prioritized` with its defaults.
        remover: What leaves when the buffer is full; ``None``: `Fifo`, the oldest.
        priority: Rule that gives a new experience its raw priority (at least 0) when none is passed; ``None``: it gets
            the largest priority of what is stored, 1 where nothing has a positive one.
        seed: Seed of the buffer's own random stream; ``None``: another one each time.

    Raises:
        BufferSettingError: a setting is out of range, or a sampler already serves another buffer.
    """

    def __init__(
        self,
        capacity: int,
        *,
        storage: Rows | None = None,
        sampler: Selector | None = None,
        remover: Selector | None = None,
        priority: Callable[[Any], float] | None = None,
        seed: int | None = 0,
    ) -> None:
        self._capacity = positive("capacity", capacity)
        rows = ObjectRows() if storage is None else storage
        self._rows: Rows = rows
        self._arrays: ArrayStorage | None = rows if isinstance(rows, ArrayStorage) else None
        if self._arrays is not None:
            self._arrays.allocate(self._capacity)
        self._sampler: Selector = Prioritized() if sampler is None else sampler
        self._remover: Selector = Fifo() if remover is None else remover
        self._priority_rule = priority
        if seed is None:
            seed = int.from_bytes(os.urandom(8), "little")
        self._index = Index(self._capacity, self._sampler.alpha, operator.index(seed) % 2**64)
        self._view = BufferView(self._index, self._rows)
        self._selectors = [self._sampler]
        if self._remover is not self._sampler:
            self._selectors.append(self._remover)
        for selector in self._selectors:
            selector.bind(self._view)
        self._followers = [selector for selector in self._selectors if selector.follows]
        # The common cases go straight to the native core: additions of which the oldest leaves and that nobody follows,
        # and draws by its own samplers.
        self._direct: ObjectRows | ArrayStorage | None = None
        if isinstance(rows, ObjectRows | ArrayStorage) and type(self._remover) is Fifo and not self._followers:
            self._direct = rows
        self._drawer = self._sampler if isinstance(self._sampler, Prioritized | Uniform) else None
        self._layout = HEADS if self._arrays is None else self._arrays.layout
        self._native_rows = None if self._arrays is None else self._arrays.native
        self._lock = threading.RLock()
        self._added = 0
        self._evicted = 0
        self._sampled = 0
        self._stale_updates = 0

    # ---- Adding

    def add(self, experience: Any, priority: float | None = None) -> int:
        """Adds one experience; the remover's choice leaves when the buffer is full.

        Args:
            experience: Any object (for rows of arrays: a mapping of its fields).
            priority: Raw priority, at least 0; 0 is stored and never drawn. ``None``: the buffer's rule, else the
                largest one stored.

        Returns:
            The experience's id.

        Raises:
            InvalidPriorityError: the priority is NaN, infinite, negative or too large; nothing was added.
            SchemaError: rows of arrays, and the experience does not have their fields; nothing was added.
        """
        with self._lock:
            direct = self._direct
            if direct is None:
                return int(self.add_batch([experience], None if priority is None else [priority])[0])
            if priority is None and self._priority_rule is not None:
                priority = self._priority_rule(experience)
            if priority is not None:
                priority = float_of(priority)
            index = self._index
            full = index.size == self._capacity
            id_ = direct.push(index, experience, priority)
            if priority is not None and id_ < 0:
                raise refusal("the new experience", priority)
            self._evicted += full
            self._added += 1
            return id_

    def add_batch(self, experiences: Experiences, priorities: npt.ArrayLike | None = None) -> Ids:
        """Adds experiences in order. Of more than the capacity only the last ones stay; the others count as evicted.

        Args:
            experiences: Any objects; for rows of arrays a mapping from each field to an array ``[B, ...]``, or a
                sequence of single mappings.
            priorities: One raw priority for each; ``None``: as in `add`.

        Returns:
            int64 ``[len(experiences)]``, increasing ids, those that are gone again included.

        Raises:
            InvalidPriorityError: a priority is bad, or there is not one for each; nothing was added.
            SchemaError: rows of arrays, and the experiences do not have their fields; nothing was added.
        """
        with self._lock:
            if self._arrays is not None:
                if self._direct is not None and priorities is None and self._priority_rule is None:
                    size, first = self._index.size, self._index.next_id
                    count = self._arrays.extend(self._index, experiences)
                    if count >= 0:
                        self._added += count
                        self._evicted += max(0, size + count - self._capacity)
                        return np.arange(first, first + count, dtype=np.int64)
                experiences = self._arrays.columns(experiences)
            elif not isinstance(experiences, Sequence | np.ndarray):
                experiences = list(experiences)
            given = self._new_priorities(experiences, priorities)
            parts = []
            for start in range(0, count_of(experiences), self._capacity):
                stop = start + self._capacity
                parts.append(
                    self._append(part_of(experiences, start, stop), None if given is None else given[start:stop])
                )
            return parts[0] if len(parts) == 1 else np.concatenate([NO_IDS, *parts])

    def _new_priorities(self, experiences: Experiences, priorities: npt.ArrayLike | None) -> Floats | None:
        """The priorities of new experiences, checked; ``None``: the largest stored one for each."""
        if priorities is None:
            if self._priority_rule is None:
                return None
            each = experiences.rows() if isinstance(experiences, Columns) else experiences
            priorities = [self._priority_rule(experience) for experience in each]
        array = floats_of("priorities", priorities)
        count = count_of(experiences)
        if len(array) != count:
            raise InvalidPriorityError(f"There are {len(array)} priorities for {count} experiences.")
        bad = self._index.first_bad(array)
        if bad >= 0:
            raise refusal(f"experience {bad} of the new ones", array[bad])
        return array

    def _append(self, experiences: Experiences, priorities: Floats | None) -> Ids:
        """Adds at most as many experiences as the capacity, with checked priorities."""
        index = self._index
        count = count_of(experiences)
        excess = index.size + count - self._capacity
        victims = self._remover.victims(excess) if excess > 0 else NO_IDS
        if priorities is None and (self._rows.keeps_priorities or self._followers):
            priorities = np.full(count, index.default_priority(victims))
        slots = index.propose(victims, count)
        ids = self._rows.append(experiences, priorities, victims, slots)
        if ids is None:
            ids = np.arange(index.next_id, index.next_id + count, dtype=np.int64)
        self._commit(victims, ids, priorities, experiences)
        return ids

    def _commit(self, victims: Ids, ids: Ids, priorities: Floats | None, experiences: Experiences) -> None:
        """Tells index and selectors what the rows already hold."""
        if len(victims):
            for selector in self._followers:
                selector.delete(victims)
        self._index.replace(victims, ids, priorities)
        if len(ids) and priorities is not None:
            for selector in self._followers:
                selector.insert(ids, priorities, experiences)
        self._added += len(ids)
        self._evicted += len(victims)

    # ---- Removing

    def remove(self, ids: npt.ArrayLike) -> int:
        """Takes experiences out, and returns how many were still there."""
        with self._lock:
            wanted = np.unique(ids_of(ids))
            live = wanted[self._index.find(wanted) >= 0]
            self._evict(live)
            return len(live)

    def _evict(self, victims: Ids) -> None:
        if len(victims):
            self._rows.evict(victims, self._index.find(victims))
            self._commit(victims, NO_IDS, None, ())

    # ---- Drawing

    def sample(self, batch_size: int, *, strict: bool = False) -> Batch:
        """Draws experiences by the sampler's rule.

        When fewer can be drawn than are asked for (stored with a positive priority), the batch holds each of those
        once; an empty buffer gives an empty batch.

        Args:
            batch_size: How many, at least 0.
            strict: An error instead of a short batch.

        Raises:
            NotEnoughExperiencesError: `strict`, and there are fewer.
            BufferSettingError: the batch size is negative.
        """
        count = operator.index(batch_size)
        if count < 0:
            raise BufferSettingError(f"batch_size is {count}; it must be at least 0.")
        with self._lock:
            if self._rows.has_own_ids:
                self.follow()
            index = self._index
            if strict and index.drawable < count:
                raise self._not_enough(index.drawable, count)
            newest = index.next_id - 1
            if self._drawer is not None:
                block = self._drawer.draw(index, count, self._native_rows)
                self._sampled += len(block)
                batch = BlockBatch(block, self._layout, count, newest)
                if self._native_rows is None:
                    batch.fetch(self._rows)
                return batch
            selection = self._sampler.select(count)
            ids = selection.ids
            if strict and len(ids) < count:
                raise self._not_enough(len(ids), count)
            self._sampled += len(ids)
            slots = index.find(ids) if selection.slots is None else selection.slots
            return Batch(selection, self._rows.get(ids, slots), count, newest)

    def _not_enough(self, available: int, count: int) -> NotEnoughExperiencesError:
        return NotEnoughExperiencesError(
            f"A batch of {count} was asked for, but only {available} of the {len(self)} stored experiences can be "
            "drawn; add more, ask for fewer, or leave strict=False for a shorter batch."
        )

    def follow(self) -> None:
        """Brings the index up to date with what others did to the rows; each draw does so by itself."""
        with self._lock:
            changes = self._rows.changes()
            if changes is not None:
                self._apply(changes)

    def _apply(self, changes: Changes) -> None:
        gone = changes.evicted[self._index.find(changes.evicted) >= 0]
        if len(gone):
            self._commit(np.unique(gone), NO_IDS, None, ())
        if len(changes.inserted):
            self._follow_inserted(changes)
        for ids, priorities in (
            (changes.updated, changes.updated_priorities),
            (changes.rewarded, self._ruled(changes.rewarded)),
        ):
            live = self._index.find(ids) >= 0
            if live.any():
                self._set_priorities(ids[live], priorities[live])

    def _follow_inserted(self, changes: Changes) -> None:
        ids, priorities = changes.inserted, changes.inserted_priorities.copy()
        surplus = len(ids) - self._capacity
        if surplus > 0:  # more than fit at once: only the newest can stay
            self._rows.evict(ids[:surplus], np.full(surplus, -1))
            ids, priorities = ids[surplus:], priorities[surplus:]
        excess = self._index.size + len(ids) - self._capacity
        if excess > 0:
            self._evict(self._remover.victims(excess))
        unknown = np.isnan(priorities)
        if unknown.any():
            ruled = self._ruled(ids[unknown])
            priorities[unknown] = np.where(np.isnan(ruled), self._index.default_priority(NO_IDS), ruled)
        experiences = self._rows.get(ids, np.full(len(ids), -1)) if self._followers else ()
        self._commit(NO_IDS, ids, priorities, experiences)

    def _ruled(self, ids: Ids) -> Floats:
        """What the priority rule gives for stored rows; NaN without a rule."""
        if self._priority_rule is None or not len(ids):
            return np.full(len(ids), np.nan)
        experiences = self._rows.get(ids, np.full(len(ids), -1))
        return np.array([self._priority_rule(experience) for experience in experiences], dtype=np.float64)

    # ---- Priorities

    def update_priorities(
        self, ids: npt.ArrayLike, priorities: npt.ArrayLike | None = None, *, td_errors: npt.ArrayLike | None = None
    ) -> int:
        """Sets priorities, as raw values or as signed TD errors, which become their absolute value + epsilon.

        Ids that have left are ignored and counted in ``stats().stale_updates``. Of an id named twice the last value
        counts.

        Args:
            ids: int64 ``[B]``, for example ``batch.ids``.
            priorities: ``[B]``, each at least 0.
            td_errors: ``[B]``, instead of `priorities`.

        Returns:
            How many of the ids were still stored.

        Raises:
            InvalidPriorityError: a value is NaN, infinite, negative or too large, or there is not one for each id; no
                priority was changed.
        """
        if (priorities is None) == (td_errors is None):
            raise InvalidPriorityError("Pass exactly one of priorities and td_errors.")
        if td_errors is None:
            values = floats_of("priorities", priorities)
        else:
            epsilon: float = getattr(self._sampler, "epsilon", 1e-6)
            values = np.abs(floats_of("td_errors", td_errors)) + epsilon
        wanted = ids_of(ids)
        if len(wanted) != len(values):
            raise InvalidPriorityError(f"There are {len(values)} values for {len(wanted)} ids.")
        with self._lock:
            if self._rows.keeps_priorities or self._followers:
                self._check_priorities(wanted, values)
                live = self._index.find(wanted) >= 0
                changed = self._set_priorities(wanted[live], values[live])
            else:
                changed = self._index.update(wanted, values)
                if changed < 0:
                    self._check_priorities(wanted, values)
            self._stale_updates += len(wanted) - changed
            return changed

    def _check_priorities(self, ids: Ids, priorities: Floats) -> None:
        bad = self._index.first_bad(priorities)
        if bad >= 0:
            raise refusal(f"experience {ids[bad]}", priorities[bad])

    def _set_priorities(self, ids: Ids, priorities: Floats) -> int:
        """Sets the priorities of stored ids everywhere."""
        self._check_priorities(ids, priorities)
        if self._rows.keeps_priorities:
            self._rows.set_priorities(ids, priorities)
        changed = self._index.update(ids, priorities)
        for selector in self._followers:
            selector.update(ids, priorities)
        return changed

    def priorities(self, ids: npt.ArrayLike) -> Floats:
        """The raw priority of each id, to the 7 digits that are kept; NaN where it is not stored.

        With ``alpha=0`` raw values are not kept: each positive one reads as 1.
        """
        with self._lock:
            return self._index.priorities(ids_of(ids))

    # ---- State

    def __len__(self) -> int:
        return self._index.size

    @property
    def capacity(self) -> int:
        """Most experiences stored."""
        return self._capacity

    def stats(self) -> BufferStats:
        """Counts, rewards and costs of what is stored. O(size)."""
        with self._lock:
            ids = self._index.ids()
            summary = self._rows.summary(ids, self._index.find(ids))
            size = len(ids)
            cost = summary.cost
            return BufferStats(
                size=size,
                capacity=self._capacity,
                bytes=self._index.nbytes + self._rows.nbytes(),
                added=self._added,
                evicted=self._evicted,
                sampled=self._sampled,
                stale_updates=self._stale_updates,
                mean_priority=float(f"{self._index.mean_priority:.7g}") if size else None,
                reward_min=summary.reward_min,
                reward_mean=summary.reward_mean,
                reward_max=summary.reward_max,
                unknown_rewards=summary.unknown_rewards,
                cost=cost,
                experiences_per_dollar=size / (cost * 1e-9) if cost else None,
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next draws, as NumPy arrays and JSON values.

        Experiences that are `Transition` become JSON values; other Python objects are held as they are.
        """
        with self._lock:
            index = self._index
            ids = index.ids()
            slots = index.find(ids)
            return {
                "version": STATE_VERSION,
                "capacity": self._capacity,
                "index": {
                    "alpha": index.alpha,
                    "ids": ids,
                    "slots": slots,
                    "leaves": index.leaves(ids),
                    "free_slots": index.free_slots(),
                    "ring": index.is_ring,
                    "next_id": index.next_id,
                    "random": np.array(index.random_state, dtype=np.uint64),
                },
                "rows": self._rows.state_dict(ids, slots),
                "sampler": self._sampler.state_dict(),
                "remover": self._remover.state_dict(),
                "counters": {
                    "added": self._added,
                    "evicted": self._evicted,
                    "sampled": self._sampled,
                    "stale_updates": self._stale_updates,
                },
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes a state back: the next draws are those that the saved buffer would have made.

        Raises:
            BufferStateError: the state is of a newer version, or of a buffer with another capacity or alpha.
        """
        if state.get("version") != STATE_VERSION:
            raise BufferStateError(
                f"The state has version {state.get('version')!r}, this Relive reads {STATE_VERSION}; "
                "load it with the Relive that wrote it."
            )
        saved = state["index"]
        with self._lock:
            for name, theirs, ours in (
                ("capacity", state["capacity"], self._capacity),
                ("alpha", saved["alpha"], self._index.alpha),
            ):
                if theirs != ours:
                    raise BufferStateError(
                        f"The state is of a buffer with {name} {theirs}, this one has {ours}; make it with the same."
                    )
            ids, slots = saved["ids"], saved["slots"]
            self._rows.load_state_dict(state["rows"], ids, slots)
            index = Index(self._capacity, self._index.alpha, 0)
            index.restore(ids, slots, saved["leaves"], saved["free_slots"], bool(saved["ring"]))
            index.skip_to(int(saved["next_id"]))
            index.random_state = [int(word) for word in saved["random"]]
            self._index = self._view.index = index
            for selector in self._followers:
                selector.reset()
                if len(ids):
                    selector.insert(ids, index.priorities(ids), self._rows.get(ids, slots))
            self._sampler.load_state_dict(state["sampler"])
            self._remover.load_state_dict(state["remover"])
            counters = state["counters"]
            self._added = counters["added"]
            self._evicted = counters["evicted"]
            self._sampled = counters["sampled"]
            self._stale_updates = counters["stale_updates"]
