"""N-step returns: `n_step_returns` over arrays of steps, and `NStep`, a sampler that adds them to each drawn row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer.choices import check_row_by_row, choose
from relive.buffer.composites import epsilon_of
from relive.buffer.episodes import TERMINATED, EpisodeFields, Links
from relive.buffer.errors import BufferSettingError
from relive.buffer.native_selectors import Prioritized
from relive.buffer.rows import Floats, Ids
from relive.buffer.selector import BufferView, NStepReturns, Selection, Selector


def n_step_returns(
    rewards: npt.ArrayLike, terminated: npt.ArrayLike, truncated: npt.ArrayLike, *, n: int, gamma: float
) -> tuple[Floats, Floats, Ids]:
    """N-step returns of steps that follow one another in time.

    The sum stops at the end of an episode and at the last step given. Where the episode terminated nothing is
    bootstrapped; where it was truncated, or goes on, the value of the state after the last summed step is.

    Args:
        rewards: ``[T]`` or ``[T, environments]``.
        terminated: bool, the same shape.
        truncated: bool, the same shape.
        n: Most steps summed, at least 1.
        gamma: Discount, 0 to 1.

    Returns:
        The returns sum_k gamma^k r_(t+k), the factor of the bootstrapped value (gamma^steps, or 0 where the episode
        terminated), and the steps summed; all of the given shape.

    Raises:
        BufferSettingError: n or gamma is out of range.
    """
    _check(n, gamma)
    reward = np.asarray(rewards, dtype=np.float64)
    over = np.asarray(terminated, dtype=np.bool_)
    end = over | np.asarray(truncated, dtype=np.bool_)
    returns = np.zeros_like(reward)
    factors = np.ones_like(reward)
    steps = np.zeros(reward.shape, dtype=np.int64)
    going = np.ones(reward.shape, dtype=np.bool_)
    for k in range(min(n, len(reward))):
        here = slice(0, len(reward) - k)  # those t for which t + k is given
        there = slice(k, len(reward))
        active = going[here]
        returns[here] += np.where(active, gamma**k * reward[there], 0.0)
        steps[here] += active
        factors[here] = np.where(active, gamma ** (k + 1.0) * ~over[there], factors[here])
        going[here] &= ~end[there]
    return returns, factors, steps


class NStep(Selector):
    """Adds n-step returns to what another sampler draws: ``batch.n_step``.

    The target of row i is ``rewards[i] + discounts[i] * V(next state of last[i])``. The sum never runs over the end of
    an episode, over the write position of a full ring, or over a step that has left or was never recorded: it stops
    before, and the discount is that of the steps summed. It costs a few array operations a step and reads no row but
    the last.

    Args:
        n: Most steps summed, at least 1.
        gamma: Discount, 0 to 1.
        sampler: Draws the rows, one by one; ``None``: `Prioritized` with its defaults.
        whole: Only rows whose n steps are stored or whose episode has ended are used; others of the batch are left out.
        fields: Where a row says its reward, episode and end.

    Raises:
        BufferSettingError: n or gamma is out of range, or the sampler gives sequences or n-step returns itself.
    """

    roles = ("sampler",)
    row_by_row = False

    def __init__(
        self,
        n: int = 3,
        gamma: float = 0.99,
        *,
        sampler: Selector | None = None,
        whole: bool = False,
        fields: EpisodeFields | None = None,
    ) -> None:
        _check(n, gamma)
        self.n = n
        self.gamma = gamma
        self.whole = whole
        self.sampler: Selector = Prioritized() if sampler is None else sampler
        check_row_by_row("NStep", self.sampler)
        self.alpha = self.sampler.alpha
        self.weights = self.sampler.weights
        self._links = Links(EpisodeFields() if fields is None else fields)

    def inner(self) -> Sequence[Selector]:
        """The sampler of the rows."""
        return (self.sampler,)

    @property
    def epsilon(self) -> float:
        """What the inner sampler adds to an absolute TD error."""
        return epsilon_of(self.sampler)

    def bind(self, view: BufferView) -> None:
        """Joins a buffer, once."""
        super().bind(view)
        self.sampler.bind(view)

    def check_new(self, experiences: Sequence[Any]) -> None:
        """Looks for their episodes, steps, ends and rewards."""
        self._links.check_new(experiences)
        self.sampler.check_new(experiences)

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """Links the rows to those before them."""
        self._links.join(self.view, ids, experiences)
        if self.sampler.follows:
            self.sampler.insert(ids, priorities, experiences)

    def delete(self, ids: Ids) -> None:
        """Cuts their links."""
        if self.sampler.follows:
            self.sampler.delete(ids)
        self._links.leave(self.view, ids)

    def update(self, ids: Ids, priorities: Floats) -> None:
        """Tells the inner sampler."""
        if self.sampler.follows:
            self.sampler.update(ids, priorities)

    def change(self, ids: Ids, experiences: Sequence[Any]) -> None:
        """Their rewards count from now on."""
        self._links.change(self.view, ids, experiences)
        if self.sampler.follows:
            self.sampler.change(ids, experiences)

    def select(self, count: int) -> Selection:
        """What the inner sampler draws, with n-step returns."""
        drawn = choose(self.sampler, count)
        returns = self.returns(drawn.ids)
        selection = Selection(ids=drawn.ids, probabilities=drawn.probabilities, weights=drawn.weights, n_step=returns)
        if not self.whole:
            return selection
        ended = self._links.ends(self.view, returns.last_ids) > 0
        return selection.part((returns.steps == self.n) | ended, self.weights)

    def returns(self, ids: Ids) -> NStepReturns:
        """N-step returns from these stored rows on."""
        view, links = self.view, self._links
        rewards = np.zeros(len(ids))
        steps = np.zeros(len(ids), dtype=np.int64)
        last = ids.copy()
        here = ids.copy()
        going = np.ones(len(ids), dtype=np.bool_)
        for k in range(self.n):
            rewards[going] += self.gamma**k * links.rewards(view, here[going])
            steps[going] += 1
            last[going] = here[going]
            if k + 1 < self.n:
                following = links.next(view, np.where(going, here, -1))
                following[going] = np.where(links.ends(view, here[going]) > 0, -1, following[going])
                going = following >= 0
                here = following
        over = links.ends(view, last) & TERMINATED > 0
        return NStepReturns(
            rewards=rewards, discounts=np.where(over, 0.0, self.gamma**steps), steps=steps, last_ids=last
        )

    def state_dict(self) -> dict[str, Any]:
        """The links, and the inner sampler's state."""
        return {"links": self._links.state_dict(self.view), "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them back."""
        self._links.load_state_dict(self.view, state["links"])
        self.sampler.load_state_dict(state["sampler"])

    def reset(self) -> None:
        """Forgets the links."""
        self._links.clear()
        self.sampler.reset()


def _check(n: int, gamma: float) -> None:
    if n < 1:
        raise BufferSettingError(f"n is {n}; it must be at least 1.")
    if not 0.0 <= gamma <= 1.0:
        raise BufferSettingError(f"gamma is {gamma}; it must be between 0 and 1.")
