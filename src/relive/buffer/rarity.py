"""Priority rules that count: `Rarity` (how many are alike) and `Learnability` (how a group of attempts fares)."""

# ruff: noqa: ARG002  (each rule needs only some of what the interface passes)

from collections.abc import Hashable
from typing import Any

import numpy as np

from relive.buffer.fields import Key, column, digest, field, hashable
from relive.buffer.priority_rule import PriorityRule, check_not_negative, check_positive
from relive.buffer.rows import Floats, Ids
from relive.buffer.slot_array import SlotArray


class Labels:
    """Numbers labels of stored experiences, and counts how many have each."""

    def __init__(self) -> None:
        self._number: dict[Hashable, int] = {}
        self._label: list[Hashable] = []
        self._free: list[int] = []
        self._count = SlotArray(np.int64, 0)  # by number
        self._of_slot = SlotArray(np.int64, -1)

    def find(self, labels: list[Hashable]) -> Ids:
        """The number of each label, -1 where nothing stored has it."""
        return np.array([self._number.get(label, -1) for label in labels], dtype=np.int64)

    def of(self, slots: Ids) -> Ids:
        """The number of the label of what lives in each slot."""
        numbers: Ids = self._of_slot[slots]
        return numbers

    def counts(self, numbers: Ids) -> Ids:
        """How many stored experiences have each label; 0 for the number -1."""
        counts: Ids = self._count[np.maximum(numbers, 0)]
        return np.where(numbers < 0, 0, counts)

    def join(self, slots: Ids, labels: list[Hashable]) -> Ids:
        """New experiences with these labels live in these slots; their numbers."""
        numbers = np.empty(len(slots), dtype=np.int64)
        for place, label in enumerate(labels):
            number = self._number.get(label)
            if number is None:
                number = self._free.pop() if self._free else len(self._label)
                if number == len(self._label):
                    self._label.append(label)
                self._label[number] = label
                self._number[label] = number
            numbers[place] = number
        self._of_slot[slots] = numbers
        self._count.add(numbers, 1)
        return numbers

    def leave(self, slots: Ids) -> Ids:
        """What lives in these slots leaves; the numbers of their labels, which may be given to others from now on."""
        numbers = self.of(slots)
        self._count.add(numbers, -1)
        for number in np.unique(numbers[self._count[numbers] == 0]).tolist():
            del self._number[self._label[number]]
            self._label[number] = None
            self._free.append(number)
        return numbers


class _Counting(PriorityRule):
    """A rule whose values change when others come and go.

    All are brought up to date once a thirty-second of the buffer has come or gone; in one of less than 64 at once.
    """

    drifts = True

    def __init__(self) -> None:
        self._moved = 0

    def stale(self, size: int) -> bool:
        """Whether a thirty-second of the buffer has come or gone."""
        return self._moved > max(0, size // 32 - 2)

    def refreshed(self) -> None:
        """All are as of now."""
        self._moved = 0

    def state_dict(self, slots: Ids) -> dict[str, Any]:
        """How many have come or gone since the last refresh; the counts are made anew."""
        return {"moved": self._moved}

    def load_state_dict(self, state: dict[str, Any], slots: Ids) -> None:
        """Takes it back."""
        self._moved = int(state["moved"])


class Rarity(_Counting):
    """base + count^-exponent, where count is how many stored experiences have the same state and action.

    A true count: when a copy comes or goes, all copies change, in a refresh of all once a thirty-second of the buffer
    has come or gone.

    Args:
        exponent: How fast copies lose, positive; 0.5 is the usual count-based bonus.
        base: Added to it, at least 0; 1 makes it a bonus of up to 2.
        key: What makes a copy; ``None``: state and action.
    """

    def __init__(self, exponent: float = 0.5, *, base: float = 0.0, key: Key | None = None) -> None:
        super().__init__()
        check_positive("exponent", exponent)
        check_not_negative("base", base)
        self._exponent = exponent
        self._base = base
        self._key: Key = _state_and_action if key is None else key
        self._labels = Labels()

    def preview(self, experiences: Any) -> Floats:
        """By the counts once all of them are stored."""
        labels = self._read(experiences)
        together: dict[Hashable, int] = {}
        for label in labels:
            together[label] = together.get(label, 0) + 1
        stored = self._labels.counts(self._labels.find(labels))
        return self._of_counts(stored + np.array([together[label] for label in labels], dtype=np.int64))

    def values(self, slots: Ids) -> Floats:
        """By the present counts."""
        return self._of_counts(self._labels.counts(self._labels.of(slots)))

    def join(self, slots: Ids, experiences: Any) -> None:
        """Counts them."""
        self._labels.join(slots, self._read(experiences))
        self._moved += len(slots)

    def leave(self, slots: Ids) -> None:
        """Counts them no longer."""
        self._labels.leave(slots)
        self._moved += len(slots)

    def reset(self) -> None:
        """Counts nothing."""
        self._labels = Labels()

    def _read(self, experiences: Any) -> list[Hashable]:
        return [hashable(value) for value in column(experiences, self._key)]

    def _of_counts(self, counts: Ids) -> Floats:
        return np.asarray(self._base + np.maximum(counts, 1.0) ** -self._exponent, dtype=np.float64)


class Learnability(_Counting):
    """4 p (1 - p) of a group's success rate p: most is learnt where an attempt may go either way.

    p is estimated with one success and one failure added (Laplace's rule of succession), so that a group with a single
    attempt is not taken for hopeless or mastered, and nothing is ever at 0. An experience in no group counts alone.

    Args:
        group: What makes a group.
        floor: Added, at least 0.
    """

    def __init__(self, group: Key = "group_id", *, floor: float = 0.0) -> None:
        super().__init__()
        check_not_negative("floor", floor)
        self._group = group
        self._floor = floor
        self._groups = Labels()
        self._known = SlotArray(np.int64, 0)  # by the group's number: attempts with a known outcome
        self._successes = SlotArray(np.int64, 0)
        self._outcome = SlotArray(np.int8, -1)  # by slot: 1 success, 0 failure, -1 not known
        self._alone = SlotArray(np.bool_, False)

    def preview(self, experiences: Any) -> Floats:
        """By the groups once all of them are stored."""
        names, outcomes, alone = self._read(experiences)
        numbers = self._groups.find(names)
        stored = numbers >= 0
        known = np.where(stored, self._known[np.maximum(numbers, 0)], 0)
        successes = np.where(stored, self._successes[np.maximum(numbers, 0)], 0)
        come: dict[Hashable, list[int]] = {}
        for name, outcome in zip(names, outcomes.tolist(), strict=True):
            counts = come.setdefault(name, [0, 0])
            counts[0] += outcome >= 0
            counts[1] += outcome == 1
        known = known + np.array([come[name][0] for name in names], dtype=np.int64)
        successes = successes + np.array([come[name][1] for name in names], dtype=np.int64)
        return self._of_counts(known, successes, outcomes, alone)

    def values(self, slots: Ids) -> Floats:
        """By the groups as they are."""
        numbers = self._groups.of(slots)
        return self._of_counts(self._known[numbers], self._successes[numbers], self._outcome[slots], self._alone[slots])

    def join(self, slots: Ids, experiences: Any) -> None:
        """They join their groups."""
        self._join(slots, *self._read(experiences))

    def _join(self, slots: Ids, names: list[Hashable], outcomes: Any, alone: Any) -> None:
        numbers = self._groups.join(slots, names)
        self._outcome[slots] = outcomes
        self._alone[slots] = alone
        self._known.add(numbers, outcomes >= 0)
        self._successes.add(numbers, outcomes == 1)
        self._moved += len(slots)

    def leave(self, slots: Ids) -> None:
        """They leave their groups."""
        outcomes = self._outcome[slots]
        numbers = self._groups.leave(slots)
        self._known.add(numbers, -(outcomes >= 0).astype(np.int64))
        self._successes.add(numbers, -(outcomes == 1).astype(np.int64))
        self._moved += len(slots)

    def change(self, slots: Ids, experiences: Any) -> None:
        """Their outcome is known, or another one."""
        read = self._read(experiences)
        self.leave(slots)
        self._join(slots, *read)

    def reset(self) -> None:
        """Counts nothing."""
        self._groups = Labels()
        self._known.clear()
        self._successes.clear()

    def _read(self, experiences: Any) -> tuple[list[Hashable], Any, Any]:
        names = [hashable(value) for value in column(experiences, self._group)]
        outcomes = [{"success": 1, "failure": 0}.get(outcome, -1) for outcome in column(experiences, "outcome")]
        return names, np.array(outcomes, dtype=np.int8), np.array([name is None for name in names], dtype=np.bool_)

    def _of_counts(self, known: Any, successes: Any, outcomes: Any, alone: Any) -> Floats:
        known = np.where(alone, outcomes >= 0, known)
        successes = np.where(alone, outcomes == 1, successes)
        rate = (successes + 1.0) / (known + 2.0)
        return np.asarray(4.0 * rate * (1.0 - rate) + self._floor, dtype=np.float64)


def _state_and_action(experience: Any) -> bytes:
    return digest([field(experience, "state"), field(experience, "action")])
