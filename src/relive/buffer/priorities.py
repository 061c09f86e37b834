"""Priority rules: TD error, reward, recency; and `td_errors`, which computes what the first needs.

Rules that count likes and groups are in `rarity.py`; how rules multiply in `priority_rule.py`.
"""

# ruff: noqa: ARG002  (each rule needs only some of what the interface passes)

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer.ages import Ages, ages_on_arrival
from relive.buffer.errors import BufferSettingError
from relive.buffer.fields import Key, count_of, numbers
from relive.buffer.priority_rule import OfExperience, PriorityRule, Product, check_not_negative, check_positive
from relive.buffer.rarity import Rarity
from relive.buffer.rows import Floats, Ids
from relive.buffer.slot_array import SlotArray
from relive.buffer.slot_maximum import SlotMaximum

DAY = 86_400.0
"""Seconds."""


def td_errors(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    next_values: npt.ArrayLike,
    terminated: npt.ArrayLike,
    gamma: float = 0.99,
) -> Floats:
    """Temporal-difference errors, signed: r + gamma V(s') - V(s), without V(s') where the episode terminated.

    A truncated episode is not terminated: its last state has a value.

    Args:
        rewards: ``[B]``.
        values: ``[B]``, V of the states.
        next_values: ``[B]``, V of the next states; what stands where an episode terminated does not matter.
        terminated: bool ``[B]``.
        gamma: Discount, 0 to 1.

    Returns:
        float64 ``[B]``, for ``buffer.update_priorities(batch.ids, td_errors=...)``.

    Raises:
        BufferSettingError: the shapes differ, or gamma is out of range.
    """
    if not 0.0 <= gamma <= 1.0:
        raise BufferSettingError(f"gamma is {gamma}; it must be between 0 and 1.")
    parts = {"rewards": rewards, "values": values, "next_values": next_values}
    arrays = {name: np.asarray(part, dtype=np.float64) for name, part in parts.items()}
    ended = np.asarray(terminated, dtype=np.bool_)
    shapes = {name: array.shape for name, array in arrays.items()} | {"terminated": ended.shape}
    if len(set(shapes.values())) > 1:
        raise BufferSettingError(f"The shapes differ: {shapes}; one value is needed for each transition.")
    bootstrap = np.where(ended, 0.0, arrays["next_values"])
    errors: Floats = arrays["rewards"] + gamma * bootstrap - arrays["values"]
    return errors


class OfReward(OfExperience):
    """A factor that depends on the reward alone, given as a function of an array of known rewards.

    Args:
        function: float64 ``[B]`` → float64 ``[B]``, each at least 0.
        unknown: The factor while the reward is not known.
        reward: The field that holds the reward.
    """

    def __init__(self, function: Callable[[Floats], Floats], *, unknown: float = 1.0, reward: Key = "reward") -> None:
        super().__init__(lambda _: 1.0)
        self._function = function
        self._unknown = unknown
        self._reward = reward

    def preview(self, experiences: Any) -> Floats:
        """The function of the known rewards."""
        rewards = numbers(experiences, self._reward)
        known = ~np.isnan(rewards)
        values = np.full(len(rewards), float(self._unknown))
        values[known] = self._function(rewards[known])
        return values


class AbsReward(OfReward):
    """|reward| + offset: what moved the score most comes first.

    Args:
        offset: Keeps experiences without any reward drawable; 0 makes them undrawable.
        unknown: The factor while the reward is not known; ``None``: that of a reward of size 1.
        reward: The field that holds the reward.
    """

    def __init__(self, offset: float = 0.01, *, unknown: float | None = None, reward: Key = "reward") -> None:
        check_not_negative("offset", offset)
        super().__init__(
            lambda rewards: np.abs(rewards) + offset,
            unknown=1.0 + offset if unknown is None else unknown,
            reward=reward,
        )


class LowReward(OfReward):
    """exp(-reward / scale): low rewards first, failures before successes.

    Args:
        scale: The difference in reward that changes the priority by a factor of e, positive.
        unknown: The factor while the reward is not known.
        reward: The field that holds the reward.
    """

    def __init__(self, scale: float = 1.0, *, unknown: float = 1.0, reward: Key = "reward") -> None:
        check_positive("scale", scale)
        super().__init__(lambda rewards: np.exp(np.clip(-rewards / scale, -60.0, 60.0)), unknown=unknown, reward=reward)


class TdError(PriorityRule):
    """|TD error| + epsilon, from ``update_priorities(ids, td_errors=...)``; until then the largest one stored.

    Args:
        epsilon: Keeps an experience with no error drawable.
    """

    takes_td_errors = True

    def __init__(self, epsilon: float = 1e-6) -> None:
        check_not_negative("epsilon", epsilon)
        self._epsilon = epsilon
        self._size = SlotMaximum()  # -inf: not known (or nobody lives there)
        self._given = SlotArray(np.float64, np.nan)  # what it was taken for meanwhile

    def preview(self, experiences: Any) -> Floats:
        """The largest error stored, so that each is looked at once; 1 where none is known."""
        largest = self._size.largest()
        return np.full(count_of(experiences), (largest if largest >= 0 else 1.0) + self._epsilon)

    def values(self, slots: Ids) -> Floats:
        """The errors known, and what new ones were taken for."""
        sizes = self._size[slots]
        return np.where(sizes < 0, self._given[slots], sizes + self._epsilon)

    def join(self, slots: Ids, experiences: Any) -> None:
        """Their errors are not known yet."""
        self._given[slots] = self.preview(experiences)
        self._size[slots] = -np.inf

    def leave(self, slots: Ids) -> None:
        """Their errors no longer count as the largest."""
        self._size[slots] = -np.inf

    def reset(self) -> None:
        """No error is known."""
        self._size.clear()

    def td_error(self, slots: Ids, sizes: Floats) -> None:
        """They are known now."""
        self._size[slots] = sizes

    def state_dict(self, slots: Ids) -> dict[str, Any]:
        """The errors known."""
        return {"sizes": self._size[slots], "given": self._given[slots]}

    def load_state_dict(self, state: dict[str, Any], slots: Ids) -> None:
        """Takes them back."""
        self._size[slots] = state["sizes"]
        self._given[slots] = state["given"]


class Recency(PriorityRule):
    """exp(-age / time_constant), or 1 / (1 + age / time_constant): what happened lately first.

    All stored experiences are refreshed in one vector pass once any may be off by 1 %.

    Args:
        time_constant: Seconds, positive.
        hyperbolic: The second form, which forgets more slowly and never quite.
        clock: Seconds that only grow.
    """

    drifts = True

    def __init__(
        self, time_constant: float = DAY, *, hyperbolic: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        check_positive("time_constant", time_constant)
        self._time_constant = time_constant
        self._hyperbolic = hyperbolic
        self._ages = Ages(clock)
        self._refreshed_at = clock()

    def preview(self, experiences: Any) -> Floats:
        """By their age on arrival."""
        return self._of_ages(ages_on_arrival(experiences))

    def values(self, slots: Ids) -> Floats:
        """By their age now."""
        return self._of_ages(self._ages.of(slots))

    def join(self, slots: Ids, experiences: Any) -> None:
        """Their age counts from now."""
        self._ages.join(slots, experiences)

    def stale(self, size: int) -> bool:
        """Whether a hundredth of the time constant has passed."""
        return self._ages.clock() - self._refreshed_at > 0.01 * self._time_constant

    def refreshed(self) -> None:
        """All are as of now."""
        self._refreshed_at = self._ages.clock()

    def state_dict(self, slots: Ids) -> dict[str, Any]:
        """The ages, and how long ago the last refresh was."""
        return {"ages": self._ages.of(slots), "since": self._ages.clock() - self._refreshed_at}

    def load_state_dict(self, state: dict[str, Any], slots: Ids) -> None:
        """Takes them back; time in which the program did not run is not counted."""
        self._ages.set(slots, np.asarray(state["ages"]))
        self._refreshed_at = self._ages.clock() - float(state["since"])

    def _of_ages(self, ages: Floats) -> Floats:
        shares = ages / self._time_constant
        return 1.0 / (1.0 + shares) if self._hyperbolic else np.exp(-np.minimum(shares, 80.0))


def article_001(alpha: float = 0.6, *, clock: Callable[[], float] = time.monotonic) -> Product:
    """The priority of article 001: (|r| + 1) / (1 + age in days) * rarity * (1 + alpha |r|).

    The article's rarity is a hash modulo 10,000, which says nothing about how rare anything is; here it is
    1 + 1 / count of the same state and action. Use it with ``Prioritized(alpha=1.0)``: its exponent is inside already.

    Args:
        alpha: The article's factor of |r| in its last bonus.
        clock: Seconds that only grow.
    """
    check_not_negative("alpha", alpha)
    size = AbsReward(offset=1.0, unknown=1.0)
    bonus = OfReward(lambda rewards: 1.0 + alpha * np.abs(rewards))
    return size * Recency(DAY, hyperbolic=True, clock=clock) * Rarity(1.0, base=1.0) * bonus
