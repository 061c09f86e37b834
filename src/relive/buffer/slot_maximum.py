"""The largest of one value for each slot of a buffer, always at hand."""

import numpy as np

from relive.buffer.rows import Floats, Ids
from relive.buffer.slot_array import SlotArray

_BLOCK_BITS = 10  # 1,024 slots


class SlotMaximum:
    """Values over slots, -inf where none was written, and the largest of them.

    Each block of 1,024 slots has its maximum. A write that lowers one looks through that block, so a write costs
    O(len(slots)) and a question O(slots / 1,024).
    """

    def __init__(self) -> None:
        self.clear()

    def __getitem__(self, slots: Ids) -> Floats:
        """The values of these slots (a copy)."""
        values: Floats = self._values[slots]
        return values

    def __setitem__(self, slots: Ids, values: Floats | float) -> None:
        """Writes one value for all slots, or one for each; of equal slots the last counts."""
        if not len(slots):
            return
        before = self._values[slots]
        self._values[slots] = values
        after = self._values[slots]
        blocks = slots >> _BLOCK_BITS
        was_largest = before == self._largest[blocks]
        np.maximum.at(self._largest.all(), blocks, after)
        for block in np.unique(blocks[was_largest & (after < before)]).tolist():
            start = block << _BLOCK_BITS
            self._largest.all()[block] = self._values.all()[start : start + (1 << _BLOCK_BITS)].max()

    def largest(self) -> float:
        """The largest value; -inf where there is none."""
        return float(self._largest.all().max(initial=-np.inf))

    def clear(self) -> None:
        """Forgets all values."""
        self._values = SlotArray(np.float64, -np.inf)
        self._largest = SlotArray(np.float64, -np.inf)
