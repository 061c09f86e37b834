"""What keeps a buffer within bounds beside its capacity: bytes, age, number of draws, staleness, and the rate limiter.

A buffer without such limits has no `Limits` and pays nothing for them. Everything is called under the buffer's lock.
"""

import math
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relive.buffer.ages import Ages
from relive.buffer.choices import victims_of
from relive.buffer.errors import BufferSettingError, BufferStateWarning, ExperienceTooLargeError, RateLimitError
from relive.buffer.fields import count_of
from relive.buffer.fields import rows as rows_of
from relive.buffer.rate_limiter import RateLimiter
from relive.buffer.rows import NO_IDS, Ids, Rows
from relive.buffer.selector import BufferView, Selection, Selector
from relive.buffer.sizes import estimated_bytes
from relive.buffer.slot_array import SlotArray
from relive.buffer.staleness import Staleness


class Limits:
    """The limits of one buffer, and what they need to know about each stored experience.

    Args:
        max_bytes: Most bytes of all stored experiences together (estimated where they are Python objects).
        max_age: Seconds after which an experience leaves.
        max_times_sampled: Draws after which an experience leaves.
        staleness: Bounds on policy versions.
        rate_limiter: Keeps inserting and sampling in step.
        clock: Seconds that only grow.

    Raises:
        BufferSettingError: a limit is not positive.
    """

    def __init__(
        self,
        *,
        max_bytes: int | None = None,
        max_age: float | None = None,
        max_times_sampled: int | None = None,
        staleness: Staleness | None = None,
        rate_limiter: RateLimiter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, limit in (
            ("max_bytes", max_bytes),
            ("max_age", max_age),
            ("max_times_sampled", max_times_sampled),
        ):
            if limit is None:
                continue
            if not isinstance(limit, int | float | np.integer | np.floating):
                raise BufferSettingError(f"{name} is {limit!r}; it must be a number.")
            if not limit > 0:
                raise BufferSettingError(f"{name} is {limit}; it must be positive.")
        self.max_bytes = max_bytes
        self.max_age = max_age
        self.max_times_sampled = max_times_sampled
        self.staleness = staleness
        self.rate_limiter = rate_limiter
        self.bytes = 0
        self._sizes = SlotArray(np.int64, 0)
        self._times = SlotArray(np.int32, 0)
        self._ids = SlotArray(np.int64, -1)
        self._ages = Ages(clock)
        self._next_expiry = math.inf
        self._inserts = 0.0
        self._samples = 0.0

    @classmethod
    def of(
        cls, *, max_staleness: int | None = None, max_replay_age: int | None = None, **limits: Any
    ) -> "Limits | None":
        """The limits of a buffer, or ``None`` where it has none."""
        clock = limits.pop("clock")
        if max_staleness is not None or max_replay_age is not None:
            limits["staleness"] = Staleness(max_staleness, max_replay_age)
        return None if all(limit is None for limit in limits.values()) else cls(**limits, clock=clock)

    # ---- What comes and goes

    def sizes(self, rows: Rows, experiences: Any) -> Ids:
        """Bytes of each new experience."""
        row_bytes = getattr(rows, "row_bytes", None)
        if row_bytes is not None:
            return np.full(count_of(experiences), row_bytes, dtype=np.int64)
        return np.array([estimated_bytes(item) for item in rows_of(experiences)], dtype=np.int64)

    def check_new(self, rows: Rows, experiences: Any) -> Ids | None:
        """Refuses what can never be stored; bytes of each new experience, where they are limited.

        Raises:
            ExperienceTooLargeError: one alone is larger than the limit.
            StaleExperienceError: one has no policy version, and staleness is bounded.
        """
        if self.staleness is not None:
            self.staleness.check_new(experiences)
        if self.max_bytes is None:
            return None
        sizes = self.sizes(rows, experiences)
        if len(sizes) and sizes.max() > self.max_bytes:
            place = int(sizes.argmax())
            raise ExperienceTooLargeError(
                f"New experience {place} takes about {sizes[place]} bytes and max_bytes is {self.max_bytes}; "
                "nothing was added."
            )
        return sizes

    def cuts(self, sizes: Ids | None, count: int, capacity: int) -> list[int]:
        """Where to cut new experiences into parts each of which fits into an empty buffer, both ends included."""
        if sizes is None or self.max_bytes is None:
            return [*range(0, count, capacity), count]
        cuts, total = [0], 0
        for place, size in enumerate(sizes.tolist()):
            if place - cuts[-1] == capacity or total + size > self.max_bytes:
                cuts.append(place)
                total = 0
            total += size
        return [*cuts, count] if count else [0]

    def victims(self, remover: Selector, view: BufferView, already: Ids, sizes: Ids | None) -> Ids:
        """Who leaves for new experiences: those that leave `already`, and as many more as their bytes need."""
        if sizes is None or self.max_bytes is None:
            return already
        needed = self.bytes - int(self._sizes[view.index.find(already)].sum()) + int(sizes.sum()) - self.max_bytes
        stored = view.index.size
        asked = len(already)
        chosen = NO_IDS
        while needed > 0:
            asked = min(2 * asked + 1, stored)
            chosen = victims_of(remover, asked)
            chosen = chosen[~np.isin(chosen, already)]
            enough = int(np.searchsorted(np.cumsum(self._sizes[view.index.find(chosen)]), needed)) + 1
            if enough <= len(chosen) or asked == stored:
                chosen = chosen[:enough]
                break
        return np.concatenate([already, chosen])

    def join(self, ids: Ids, slots: Ids, experiences: Any, sizes: Ids | None) -> None:
        """New experiences are stored."""
        self._ids[slots] = ids
        self._times[slots] = 0
        if sizes is not None:
            self._sizes[slots] = sizes
            self.bytes += int(sizes.sum())
        if self.max_age is not None:
            self._ages.join(slots, experiences)
            self._next_expiry = min(self._next_expiry, float(self._ages.births[slots].min()) + self.max_age)
        if self.staleness is not None:
            self.staleness.join(slots, experiences)

    def leave(self, slots: Ids) -> None:
        """What lives in these slots leaves."""
        if self.max_bytes is not None:
            self.bytes -= int(self._sizes[slots].sum())
        self._ids[slots] = -1
        if self.max_age is not None:
            self._ages.leave(slots)
        if self.staleness is not None:
            self.staleness.leave(slots)

    def expired(self) -> Ids:
        """The ids of all that is too old, by time or by policy version. O(1) while nothing can be, else O(N)."""
        gone = NO_IDS
        if self.max_age is not None and self._ages.clock() > self._next_expiry:
            births = self._ages.births.all()
            gone = np.flatnonzero(births < self._ages.clock() - self.max_age).astype(np.int64)
            staying = births[births >= self._ages.clock() - self.max_age]
            self._next_expiry = float(staying.min(initial=math.inf)) + self.max_age
        if self.staleness is not None:
            gone = np.union1d(gone, self.staleness.too_old())
        ids: Ids = np.sort(self._ids[gone])
        return ids[ids >= 0]

    # ---- Draws

    def allowed(self, drawn: Selection, slots: Ids, scale: Literal["batch", "buffer"] | None) -> Selection:
        """What was chosen without the draws that are one too many.

        There are such only where a sampler chooses one experience several times in a batch, in spite of
        `Selector.never_twice`: `Mixture` does when two of its samplers choose the same.
        """
        if self.max_times_sampled is None or drawn.lengths is not None:
            return drawn
        allowed = self._times[slots] + _occurrence(drawn.ids) <= self.max_times_sampled
        return drawn if allowed.all() else drawn.part(allowed, scale)

    def drawn(self, drawn: Selection, slots: Ids) -> npt.NDArray[np.bool_] | None:
        """This was drawn; which of it not for the first time, where staleness is bounded.

        The rate limiter counts what a call asks for: of sequences each as one sample.
        """
        self._samples += drawn.count
        if self.max_times_sampled is not None:
            self._times.add(slots, 1)
        return None if self.staleness is None else self.staleness.drawn(slots)

    def exhausted(self, slots: Ids) -> Ids:
        """The ids in these slots that have been drawn often enough and leave."""
        if self.max_times_sampled is None:
            return NO_IDS
        return np.unique(self._ids[slots[self._times[slots] >= self.max_times_sampled]])

    # ---- Rate

    def set_rate_limiter(self, limiter: RateLimiter | None, size: int) -> None:
        """Takes another limiter; its counts begin as if what is stored had come in step."""
        self.rate_limiter = limiter
        self._inserts = float(size)
        self._samples = 0.0 if limiter is None else max(0, size - limiter.min_size) * limiter.samples_per_insert

    def wait_to_insert(self, changed: threading.Condition, count: int) -> None:
        """Waits until the limiter lets `count` in.

        Raises:
            RateLimitError: the time limit has passed, or so many can never come at once.
        """
        if self.rate_limiter is not None and count:
            self._wait(changed, "insert", self.rate_limiter, count, lambda: count, lambda: 0)

    def wait_to_sample(
        self, changed: threading.Condition, asked: int, drawable: Callable[[], int], size: Callable[[], int]
    ) -> None:
        """Waits until the limiter lets so many out.

        Args:
            changed: Notified when anything was inserted or drawn.
            asked: How many are asked for.
            drawable: How many can be drawn now.
            size: How many are stored now.

        Raises:
            RateLimitError: the time limit has passed, or so many can never be drawn at once.
        """
        if self.rate_limiter is not None:
            self._wait(changed, "sample", self.rate_limiter, asked, lambda: min(asked, drawable()), size)

    def count_inserts(self, count: int) -> None:
        """So many were added."""
        self._inserts += count

    def _wait(
        self,
        changed: threading.Condition,
        what: Literal["insert", "sample"],
        limiter: RateLimiter,
        asked: int,
        count: Callable[[], int],
        size: Callable[[], int],
    ) -> None:
        def allowed() -> bool:
            now = self.rate_limiter  # it may be changed meanwhile
            if now is None:
                return True
            if what == "insert":
                return now.lets_insert(self._inserts, self._samples, count())
            return now.lets_sample(self._inserts, self._samples, count(), size())

        largest = limiter.largest()[what == "sample"]
        possible = count() <= largest
        if possible and changed.wait_for(allowed, limiter.timeout):
            return
        limiter = self.rate_limiter or limiter
        low, high = limiter.allowed
        reason = f"waited {limiter.timeout:g} s in vain" if possible else f"can never pass ({largest} can)"
        needed = f" and {size()} of at least {limiter.min_size} stored" if what == "sample" else ""
        raise RateLimitError(
            f"{'Inserting' if what == 'insert' else 'Drawing'} {asked} at once {reason}: with {self._inserts:g} "
            f"inserts and {self._samples:g} samples so far{needed}, inserts * {limiter.samples_per_insert:g} - samples "
            f"must stay between {low:g} and {high:g}. {'Sample' if what == 'insert' else 'Insert'} more, or set "
            "buffer.rate_limiter to a wider one or to None.",
            inserts=self._inserts,
            samples=self._samples,
            allowed=(low, high),
        )

    # ---- State

    def state_dict(self, slots: Ids) -> dict[str, Any]:
        """What is known about the experiences in these slots, the limiter's settings and its counts."""
        limiter = None if self.rate_limiter is None else self.rate_limiter.settings()
        return {
            "times": self._times[slots],
            "ages": self._ages.of(slots) if self.max_age is not None else np.zeros(len(slots)),
            "staleness": None if self.staleness is None else self.staleness.state_dict(slots),
            "rate_limiter": limiter,
            "inserts": self._inserts,
            "samples": self._samples,
        }

    def load_state_dict(self, state: dict[str, Any] | None, ids: Ids, slots: Ids, rows: Rows, experiences: Any) -> None:
        """Takes a state back, or learns of what is stored when the saved buffer had no limits.

        The limits themselves are always those that this buffer was made with. Where the rate limiter was saved with
        other settings, a `BufferStateWarning` names both, and its counts begin anew.
        """
        self.bytes = 0
        self._ids.clear()
        self._next_expiry = math.inf
        self._ages.births.clear()
        if len(ids):
            sizes = None if self.max_bytes is None else self.sizes(rows, experiences)
            self.join(ids, slots, experiences, sizes)
        if state is not None:
            self._times[slots] = state["times"]
            if self.max_age is not None and len(ids):
                self._ages.set(slots, np.asarray(state["ages"]))
                self._next_expiry = float(self._ages.births[slots].min()) + self.max_age
            if self.staleness is not None and state["staleness"] is not None:
                self.staleness.load_state_dict(state["staleness"], slots)
        self._load_rate(state, len(ids))

    def _load_rate(self, state: dict[str, Any] | None, size: int) -> None:
        given = None if self.rate_limiter is None else self.rate_limiter.settings()
        saved = None if state is None else state["rate_limiter"]
        if state is not None and saved == given:
            self._inserts, self._samples = float(state["inserts"]), float(state["samples"])
            return
        self.set_rate_limiter(self.rate_limiter, size)
        if saved != given:
            warn_of_other_limiter(saved, given)


def warn_of_other_limiter(saved: dict[str, Any] | None, given: dict[str, Any] | None) -> None:
    """Says that a state was saved with another rate limiter than the buffer that takes it has."""
    warnings.warn(
        f"The state was saved with the rate limiter {saved}, this buffer has {given}: the buffer's own holds, and its "
        "counts begin anew.",
        BufferStateWarning,
        stacklevel=5,
    )


def _occurrence(ids: Ids) -> Ids:
    """The how-manieth of its id each one is, from 1."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(ids) else NO_IDS
    lengths = np.diff(np.append(starts, len(ids)))
    occurrence = np.empty(len(ids), dtype=np.int64)
    occurrence[order] = np.arange(len(ids)) - np.repeat(starts, lengths) + 1
    return occurrence
