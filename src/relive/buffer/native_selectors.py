"""The selectors that the native index serves directly: `Prioritized`, `Uniform` and `Fifo`."""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from relive.buffer._core import ArrayRows, Block, Drawing, Index
from relive.buffer.blocks import HEADS
from relive.buffer.errors import BufferSettingError
from relive.buffer.rows import Ids
from relive.buffer.selector import Selection, Selector


class Prioritized(Selector):
    """Draws in proportion to priority^alpha (Schaul et al. 2016, "Prioritized Experience Replay").

    P(i) = p_i^alpha / sum_k p_k^alpha, and importance weights w_i = (N P(i))^-beta / max w, never above 1. An explicit
    priority of 0 is never drawn.

    Priorities are kept as float32. With replacement the weights (at beta 1) make a batch's mean an unbiased estimate of
    the mean over the buffer. Without replacement they are the same, computed from the probabilities of a first draw:
    then items of high priority, which can come only once, count for less than they should, by a little while the batch
    is small beside the buffer. A batch that asks for more than there is holds each once, with the weights of a draw
    with replacement: they say how the experiences compare, and no mean over the buffer follows from them.

    Args:
        alpha: How far priorities count, at least 0; 0 makes draws uniform (over all with a positive priority).
        beta: Exponent of the importance weights in the first draw, 0 to 1; 1 corrects the bias fully. Or a schedule: a
            function that gives it from the number of draws so far.
        beta_increment: What each draw adds to beta, up to 1 (0.001 as in most implementations; 0 keeps it fixed). With
            a schedule it does not count.
        epsilon: Added to the absolute TD error, so that no experience is lost for good.
        weights: What the largest weight is taken over: the ``"batch"`` (default: the largest in every batch is 1) or
            the whole ``"buffer"`` (the same scale in every batch, and small while one stored priority is very small).
        stratified: One draw from each of B equal shares of the total (section 3.3 of the paper), which lowers the
            variance; False draws independently. Draws without replacement are never stratified.
        replacement: Whether one batch may hold an experience several times.

    Raises:
        BufferSettingError: a setting is out of range.
    """

    follows = False

    def __init__(
        self,
        alpha: float = 0.6,
        beta: float | Callable[[int], float] = 0.4,
        beta_increment: float = 0.001,
        *,
        epsilon: float = 1e-6,
        weights: Literal["batch", "buffer"] = "batch",
        stratified: bool = True,
        replacement: bool = True,
    ) -> None:
        _check("alpha", alpha, 0.0, math.inf)
        self._schedule = beta if callable(beta) else None
        self._draws = 0
        self.beta = self._scheduled() if callable(beta) else float(beta)
        _check("beta", self.beta, 0.0, 1.0)
        _check("beta_increment", beta_increment, 0.0, 1.0)
        _check("epsilon", epsilon, 0.0, math.inf)
        if weights not in ("batch", "buffer"):
            raise BufferSettingError(f"weights is {weights!r}; it must be 'batch' or 'buffer'.")
        self.alpha = float(alpha)
        self.beta_increment = float(beta_increment)
        self.epsilon = float(epsilon)
        self.weights = weights
        self._over_buffer = weights == "buffer"
        self.stratified = stratified
        self.replacement = replacement
        self._drawing = Drawing.STRATIFIED if stratified else Drawing.INDEPENDENT
        if not replacement:
            self._drawing = Drawing.DISTINCT

    def never_twice(self) -> None:
        """Draws without replacement from now on."""
        self.replacement = False
        self._drawing = Drawing.DISTINCT

    def draw(self, index: Index, count: int, rows: ArrayRows | None) -> Block:
        """Draws from an index, the fields of native rows with it, and moves beta on. O(count log N)."""
        beta = self.beta
        if self._schedule is None:
            self.beta = min(1.0, beta + self.beta_increment)
        else:
            self._draws += 1
            self.beta = self._scheduled()
        return index.draw(count, self._drawing, beta, self._over_buffer, rows)

    def select(self, count: int) -> Selection:
        """Draws `count` experiences and moves beta on."""
        parts = HEADS.parts(self.draw(self.view.index, count, None))
        return Selection(ids=parts["ids"], probabilities=parts["probabilities"], weights=parts["weights"])

    def state_dict(self) -> dict[str, Any]:
        """The present beta, and how many draws a schedule has counted."""
        return {"beta": self.beta, "draws": self._draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes beta back; a schedule goes on from the same number of draws."""
        self.beta = float(state["beta"])
        self._draws = int(state["draws"])

    def _scheduled(self) -> float:
        beta = self.beta if self._schedule is None else float(self._schedule(self._draws))
        _check("beta", beta, 0.0, 1.0)
        return beta


class Uniform(Selector):
    """Draws each experience with the same probability, with replacement; weights are 1.

    As everywhere, an experience with an explicit priority of 0 is not drawn; other priorities do not matter. When a
    batch asks for more than can be drawn, it holds each of those once.
    """

    alpha = 0.0
    follows = False
    _drawing = Drawing.INDEPENDENT

    def never_twice(self) -> None:
        """Draws without replacement from now on."""
        self._drawing = Drawing.DISTINCT

    def draw(self, index: Index, count: int, rows: ArrayRows | None) -> Block:
        """Draws from an index, the fields of native rows with it. O(count)."""
        return index.draw(count, self._drawing, rows=rows)

    def select(self, count: int) -> Selection:
        """Draws `count` experiences."""
        parts = HEADS.parts(self.draw(self.view.index, count, None))
        return Selection(ids=parts["ids"], probabilities=parts["probabilities"])


class Fifo(Selector):
    """Chooses the oldest first. As a remover, the usual ring buffer; as a sampler, the same oldest batch every time."""

    follows = False

    def select(self, count: int) -> Selection:
        """The `count` oldest that can be drawn, each with certainty. O(count) while no priority is 0, else O(N)."""
        index = self.view.index
        ids = index.oldest(count)
        if index.drawable < index.size:
            ids = self.view.ids()
            ids = ids[index.leaves(ids) > 0][:count]
        return Selection(ids=ids, probabilities=np.ones(len(ids)))

    def victims(self, count: int) -> Ids:
        """The `count` oldest."""
        return self.view.index.oldest(count)


def _check(name: str, value: float, low: float, high: float) -> None:
    if not (low <= value <= high and math.isfinite(value)):
        wanted = f"between {low:g} and {high:g}" if math.isfinite(high) else f"finite and at least {low:g}"
        raise BufferSettingError(f"{name} is {value}; it must be {wanted}.")
