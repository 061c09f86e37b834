"""What a draw gives, and what a buffer says about itself."""

import importlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from relive.buffer._core import Block
from relive.buffer.arrays import Columns
from relive.buffer.blocks import Layout
from relive.buffer.errors import SchemaError
from relive.buffer.rows import Experiences, Floats, Ids, Rows
from relive.buffer.selector import NStepReturns, Selection


class Batch:
    """Experiences drawn together. A snapshot: what happens to the buffer later does not change it.

    Attributes:
        requested: How many were asked for; more than ``len(batch)`` when there were not enough.
        replayed: bool ``[B]``, which have been drawn before; ``None`` from a buffer without bounds on staleness.
    """

    __slots__ = ("_experiences", "_newest", "_selection", "replayed", "requested")

    def __init__(self, selection: Selection, experiences: Experiences, requested: int, newest: int) -> None:
        self._selection = selection
        self._experiences = experiences
        self._newest = newest
        self.requested = requested
        self.replayed: npt.NDArray[np.bool_] | None = None

    @property
    def ids(self) -> Ids:
        """int64 ``[B]``; pass them to `ReplayBuffer.update_priorities`."""
        return self._selection.ids

    @property
    def probabilities(self) -> Floats:
        """float64 ``[B]``, how likely one draw was to choose each."""
        return self._selection.probabilities

    @property
    def weights(self) -> Floats:
        """float64 ``[B]``, importance weights; 1 from samplers that have none."""
        weights = self._selection.weights
        return np.ones(len(self)) if weights is None else weights

    @property
    def lengths(self) -> Ids | None:
        """int64 ``[S]``, rows of each drawn sequence, one after the other; ``None``: rows were drawn one by one."""
        return self._selection.lengths

    @property
    def n_step(self) -> NStepReturns | None:
        """What the following steps add to each row; ``None``: the sampler does not ask for it."""
        return self._selection.n_step

    @property
    def ages(self) -> Ids:
        """int64 ``[B]``, how many experiences had been added after each (by the difference of their ids)."""
        return self._newest - self.ids

    @property
    def columns(self) -> Columns | None:
        """The fields of rows of arrays, ``[B, ...]`` each; ``None``: the buffer keeps Python objects."""
        return self._experiences if isinstance(self._experiences, Columns) else None

    @property
    def experiences(self) -> Sequence[Any]:
        """``[B]``, what was added; from rows of arrays a mapping each, made when asked for."""
        columns = self.columns
        experiences: Sequence[Any] = self._experiences if columns is None else columns.rows()
        return experiences

    def __getitem__(self, field: str) -> npt.NDArray[Any]:
        """One field of rows of arrays, ``[B, ...]``.

        Raises:
            SchemaError: there is no such field, or the buffer keeps Python objects.
        """
        columns = self.columns
        if columns is None:
            raise SchemaError("This buffer keeps Python objects; read batch.experiences, or give it an ArrayStorage.")
        if field not in columns:
            raise SchemaError(f"There is no field {field!r}; there are {', '.join(map(repr, columns))}.")
        return columns[field]

    def to_torch(self) -> dict[str, Any]:
        """Each field, and ``ids``, ``weights`` and ``probabilities``, as tensors that share this batch's memory.

        Raises:
            SchemaError: a field's type has no counterpart in torch.
        """
        torch = importlib.import_module("torch")  # only who asks for tensors needs it
        arrays: dict[str, npt.NDArray[Any]] = dict(self.columns or {})
        arrays |= {"ids": self.ids, "weights": self.weights, "probabilities": self.probabilities}
        tensors = {}
        for name, array in arrays.items():
            try:
                tensors[name] = torch.from_numpy(array)
            except TypeError as error:
                raise SchemaError(f"Field {name!r} is {array.dtype}, which torch does not know.") from error
        return tensors

    @property
    def shortfall(self) -> int:
        """How many experiences were asked for in vain; of sequences, how many sequences."""
        return self.requested - (len(self) if self.lengths is None else len(self.lengths))

    def __len__(self) -> int:
        return len(self._selection.ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self.requested} experiences)"


class BlockBatch(Batch):
    """A batch whose arrays are views, made on access, of the one block of memory that a native draw filled."""

    __slots__ = ("_block", "_layout", "_parts")

    def __init__(self, block: Block, layout: Layout, requested: int, newest: int) -> None:
        self._block = block
        self._layout = layout
        self._parts: npt.NDArray[Any] | None = None
        self._experiences = None
        self._newest = newest
        self.requested = requested
        self.replayed = None

    def fetch(self, rows: Rows) -> None:
        """Fetches the experiences of rows that are not part of the block."""
        parts = self._view()
        self._experiences = rows.get(parts["ids"], parts["slots"])

    def _view(self) -> npt.NDArray[Any]:
        parts = self._parts
        if parts is None:
            parts = self._parts = self._layout.parts(self._block)
        return parts

    @property
    def ids(self) -> Ids:
        """int64 ``[B]``; pass them to `ReplayBuffer.update_priorities`."""
        return self["ids"]

    @property
    def probabilities(self) -> Floats:
        """float64 ``[B]``, how likely one draw was to choose each."""
        return self["probabilities"]

    @property
    def weights(self) -> Floats:
        """float64 ``[B]``, importance weights."""
        return self["weights"]

    @property
    def lengths(self) -> None:
        """The rows were drawn one by one."""
        return

    @property
    def n_step(self) -> None:
        """The sampler does not ask for it."""
        return

    @property
    def columns(self) -> Columns | None:
        """The fields of rows of arrays, ``[B, ...]`` each; ``None``: the buffer keeps Python objects."""
        names = self._layout.names
        if not names:
            return None
        parts = self._view()
        return Columns({name: parts[name] for name in names}, len(self._block))

    def __getitem__(self, field: str) -> npt.NDArray[Any]:
        """One field of rows of arrays, ``[B, ...]``.

        Raises:
            SchemaError: there is no such field, or the buffer keeps Python objects.
        """
        parts = self._parts
        if parts is None:
            parts = self._view()
        try:
            part: npt.NDArray[Any] = parts[field]
        except ValueError:
            return super().__getitem__(field)  # which says what is wrong
        return part

    def __len__(self) -> int:
        return len(self._block)

    def __reduce__(self) -> tuple[Any, ...]:
        """Batches may travel between processes: as arrays of their own, without the block."""
        selection = Selection(ids=self.ids, probabilities=self.probabilities, weights=self.weights)
        experiences = self.columns if self._layout.names else self._experiences
        return Batch, (selection, experiences, self.requested, self._newest)


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
