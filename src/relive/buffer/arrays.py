"""`ArrayStorage`: experiences of one fixed shape in one native array of structs, and `Columns`, many of them by field.

A row's fields lie together in memory, so that a random row costs one place's cache misses and not one for each field.
Rows are gathered in the same native call that draws them.
"""

# ruff: noqa: ARG002  (these rows need only some of what the protocol passes)

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer._core import ArrayRows, Index
from relive.buffer.blocks import Layout
from relive.buffer.errors import BufferSettingError, BufferStateError, SchemaError
from relive.buffer.rows import Floats, Ids, Summary
from relive.buffer.schema import LARGEST, FieldSpec, Schema

REWARDS = ("reward", "rew")
"""What a field that holds rewards may be called."""


class Columns(Mapping[str, npt.NDArray[Any]]):
    """Many experiences of one shape as a mapping from each field to an array ``[B, ...]``.

    Args:
        arrays: The arrays, all with the same number of rows.
        count: That number.
    """

    __slots__ = ("_arrays", "count")

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], count: int) -> None:
        self._arrays = arrays
        self.count = count

    def __getitem__(self, field: str) -> npt.NDArray[Any]:
        return self._arrays[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        """The number of fields, as for every mapping; `count` is the number of rows."""
        return len(self._arrays)

    def part(self, start: int, stop: int) -> "Columns":
        """The rows from `start` up to `stop`."""
        start, stop, _ = slice(start, stop).indices(self.count)
        return Columns({field: array[start:stop] for field, array in self._arrays.items()}, stop - start)

    def rows(self) -> "RowsOfColumns":
        """The experiences one by one."""
        return RowsOfColumns(self)


class RowsOfColumns(Sequence[dict[str, Any]]):
    """Columns seen row by row; each row is made when asked for."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return self._columns.count

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[position] for position in range(*row.indices(len(self)))]
        return {field: array[row] for field, array in self._columns.items()}


class ArrayStorage:
    """Rows of fixed-shape fields. Pass it as ``storage=`` to one `ReplayBuffer`.

    Args:
        fields: For each field its type, or a tuple of type and shape:
            ``{"obs": ("f4", (16,)), "act": ("i8", ()), "rew": "f4", "done": "?"}``. Types are NumPy's bool, integers,
            floats and complex numbers.

    Raises:
        BufferSettingError: a field holds no numbers, or has a name that a batch needs for itself; the message names it.
    """

    keeps_priorities = False
    has_own_ids = False

    def __init__(self, fields: Mapping[str, FieldSpec]) -> None:
        self.schema = Schema(fields)
        self._native: ArrayRows | None = None
        self._layout: Layout | None = None

    @property
    def native(self) -> ArrayRows:
        """The native rows.

        Raises:
            BufferSettingError: it is not part of a buffer yet.
        """
        if self._native is None:
            raise BufferSettingError("This ArrayStorage is not part of a buffer; pass it to a ReplayBuffer.")
        return self._native

    @property
    def layout(self) -> Layout:
        """Where the fields lie in a block.

        Raises:
            BufferSettingError: it is not part of a buffer yet.
        """
        if self._layout is None:
            raise BufferSettingError("This ArrayStorage is not part of a buffer; pass it to a ReplayBuffer.")
        return self._layout

    def allocate(self, capacity: int) -> None:
        """Makes room for `capacity` rows, once; memory is taken from the system as it is first written.

        Raises:
            BufferSettingError: it belongs to a buffer already, or the rows are more than a machine can address.
        """
        if self._native is not None:
            raise BufferSettingError("This ArrayStorage already serves another buffer; make one for each.")
        row = sum(kind.itemsize * prod(shape) for _, kind, shape in self.schema.fields)
        if capacity * row > LARGEST:
            raise BufferSettingError(
                f"{capacity} rows of {row} bytes are more than this machine can address; choose a smaller capacity."
            )
        fields: list[tuple[str, str, int, list[int]]] = [
            (name, kind.kind, kind.itemsize, list(shape)) for name, kind, shape in self.schema.fields
        ]
        self._native = ArrayRows(capacity, fields, self.schema.convert, self.schema.refuse, self.schema.mapping)
        self._layout = Layout(self.schema.fields, self._native)

    # ---- Adding

    def push(self, index: Index, experience: Any, priority: float | None) -> int:
        """Adds one experience in place of the oldest, and returns its id, or -1 where the priority is bad.

        Raises:
            SchemaError: the experience does not have the fields; nothing was added.
        """
        return self.native.push(index, experience, priority)

    def extend(self, index: Index, experiences: Any) -> int:
        """Adds columns in place of the oldest rows and returns how many, or -1 when they are more than the capacity."""
        if not isinstance(experiences, Mapping):
            return -1
        return self.native.extend(index, experiences)

    def columns(self, experiences: Any) -> Columns:
        """Columns of the right types: from columns, or from a sequence of single experiences.

        Raises:
            SchemaError: they do not have the fields; the message names the field.
        """
        if isinstance(experiences, Columns):
            return experiences
        schema = self.schema
        if not isinstance(experiences, Mapping):
            rows = [schema.mapping(experience) for experience in experiences]
            for row in rows:
                if row.keys() != set(schema.names):
                    schema.refuse(row)
            arrays = {
                name: np.array([schema.value(field, row[name], False) for row in rows], dtype=kind).reshape(-1, *shape)
                for field, (name, kind, shape) in enumerate(schema.fields)
            }
            return Columns(arrays, len(rows))
        given = schema.mapping(experiences)
        if given.keys() != set(schema.names):
            schema.refuse(given)
        arrays = {name: schema.value(field, given[name], True) for field, name in enumerate(schema.names)}
        if len({len(array) for array in arrays.values()}) != 1:
            schema.refuse(arrays)
        return Columns(arrays, len(arrays[schema.names[0]]))

    def append(self, experiences: Columns, priorities: Floats | None, victims: Ids, slots: Ids) -> None:
        """Writes each row into its slot."""
        self.native.put(dict(experiences), slots)

    def evict(self, ids: Ids, slots: Ids) -> None:
        """Nothing to do: a row stays until its slot is written again."""

    def get(self, ids: Ids, slots: Ids) -> Columns:
        """The rows in these slots, by field."""
        parts = self.layout.parts(self.native.gather(np.ascontiguousarray(slots)))
        return Columns({name: parts[name] for name in self.schema.names}, len(slots))

    # ---- The rest of the protocol

    def set_priorities(self, ids: Ids, priorities: Floats) -> None:
        """Nothing to do: the index keeps the priorities."""

    def changes(self) -> None:
        """Nobody else writes here."""
        return

    def summary(self, ids: Ids, slots: Ids) -> Summary:
        """Rewards from the field ``reward`` or ``rew``, costs from ``cost``, where these are single numbers."""
        columns = self.get(ids, slots)
        rewards = self._numbers(columns, REWARDS)
        costs = self._numbers(columns, ("cost",))
        known = rewards[~np.isnan(rewards)]
        return Summary(
            reward_min=float(known.min()) if len(known) else None,
            reward_mean=float(known.mean()) if len(known) else None,
            reward_max=float(known.max()) if len(known) else None,
            unknown_rewards=len(ids) - len(known),
            cost=int(np.nansum(costs)) if len(costs) and not np.isnan(costs).all() else None,
        )

    def nbytes(self) -> int:
        """Memory for all rows up to the capacity."""
        return self.native.nbytes

    @property
    def row_bytes(self) -> int:
        """Memory of one row."""
        return self.native.stride

    def with_rewards(self, slots: Ids, rewards: Floats) -> Columns:
        """Copies of rows with another ``reward`` or ``rew``; what is stored stays as it is.

        Raises:
            BufferSettingError: there is no such field of single numbers.
            SchemaError: the field cannot hold a reward.
        """
        fields = enumerate(self.schema.fields)
        field = next((field for field, (name, _, shape) in fields if name in REWARDS and shape == ()), None)
        if field is None:
            raise BufferSettingError(f"These rows have no single number {' or '.join(REWARDS)} to write a reward into.")
        columns = dict(self.get(slots, slots))
        columns[self.schema.names[field]] = self.schema.value(field, rewards, True)
        return Columns(columns, len(slots))

    def rewrite(self, slots: Ids, experiences: Columns) -> None:
        """Puts these in the place of what lives in the slots."""
        self.native.put(dict(experiences), np.ascontiguousarray(slots))

    def state_dict(self, ids: Ids, slots: Ids) -> dict[str, Any]:
        """The rows by field, in this order."""
        return {"columns": dict(self.get(ids, slots))}

    def load_state_dict(self, state: dict[str, Any], ids: Ids, slots: Ids) -> None:
        """Takes the rows of a state.

        Raises:
            BufferStateError: the state is of rows with other fields.
        """
        try:
            columns = self.columns(state["columns"])
        except (KeyError, SchemaError) as error:
            raise BufferStateError(f"The state is of a buffer with other fields: {error}") from error
        if columns.count != len(ids):
            raise BufferStateError(f"The state has {columns.count} rows for {len(ids)} ids; it is damaged.")
        self.native.put(dict(columns), np.ascontiguousarray(slots))

    def _numbers(self, columns: Columns, names: tuple[str, ...]) -> Floats:
        """The first of these fields that holds single numbers, as float64; empty where there is none."""
        for name, kind, shape in self.schema.fields:
            if name in names and shape == () and kind.kind in "iuf":
                return columns[name].astype(np.float64)
        return np.empty(0)
