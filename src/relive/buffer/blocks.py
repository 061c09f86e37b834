"""One piece of memory for all that a draw returns, cut into arrays only when somebody looks.

A `Block` holds ids, slots, probabilities, weights and the fields of array rows, one array after the other. Making an
array of NumPy's for each costs more than the draw of a small batch; a block is one array, and a view of one of its
parts is made on access.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer.rows import Floats, Ids

HEAD_BYTES = 32
"""Bytes of id, slot, probability and weight of one item."""

_HEAD = (("ids", np.int64), ("slots", np.int64), ("probabilities", np.float64), ("weights", np.float64))

RESERVED = frozenset(name for name, _ in _HEAD)
"""Names that a block gives to its own parts."""


class Layout:
    """Where everything lies in a block for `count` items.

    Args:
        count: Items.
        fields: Name, type and shape of each field.
        offsets: First byte of each field, and the length of the block.
    """

    __slots__ = ("count", "dtype", "fields", "nbytes")

    def __init__(
        self, count: int, fields: list[tuple[str, np.dtype[Any], tuple[int, ...]]], offsets: list[int]
    ) -> None:
        head = [(name, np.dtype(kind), 8 * count * position) for position, (name, kind) in enumerate(_HEAD)]
        self.count = count
        self.fields = tuple(name for name, _, _ in fields)
        self.nbytes = offsets[-1]
        self.dtype = np.dtype(
            {
                "names": [name for name, _, _ in head] + [name for name, _, _ in fields],
                "formats": [(kind, (count,)) for _, kind, _ in head]
                + [(kind, (count, *shape)) for _, kind, shape in fields],
                "offsets": [offset for _, _, offset in head] + offsets[:-1],
                "itemsize": max(self.nbytes, 1),
            }
        )


class Block:
    """The memory of one draw. Its parts are views that keep it alive; writing to one writes to the block."""

    __slots__ = ("_parts", "drawn", "layout", "memory")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.memory: npt.NDArray[np.uint8] = np.empty(layout.dtype.itemsize, dtype=np.uint8)
        self.drawn = layout.count
        self._parts: npt.NDArray[Any] | None = None

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """One part, ``[drawn, ...]``."""
        parts = self._parts
        if parts is None:
            parts = self._parts = np.ndarray((), self.layout.dtype, self.memory)
        part: npt.NDArray[Any] = parts[name]
        return part if self.drawn == self.layout.count else part[: self.drawn]

    @property
    def ids(self) -> Ids:
        """int64 ``[drawn]``."""
        return self["ids"]

    @property
    def slots(self) -> Ids:
        """int64 ``[drawn]``."""
        return self["slots"]

    @property
    def probabilities(self) -> Floats:
        """float64 ``[drawn]``."""
        return self["probabilities"]

    @property
    def weights(self) -> Floats:
        """float64 ``[drawn]``."""
        return self["weights"]


class Layouts:
    """Layouts by number of items, made once each."""

    _MOST = 64  # batch sizes in use at a time; a layout takes a few microseconds to make

    def __init__(self) -> None:
        self._made: dict[int, Layout] = {}

    def __call__(self, count: int) -> Layout:
        """The layout for `count` items."""
        layout = self._made.get(count)
        if layout is None:
            if len(self._made) >= self._MOST:
                self._made.clear()
            layout = self._made[count] = self.make(count)
        return layout

    def make(self, count: int) -> Layout:
        """A new layout; rows that have fields override this."""
        return Layout(count, [], [HEAD_BYTES * count])
