"""A learning rate that falls on a plateau and rises on progress, with the values that suit a kind of agents."""

from typing import Any, Literal, SupportsFloat

from relive.train.agent_types import AGENT_TYPES, AgentType, Kind
from relive.train.pytorch import torch


class AdaptiveRate(torch.optim.lr_scheduler.ReduceLROnPlateau):
    """PyTorch's ``ReduceLROnPlateau``, which raises the rate as well, and keeps it between two bounds.

    More than `AgentType.patience` steps without a better metric multiply the rate by `AgentType.decay`; `progress`
    steps in a row, each better than all before, multiply it by `growth`. One better step alone may be noise.

    Args:
        optimizer: Its rates are set to the initial one.
        kind: The kind of agents, or values of your own.
        mode: ``"max"``: the metric is a reward; ``"min"``: it is a loss.
        growth: Factor on progress, at least 1.
        progress: Steps in a row that are progress.
        settings: What else ``ReduceLROnPlateau`` takes: threshold, threshold_mode, cooldown, eps.

    Raises:
        ValueError: the kind is unknown, or a number is out of range.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        kind: Kind | AgentType,
        *,
        mode: Literal["min", "max"] = "max",
        growth: float = 1.5,
        progress: int = 3,
        **settings: Any,
    ) -> None:
        if not isinstance(kind, AgentType):
            if kind not in AGENT_TYPES:
                raise ValueError(f"There is no kind of agents {kind!r}; there are {', '.join(AGENT_TYPES)}.")
            kind = AGENT_TYPES[kind]
        if not 0 < kind.minimum <= kind.initial <= kind.maximum:
            raise ValueError("The learning rates must be above 0, with minimum, initial and maximum in this order.")
        if not growth >= 1 or progress < 1:
            raise ValueError(f"growth is {growth} and progress {progress}; both must be at least 1.")
        self.maximum = kind.maximum
        self.growth = growth
        self.progress = progress
        self.better_in_a_row = 0
        for group in optimizer.param_groups:
            _set(group, kind.initial)
        super().__init__(
            optimizer, mode=mode, factor=kind.decay, patience=kind.patience, min_lr=kind.minimum, **settings
        )

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:  # type: ignore[override]
        """Takes in the metric of one update or evaluation."""
        before = self.best
        super().step(metrics, epoch)
        if self.best == before:
            self.better_in_a_row = 0
        elif before != self.mode_worse:  # the first metric is better than nothing
            self.better_in_a_row += 1
        if self.better_in_a_row == self.progress:
            self.better_in_a_row = 0
            for group in self.optimizer.param_groups:
                _set(group, min(float(group["lr"]) * self.growth, self.maximum))
            self._last_lr = [float(group["lr"]) for group in self.optimizer.param_groups]


def _set(group: dict[str, Any], rate: float) -> None:
    """Sets the rate of a parameter group; in place where an optimiser keeps it as a tensor."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
