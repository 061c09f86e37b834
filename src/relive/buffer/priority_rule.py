"""What a priority rule is, and how rules multiply: ``TdError() * Recency(3600.0)``.

A rule gives a new experience its raw priority, and gives it again when a reward or a TD error arrives. What changes for
experiences that nobody touches (they grow older, others like them come and go) is brought up to date for all of them in
one vector pass before a draw, as soon as it matters. A priority that the caller gives by hand stands until a reward or
TD error of that experience arrives.

The buffer's own exponent alpha applies to the product.
"""

# ruff: noqa: ARG002  (the base class passes what only some rules need)

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from relive.buffer.checks import LARGEST_PRIORITY
from relive.buffer.errors import BufferSettingError
from relive.buffer.fields import rows
from relive.buffer.rows import Floats, Ids
from relive.buffer.slot_array import SlotArray


class PriorityRule:
    """Gives each experience a factor of its raw priority.

    Subclasses override `preview` and `values`, and the rest where they keep state. Slots are where the buffer keeps an
    experience while it is stored. A rule serves one buffer.
    """

    takes_td_errors = False
    """Whether TD errors go through `td_error` instead of being the priority themselves."""

    drifts = False
    """Whether values change of experiences that nobody touches."""

    @property
    def kind(self) -> str:
        """Its class, or those of its factors. A saved state fits the same kind only."""
        return type(self).__name__

    def preview(self, experiences: Any) -> Floats:
        """The factor that each new experience will have once it is stored, float64 ``[B]``, at least 0."""
        raise NotImplementedError(f"{type(self).__name__} must override preview().")

    def values(self, slots: Ids) -> Floats:
        """The factor of each stored experience now."""
        raise NotImplementedError(f"{type(self).__name__} must override values().")

    def join(self, slots: Ids, experiences: Any) -> None:
        """New experiences live in these slots."""

    def leave(self, slots: Ids) -> None:
        """What lives in these slots leaves."""

    def change(self, slots: Ids, experiences: Any) -> None:
        """The reward or outcome of what lives in these slots has become known."""

    def td_error(self, slots: Ids, sizes: Floats) -> None:
        """The absolute TD errors of what lives in these slots are known."""

    def stale(self, size: int) -> bool:
        """Whether the values of all `size` stored experiences should be brought up to date before a draw."""
        return False

    def refreshed(self) -> None:
        """The values of all have been brought up to date."""

    def reset(self) -> None:
        """Forgets all experiences."""

    def state_dict(self, slots: Ids) -> dict[str, Any]:
        """What it knows beyond the experiences themselves, in the order of the slots."""
        return {}

    def load_state_dict(self, state: dict[str, Any], slots: Ids) -> None:
        """Takes it back; called after all stored experiences have joined anew."""

    def __mul__(self, other: "PriorityRule | Callable[[Any], float] | float") -> "Product":
        return Product([*self.factors(), *as_rule(other).factors()])

    __rmul__ = __mul__

    def factors(self) -> "list[PriorityRule]":
        """The rules that this one multiplies; itself, when it is no product."""
        return [self]


class Product(PriorityRule):
    """Several rules multiplied. Made by ``*``."""

    def __init__(self, rules: list[PriorityRule]) -> None:
        self._rules = rules
        self.takes_td_errors = any(rule.takes_td_errors for rule in rules)
        self.drifts = any(rule.drifts for rule in rules)

    @property
    def kind(self) -> str:
        """Those of its factors."""
        return " * ".join(rule.kind for rule in self._rules)

    def preview(self, experiences: Any) -> Floats:
        """The product of what each gives."""
        return _product([rule.preview(experiences) for rule in self._rules])

    def values(self, slots: Ids) -> Floats:
        """The product of what each gives."""
        return _product([rule.values(slots) for rule in self._rules])

    def join(self, slots: Ids, experiences: Any) -> None:
        """Tells each."""
        for rule in self._rules:
            rule.join(slots, experiences)

    def leave(self, slots: Ids) -> None:
        """Tells each."""
        for rule in self._rules:
            rule.leave(slots)

    def change(self, slots: Ids, experiences: Any) -> None:
        """Tells each."""
        for rule in self._rules:
            rule.change(slots, experiences)

    def td_error(self, slots: Ids, sizes: Floats) -> None:
        """Tells each."""
        for rule in self._rules:
            rule.td_error(slots, sizes)

    def stale(self, size: int) -> bool:
        """Whether any is."""
        return any(rule.stale(size) for rule in self._rules)

    def refreshed(self) -> None:
        """Tells each."""
        for rule in self._rules:
            rule.refreshed()

    def reset(self) -> None:
        """Tells each."""
        for rule in self._rules:
            rule.reset()

    def state_dict(self, slots: Ids) -> dict[str, Any]:
        """The state of each."""
        return {"factors": [rule.state_dict(slots) for rule in self._rules]}

    def load_state_dict(self, state: dict[str, Any], slots: Ids) -> None:
        """Takes them back."""
        for rule, saved in zip(self._rules, state["factors"], strict=True):
            rule.load_state_dict(saved, slots)

    def factors(self) -> list[PriorityRule]:
        """The multiplied rules."""
        return self._rules


class OfExperience(PriorityRule):
    """A factor that depends on the experience alone; it is computed when it comes and when its reward arrives.

    Args:
        rule: Gives the factor of one experience, a finite number of at least 0.
    """

    def __init__(self, rule: Callable[[Any], float]) -> None:
        self._rule = rule
        self._value = SlotArray(np.float64, 1.0)

    def preview(self, experiences: Any) -> Floats:
        """Asks the function for each."""
        return np.array([float(self._rule(item)) for item in rows(experiences)], dtype=np.float64)

    def values(self, slots: Ids) -> Floats:
        """What the function said."""
        return self._value[slots]

    def join(self, slots: Ids, experiences: Any) -> None:
        """Remembers their factors."""
        self._value[slots] = self.preview(experiences)

    def change(self, slots: Ids, experiences: Any) -> None:
        """Asks again."""
        self._value[slots] = self.preview(experiences)


def as_rule(rule: PriorityRule | Callable[[Any], float] | float) -> PriorityRule:
    """A rule, a function of one experience or a constant factor as a rule."""
    if isinstance(rule, PriorityRule):
        return rule
    if callable(rule):
        return OfExperience(rule)
    constant = float(rule)
    check_not_negative("a constant factor", constant)
    return OfExperience(lambda _: constant)


def bounded(values: Floats) -> Floats:
    """No finite value larger than can be kept; NaN and infinity stay, and are refused."""
    return np.where(np.isinf(values), values, np.minimum(values, LARGEST_PRIORITY))


def _product(factors: list[Floats]) -> Floats:
    result = bounded(factors[0])
    with np.errstate(invalid="ignore"):  # infinity times 0 is NaN, which is refused
        for factor in factors[1:]:
            result = bounded(result * bounded(factor))
    return result


def check_positive(name: str, value: float) -> None:
    """Refuses a setting that is not positive."""
    if not 0.0 < value < math.inf:
        raise BufferSettingError(f"{name} is {value}; it must be positive and finite.")


def check_not_negative(name: str, value: float) -> None:
    """Refuses a setting below 0."""
    if not 0.0 <= value < math.inf:
        raise BufferSettingError(f"{name} is {value}; it must be finite and at least 0.")
