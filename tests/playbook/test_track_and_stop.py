"""Track-and-stop: proportions by going through all of them, stopping by hand, errors by simulation."""

import itertools
import math

import numpy as np
import pytest

from relive.playbook.track_and_stop import optimal, proportions, standing


def divergence(p: float, q: float) -> float:
    return sum(a * math.log(a / b) for a, b in ((p, q), (1 - p, 1 - q)) if a > 0)


def evidence(means: list[float], shares: list[float]) -> float:
    """By how much an episode tells the best arm from the one most like it, at these shares."""
    best = means.index(max(means))
    found = []
    for other in range(len(means)):
        if other != best:
            weight = shares[best] + shares[other]
            middle = (shares[best] * means[best] + shares[other] * means[other]) / weight
            found.append(
                shares[best] * divergence(means[best], middle) + shares[other] * divergence(means[other], middle)
            )
    return min(found)


@pytest.mark.parametrize("means", [[0.5, 0.45, 0.43], [0.3, 0.7, 0.1], [0.9, 0.2, 0.85]])
def test_no_other_proportions_find_the_best_arm_sooner(means: list[float]) -> None:
    shares = [float(one) for one in optimal(np.array(means))]
    assert sum(shares) == pytest.approx(1.0)
    grid = np.arange(0.01, 1.0, 0.01)
    best = max(evidence(means, [a, b, 1 - a - b]) for a, b in itertools.product(grid, grid) if a + b < 0.995)
    assert evidence(means, shares) >= best * (1 - 1e-4)
    assert evidence(means, shares) <= best * 1.01


def test_two_arms_of_which_neither_is_special_get_half_each_and_equal_ones_do_too() -> None:
    assert optimal(np.array([0.6, 0.4])) == pytest.approx([0.5, 0.5], abs=1e-3)  # symmetric around one half
    assert optimal(np.array([0.3, 0.3, 0.3])) == pytest.approx([1 / 3] * 3)


def test_no_arm_is_given_up_for_a_bad_start() -> None:
    shares = proportions(np.array([1.0, 50.0, 50.0]), np.array([0.0, 45.0, 10.0]))
    assert shares.sum() == pytest.approx(1.0)
    assert shares.min() >= 0.5 / math.sqrt(9 + 101)


def test_it_is_known_when_the_likelihood_ratio_is_above_the_papers_threshold() -> None:
    # 8 and 2 successes of 10: both together 0.5, so 20 · kl(0.8, 0.5); the threshold is log(2 · 20 · 1 / 0.05)
    found = standing(np.array([10.0, 10.0]), np.array([2.0, 8.0]), 0.05)
    assert found.best == 1
    assert found.evidence == pytest.approx(20 * (0.8 * math.log(1.6) + 0.2 * math.log(0.4)))
    assert found.needed == pytest.approx(math.log(800))
    assert not found.known
    assert standing(np.array([20.0, 20.0]), np.array([4.0, 16.0]), 0.05).known
    assert not standing(np.array([99.0, 0.0]), np.array([99.0, 0.0]), 0.5).known, "an arm was never tried"
    assert standing(np.array([9.0, 9.0]), np.array([9.0, 9.0]), 0.5).evidence < 1e-9


def simulate(means: list[float], delta: float, rng: np.random.Generator, *, track: bool) -> tuple[int, int]:
    """The arm that is chosen and the episodes it took; outcomes become known twenty at a time."""
    count, good = np.zeros(len(means)), np.zeros(len(means))
    while True:
        shares = proportions(count, good) if track else np.full(len(means), 1 / len(means))
        arms = rng.choice(len(means), 20, p=shares)
        np.add.at(count, arms, 1.0)
        np.add.at(good, arms, rng.random(20) < np.array(means)[arms])
        found = standing(count, good, delta)
        if found.known:
            return found.best, int(count.sum())


def test_the_wrong_arm_is_chosen_no_more_often_than_delta_and_sooner_than_by_even_shares() -> None:
    means, delta = [0.55, 0.8, 0.3, 0.2, 0.3], 0.1
    tracked = [simulate(means, delta, np.random.default_rng(seed), track=True) for seed in range(200)]
    even = [simulate(means, delta, np.random.default_rng(seed), track=False) for seed in range(200)]
    assert sum(best != 1 for best, _ in tracked) <= delta * 200
    assert np.mean([episodes for _, episodes in tracked]) < 0.75 * np.mean([episodes for _, episodes in even])


def test_equal_arms_are_told_apart_no_more_often_than_delta() -> None:
    wrong = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        count, good = np.zeros(2), np.zeros(2)
        for _ in range(60):
            arms = rng.choice(2, 10, p=proportions(count, good))
            np.add.at(count, arms, 1.0)
            np.add.at(good, arms, rng.random(10) < 0.5)
            if standing(count, good, 0.1).known:
                wrong += 1
                break
    assert wrong <= 20
