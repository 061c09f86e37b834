"""What a replay buffer holds, and how everybody who must know of it is told: rows, index, selectors, rule and limits.

Invariants:

- Rows are written before the index, which cannot fail; so a write that fails has changed nothing.
- Whoever keeps something by slot is told who leaves while the index still knows the slot, and who came once it does.
- Every change of a priority goes through `_set_priorities`, every coming and going through `_commit`.
"""

import operator
import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from relive.buffer._core import Index
from relive.buffer.apart import remover_for
from relive.buffer.arrays import ArrayStorage
from relive.buffer.blocks import HEADS
from relive.buffer.checks import count_of, keepable, positive, refusal, take_of
from relive.buffer.choices import admission_of, victims_of
from relive.buffer.errors import BufferSettingError, BufferStateError
from relive.buffer.evaluation import Evaluation
from relive.buffer.limits import Limits, warn_of_other_limiter
from relive.buffer.native_selectors import Fifo, Prioritized, Uniform
from relive.buffer.priority_rule import PriorityRule
from relive.buffer.rows import NO_IDS, Changes, Experiences, Floats, Ids, ObjectRows, Rows
from relive.buffer.selector import BufferView, Selector
from relive.buffer.state_file import read_state, write_state
from relive.buffer.workers import watch_forks
from relive.errors import ReliveError

STATE_VERSION = 3
"""Version of the shape of `ReplayBuffer.state_dict`."""


class Contents:
    """The inside of a `ReplayBuffer`; see there for the arguments. Methods with an underscore come under `_lock`."""

    def __init__(
        self,
        capacity: int,
        *,
        storage: Rows | None,
        sampler: Selector | None,
        remover: Selector | None,
        priority: Callable[[Any], float] | PriorityRule | None,
        limits: Limits | None,
        seed: int | None,
    ) -> None:
        self._capacity = positive("capacity", capacity)
        rows = ObjectRows() if storage is None else storage
        self._rows: Rows = rows
        self._arrays: ArrayStorage | None = rows if isinstance(rows, ArrayStorage) else None
        if self._arrays is not None:
            self._arrays.allocate(self._capacity)
        for role, given in (("sampler", sampler), ("remover", remover)):
            if given is not None and not isinstance(given, Selector):
                raise BufferSettingError(f"{role} is {given!r}; give a selector, such as relive.Prioritized().")
        self._sampler: Selector = Prioritized() if sampler is None else sampler
        if limits is not None and limits.max_times_sampled is not None:
            self._sampler.never_twice()
        self._remover: Selector = Fifo() if remover is None else remover_for(remover, self._sampler)
        for role, selector in (("sampler", self._sampler), ("remover", self._remover)):
            if role not in selector.roles:
                raise BufferSettingError(f"{type(selector).__name__} cannot be the {role}; it can be {selector.roles}.")
        self._admits = type(self._remover).admit is not Selector.admit
        self._evaluation = Evaluation(priority)
        self._limits = limits
        if seed is None:
            seed = int.from_bytes(os.urandom(8), "little")
        alpha = 1.0 if self._sampler.alpha is None else self._sampler.alpha
        try:
            self._index = Index(self._capacity, alpha, operator.index(seed) % 2**64)
        except MemoryError as error:
            raise BufferSettingError(
                f"A capacity of {self._capacity} needs more memory than there is; choose a smaller one."
            ) from error
        self._view = BufferView(self._index, self._rows)
        self._selectors = [self._sampler]
        if self._remover is not self._sampler:
            self._selectors.append(self._remover)
        for selector in self._selectors:
            selector.bind(self._view)
        self._followers = [selector for selector in self._selectors if selector.follows]
        if self._followers and alpha != 1.0:
            # The index keeps priority^alpha, from which the priorities cannot be had again as exactly as followers
            # compare them, with alpha 0 not at all: a second index keeps the priorities.
            self._view.raw = Index(self._capacity, 1.0, 0)
        # The common cases go straight to the native core: additions of which the oldest leaves and that nobody follows,
        # and draws by its own samplers.
        self._push: Callable[[Index, Any, float | None], int] | None = None
        if isinstance(rows, ObjectRows | ArrayStorage) and type(self._remover) is Fifo and not self._watched:
            self._push = rows.native.push if isinstance(rows, ArrayStorage) else rows.push
        self._drawer: Prioritized | Uniform | None = None
        if isinstance(self._sampler, Prioritized | Uniform) and self._limits is None:
            self._drawer = self._sampler
        self._layout = HEADS if self._arrays is None else self._arrays.layout
        self._native_rows = None if self._arrays is None else self._arrays.native
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # something was added, drawn, or allowed
        self._forks = watch_forks(self)
        self._added = 0
        self._sampled = 0
        self._stale_updates = 0

    # ---- Coming and going

    def _append(self, experiences: Experiences, priorities: Floats | None, sizes: Ids | None = None) -> Ids:
        """Adds at most as many experiences as the capacity, with checked priorities and, where limited, their bytes."""
        index = self._index
        count = offered = count_of(experiences)
        first = index.next_id
        ids = np.arange(first, first + count, dtype=np.int64)
        room = self._capacity - index.size
        admitted = admission_of(self._remover, experiences, room) if self._admits else None
        if admitted is not None:
            places, victims = admitted
            if len(places) < count:  # the others get ids that are gone at once
                experiences, ids, count = take_of(experiences, places), ids[places], len(places)
                priorities = None if priorities is None else priorities[places]
                sizes = None if sizes is None else sizes[places]
                if not self._rows.has_own_ids:
                    index.skip_to(int(ids[0]) if count else first + offered)
        else:
            victims = self._victims(count - room) if count > room else NO_IDS
        if self._limits is not None:
            victims = self._limits.victims(self._remover, self._view, victims, sizes)
        if priorities is None and (self._rows.keeps_priorities or self._followers):
            priorities = np.full(count, self._default_priority(victims))
        own = self._rows.append(experiences, priorities, victims, index.propose(victims, count))
        stored = ids if own is None else own
        self._commit(victims, stored, priorities, experiences, sizes)
        if admitted is None or count == offered:
            return stored
        self._added += offered - count
        if own is not None:
            result = np.full(offered, -1, dtype=np.int64)
            result[places] = own
            return result
        index.skip_to(first + offered)
        return np.arange(first, first + offered, dtype=np.int64)

    def _victims(self, count: int) -> Ids:
        """Who leaves by the remover's choice; `count` is at most the number stored."""
        return victims_of(self._remover, count)

    def _default_priority(self, victims: Ids) -> float:
        """What a new experience gets once the victims have left: the largest live priority, 1 when there is none."""
        return (self._view.raw or self._index).default_priority(victims)

    @property
    def _watched(self) -> bool:
        """Whether anybody wants to know what comes and goes."""
        return bool(self._followers) or self._limits is not None or self._evaluation.rule is not None

    def _commit(
        self,
        victims: Ids,
        ids: Ids,
        priorities: Floats | None,
        experiences: Experiences,
        sizes: Ids | None = None,
    ) -> None:
        """Tells index and selectors what the rows already hold."""
        if len(victims) and self._watched:
            slots = self._index.find(victims)
            for selector in self._followers:
                selector.delete(victims)
            self._evaluation.leave(slots)
            if self._limits is not None:
                self._limits.leave(slots)
        self._index.replace(victims, ids, priorities)
        if self._view.raw is not None:
            self._view.raw.replace(victims, ids, priorities)
        if len(ids) and self._watched:
            slots = self._index.find(ids)
            if self._limits is not None:
                self._limits.join(ids, slots, experiences, sizes)
            self._evaluation.join(slots, experiences)
            if priorities is not None:
                for selector in self._followers:
                    selector.insert(ids, priorities, experiences)
        self._added += len(ids)

    def _evict(self, victims: Ids) -> None:
        if len(victims):
            self._rows.evict(victims, self._index.find(victims))
            self._commit(victims, NO_IDS, None, ())

    # ---- What others did

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
        live = self._index.find(changes.updated) >= 0
        if live.any():
            self._set_priorities(changes.updated[live], changes.updated_priorities[live])
            self._evaluation.set_by_hand(self._index, changes.updated[live])
        self._reevaluate(changes.rewarded[self._index.find(changes.rewarded) >= 0])

    def _reevaluate(self, ids: Ids) -> None:
        """Rewards or outcomes of these stored ids have become known."""
        if not len(ids) or not (self._followers or self._evaluation.exists):
            return
        slots = self._index.find(ids)
        experiences = self._rows.get(ids, slots)
        for selector in self._followers:
            selector.change(ids, experiences)
        priorities = self._evaluation.of_changed(slots, experiences)
        if priorities is not None:
            self._set_priorities(ids, priorities)
            self._evaluation.settle(slots)

    def _rewarded(self, ids: Ids, slots: Ids, experiences: Experiences, before: Experiences) -> Floats | None:
        """Tells rule and selectors of rewards that are not written yet, and returns the priorities by the rule.

        When anything is refused, all are told what was `before`.
        """
        try:
            priorities = self._evaluation.of_changed(slots, experiences)
            if priorities is not None:
                self._check_priorities(ids, priorities)
            for selector in self._followers:
                selector.change(ids, experiences)
        except Exception:
            self._evaluation.undo_change(slots, before)
            for selector in self._followers:
                selector.change(ids, before)
            raise
        return priorities

    def _follow_inserted(self, changes: Changes) -> None:
        ids = changes.inserted
        priorities = keepable(changes.inserted_priorities, self._index.alpha)
        surplus = len(ids) - self._capacity
        if surplus > 0:  # more than fit at once: only the newest can stay
            self._rows.evict(ids[:surplus], np.full(surplus, -1))
            ids, priorities = ids[surplus:], priorities[surplus:]
        excess = self._index.size + len(ids) - self._capacity
        if excess > 0:
            self._evict(self._victims(excess))
        unknown = np.isnan(priorities)
        if unknown.any():
            ruled = None
            if self._evaluation.exists:
                ruled = self._evaluation.of_new(self._rows.get(ids[unknown], np.full(int(unknown.sum()), -1)))
            if ruled is not None:
                self._check_priorities(ids[unknown], ruled)
            priorities[unknown] = self._default_priority(NO_IDS) if ruled is None else ruled
        experiences = self._rows.get(ids, np.full(len(ids), -1)) if self._watched else ()
        self._commit(NO_IDS, ids, priorities, experiences)

    # ---- Priorities

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
        if self._view.raw is not None:
            self._view.raw.update(ids, priorities)
        for selector in self._followers:
            selector.update(ids, priorities)
        return changed

    def _keep_raw(self, ids: Ids, priorities: Floats) -> None:
        """The raw priorities of all that is stored, for a buffer that keeps them beside its index."""
        if self._view.raw is not None:
            self._view.raw = Index(self._capacity, 1.0, 0)
            self._view.raw.replace(NO_IDS, ids, priorities)

    def _refresh(self) -> None:
        """Brings priorities up to date that have drifted with time or with what came and went."""
        drifted = self._evaluation.of_all(self._index)
        if drifted is not None:
            self._set_priorities(*drifted)

    # ---- State

    def _kinds(self) -> dict[str, str | None]:
        """What a saved state must have been made with to fit."""
        return {
            "storage": type(self._rows).__name__,
            "sampler": self._sampler.kind,
            "remover": self._remover.kind,
            "rule": None if self._evaluation.rule is None else self._evaluation.rule.kind,
            "sampler with settings": self._sampler.saved_as,
            "remover with settings": self._remover.saved_as,
        }

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
                "kinds": self._kinds(),
                "index": {
                    "alpha": index.alpha,
                    "ids": ids,
                    "slots": slots,
                    "leaves": index.leaves(ids),
                    "priorities": None if self._view.raw is None else self._view.priorities(ids),
                    "free_slots": index.free_slots(),
                    "ring": index.is_ring,
                    "next_id": index.next_id,
                    "random": np.array(index.random_state, dtype=np.uint64),
                },
                "rows": self._rows.state_dict(ids, slots),
                "sampler": self._sampler.state_dict(),
                "remover": self._remover.state_dict(),
                "rule": self._evaluation.state_dict(slots),
                "limits": None if self._limits is None else self._limits.state_dict(slots),
                "counters": {
                    "added": self._added,
                    "sampled": self._sampled,
                    "stale_updates": self._stale_updates,
                    "forks": self._forks.count,
                },
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes a state back: the next draws are those that the saved buffer would have made.

        Raises:
            BufferStateError: the state is of another version, or of a buffer with another capacity, kind of storage,
                sampler, remover or rule (a state without a rule fits any), alpha, or settings of the sampler or remover
                that the state depends on, or it is damaged; nothing was changed.
        """
        if state.get("version") != STATE_VERSION:
            raise BufferStateError(
                f"The state has version {state.get('version')!r}, this Relive reads {STATE_VERSION}; "
                "load it with the Relive that wrote it."
            )
        with self._lock:
            before = self.state_dict()  # costs little where the buffer is still empty
            try:
                index = self._index_of(state)
                try:
                    self._take(state, index)
                except Exception:
                    self._take(before, self._index_of(before))
                    raise
            except (ReliveError, Warning):
                raise
            except Exception as error:
                raise BufferStateError(
                    f"The state does not fit this buffer, or is damaged ({type(error).__name__}: {error}); nothing was "
                    "changed."
                ) from error

    def _index_of(self, state: dict[str, Any]) -> Index:
        """The index of a state that fits this buffer; nothing is changed yet."""
        saved = state["index"]
        for name, theirs, ours in (
            ("capacity", state["capacity"], self._capacity),
            ("alpha", saved["alpha"], self._index.alpha),
            *((name, state["kinds"][name], kind) for name, kind in self._kinds().items()),
        ):
            if theirs != ours and not (name == "rule" and theirs is None):
                raise BufferStateError(
                    f"The state is of a buffer with {name} {theirs}, this one has {ours}; make it with the same."
                )
        ids = saved["ids"]
        index = Index(self._capacity, self._index.alpha, 0)
        try:
            index.restore(ids, saved["slots"], saved["leaves"], saved["free_slots"], bool(saved["ring"]))
            if self._view.raw is not None and (
                len(saved["priorities"]) != len(ids) or index.first_bad(saved["priorities"]) >= 0
            ):
                raise ValueError("not one priority for each id")
        except (ValueError, TypeError) as error:
            raise BufferStateError("The state's ids, slots and priorities contradict each other.") from error
        index.skip_to(int(saved["next_id"]))
        return index

    def _take(self, state: dict[str, Any], index: Index) -> None:
        saved = state["index"]
        ids, slots = saved["ids"], saved["slots"]
        self._rows.load_state_dict(state["rows"], ids, slots)
        self._index = self._view.index = index
        self._keep_raw(ids, saved["priorities"])
        experiences = self._rows.get(ids, slots) if self._watched and len(ids) else ()
        for selector in self._followers:
            selector.reset()
            if len(ids):
                selector.insert(ids, self._view.priorities(ids), experiences)
        index.random_state = [int(word) for word in saved["random"]]
        self._evaluation.load_state_dict(state["rule"], slots, experiences)
        if self._limits is not None:
            self._limits.load_state_dict(state["limits"], ids, slots, self._rows, experiences)
        elif state["limits"] is not None and state["limits"]["rate_limiter"] is not None:
            warn_of_other_limiter(state["limits"]["rate_limiter"], None)
        self._sampler.load_state_dict(state["sampler"])
        self._remover.load_state_dict(state["remover"])
        counters = state["counters"]
        self._added = counters["added"]
        self._sampled = counters["sampled"]
        self._stale_updates = counters["stale_updates"]
        self._forks.count = counters["forks"]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `state_dict` into one file, without pickle; an earlier file is replaced at once or not at all.

        Raises:
            BufferStateError: an experience is neither made of JSON values and arrays nor a `Transition`.
            OSError: the file cannot be written.
        """
        write_state(path, self.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Takes the state back that `save` wrote: the next draws are those that the saved buffer would have made.

        The buffer must be made with the same capacity, storage, sampler, remover and priority rule.

        Raises:
            BufferStateError: the file is damaged, no saved buffer, or of another kind of buffer.
            OSError: the file cannot be read.
        """
        self.load_state_dict(read_state(path))

    def __reduce__(self) -> NoReturn:
        raise BufferStateError(
            "A buffer does not travel to another process by itself: save it to a file; the worker makes one with the "
            "same settings, loads the file and calls worker(number)."
        )

    def worker(self, number: int) -> None:
        """Goes over to the random stream of worker `number`, so that no two workers draw the same batches.

        A forked child does so by itself; a spawned one loads a saved buffer and calls this. Equal numbers after equal
        states give equal draws.

        Args:
            number: At least 0.
        """
        with self._lock:
            self._index.split_random(operator.index(number))
