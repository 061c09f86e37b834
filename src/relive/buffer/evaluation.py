"""How a buffer's experiences get their raw priority, and when they get it again.

`Evaluation` holds what was given as ``priority=``: a plain function of one experience, which is asked when it comes and
when its reward arrives, or a `PriorityRule`, which also takes TD errors and keeps up with time and counts.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from relive.buffer._core import Index
from relive.buffer.fields import rows
from relive.buffer.priority_rule import PriorityRule, bounded
from relive.buffer.rows import Floats, Ids
from relive.buffer.slot_array import SlotArray


class Evaluation:
    """A buffer's priority rule at work.

    Args:
        priority: A function, a rule, or ``None`` for neither.
    """

    def __init__(self, priority: "Callable[[Any], float] | PriorityRule | None") -> None:
        self.rule = priority if isinstance(priority, PriorityRule) else None
        self.function = None if isinstance(priority, PriorityRule) else priority
        self._by_hand = SlotArray(np.bool_, False)  # stands until a reward or TD error arrives

    @property
    def exists(self) -> bool:
        """Whether there is a function or a rule."""
        return self.rule is not None or self.function is not None

    @property
    def takes_td_errors(self) -> bool:
        """Whether TD errors go through the rule."""
        return self.rule is not None and self.rule.takes_td_errors

    def of_new(self, experiences: Any) -> Floats | None:
        """The priority of each new experience; ``None``: nobody says."""
        if self.rule is not None:
            return bounded(self.rule.preview(experiences))
        if self.function is not None:
            return np.array([float(self.function(item)) for item in rows(experiences)], dtype=np.float64)
        return None

    def join(self, slots: Ids, experiences: Any) -> None:
        """New experiences live in these slots."""
        if self.rule is not None:
            self._by_hand[slots] = False
            self.rule.join(slots, experiences)

    def leave(self, slots: Ids) -> None:
        """What lives in these slots leaves."""
        if self.rule is not None:
            self.rule.leave(slots)

    def set_by_hand(self, index: Index, ids: Ids) -> None:
        """The caller has given the priorities of these ids; those that are not stored are ignored."""
        if self.rule is not None:
            slots = index.find(ids)
            self._by_hand[slots[slots >= 0]] = True

    def of_changed(self, slots: Ids, experiences: Any) -> Floats | None:
        """The priorities once rewards or outcomes have become known; ``None``: nobody says."""
        if self.rule is None:
            return self.of_new(experiences)
        self.rule.change(slots, experiences)
        return bounded(self.rule.values(slots))

    def undo_change(self, slots: Ids, before: Any) -> None:
        """Goes back to what was known before `of_changed`."""
        if self.rule is not None:
            self.rule.change(slots, before)

    def settle(self, slots: Ids) -> None:
        """The priorities that `of_changed` gave hold from now on, also where one was given by hand."""
        if self.rule is not None:
            self._by_hand[slots] = False

    def of_td_errors(self, slots: Ids, sizes: Floats) -> Floats:
        """The priorities once absolute TD errors are known."""
        if self.rule is None:
            return sizes
        self.rule.td_error(slots, sizes)
        self._by_hand[slots] = False
        return bounded(self.rule.values(slots))

    def of_all(self, index: Index) -> tuple[Ids, Floats] | None:
        """Ids and priorities of all that have drifted; ``None`` while nothing has, or not by much. O(size)."""
        if self.rule is None or not self.rule.drifts or not self.rule.stale(index.size):
            return None
        ids = index.ids()
        slots = index.find(ids)
        free = ~self._by_hand[slots]
        values = bounded(self.rule.values(slots[free]))
        self.rule.refreshed()
        return ids[free], values

    def state_dict(self, slots: Ids) -> dict[str, Any] | None:
        """What the rule knows beyond the experiences."""
        if self.rule is None:
            return None
        return {"rule": self.rule.state_dict(slots), "by_hand": self._by_hand[slots]}

    def load_state_dict(self, state: dict[str, Any] | None, slots: Ids, experiences: Any) -> None:
        """Takes it back, or, from a buffer that had no rule, begins anew with these experiences."""
        if self.rule is None:
            return
        self.rule.reset()
        self._by_hand.clear()
        if len(slots):
            self.join(slots, experiences)
        if state is not None:
            self.rule.load_state_dict(state["rule"], slots)
            self._by_hand[slots] = state["by_hand"]
