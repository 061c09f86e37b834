"""One value for each slot of a buffer: how selectors, limits and rules remember something about each experience.

A slot is the small number under which the index keeps an experience while it is stored. What a slot holds after its
experience has left is whatever was there: only the slots of stored ids mean anything.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer.rows import Ids


class SlotArray:
    """A NumPy array over slots that grows when a larger slot is written.

    Args:
        dtype: Type of the values.
        empty: What a slot holds before it is first written.
    """

    def __init__(self, dtype: npt.DTypeLike, empty: Any = 0) -> None:
        self._dtype = np.dtype(dtype)
        self._empty = empty
        self._values: npt.NDArray[Any] = np.empty(0, dtype=self._dtype)

    def __getitem__(self, slots: Ids) -> npt.NDArray[Any]:
        """The values of these slots (a copy)."""
        if len(slots):
            self._reach(int(slots.max()))
        return self._values[slots]

    def __setitem__(self, slots: Ids, values: Any) -> None:
        """Writes one value for all slots, or one for each; of equal slots the last counts."""
        if len(slots):
            self._reach(int(slots.max()))
            self._values[slots] = values

    def add(self, slots: Ids, values: Any) -> None:
        """Adds to the values; a slot that comes twice gets both."""
        if len(slots):
            self._reach(int(slots.max()))
            np.add.at(self._values, slots, values)

    def all(self) -> npt.NDArray[Any]:
        """The whole array up to the largest slot written, which may be written into."""
        return self._values

    def clear(self) -> None:
        """Forgets everything."""
        self._values = np.empty(0, dtype=self._dtype)

    def _reach(self, slot: int) -> None:
        length = len(self._values)
        if slot < length:
            return
        grown = np.empty(max(slot + 1, 2 * length, 64), dtype=self._dtype)
        grown[:length] = self._values
        grown[length:] = self._empty
        self._values = grown
