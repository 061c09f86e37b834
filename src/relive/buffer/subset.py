"""A part of a buffer with an index of its own, so that any selector can work on it as on a whole buffer.

The part numbers its members itself (local ids 0, 1, 2, ... in the order of joining), because an experience may join
late, for example when its outcome becomes known. Random numbers are borrowed from the whole buffer's stream for the
time of each call, so that one seed and one saved state fix every draw.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer._core import Index
from relive.buffer.choices import choose, victims_of
from relive.buffer.errors import SelectorError
from relive.buffer.fields import rows
from relive.buffer.rows import NO_IDS, Experiences, Floats, Ids
from relive.buffer.selector import BufferView, Selection, Selector
from relive.buffer.slot_array import SlotArray


class Subset(BufferView):
    """What a selector sees of a part of a buffer. Ids in its calls are local ones.

    Args:
        whole: The buffer (or larger part).
        alpha: Exponent that the part's index applies to raw priorities.
    """

    def __init__(self, whole: BufferView, alpha: float) -> None:
        super().__init__(Index(64, alpha, 0), whole.rows)
        self.whole = whole
        self._local = SlotArray(np.int64, -1)  # by the slot in the whole: the local id, -1 for others
        self._real = SlotArray(np.int64, -1)  # by the slot in the part: the real id
        self._priority = SlotArray(np.float64, np.nan)  # the same: the raw priority, which here may be another one

    def join(self, ids: Ids, priorities: Floats) -> Ids:
        """Takes stored ids in, none of which is a member, and returns their local ids. O(len(ids))."""
        needed = self.index.size + len(ids)
        if needed > self.index.capacity:
            self._grow(max(needed, 2 * self.index.capacity))
        local = np.arange(self.index.next_id, self.index.next_id + len(ids), dtype=np.int64)
        self.index.replace(NO_IDS, local, priorities)
        self._local[self.whole.index.find(ids)] = local
        slots = self.index.find(local)
        self._real[slots] = ids
        self._priority[slots] = priorities
        return local

    def leave(self, ids: Ids, local: Ids) -> None:
        """Lets members go, which must still be stored in the whole."""
        self.index.replace(local, NO_IDS, None)
        self._local[self.whole.index.find(ids)] = -1

    def update(self, local: Ids, priorities: Floats) -> None:
        """Members have new priorities; of equal ids the last counts."""
        self.index.update(local, priorities)
        self._priority[self.index.find(local)] = priorities

    def local(self, ids: Ids) -> Ids:
        """The local id of each stored id, -1 for those that are not members."""
        return self._local[self.whole.index.find(ids)]

    def real(self, local: Ids) -> Ids:
        """The id in the whole of each member."""
        return self._real[self.index.find(local)]

    def priorities(self, ids: Ids) -> Floats:
        """The raw priority of each member; NaN for what is none."""
        slots = self.index.find(ids)
        return np.where(slots < 0, np.nan, self._priority[np.maximum(slots, 0)])

    def experiences(self, ids: Ids) -> Experiences:
        """The experiences of these members.

        Raises:
            SelectorError: one is no member.
        """
        slots = self.index.find(ids)
        if (slots < 0).any():
            raise SelectorError(f"Experience {ids[slots < 0][0]} was asked for, which is not stored.")
        return self.whole.experiences(self._real[slots])

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Lends the whole buffer's random stream to the part."""
        self.index.random_state = self.whole.index.random_state
        try:
            yield
        finally:
            self.whole.index.random_state = self.index.random_state

    def clear(self) -> None:
        """Lets all members go."""
        self.index = Index(64, self.index.alpha, 0)
        self._local.clear()
        self._real.clear()
        self._priority.clear()

    def state_dict(self) -> dict[str, Any]:
        """Who is a member, and in which slot: what the next draws depend on."""
        index = self.index
        ids = index.ids()
        return {
            "capacity": index.capacity,
            "real": self.real(ids),
            "ids": ids,
            "slots": index.find(ids),
            "leaves": index.leaves(ids),
            "priorities": self.priorities(ids),
            "free_slots": index.free_slots(),
            "ring": index.is_ring,
            "next_id": index.next_id,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the members back; each must be stored in the whole."""
        self.clear()
        ids, real = state["ids"], state["real"]
        index = Index(int(state["capacity"]), self.index.alpha, 0)
        index.restore(ids, state["slots"], state["leaves"], state["free_slots"], bool(state["ring"]))
        index.skip_to(int(state["next_id"]))
        self.index = index
        self._local[self.whole.index.find(real)] = ids
        self._real[state["slots"]] = real
        self._priority[state["slots"]] = state["priorities"]

    def _grow(self, capacity: int) -> None:
        old = self.index
        ids = old.ids()
        size = len(ids)
        slots = np.arange(size, dtype=np.int64)
        real, priorities = self._real[old.find(ids)], self._priority[old.find(ids)]
        new = Index(capacity, old.alpha, 0)
        new.restore(ids, slots, old.leaves(ids), np.arange(capacity - 1, size - 1, -1, dtype=np.int64), False)
        new.skip_to(old.next_id)
        new.random_state = old.random_state
        self.index = new
        self._real.clear()
        self._real[slots] = real
        self._priority[slots] = priorities


class Part:
    """A selector at work on some of a buffer's experiences. Ids in its calls are the buffer's.

    Args:
        whole: The buffer.
        selector: Chooses among the members.
    """

    def __init__(self, whole: BufferView, selector: Selector) -> None:
        self.selector = selector
        self.view = Subset(whole, 1.0 if selector.alpha is None else selector.alpha)
        selector.bind(self.view)

    def __len__(self) -> int:
        return len(self.view)

    @property
    def drawable(self) -> int:
        """How many members have a positive priority."""
        return self.view.index.drawable

    def holds(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of these stored ids are members."""
        return self.view.local(ids) >= 0

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """Takes stored experiences in."""
        if len(ids):
            local = self.view.join(ids, priorities)
            if self.selector.follows:
                self.selector.insert(local, priorities, experiences)

    def delete(self, ids: Ids) -> None:
        """Lets members go; ids that are none are ignored."""
        local = self.view.local(ids)
        ids, local = ids[local >= 0], local[local >= 0]
        if len(ids):
            if self.selector.follows:
                self.selector.delete(local)
            self.view.leave(ids, local)

    def update(self, ids: Ids, priorities: Floats) -> None:
        """Members have new priorities; ids that are none are ignored."""
        local = self.view.local(ids)
        member = local >= 0
        if member.any():
            self.view.update(local[member], priorities[member])
            if self.selector.follows:
                self.selector.update(local[member], priorities[member])

    def change(self, ids: Ids, experiences: Sequence[Any]) -> None:
        """The reward or outcome of these ids has become known; ids that are no members are ignored."""
        if not self.selector.follows:
            return
        local = self.view.local(ids)
        member = local >= 0
        if member.any():
            chosen = [item for item, is_member in zip(rows(experiences), member.tolist(), strict=True) if is_member]
            self.selector.change(local[member], chosen)

    def select(self, count: int) -> Selection:
        """Lets the selector choose `count` of the members."""
        with self.view.stream():
            selection = choose(self.selector, count)
        selection.ids = self.view.real(selection.ids)
        if selection.n_step is not None:
            selection.n_step.last_ids = self.view.real(selection.n_step.last_ids)
        return selection

    def victims(self, count: int) -> Ids:
        """Lets the selector choose `count` members to leave; `count` is at most their number."""
        with self.view.stream():
            return self.view.real(victims_of(self.selector, count))

    def reset(self) -> None:
        """Forgets all members."""
        self.view.clear()
        self.selector.reset()

    def state_dict(self) -> dict[str, Any]:
        """The members, and the selector's own state."""
        return {"members": self.view.state_dict(), "selector": self.selector.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes members and selector back; each member must be stored."""
        self.view.load_state_dict(state["members"])
        if self.selector.follows:
            self.selector.reset()
            local = self.view.ids()
            if len(local):
                self.selector.insert(local, self.view.priorities(local), self.view.experiences(local))
        self.selector.load_state_dict(state["selector"])
