"""How old each stored experience is, by a clock that only runs forward.

An experience that says when it happened (`Transition.created_at`) is as old on arrival as the wall clock says then;
anything else is new. From then on only the monotonic clock counts, so that a clock set back or forward changes nothing.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from relive.buffer.fields import count_of, created
from relive.buffer.rows import Floats, Ids
from relive.buffer.slot_array import SlotArray
from relive.experience import now


class Ages:
    """Ages by slot, in seconds.

    Args:
        clock: Seconds that only grow, such as `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.births = SlotArray(np.float64, np.inf)  # when each was of age 0, on the clock

    def join(self, slots: Ids, experiences: Any) -> None:
        """New experiences live in these slots."""
        self.births[slots] = self.clock() - ages_on_arrival(experiences)

    def leave(self, slots: Ids) -> None:
        """What lived in these slots leaves."""
        self.births[slots] = np.inf

    def of(self, slots: Ids) -> Floats:
        """Seconds, float64 ``[B]``."""
        ages: Floats = self.clock() - self.births[slots]
        return ages

    def set(self, slots: Ids, ages: Floats) -> None:
        """Makes what lives in these slots so old; time in which the program did not run is not counted."""
        self.births[slots] = self.clock() - ages


def ages_on_arrival(experiences: Any) -> Floats:
    """Seconds since each happened by the wall clock, at least 0; 0 where it does not say."""
    times = created(experiences)
    ages = np.zeros(count_of(experiences))
    present = now()
    for place, time in enumerate(times):
        if time is not None:
            ages[place] = max(0.0, (present - time).total_seconds())
    return ages
