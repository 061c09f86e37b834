"""Cuts the memory of a draw (`relive.buffer._core.Block`) into arrays.

A block holds ids, slots, probabilities, weights and the fields of array rows, one array after the other. A view of all
its parts is one array of NumPy's, of no dimensions and a structured type in which each part is a field.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer._core import ArrayRows, Block

_HEAD = (("ids", np.int64), ("slots", np.int64), ("probabilities", np.float64), ("weights", np.float64))

RESERVED = frozenset(name for name, _ in _HEAD)
"""Names that a block gives to its own parts."""

Field = tuple[str, np.dtype[Any], tuple[int, ...]]
"""Name, type and shape of a field of array rows."""


class Layout:
    """Where everything lies in blocks, by their number of items.

    Args:
        fields: The fields of the rows, in the native rows' order.
        rows: The native rows; ``None``: blocks without fields.
    """

    _MOST = 64  # batch sizes in use at a time: a type takes some microseconds to make, and is kept

    def __init__(self, fields: list[Field] | None = None, rows: ArrayRows | None = None) -> None:
        self.names = tuple(name for name, _, _ in fields or ())
        self._fields = fields or []
        self._rows = rows
        self._types: dict[int, np.dtype[Any]] = {}

    def parts(self, block: Block) -> npt.NDArray[Any]:
        """A view of all parts: ``parts["ids"]`` is int64 ``[B]``, ``parts[field]`` is ``[B, ...]``."""
        count = len(block)
        dtype = self._types.get(count)
        if dtype is None:
            if len(self._types) >= self._MOST:
                self._types.clear()
            dtype = self._types[count] = self._make(count)
        return np.ndarray((), dtype, block)  # type: ignore[arg-type]  # it offers the buffer protocol

    def _make(self, count: int) -> np.dtype[Any]:
        head = [(name, np.dtype(kind), ()) for name, kind in _HEAD]
        offsets = [8 * count * position for position in range(len(_HEAD))]
        end = 8 * count * len(_HEAD)
        if self._rows is not None:
            *field_offsets, end = self._rows.layout(end, count)
            offsets += field_offsets
        return np.dtype(
            {
                "names": [name for name, _, _ in (*head, *self._fields)],
                "formats": [(kind, (count, *shape)) for _, kind, shape in (*head, *self._fields)],
                "offsets": offsets,
                "itemsize": end,
            }
        )


HEADS = Layout()
"""The layout of blocks without fields."""
