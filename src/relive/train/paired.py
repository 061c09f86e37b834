"""Whether one policy is better than another on the same tasks, or at least not worse: the statistics of the gate.

Both policies are scored from 0 to 1 on each task, and what counts is the difference on it: how hard a task is drops
out. A task measured several times counts once, with its mean difference, so measuring the same tasks again makes the
figures less noisy but never pretends that there were more tasks.

The interval is that of Agresti and Min 2005, "Simple improved confidence intervals for comparing matched proportions",
Statistics in Medicine 24, 729-740 (doi 10.1002/sim.1781): the interval of the mean difference after adding half a task
to each of the four outcomes of a pair, which is two tasks whose differences sum to 0 and their squares to 1. With d the
differences on n tasks::

    m = Σ d / (n + 2),   v = (Σ d² + 1) / (n + 2) - m²,   m ± z sqrt(v / (n + 2))

It is made for scores of 0 and 1; of scores between, whose differences vary less, it is on the safe side. Each end is
exceeded with a chance of about alpha, z being the quantile at 1 - alpha.

- *Better*: the lower end is above 0, and the mean difference at least the smallest effect that is worth a change.
- *Not worse*: the lower end is above minus the tolerance. That few tasks show no difference is no proof that there is
  none, so few tasks do not suffice.
- *Worse*: the upper end is below 0.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from relive.errors import ReliveError

Differences = Mapping[str, tuple[int, float]]
"""By task, how often it was measured and the sum of the differences, new policy less old."""


class ComparisonError(ReliveError, ValueError):
    """Scores that cannot be compared."""


class Compared(NamedTuple):
    """What is known about the difference of two policies.

    Attributes:
        tasks: How many there are.
        mean: Mean difference; above 0 where the new policy is better.
        low: Lower end of its interval.
        high: Upper end.
    """

    tasks: int
    mean: float
    low: float
    high: float


def differences(tasks: Sequence[str], new: Sequence[float], old: Sequence[float]) -> Differences:
    """The differences of two policies on tasks.

    Args:
        tasks: What each was measured on; the same name twice: the same task measured again.
        new: The new policy's scores, from 0 to 1.
        old: The old one's on the same tasks, in the same order.

    Raises:
        ComparisonError: there are not as many scores as tasks, or one of them is not from 0 to 1.
    """
    if not len(tasks) == len(new) == len(old):
        raise ComparisonError(
            f"There are {len(tasks)} tasks, {len(new)} new scores and {len(old)} old ones; each task needs both."
        )
    found: dict[str, tuple[int, float]] = {}
    for task, one, other in zip(tasks, new, old, strict=True):
        if not (0 <= one <= 1 and 0 <= other <= 1):
            raise ComparisonError(
                f"The scores of task {task!r} are {one} and {other}; both must be from 0 to 1. "
                "Leave a task out that was not scored."
            )
        count, total = found.get(task, (0, 0.0))
        found[task] = (count + 1, total + float(one) - float(other))
    return found


def pooled(parts: Iterable[Differences]) -> Differences:
    """Several measurements together."""
    found: dict[str, tuple[int, float]] = {}
    for part in parts:
        for task, (count, total) in part.items():
            before, sum_before = found.get(task, (0, 0.0))
            found[task] = (before + count, sum_before + total)
    return found


def compared(found: Differences, *, alpha: float = 0.05) -> Compared:
    """The mean difference with its interval; without any task nothing is known: from -1 to 1.

    Args:
        found: The differences.
        alpha: The chance with which each end is exceeded.
    """
    if not found:
        return Compared(0, 0.0, -1.0, 1.0)
    d = np.array([total / count for count, total in found.values()])
    size = len(d) + 2
    middle = float(d.sum()) / size
    spread = (float((d**2).sum()) + 1.0) / size - middle**2
    margin = NormalDist().inv_cdf(1.0 - alpha) * math.sqrt(spread / size)
    return Compared(len(d), float(d.mean()), max(middle - margin, -1.0), min(middle + margin, 1.0))


def better(found: Compared, effect: float) -> bool:
    """Whether the new policy is surely better, and by `effect` at least as far as one can tell."""
    return found.low > 0 and found.mean >= effect


def not_worse(found: Compared, tolerance: float) -> bool:
    """Whether the new policy surely loses less than `tolerance`."""
    return found.low > -tolerance


def worse(found: Compared) -> bool:
    """Whether the new policy is surely worse."""
    return found.high < 0
