"""The selectors that the native index serves directly: `Prioritized`, `Uniform` and `Fifo`."""

import math
from typing import Any, Literal

import numpy as np

from relive.buffer._core import Drawing
from relive.buffer.errors import BufferSettingError
from relive.buffer.rows import Ids
from relive.buffer.selector import Selection, Selector


class Prioritized(Selector):
    """Draws in proportion to priority^alpha, with replacement (Schaul et al. 2016, "Prioritized Experience Replay").

    P(i) = p_i^alpha / sum_k p_k^alpha, and importance weights w_i = (N P(i))^-beta / max w, never above 1. An explicit
    priority of 0 is never drawn. When a batch asks for more than can be drawn, it holds each of those once.

    Args:
        alpha: How far priorities count, at least 0; 0 makes draws uniform (over all with a positive priority).
        beta: Exponent of the importance weights in the first draw, 0 to 1; 1 corrects the bias fully.
        beta_increment: What each draw adds to beta, up to 1 (0.001 as in most implementations; 0 keeps it fixed).
        epsilon: Added to the absolute TD error, so that no experience is lost for good.
        weights: What the largest weight is taken over: the ``"batch"`` (default: the largest in every batch is 1) or
            the whole ``"buffer"`` (the same scale in every batch, and small while one stored priority is very small).
        stratified: One draw from each of B equal shares of the total (section 3.3 of the paper), which lowers the
            variance; False draws independently.

    Raises:
        BufferSettingError: a setting is out of range.
    """

    follows = False

    def __init__(
        self,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_increment: float = 0.001,
        *,
        epsilon: float = 1e-6,
        weights: Literal["batch", "buffer"] = "batch",
        stratified: bool = True,
    ) -> None:
        _check("alpha", alpha, 0.0, math.inf)
        _check("beta", beta, 0.0, 1.0)
        _check("beta_increment", beta_increment, 0.0, 1.0)
        _check("epsilon", epsilon, 0.0, math.inf)
        if weights not in ("batch", "buffer"):
            raise BufferSettingError(f"weights is {weights!r}; it must be 'batch' or 'buffer'.")
        self.alpha = float(alpha)
        self.beta = float(beta)
        self.beta_increment = float(beta_increment)
        self.epsilon = float(epsilon)
        self.weights = weights
        self.stratified = stratified
        self._drawing = Drawing.STRATIFIED if stratified else Drawing.INDEPENDENT

    def select(self, count: int) -> Selection:
        """Draws `count` experiences and moves beta on. O(count log N)."""
        block = np.empty(4 * count, dtype=np.int64)
        drawn = self.view.index.draw(block, count, self._drawing, self.beta, self.weights == "buffer")
        self.beta = min(1.0, self.beta + self.beta_increment)
        return _selection(block, count, drawn)

    def state_dict(self) -> dict[str, Any]:
        """The present beta."""
        return {"beta": self.beta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes beta back."""
        self.beta = float(state["beta"])


class Uniform(Selector):
    """Draws each experience with the same probability, with replacement; weights are 1.

    As everywhere, an experience with an explicit priority of 0 is not drawn; other priorities do not matter. When a
    batch asks for more than can be drawn, it holds each of those once.
    """

    alpha = 0.0
    follows = False

    def select(self, count: int) -> Selection:
        """Draws `count` experiences. O(count)."""
        block = np.empty(4 * count, dtype=np.int64)
        drawn = self.view.index.draw(block, count, Drawing.INDEPENDENT)
        return _selection(block, count, drawn)


class Fifo(Selector):
    """Chooses the oldest first. As a remover, the usual ring buffer; as a sampler, the same oldest batch every time."""

    follows = False

    def select(self, count: int) -> Selection:
        """The `count` oldest, each with certainty. O(count)."""
        ids = self.view.index.oldest(count)
        return Selection(ids=ids, probabilities=np.ones(len(ids)))

    def victims(self, count: int) -> Ids:
        """The `count` oldest."""
        return self.view.index.oldest(count)


def _selection(block: Ids, count: int, drawn: int) -> Selection:
    """Cuts a block of the native draw into its four arrays."""
    return Selection(
        ids=block[:drawn],
        slots=block[count : count + drawn],
        probabilities=block[2 * count : 2 * count + drawn].view(np.float64),
        weights=block[3 * count : 3 * count + drawn].view(np.float64),
    )


def _check(name: str, value: float, low: float, high: float) -> None:
    if not (low <= value <= high and math.isfinite(value)):
        wanted = f"between {low:g} and {high:g}" if math.isfinite(high) else f"finite and at least {low:g}"
        raise BufferSettingError(f"{name} is {value}; it must be {wanted}.")
