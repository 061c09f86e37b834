"""`ReplayBuffer`: keeps experiences up to a capacity and draws those that are worth replaying.

Invariants:

- A call that is refused has changed nothing: priorities are checked before any write, and rows are written before the
  index, which cannot fail.
- Ids increase in the order of insertion and are never given twice, so an update for what has left can do no harm.
- The same seed, experiences and calls give the same draws, across `state_dict` and `load_state_dict`. The global random
  states are neither read nor changed.
"""

import itertools
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer.arrays import ArrayStorage
from relive.buffer.batch import Batch, BlockBatch, BufferStats
from relive.buffer.checks import count_of, float_of, floats_of, ids_of, part_of, refusal
from relive.buffer.choices import choose
from relive.buffer.contents import Contents
from relive.buffer.errors import (
    BufferSettingError,
    InvalidPriorityError,
    NotEnoughExperiencesError,
)
from relive.buffer.limits import Limits
from relive.buffer.priority_rule import PriorityRule
from relive.buffer.rate_limiter import RateLimiter
from relive.buffer.rows import NO_IDS, Experiences, Floats, Ids, ObjectRows, Rows
from relive.buffer.selector import Selector


class ReplayBuffer(Contents):
    """A bounded memory of experiences with prioritized draws. Safe to use from many threads.

    Args:
        capacity: Most experiences stored, at least 1.
        storage: Where experiences are kept; ``None``: Python objects in a list.
        sampler: What is drawn; ``None``: `Prioritized` with its defaults.
        remover: What leaves when the buffer is full; ``None``: `Fifo`, the oldest.
        priority: Gives a new experience its raw priority (at least 0) when none is passed: a function of it, or a rule
            of `relive.buffer` such as ``TdError() * Recency(3600.0)``. ``None``: it gets the largest priority of what
            is stored, 1 where nothing has a positive one.
        max_bytes: Most bytes of all stored experiences together, estimated where they are Python objects.
        max_age: Seconds after which an experience leaves.
        max_times_sampled: Draws after which an experience leaves; a batch then holds none twice (except where two
            samplers of a `Mixture` choose the same).
        rate_limiter: Lets inserting or sampling wait for the other.
        max_staleness: Policy versions after which an experience that was never drawn leaves; see `policy_version`.
        max_replay_age: Policy versions after which one that has been drawn leaves.
        clock: Seconds that only grow, for `max_age`.
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
        priority: Callable[[Any], float] | PriorityRule | None = None,
        max_bytes: int | None = None,
        max_age: float | None = None,
        max_times_sampled: int | None = None,
        rate_limiter: RateLimiter | None = None,
        max_staleness: int | None = None,
        max_replay_age: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = 0,
    ) -> None:
        super().__init__(
            capacity,
            storage=storage,
            sampler=sampler,
            remover=remover,
            priority=priority,
            limits=Limits.of(
                max_bytes=max_bytes,
                max_age=max_age,
                max_times_sampled=max_times_sampled,
                rate_limiter=rate_limiter,
                max_staleness=max_staleness,
                max_replay_age=max_replay_age,
                clock=clock,
            ),
            seed=seed,
        )

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
            ExperienceTooLargeError: it is larger than `max_bytes`; nothing was added.
            RateLimitError: the rate limiter held the call back for longer than its time limit; nothing was added.
        """
        with self._lock:
            push = self._push
            if push is None:
                return int(self.add_batch([experience], None if priority is None else [priority])[0])
            if priority is None and self._evaluation.function is not None:
                priority = self._evaluation.function(experience)
            if priority is not None:
                priority = float_of(priority)
            id_ = push(self._index, experience, priority)
            if priority is not None and id_ < 0:
                raise refusal("the new experience", priority)
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
            ExperienceTooLargeError: one is larger than `max_bytes`; nothing was added.
            RateLimitError: the rate limiter held the call back for longer than its time limit; nothing was added.
        """
        with self._lock:
            if self._arrays is not None:
                if self._push is not None and priorities is None and not self._evaluation.exists:
                    first = self._index.next_id
                    count = self._arrays.extend(self._index, experiences)
                    if count >= 0:
                        self._added += count
                        return np.arange(first, first + count, dtype=np.int64)
                experiences = self._arrays.columns(experiences)
            elif not isinstance(experiences, Sequence | np.ndarray):
                experiences = list(experiences)
            count = count_of(experiences)
            cuts = [*range(0, count, self._capacity), count]
            sizes = None
            if self._limits is not None:
                sizes = self._limits.check_new(self._rows, experiences)
                self._limits.wait_to_insert(self._changed, count)
                self._evict(self._limits.expired())
                cuts = self._limits.cuts(sizes, count, self._capacity)
            given = self._new_priorities(experiences, priorities)
            for selector in self._followers:
                selector.check_new(experiences)
            parts = [
                self._append(
                    part_of(experiences, start, stop),
                    None if given is None else given[start:stop],
                    None if sizes is None else sizes[start:stop],
                )
                for start, stop in itertools.pairwise(cuts)
            ]
            ids = parts[0] if len(parts) == 1 else np.concatenate([NO_IDS, *parts])
            if priorities is not None:
                self._evaluation.set_by_hand(self._index, ids)
            if self._limits is not None:
                self._limits.count_inserts(count)
                self._changed.notify_all()
            return ids

    def _new_priorities(self, experiences: Experiences, priorities: npt.ArrayLike | None) -> Floats | None:
        """The priorities of new experiences, checked; ``None``: the largest stored one for each."""
        if priorities is None or self._evaluation.rule is not None:
            ruled = self._evaluation.of_new(experiences)  # a rule must be able to say, also where none asks it yet
            if ruled is not None:
                self._check_new_priorities(ruled)
            if priorities is None:
                return ruled
        array = floats_of("priorities", priorities)
        count = count_of(experiences)
        if len(array) != count:
            raise InvalidPriorityError(f"There are {len(array)} priorities for {count} experiences.")
        self._check_new_priorities(array)
        return array

    def _check_new_priorities(self, priorities: Floats) -> None:
        bad = self._index.first_bad(priorities)
        if bad >= 0:
            raise refusal(f"experience {bad} of the new ones", priorities[bad])

    # ---- Removing

    def remove(self, ids: npt.ArrayLike) -> int:
        """Takes experiences out, and returns how many were still there."""
        with self._lock:
            wanted = np.unique(ids_of(ids))
            live = wanted[self._index.find(wanted) >= 0]
            self._evict(live)
            return len(live)

    # ---- Drawing

    def sample(self, batch_size: int, *, strict: bool = False) -> Batch:
        """Draws experiences by the sampler's rule.

        When fewer can be drawn than are asked for (stored with a positive priority), the batch holds each of those
        once; an empty buffer gives an empty batch.

        Args:
            batch_size: How many, at least 0; from a sampler of sequences, how many sequences.
            strict: An error instead of a short batch.

        Raises:
            NotEnoughExperiencesError: `strict`, and there are fewer.
            BufferSettingError: the batch size is negative.
            RateLimitError: the rate limiter held the call back for longer than its time limit.
        """
        count = operator.index(batch_size)
        if count < 0:
            raise BufferSettingError(f"batch_size is {count}; it must be at least 0.")
        with self._lock:
            if self._limits is not None:
                self._limits.wait_to_sample(
                    self._changed, count, lambda: self._index.drawable, lambda: self._index.size
                )
                self._evict(self._limits.expired())
            if self._rows.has_own_ids:
                self.follow()
            if self._evaluation.rule is not None:
                self._refresh()
            index = self._index
            if strict and index.drawable < count:
                raise self._not_enough(index.drawable, count)
            newest = index.next_id - 1
            if self._drawer is not None:
                block = self._drawer.draw(index, count, self._native_rows)
                self._sampled += len(block)
                drawn = BlockBatch(block, self._layout, count, newest)
                if self._native_rows is None:
                    drawn.fetch(self._rows)
                return drawn
            selection = choose(self._sampler, count)
            if self._limits is not None:
                selection = self._limits.allowed(selection, index.find(selection.ids), self._sampler.weights)
            if strict and selection.count < count:
                raise self._not_enough(selection.count, count, sequences=selection.lengths is not None)
            ids = selection.ids
            slots = index.find(ids)
            self._sampled += len(ids)
            if selection.n_step is not None:
                last = selection.n_step.last_ids
                selection.n_step.last = self._rows.get(last, index.find(last))
            batch = Batch(selection, self._rows.get(ids, slots), count, newest)
            if self._limits is not None:
                batch.replayed = self._limits.drawn(selection, slots)
                self._evict(self._limits.exhausted(slots))
                self._changed.notify_all()
            return batch

    def _not_enough(self, available: int, count: int, *, sequences: bool = False) -> NotEnoughExperiencesError:
        what = f"{available} sequences" if sequences else f"{available} of the {len(self)} stored experiences"
        return NotEnoughExperiencesError(
            f"A batch of {count} was asked for, but only {what} can be drawn; add more, ask for fewer, or leave "
            "strict=False for a shorter batch."
        )

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
        values = td_errors if priorities is None else priorities
        epsilon: float = -1.0 if priorities is not None else getattr(self._sampler, "epsilon", 1e-6)
        with self._lock:
            if self._rows.keeps_priorities or self._watched:
                return self._update_watched(*self._pairs(ids, values), epsilon)
            try:
                changed = self._index.update(ids, values, epsilon)  # type: ignore[arg-type]  # as batches give them
                count = len(ids)  # type: ignore[arg-type]
            except (TypeError, ValueError):
                wanted, given = self._pairs(ids, values)
                changed, count = self._index.update(wanted, given, epsilon), len(wanted)
            if changed < 0:
                self._refuse(*self._pairs(ids, values), epsilon)
            self._stale_updates += count - changed
            return changed

    def _pairs(self, ids: npt.ArrayLike, values: npt.ArrayLike | None) -> tuple[Ids, Floats]:
        """Ids and their priorities or TD errors, in the native types."""
        wanted, given = ids_of(ids), floats_of("priorities", values)
        if len(wanted) != len(given):
            raise InvalidPriorityError(f"There are {len(given)} values for {len(wanted)} ids.")
        return wanted, given

    def _refuse(self, ids: Ids, values: Floats, epsilon: float) -> None:
        """Raises the error for the first bad value, if there is one."""
        self._check_priorities(ids, np.abs(values) + epsilon if epsilon >= 0 else values)

    def _update_watched(self, ids: Ids, values: Floats, epsilon: float) -> int:
        """The same where others follow: the rule may turn a TD error into another priority, and all are told."""
        self._refuse(ids, values, epsilon)
        slots = self._index.find(ids)
        live = slots >= 0
        if epsilon < 0:
            priorities = values[live]
            self._evaluation.set_by_hand(self._index, ids[live])
        elif self._evaluation.takes_td_errors:
            priorities = self._evaluation.of_td_errors(slots[live], np.abs(values[live]))
        else:
            priorities = np.abs(values[live]) + epsilon
            self._evaluation.set_by_hand(self._index, ids[live])
        changed = self._set_priorities(ids[live], priorities)
        self._stale_updates += len(ids) - changed
        return changed

    def priorities(self, ids: npt.ArrayLike) -> Floats:
        """The raw priority of each id, to the 7 digits that are kept; NaN where it is not stored.

        With ``alpha=0`` raw values are kept only where a selector goes by them; else each positive one reads as 1.
        """
        with self._lock:
            return (self._view.raw or self._index).priorities(ids_of(ids))

    def set_rewards(self, ids: npt.ArrayLike, rewards: npt.ArrayLike) -> int:
        """Gives stored experiences their rewards, late or anew, and evaluates the priority rule for them again.

        For experiences in this process: records and dicts get a copy in their place, rows of arrays are written. A
        durable memory takes `Feedback` instead.

        Args:
            ids: int64 ``[B]``; those that have left are ignored.
            rewards: ``[B]``, finite.

        Returns:
            How many of the ids were still stored.

        Raises:
            BufferSettingError: a reward is not finite, there is not one for each id, or the experiences cannot take
                any; nothing was changed.
            InvalidPriorityError: the rule gives a bad priority for one; nothing was changed.
        """
        wanted, values = ids_of(ids), floats_of("rewards", rewards)
        if len(wanted) != len(values) or not np.isfinite(values).all():
            raise BufferSettingError(f"There must be a finite reward for each of the {len(wanted)} ids.")
        if not isinstance(self._rows, ObjectRows | ArrayStorage):
            raise BufferSettingError("These rows take rewards as Feedback: memory.feedback(id, reward=...).")
        with self._lock:
            live = self._index.find(wanted) >= 0
            # Of an id named twice the last reward counts: the first one seen from behind.
            ids, places = np.unique(wanted[live][::-1], return_index=True)
            slots = self._index.find(ids)
            rewards = values[live][::-1][places]
            rewarded: Any = self._rows.with_rewards(slots, rewards)
            priorities = self._rewarded(ids, slots, rewarded, self._rows.get(ids, slots))
            self._rows.rewrite(slots, rewarded)
            if priorities is not None:
                self._set_priorities(ids, priorities)
                self._evaluation.settle(slots)
            return int(live.sum())

    # ---- Limits

    @property
    def rate_limiter(self) -> RateLimiter | None:
        """Lets inserting or sampling wait for the other. It may be set at any time; who waits looks again at once."""
        return None if self._limits is None else self._limits.rate_limiter

    @rate_limiter.setter
    def rate_limiter(self, limiter: RateLimiter | None) -> None:
        with self._lock:
            if self._limits is None:
                self._limits = Limits()
                self._push = self._drawer = None
            self._limits.set_rate_limiter(limiter, self._index.size)
            self._changed.notify_all()

    @property
    def policy_version(self) -> int | None:
        """The version of the policy that trains now, which `max_staleness` and `max_replay_age` count from.

        ``None``: it has not been set, and nothing is too old yet. Set it after each update of the policy.
        """
        return None if self._limits is None or self._limits.staleness is None else self._limits.staleness.current

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        if self._limits is None or self._limits.staleness is None:
            raise BufferSettingError("This buffer bounds no staleness; make it with max_staleness or max_replay_age.")
        with self._lock:
            self._limits.staleness.current = operator.index(version)
            self._evict(self._limits.expired())

    # ---- State

    def __len__(self) -> int:
        if self._limits is None:
            return self._index.size
        with self._lock:
            self._evict(self._limits.expired())
            return self._index.size

    @property
    def capacity(self) -> int:
        """Most experiences stored."""
        return self._capacity

    def stats(self) -> BufferStats:
        """Counts, rewards and costs of what is stored. O(size)."""
        with self._lock:
            if self._limits is not None:
                self._evict(self._limits.expired())
            ids = self._index.ids()
            summary = self._rows.summary(ids, self._index.find(ids))
            size = len(ids)
            cost = summary.cost
            raw = self._view.raw
            return BufferStats(
                size=size,
                capacity=self._capacity,
                bytes=self._index.nbytes + (0 if raw is None else raw.nbytes) + self._rows.nbytes(),
                added=self._added,
                evicted=self._added - size,
                sampled=self._sampled,
                stale_updates=self._stale_updates,
                mean_priority=float(f"{(raw or self._index).mean_priority:.7g}") if size else None,
                reward_min=summary.reward_min,
                reward_mean=summary.reward_mean,
                reward_max=summary.reward_max,
                unknown_rewards=summary.unknown_rewards,
                cost=cost,
                experiences_per_dollar=size / (cost * 1e-9) if cost else None,
            )
