"""Which of several arms succeeds most often: how to share episodes out, and when it is known.

Track-and-stop (Garivier and Kaufmann, "Optimal best arm identification with fixed confidence", COLT 2016, arXiv
1602.04589) for arms that succeed or fail. With arm 1 the best and kl the divergence of Bernoulli distributions:

*Sharing out.* The proportions w that find the best arm soonest are such that every other arm is told from the best one
with the same evidence (their Lemma 3, Theorem 5)::

    w_1 [kl(μ1, m_a) + x_a kl(μa, m_a)] = same y for all a,   m_a = (μ1 + x_a μa) / (1 + x_a),   x_a = w_a / w_1,
    Σ_a kl(μ1, m_a) / kl(μa, m_a) = 1

`proportions` are those of the means so far, with a floor that sinks as 1 / (2 sqrt(K² + t)), so that no arm is given
up for a bad start (their C-tracking). Arms are drawn in these proportions rather than tracked one by one, for outcomes
come late and in any order; for the stopping rule it makes no difference how arms were drawn.

*Stopping.* With N_a episodes of arm a, the generalised likelihood ratio of the best arm so far against arm b is
``Z_b = N_a kl(μa, μab) + N_b kl(μb, μab)``, μab the mean of both together. It is known once ``min_b Z_b`` is above
``log(2 t (K - 1) / δ)``: then the wrong arm is chosen with a chance of at most δ, however often one looks and whatever
the sampling rule (their Theorem 10). Arms that are equally good are never told apart.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_TIED = 1e-3  # means closer than this are shared out evenly: the best proportions are not defined for equal ones
_GRID = np.linspace(0.0, 1.0, 4_001)[1:-1]  # of x / (1 + x)


class Standing(NamedTuple):
    """How far it is known which arm is best.

    Attributes:
        best: The arm that is best so far.
        evidence: How well it is told from the arm most like it: the smallest likelihood ratio, as a logarithm.
        needed: The evidence at which it is known.
    """

    best: int
    evidence: float
    needed: float

    @property
    def known(self) -> bool:
        """Whether the best arm is known."""
        return self.evidence > self.needed


def divergence(p: Array | float, q: Array | float) -> Array:
    """Kullback and Leibler's divergence of Bernoulli distributions with means `p` and `q`, `q` strictly inside."""
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ones = np.where(p > 0, p * np.log(p / q), 0.0)
        zeros = np.where(p < 1, (1 - p) * np.log((1 - p) / (1 - q)), 0.0)
    return np.asarray(ones + zeros)


def proportions(episodes: Array, successes: Array) -> Array:
    """In which proportions the next episodes are to be shared out.

    Args:
        episodes: ``[arms]``, those whose outcome is known.
        successes: ``[arms]``, how many of them succeeded.
    """
    arms = len(episodes)
    floor = 0.5 / math.sqrt(arms**2 + float(episodes.sum()))
    best = optimal((successes + 0.5) / (episodes + 1.0))
    return np.asarray(floor + (1.0 - arms * floor) * best)


def optimal(means: Array) -> Array:
    """The proportions that find the best of arms with these means, strictly between 0 and 1, with fewest episodes."""
    best = int(np.argmax(means))
    others = np.delete(means, best)
    if len(others) == 0 or means[best] - others.max() < _TIED:
        return np.full(len(means), 1.0 / len(means))
    ratio = _GRID / (1.0 - _GRID)
    middle = means[best] + np.outer(others - means[best], _GRID)
    from_best, from_other = divergence(means[best], middle), divergence(others[:, None], middle)
    evidence, share = from_best + ratio * from_other, from_best / from_other
    low, high = 0.0, float(evidence[:, -1].min())
    for _ in range(60):
        y = (low + high) / 2
        total = sum(float(np.interp(y, evidence[a], share[a])) for a in range(len(others)))
        low, high = (y, high) if total < 1.0 else (low, y)
    weights = np.insert([float(np.interp(low, row, ratio)) for row in evidence], best, 1.0)
    return np.asarray(weights / weights.sum())


def standing(episodes: Array, successes: Array, delta: float) -> Standing:
    """Which arm is best so far, and whether that is known.

    Args:
        episodes: ``[arms]``, those whose outcome is known; at least two arms.
        successes: ``[arms]``, how many of them succeeded.
        delta: The chance of being wrong that is accepted.
    """
    needed = math.log(2.0 * max(float(episodes.sum()), 1.0) * (len(episodes) - 1) / delta)
    means = successes / np.maximum(episodes, 1.0)
    best = int(np.argmax(np.where(episodes > 0, means, -1.0)))
    if not episodes.all():
        return Standing(best, 0.0, needed)
    both = (successes[best] + successes) / (episodes[best] + episodes)
    inside = np.clip(both, 1e-12, 1.0 - 1e-12)
    ratios = episodes[best] * divergence(means[best], inside) + episodes * divergence(means, inside)
    return Standing(best, max(float(np.delete(ratios, best).min()), 0.0), needed)
