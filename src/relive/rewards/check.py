"""Whether rewards are fit to learn from: unscored, without spread, following length, or disputed among judges.

These four say nothing about whether a reward is right; they find the ways in which one is often useless or is gamed.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import msgspec
import numpy as np
import numpy.typing as npt

from relive.experience import Transition
from relive.rewards.answers import answer_text

_ROWS = 256  # of the matrix of all pairs, which may have 10^8 entries, held at a time


class RewardReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `check` found. A share is ``None`` where there was nothing to take it from.

    Attributes:
        transitions: How many were looked at.
        unscored: Share of them without a reward.
        groups: How many groups (rollouts of one prompt) hold at least two rewards.
        flat_groups: Share of those groups in which all rewards are equal: they teach a group-relative method nothing.
        length_correlation: Pearson's correlation of reward and length of the answer in characters, over all answers
            with both.
        length_correlation_within_groups: The same after taking each group's means away, so that long prompts with long
            answers do not count.
        judges: For each pair of judges how far apart they are.
        warnings: The findings in sentences, the worst first; empty: none.
    """

    transitions: int
    unscored: float | None
    groups: int
    flat_groups: float | None
    length_correlation: float | None
    length_correlation_within_groups: float | None
    judges: tuple["Disagreement", ...]
    warnings: tuple[str, ...]


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far two judges are apart.

    Attributes:
        first: Name of one judge.
        second: Name of the other.
        both: How many transitions both scored.
        mean_difference: Mean size of the difference; ``None``: they share none.
        reversed_pairs: Share of the pairs of transitions that one judge orders one way and the other the opposite way,
            among the pairs that both order (ties left out); ``None``: there are none. This is (1 - Kendall's tau) / 2.
    """

    first: str
    second: str
    both: int
    mean_difference: float | None
    reversed_pairs: float | None


def check(
    transitions: Iterable[Transition], *, judges: Mapping[str, Sequence[float | None]] | None = None
) -> RewardReport:
    """Looks at the rewards of stored transitions.

    Args:
        transitions: With their rewards.
        judges: By name, each judge's rewards of the same transitions in the same order.
    """
    rows = [(t.reward, answer_text(t), t.group_id) for t in transitions]
    scored = [(r, len(text), group) for r, text, group in rows if r is not None and text is not None]
    groups: dict[str, list[float]] = defaultdict(list)
    for reward, _, group in rows:
        if group is not None and reward is not None:
            groups[group].append(reward)
    several = [rewards for rewards in groups.values() if len(rewards) > 1]
    facts = {
        "unscored": sum(r is None for r, _, _ in rows) / len(rows) if rows else None,
        "flat_groups": sum(min(g) == max(g) for g in several) / len(several) if several else None,
        "length_correlation": correlation([r for r, _, _ in scored], [float(n) for _, n, _ in scored]),
        "length_correlation_within_groups": _within_groups(scored),
    }
    pairs = tuple(_disagreement(a, b) for a, b in combinations((judges or {}).items(), 2))
    return RewardReport(
        transitions=len(rows), groups=len(several), judges=pairs, warnings=tuple(_warnings(facts, pairs)), **facts
    )


def correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's correlation; ``None`` for fewer than three pairs, or where one side does not vary."""
    if len(a) < 3 or min(a) == max(a) or min(b) == max(b):
        return None
    value = float(np.corrcoef(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))[0, 1])
    return value if math.isfinite(value) else None


def _within_groups(scored: Sequence[tuple[float, int, str | None]]) -> float | None:
    members: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for reward, length, group in scored:
        if group is not None:
            members[group].append((reward, length))
    rewards: list[float] = []
    lengths: list[float] = []
    for rows in members.values():
        mean_reward = sum(r for r, _ in rows) / len(rows)
        mean_length = sum(n for _, n in rows) / len(rows)
        rewards += [r - mean_reward for r, _ in rows]
        lengths += [n - mean_length for _, n in rows]
    return correlation(rewards, lengths)


def _disagreement(a: tuple[str, Sequence[float | None]], b: tuple[str, Sequence[float | None]]) -> Disagreement:
    both = [(x, y) for x, y in zip(a[1], b[1], strict=True) if x is not None and y is not None]
    if not both:
        return Disagreement(first=a[0], second=b[0], both=0, mean_difference=None, reversed_pairs=None)
    first, second = np.array(both, dtype=np.float64).T
    ordered, reversed_ = _orders(first, second)
    return Disagreement(
        first=a[0],
        second=b[0],
        both=len(both),
        mean_difference=float(np.abs(first - second).mean()),
        reversed_pairs=reversed_ / ordered if ordered else None,
    )


def _orders(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> tuple[int, int]:
    """How many ordered pairs both order, and how many of them the opposite way; a part of the pairs at a time."""
    ordered = opposite = 0
    for start in range(0, len(first), _ROWS):
        rows = slice(start, start + _ROWS)
        order = np.sign(first[rows, None] - first) * np.sign(second[rows, None] - second)
        ordered += int(np.count_nonzero(order))
        opposite += int(np.count_nonzero(order < 0))
    return ordered, opposite


def _warnings(facts: Mapping[str, float | None], pairs: Iterable[Disagreement]) -> list[str]:
    found: list[tuple[float, str]] = []
    unscored, flat = facts["unscored"], facts["flat_groups"]
    if unscored is not None and unscored > 0.1:
        found.append((unscored, f"{unscored:.0%} have no reward: what is learnt comes from the others alone."))
    if flat is not None and flat > 0.5:
        found.append((flat, f"{flat:.0%} of the groups have one and the same reward: they teach nothing."))
    for name, where in (("length_correlation", ""), ("length_correlation_within_groups", " within groups")):
        value = facts[name]
        if value is not None and abs(value) > 0.5:
            what = "longer" if value > 0 else "shorter"
            found.append(
                (abs(value), f"The reward follows length{where} (correlation {value:.2f}): {what} answers win.")
            )
    found += [
        (p.reversed_pairs, f"{p.first} and {p.second} order {p.reversed_pairs:.0%} of the pairs the opposite way.")
        for p in pairs
        if p.reversed_pairs is not None and p.reversed_pairs > 0.25
    ]
    return [sentence for _, sentence in sorted(found, key=lambda f: -f[0])]
