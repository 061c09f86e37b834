"""Elastic weight consolidation: what mattered for an earlier task may hardly move, the rest is free.

Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural networks", PNAS 114, arXiv 1612.00796. After a
task the weights θ* and their importance F are kept, an *anchor*; while the next one is learnt the loss grows by::

    ½ λ Σ_i F_i (θ_i - θ*_i)²,    F_i = mean over samples of (∂ log p(sample) / ∂ θ_i)²

F is the diagonal of the Fisher information, where the samples come from the model itself; of samples that come from
elsewhere it is the *empirical* Fisher. The square is taken of each sample's gradient: that of a batch's mean gradient
is another number, 0 where opposite gradients cancel.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from relive.train.pytorch import torch

Tensor = torch.Tensor
Module = torch.nn.Module
Batch = TypeVar("Batch")
Weights = dict[str, Tensor]
"""One float32 tensor for each trainable parameter, by its name in the model."""

STRENGTH = 1000.0
SAMPLES = 100


def fisher_diagonal(
    model: Module,
    batches: Iterable[Batch],
    log_likelihoods: Callable[[Module, Batch], Tensor],
    *,
    samples: int = SAMPLES,
) -> Weights:
    """The importance of each trainable parameter; frozen ones are absent.

    The model is in evaluation mode meanwhile, and afterwards as it was: its modes, gradients and weights. Every sample
    costs a backward pass through its whole batch, so small batches are faster.

    Args:
        model: The model, after the task.
        batches: Samples of the task, split in any way: the result is the same.
        log_likelihoods: Gives the log-likelihood of each sample of a batch, ``[b]``: for an answer the sum over its
            tokens.
        samples: How many of the samples to use, the first ones.

    Raises:
        ValueError: there are no samples, no trainable parameters, or a gradient is not finite.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError("The model has no trainable parameter that an importance could be measured for.")
    squares = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in trainable.items()}
    count = 0
    with _evaluating(model):
        for gradients in _gradients(model, batches, log_likelihoods, list(trainable.values()), samples):
            count += 1
            for total, gradient in zip(squares.values(), gradients, strict=True):
                if gradient is not None:  # None: the sample does not depend on this parameter
                    total += gradient.float() ** 2
    if not count:
        raise ValueError("There are no samples to measure importance with.")
    fisher = {name: total / count for name, total in squares.items()}
    for name, importance in fisher.items():
        if not importance.isfinite().all():
            raise ValueError(f"A log-likelihood's gradient by {name} is not finite; no importance was measured.")
    return fisher


class Ewc:
    """A `Regularizer` that holds weights where they mattered, once for each task that was anchored.

    Args:
        strength: λ.
        samples: How many samples of a task its importances are measured with.
        decay: ``None``: one anchor a task is kept, and memory grows with their number. Otherwise γ, from 0 to 1, of the
            *online* variant (Schwarz et al. 2018, arXiv 1805.06370): there is one anchor, at the newest weights, with
            ``F = γ F + F_new``.

    Attributes:
        anchors: Weights θ* and importances F, the oldest first.
    """

    def __init__(self, strength: float = STRENGTH, *, samples: int = SAMPLES, decay: float | None = None) -> None:
        if not strength >= 0:
            raise ValueError(f"strength is {strength}; it must be at least 0.")
        if samples < 1:
            raise ValueError(f"samples is {samples}; it must be at least 1.")
        if decay is not None and not 0 <= decay <= 1:
            raise ValueError(f"decay is {decay}; it must be from 0 to 1.")
        self.strength = strength
        self.samples = samples
        self.decay = decay
        self.anchors: list[tuple[Weights, Weights]] = []

    def anchor(
        self, model: Module, batches: Iterable[Batch], log_likelihoods: Callable[[Module, Batch], Tensor]
    ) -> None:
        """Keeps the weights and their importance, after a task; see `fisher_diagonal` for the arguments."""
        fisher = fisher_diagonal(model, batches, log_likelihoods, samples=self.samples)
        parameters = dict(model.named_parameters())
        weights = {name: parameters[name].detach().float().clone() for name in fisher}
        if self.decay is not None and self.anchors:
            ((_, before),) = self.anchors
            fisher = {name: new + self.decay * before[name] if name in before else new for name, new in fisher.items()}
            self.anchors.clear()
        self.anchors.append((weights, fisher))

    def penalty(self, model: Module) -> Tensor:
        """``½ λ Σ F (θ - θ*)²`` over all anchors, with its gradient; 0 without an anchor.

        Raises:
            ValueError: a parameter of an anchor is not in the model.
        """
        parameters = dict(model.named_parameters())
        total = torch.zeros(())
        for weights, fisher in self.anchors:
            for name, importance in fisher.items():
                if name not in parameters:
                    raise ValueError(f"The anchored parameter {name} is not in this model; anchor the model anew.")
                distance = parameters[name].float() - weights[name].to(parameters[name].device)
                total = total.to(distance.device) + (importance.to(distance.device) * distance**2).sum()
        return 0.5 * self.strength * total

    def state_dict(self) -> dict[str, Any]:
        """The anchors, as tensors."""
        return {"anchors": [{"weights": weights, "fisher": fisher} for weights, fisher in self.anchors]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over anchors that `state_dict` gave."""
        self.anchors = [(dict(each["weights"]), dict(each["fisher"])) for each in state["anchors"]]


def _gradients(
    model: Module,
    batches: Iterable[Batch],
    log_likelihoods: Callable[[Module, Batch], Tensor],
    parameters: list[torch.nn.Parameter],
    samples: int,
) -> Iterator[tuple[Tensor | None, ...]]:
    """The gradient of each sample's log-likelihood, one after the other; what the parameters hold stays untouched."""
    left = samples
    for batch in batches:
        values = log_likelihoods(model, batch)
        if values.dim() != 1:
            raise ValueError(f"log_likelihoods gave a tensor of shape {tuple(values.shape)}; it must be one a sample.")
        chosen = values[:left]
        for place, value in enumerate(chosen, start=1):
            yield torch.autograd.grad(value, parameters, retain_graph=place < len(chosen), allow_unused=True)
        left -= len(chosen)
        if not left:
            return


@contextmanager
def _evaluating(model: Module) -> Iterator[None]:
    """Evaluation mode for every part of a model; each part's own mode again afterwards."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.enable_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode
