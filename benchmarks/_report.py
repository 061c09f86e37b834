"""What every benchmark ends with: a table for people, one line of JSON for programs, an exit status for both."""

import json
import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np

RESAMPLES = 10_000


class Bar(NamedTuple):
    """A figure and what it must reach.

    Attributes:
        value: What was measured.
        bar: What it must reach.
        at_most: True: the figure must not be above the bar; False: not below.
    """

    value: float
    bar: float
    at_most: bool = False

    @property
    def holds(self) -> bool:
        """Whether the figure reaches the bar."""
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def bootstrap(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of paired differences (Efron 1979)."""
    rng = np.random.default_rng(0)
    means = [rng.choice(differences, len(differences)).mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def report(figures: dict[str, float], bars: dict[str, Bar]) -> NoReturn:
    """Prints figures and bars, the JSON line last, and ends the program: 0 only if every bar holds."""
    width = max(map(len, [*figures, *bars]))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:>12,.6g}")
    print()
    for name, bar in bars.items():
        sign = "<=" if bar.at_most else ">="
        print(f"{name:<{width}}  {bar.value:>12,.6g}  {sign} {bar.bar:g}  {'ok' if bar.holds else 'NOT HELD'}")
    print(
        json.dumps({
            "figures": figures,
            "bars": {n: {"value": b.value, "bar": b.bar, "holds": b.holds} for n, b in bars.items()},
        })
    )  # fmt: skip
    sys.exit(0 if all(bar.holds for bar in bars.values()) else 1)
