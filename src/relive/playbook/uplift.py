"""Uplift: by how much a lesson changes the success of the calls it is meant for, told by random holdout.

How it is measured. A call is *eligible* for a lesson if the lesson would be put into its prompt. Of the eligible
episodes a known share is held out by a keyed hash of lesson and episode (`assigned`), so nobody can tell beforehand
which, and all calls of one episode are treated alike. The effect is the difference in mean outcome between shown and
held out, analysed *as assigned*: whatever else was in the prompt is the same in both groups on average.

The estimate is the mean of the doubly robust scores with known propensity p (Robins, Rotnitzky and Zhao 1994)::

    ψ_i = m1 - m0 + Z_i (Y_i - m1) / p_i - (1 - Z_i) (Y_i - m0) / (1 - p_i)

where Z_i says whether episode i was shown the lesson, Y_i in [0, 1] is its outcome, and m1, m0 are predictions made of
the episodes *before* i. As p_i is known, E[ψ_i | past] is exactly the effect on episode i whatever the predictions
are worth; good ones only make the scores less noisy. So the share that is held out may change over time.

The interval is valid at every look, however often one looks and whenever one stops: an asymptotic confidence sequence.
Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central limit theory and asymptotic confidence
sequences", Annals of Statistics 52 (2024), 2613-2640, arXiv 2103.06476: the Gaussian mixture boundary of their Theorem
2.2 in its Lindeberg-type martingale form (section 2, "time-varying"), whose target is the *running mean* of effects
that may differ from call to call, for the average treatment effect in randomised experiments (their section 3). With V
the sum of squared deviations of the scores and t their number::

    mean ± sqrt( 2 (V ρ² + 1) / ρ² · log( sqrt(V ρ² + 1) / α ) ) / t,    ρ² = (-2 log α + log(-2 log α) + 1) / V*

ρ² makes it tightest where V is about V* (the paper's appendix on choosing ρ). Asymptotic means: exact in the limit;
that it covers from the first dozens of calls on is checked by simulation (`benchmarks/playbook.py`). Until then a prior
weight of `_PRIOR` scores of the largest variance keeps it from being too sure.

How long it takes: with half held out and a success rate near one half a score's variance is about 1, so the interval's
half width after t calls is about 3.1 / sqrt(t): an effect of 20 points is proved after some 220 eligible calls
(median), one of 5 points after some 2,600, nine times in ten by 6,200 (simulated by the same benchmark).

Everything here works on numbers as well as on arrays of them, one entry a lesson.
"""

import hashlib
import math
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = float | npt.NDArray[np.float64]
Flags: TypeAlias = bool | npt.NDArray[np.bool_]

Verdict = Literal["testing", "proved", "harmful", "useless"]
VERDICTS: tuple[Verdict, ...] = ("testing", "proved", "harmful", "useless")
"""What `judge` finds, by number."""

TIGHTEST_AT = 1000.0
"""Sum of squared deviations at which the interval is tightest: about 1,000 calls with half held out."""

_PRIOR = 5.0  # scores of variance `_LARGEST` that the variance starts from
_LARGEST = 1.0  # variance of a score with half held out, of an outcome that is 0 or 1 with equal chance
_STEADY = 2.0  # episodes' worth of the common mean in the prediction of each group


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """When a lesson is kept, settled or retired.

    Attributes:
        alpha: 1 minus the confidence of intervals.
        worth: The least uplift that is worth a lesson's tokens, in outcome units (0.025: 2.5 points of success).
        probation: Eligible episodes after which a lesson that is not proved and whose estimate lies more than a
            standard error below `worth` is retired as useless.
        new: Share of eligible episodes that are shown a lesson which is still tested.
        settled: Share that is shown one that is proved; the rest stays held out, so that its effect stays known.
        minimum: Eligible episodes before which nothing is decided.
    """

    alpha: float = 0.05
    worth: float = 0.025
    probation: int = 1500
    new: float = 0.5
    settled: float = 0.9
    minimum: int = 30

    def __post_init__(self) -> None:
        for name in ("alpha", "new", "settled"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 and below 1.")
        if self.minimum < 1 or self.probation < self.minimum:
            raise ValueError("minimum must be at least 1, and probation at least minimum.")


class Evidence(NamedTuple):
    """What the eligible episodes of a lesson add up to; each a number, or an array with one entry a lesson.

    Attributes:
        calls: Eligible episodes with a known outcome.
        shown: Those that were shown the lesson.
        shown_sum: Sum of their outcomes.
        held_sum: Sum of the outcomes of those held out.
        total: Sum of the scores ψ.
        squares: Sum of their squares.
    """

    calls: Numbers
    shown: Numbers
    shown_sum: Numbers
    held_sum: Numbers
    total: Numbers
    squares: Numbers


class Interval(NamedTuple):
    """An uplift with its interval, in outcome units.

    Attributes:
        estimate: Mean of the scores; 0 without any.
        low: Lower end.
        high: Upper end.
        error: Standard error of the estimate.
    """

    estimate: Numbers
    low: Numbers
    high: Numbers
    error: Numbers


NOTHING = Evidence(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""The evidence for a lesson that was never eligible."""


def assigned(key: bytes, what: int | str, episode: str, propensity: float) -> bool:
    """Whether an episode is shown something; the same answer each time, and none that can be foreseen without the key.

    Args:
        key: The book's secret, at most 64 bytes.
        what: A lesson's id, or another name of what is tested.
        episode: The episode, or whatever is to be treated alike throughout.
        propensity: The share that is shown it.
    """
    return drawn(key, what, episode) < propensity


def drawn(key: bytes, what: int | str, episode: str) -> float:
    """A number from 0 to 1 for an episode, as good as random without the key; see `assigned`."""
    digest = hashlib.blake2b(f"{what}\0{episode}".encode(), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2.0**64


def add(
    evidence: Evidence, shown: Flags, propensity: Numbers, outcome: Numbers, counts: Flags | float = 1.0
) -> Evidence:
    """The evidence with one more episode for each lesson.

    Args:
        evidence: What there was before.
        shown: Whether it was shown.
        propensity: The chance with which it was.
        outcome: What came of it, from 0 to 1.
        counts: Whether the lesson was eligible at all; where not, nothing changes.
    """
    z, used = np.multiply(1.0, shown), np.multiply(1.0, counts)
    score = _score(evidence, z, propensity, outcome)
    return Evidence(
        evidence.calls + used,
        evidence.shown + used * z,
        evidence.shown_sum + used * z * outcome,
        evidence.held_sum + used * (1.0 - z) * outcome,
        evidence.total + used * score,
        evidence.squares + used * score**2,
    )


def gather(
    shown: npt.NDArray[np.bool_], propensity: npt.NDArray[np.float64], outcome: npt.NDArray[np.float64]
) -> Evidence:
    """The evidence of a lesson's episodes in the order in which their outcomes became known; as `add` one by one."""
    count = len(shown)
    if not count:
        return NOTHING
    z = shown.astype(np.float64)
    times, good, held_good = np.cumsum(z), np.cumsum(z * outcome), np.cumsum((1.0 - z) * outcome)
    counts = _before(times), _before(good), _before(held_good)
    past = Evidence(np.arange(count, dtype=np.float64), *counts, 0.0, 0.0)
    scores = np.asarray(_score(past, z, propensity, outcome))
    ends = float(times[-1]), float(good[-1]), float(held_good[-1])
    return Evidence(float(count), *ends, float(scores.sum()), float((scores**2).sum()))


def interval(evidence: Evidence, *, alpha: float = 0.05, tightest_at: float = TIGHTEST_AT) -> Interval:
    """The uplift with an interval that covers the mean effect so far at every look with a chance of 1 - `alpha`.

    Args:
        evidence: What the episodes add up to.
        alpha: The chance that it ever fails to cover.
        tightest_at: Where it is to be tightest, as a sum of squared deviations; about the number of calls.
    """
    calls = np.maximum(evidence.calls, 1.0)
    mean = np.divide(evidence.total, calls)
    variance = (np.maximum(evidence.squares - calls * mean**2, 0.0) + _PRIOR * _LARGEST) / (calls + _PRIOR)
    spread = calls * variance
    width = -2.0 * math.log(alpha)
    rho = (width + math.log(width) + 1.0) / tightest_at
    inside = spread * rho + 1.0
    margin = np.sqrt(2.0 * inside / rho * np.log(np.sqrt(inside) / alpha)) / calls
    nothing = np.equal(evidence.calls, 0.0)
    low, high = np.where(nothing, -1.0, mean - margin), np.where(nothing, 1.0, mean + margin)
    return _as_given(
        Interval(mean, np.maximum(low, -1.0), np.minimum(high, 1.0), np.where(nothing, 1.0, np.sqrt(variance / calls)))
    )


def judge(evidence: Evidence, rules: Rules, proved: Flags = False, found: Interval | None = None) -> Any:
    """What is to be done with a lesson, as a number that stands for one of `VERDICTS`.

    *Harmful*: its interval lies below 0. *Useless*: its interval lies below what is worth its tokens; or it was given
    its time (`Rules.probation`) without being proved, and its estimate is more than a standard error below that.
    *Proved*: its interval lies above 0, now or before. Otherwise it is *testing*.

    Args:
        evidence: What its episodes add up to.
        rules: The bounds.
        proved: Whether it was proved before; then only its interval can retire it.
        found: Its interval at `rules.alpha`, where it is known already.

    Returns:
        An integer, or an array of them.
    """
    found = found or interval(evidence, alpha=rules.alpha)
    decided = np.greater_equal(evidence.calls, rules.minimum)
    good = decided & (np.greater(found.low, 0.0) | np.asarray(proved))
    late = np.greater_equal(evidence.calls, rules.probation) & np.less(found.estimate + found.error, rules.worth)
    useless = decided & (np.less(found.high, rules.worth) | (late & ~good))
    harmful = decided & np.less(found.high, 0.0)
    result = np.select([harmful, useless, good], [2, 3, 1], default=0)
    return result if result.ndim else int(result)


class Shrunk(NamedTuple):
    """Estimates drawn together by what lessons are like on the whole.

    Attributes:
        means: float64 ``[n]``, what each lesson's uplift is expected to be.
        errors: float64 ``[n]``, its standard deviation.
        prior_mean: The same for a lesson that nothing is known about.
        prior_error: Its standard deviation.
    """

    means: npt.NDArray[np.float64]
    errors: npt.NDArray[np.float64]
    prior_mean: float
    prior_error: float


def shrink(estimates: npt.ArrayLike, errors: npt.ArrayLike) -> Shrunk:
    """Empirical-Bayes estimates, for ranking: of many noisy estimates the best is mostly luck.

    The uplifts are taken as drawn from N(μ, τ²), each estimate as drawn from N(uplift, error²). μ and τ² are those of
    DerSimonian and Laird (1986), by the method of moments; then an uplift is expected to be
    ``(μ/τ² + estimate/error²) / (1/τ² + 1/error²)`` (Efron and Morris 1973). With fewer than two estimates μ is 0 and τ
    a tenth.

    Args:
        estimates: ``[n]``.
        errors: ``[n]``, their standard errors, above 0.
    """
    y, s = np.asarray(estimates, np.float64), np.asarray(errors, np.float64)
    if len(y) < 2:
        mean, spread = 0.0, 0.1
    else:
        weight = 1.0 / s**2
        fixed = float((weight * y).sum() / weight.sum())
        q = float((weight * (y - fixed) ** 2).sum())
        scale = float(weight.sum() - (weight**2).sum() / weight.sum())
        between = max(q - (len(y) - 1), 0.0) / scale
        spread = math.sqrt(max(between, 1e-6))
        weight = 1.0 / (s**2 + spread**2)
        mean = float((weight * y).sum() / weight.sum())
    precision = 1.0 / spread**2 + 1.0 / s**2
    return Shrunk((mean / spread**2 + y / s**2) / precision, 1.0 / np.sqrt(precision), mean, spread)


def _score(evidence: Evidence, z: Any, propensity: Numbers, outcome: Numbers) -> Any:
    """The doubly robust score of an episode, with predictions from the episodes before."""
    held = evidence.calls - evidence.shown
    common = (evidence.shown_sum + evidence.held_sum + 0.5) / (evidence.calls + 1.0)
    if_shown = (evidence.shown_sum + _STEADY * common) / (evidence.shown + _STEADY)
    if_held = (evidence.held_sum + _STEADY * common) / (held + _STEADY)
    gain = z * (outcome - if_shown) / propensity - (1.0 - z) * (outcome - if_held) / (1.0 - propensity)
    return if_shown - if_held + gain


def _before(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Running sums as they were before each entry."""
    return np.concatenate([[0.0], sums[:-1]])


def _as_given(found: Interval) -> Interval:
    """Plain numbers where plain numbers were given."""
    return Interval(*(float(v) if np.ndim(v) == 0 else v for v in found))
