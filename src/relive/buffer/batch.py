"""What a draw gives, and what a buffer says about itself."""

from collections.abc import Sequence
from typing import Any

import msgspec

from relive.buffer.rows import Floats, Ids


class Batch:
    """Experiences drawn together. A snapshot: what happens to the buffer later does not change it.

    Attributes:
        ids: int64 ``[B]``; pass them to `ReplayBuffer.update_priorities`.
        weights: float64 ``[B]``, importance weights (1 from samplers that have none).
        probabilities: float64 ``[B]``, how likely one draw was to choose each.
        experiences: ``[B]``, what was added.
        requested: How many were asked for; more than ``len(batch)`` when there were not enough.
    """

    __slots__ = ("experiences", "ids", "probabilities", "requested", "weights")

    def __init__(
        self, *, ids: Ids, weights: Floats, probabilities: Floats, experiences: Sequence[Any], requested: int
    ) -> None:
        self.ids = ids
        self.weights = weights
        self.probabilities = probabilities
        self.experiences = experiences
        self.requested = requested

    @property
    def shortfall(self) -> int:
        """How many experiences were asked for in vain."""
        return self.requested - len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Batch({len(self)} of {self.requested} experiences)"


class BufferStats(msgspec.Struct, kw_only=True, frozen=True):
    """A buffer at one moment. Counts run over the buffer's whole life, across save and load.

    Attributes:
        size: Experiences stored.
        capacity: Most that can be stored.
        bytes: Memory of index and experiences (an estimate where these are Python objects).
        added: Experiences added so far.
        evicted: Experiences that left so far.
        sampled: Experiences drawn so far.
        stale_updates: Priority updates for experiences that had left; they changed nothing.
        mean_priority: Mean of the stored raw priorities, to the 7 digits that are kept; ``None`` when empty.
        reward_min: Smallest known reward stored; ``None``: none is known.
        reward_mean: Mean of the known rewards; ``None``: none is known.
        reward_max: Largest known reward; ``None``: none is known.
        unknown_rewards: Stored experiences without a known reward.
        cost: Sum of the known costs of what is stored, in nano-USD; ``None``: no cost is known.
        experiences_per_dollar: Stored experiences for each USD of `cost`; ``None``: no cost is known, or it is 0.
    """

    size: int
    capacity: int
    bytes: int
    added: int
    evicted: int
    sampled: int
    stale_updates: int
    mean_priority: float | None
    reward_min: float | None
    reward_mean: float | None
    reward_max: float | None
    unknown_rewards: int
    cost: int | None
    experiences_per_dollar: float | None

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return msgspec.structs.asdict(self)
