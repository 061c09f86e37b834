"""What a draw gives, and what a buffer says about itself."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from relive.buffer.arrays import Columns, RowsOfColumns
from relive.buffer.blocks import Block
from relive.buffer.errors import SchemaError
from relive.buffer.rows import Floats, Ids
from relive.buffer.selector import NStepReturns, Selection


class Batch:
    """Experiences drawn together. A snapshot: what happens to the buffer later does not change it.

    Arrays are views, made on access, of memory that belongs to this batch.

    Attributes:
        requested: How many were asked for; more than ``len(batch)`` when there were not enough.
    """

    __slots__ = ("_drawn", "_experiences", "_newest", "requested")

    def __init__(
        self, drawn: Block | Selection, experiences: Sequence[Any] | Columns | Block, *, requested: int, newest: int
    ) -> None:
        self._drawn = drawn
        self._experiences = experiences
        self._newest = newest
        self.requested = requested

    @property
    def ids(self) -> Ids:
        """int64 ``[B]``; pass them to `ReplayBuffer.update_priorities`."""
        return self._drawn.ids

    @property
    def probabilities(self) -> Floats:
        """float64 ``[B]``, how likely one draw was to choose each."""
        return self._drawn.probabilities

    @property
    def weights(self) -> Floats:
        """float64 ``[B]``, importance weights; 1 from samplers that have none."""
        weights = self._drawn.weights
        return np.ones(len(self)) if weights is None else weights

    @property
    def ages(self) -> Ids:
        """int64 ``[B]``, how many experiences had been added after each (by the difference of their ids)."""
        return self._newest - self.ids

    @property
    def lengths(self) -> Ids | None:
        """int64 ``[S]``, rows of each drawn sequence, one after the other; ``None``: rows were drawn one by one."""
        return self._drawn.lengths if isinstance(self._drawn, Selection) else None

    @property
    def n_step(self) -> NStepReturns | None:
        """What the following steps add to each row; ``None``: the sampler does not ask for it."""
        return self._drawn.n_step if isinstance(self._drawn, Selection) else None

    @property
    def experiences(self) -> Sequence[Any]:
        """``[B]``, what was added; from rows of arrays a mapping each, made when asked for."""
        columns = self.columns
        if columns is not None:
            return RowsOfColumns(columns)
        return self._experiences  # type: ignore[return-value]

    @property
    def columns(self) -> Columns | None:
        """The fields of rows of arrays, ``[B, ...]`` each; ``None``: the buffer keeps Python objects."""
        held = self._experiences
        if isinstance(held, Block):
            return Columns({name: held[name] for name in held.layout.fields}, held.drawn)
        return held if isinstance(held, Columns) else None

    def __getitem__(self, field: str) -> npt.NDArray[Any]:
        """One field of rows of arrays, ``[B, ...]``.

        Raises:
            SchemaError: there is no such field, or the buffer keeps Python objects.
        """
        held = self._experiences
        if not isinstance(held, Block | Columns):
            raise SchemaError("This buffer keeps Python objects; read batch.experiences, or give it an ArrayStorage.")
        fields = held.layout.fields if isinstance(held, Block) else tuple(held)
        if field not in fields:
            raise SchemaError(f"There is no field {field!r}; there are {', '.join(map(repr, fields))}.")
        return held[field]

    def to_torch(self) -> dict[str, Any]:
        """Each field, and ``ids``, ``weights`` and ``probabilities``, as tensors that share this batch's memory.

        Raises:
            SchemaError: a field's type has no counterpart in torch.
        """
        torch = importlib.import_module("torch")  # only who asks for tensors needs it
        arrays: Mapping[str, npt.NDArray[Any]] = {
            **(self.columns or {}),
            "ids": self.ids,
            "weights": self.weights,
            "probabilities": self.probabilities,
        }
        tensors = {}
        for name, array in arrays.items():
            try:
                tensors[name] = torch.from_numpy(array)
            except TypeError as error:
                raise SchemaError(f"Field {name!r} is {array.dtype}, which torch does not know.") from error
        return tensors

    @property
    def shortfall(self) -> int:
        """How many experiences were asked for in vain."""
        return self.requested - len(self)

    def __len__(self) -> int:
        return self._drawn.drawn if isinstance(self._drawn, Block) else len(self._drawn.ids)

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
