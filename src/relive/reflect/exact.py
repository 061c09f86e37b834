"""Exact tests for 2x2 tables, one or several strata of them, and the correction for many tests.

All is conditional on the margins (Fisher 1935; several strata: Gart 1970, Zelen 1971, the sum of independent
hypergeometric counts, by convolution). Nothing is approximated, so small tables are safe.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_SAME = 1e-7  # relative; two outcomes as likely as each other may differ by rounding
_ODDS = 1e4  # odds ratios beyond are not told apart
_HALVINGS = 60


class Table(NamedTuple):
    """Episodes of one stratum.

    Attributes:
        good_with: Successes that have the feature.
        with_it: Episodes that have it.
        good: Successes, with it or without.
        episodes: All of them.
    """

    good_with: int
    with_it: int
    good: int
    episodes: int


def p_value(tables: Sequence[Table]) -> float:
    """Two-sided: the chance of a table as unlikely as this or more, if the feature has no part in success.

    Args:
        tables: The strata; one without both successes and failures, with and without the feature, says nothing.
    """
    log_chance, at = _conditional(tables)
    chance = _scaled(log_chance, 0.0)
    return min(float(chance[chance <= chance[at] * (1 + _SAME)].sum()), 1.0)


def odds_interval(tables: Sequence[Table], *, alpha: float = 0.05) -> tuple[float, float]:
    """The exact interval of the odds ratio that all strata share; 0 or infinite where the data sets no bound.

    Args:
        tables: The strata.
        alpha: 1 minus its confidence; half of it on either side.
    """
    log_chance, at = _conditional(tables)
    return _bound(log_chance, at, alpha / 2, low=True), _bound(log_chance, at, alpha / 2, low=False)


def adjusted(p: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The smallest false-discovery rate at which each of many tests counts (Benjamini and Hochberg 1995)."""
    values = np.asarray(p, np.float64)
    order = np.argsort(values)
    ranked = values[order] * len(values) / np.arange(1, len(values) + 1)
    result = np.empty(len(values))
    result[order] = np.minimum(np.minimum.accumulate(ranked[::-1])[::-1], 1.0)
    return result


def _conditional(tables: Sequence[Table]) -> tuple[npt.NDArray[np.float64], int]:
    """Logarithms of the chances of each possible count of successes with the feature, and the place of the real one."""
    lowest, observed, log_chance = 0, 0, np.zeros(1)
    for table in tables:
        first, values = _hypergeometric(table)
        lowest += first
        observed += table.good_with
        log_chance = _convolved(log_chance, values)
    return log_chance, observed - lowest


def _hypergeometric(table: Table) -> tuple[int, npt.NDArray[np.float64]]:
    """The smallest possible count of successes with the feature, and the logarithms of the chances from there on."""
    first = max(0, table.with_it + table.good - table.episodes)
    last = min(table.with_it, table.good)
    return first, np.array([
        _choose(table.good, k) + _choose(table.episodes - table.good, table.with_it - k) for k in range(first, last + 1)
    ]) - _choose(table.episodes, table.with_it)  # fmt: skip


def _choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _convolved(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Logarithms of the chances of a sum."""
    tops = first.max(), second.max()
    values = np.convolve(np.exp(first - tops[0]), np.exp(second - tops[1]))
    with np.errstate(divide="ignore"):
        result: npt.NDArray[np.float64] = np.log(values) + sum(tops)
    return result


def _scaled(log_chance: npt.NDArray[np.float64], log_odds: float) -> npt.NDArray[np.float64]:
    """The chances under an odds ratio."""
    values = log_chance + log_odds * np.arange(len(log_chance))
    chance = np.exp(values - values.max())
    result: npt.NDArray[np.float64] = chance / chance.sum()
    return result


def _bound(log_chance: npt.NDArray[np.float64], at: int, tail: float, *, low: bool) -> float:
    """The odds ratio under which the tail from the observed count on (low) or up to it has the chance `tail`."""
    if at == (0 if low else len(log_chance) - 1):
        return 0.0 if low else math.inf
    below, above = -math.log(_ODDS), math.log(_ODDS)
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        chance = _scaled(log_chance, middle)
        too_far = chance[at:].sum() > tail if low else chance[: at + 1].sum() < tail
        below, above = (below, middle) if too_far else (middle, above)
    return math.exp((below + above) / 2)
