"""What keeps a model from forgetting while it learns something new: a penalty that is added to the loss of each update.

::

    loss = task_loss + sum(each.penalty(model) for each in regularizers)

All of them keep one interface, so that they can be compared and put together: `relive.train.ewc.Ewc` holds weights
where they mattered, `KlAnchor` what the model says to given prompts, `ReplayQuota` goes on training on earlier tasks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from relive.train.pytorch import torch

Tensor = torch.Tensor
Module = torch.nn.Module
Batch = TypeVar("Batch")


class Regularizer(Protocol):
    """Something that a model must not give up while it learns."""

    def penalty(self, model: Module) -> Tensor:
        """A number of at least 0 with a gradient by the model's parameters, to be added to the loss of one update."""


class KlAnchor(Generic[Batch]):
    """Holds the model's distribution over next tokens near a reference's, on prompts of earlier tasks.

    The penalty is ``weight · mean over tokens of KL(reference ‖ model)``, the soft targets of Li and Hoiem 2016
    ("Learning without forgetting", arXiv 1606.09282) at temperature 1, on one batch an update, in turn.

    Args:
        reference: The model as it was; a copy that nothing trains, or the same model with its adapter off.
        batches: What it is held on; at least one.
        logits: Gives a model's logits ``[..., V]`` for a batch, padding left out.
        weight: How strongly.
    """

    def __init__(
        self,
        reference: Module,
        batches: Sequence[Batch],
        logits: Callable[[Module, Batch], Tensor],
        weight: float = 0.1,
    ) -> None:
        if not batches:
            raise ValueError("KlAnchor needs at least one batch to hold the model on.")
        if not weight >= 0:
            raise ValueError(f"weight is {weight}; it must be at least 0.")
        self.reference = reference
        self.batches = batches
        self.logits = logits
        self.weight = weight
        self._next = 0

    def penalty(self, model: Module) -> Tensor:
        """The divergence on the next batch."""
        batch = self.batches[self._next % len(self.batches)]
        self._next += 1
        with torch.no_grad():
            held = self.logits(self.reference, batch).float().log_softmax(-1)
        found = self.logits(model, batch).float().log_softmax(-1)
        return self.weight * (held.exp() * (held - found)).sum(-1).mean()

    def state_dict(self) -> dict[str, int]:
        """Which batch is next."""
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on where `state_dict` was taken."""
        self._next = state["next"]


class ReplayQuota(Generic[Batch]):
    """Trains on so many experiences of each earlier task in every update, whatever the new task's batch is.

    The penalty is ``weight · Σ n_task · loss_task / Σ n_task``, with a fresh draw for each: experience replay as in
    Chaudhry et al. 2019 (arXiv 1902.10486), with a quota a task so that a large task cannot crowd out a small one.

    Args:
        quotas: How many experiences of each task an update is given.
        draw: Draws so many of a task, such as ``lambda task, count: buffers[task].sample(count)``.
        loss: The mean loss of a model over what was drawn.
        weight: What the earlier tasks weigh against the new one's loss.
    """

    def __init__(
        self,
        quotas: Mapping[str, int],
        draw: Callable[[str, int], Batch],
        loss: Callable[[Module, Batch], Tensor],
        weight: float = 1.0,
    ) -> None:
        for task, count in quotas.items():
            if count < 1:
                raise ValueError(f"The quota of task {task!r} is {count}; it must be at least 1.")
        if not weight >= 0:
            raise ValueError(f"weight is {weight}; it must be at least 0.")
        self.quotas = dict(quotas)
        self.draw = draw
        self.loss = loss
        self.weight = weight

    def penalty(self, model: Module) -> Tensor:
        """The loss on the earlier tasks; 0 without any."""
        total = torch.zeros(())
        for task, count in self.quotas.items():
            total = total + count * self.loss(model, self.draw(task, count))
        return self.weight * total / max(sum(self.quotas.values()), 1)
