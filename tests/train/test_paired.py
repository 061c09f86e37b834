"""The comparison of two policies on the same tasks: intervals by hand, coverage by simulation."""

import math

import numpy as np
import pytest

from relive.train.paired import ComparisonError, better, compared, differences, not_worse, pooled, worse

NAMES = [f"task {number}" for number in range(1_000)]


def scored(new, old):
    return differences(NAMES[: len(new)], new, old)


def test_the_interval_is_agresti_and_mins_for_matched_proportions() -> None:
    """100 tasks: 20 only the new one solves, 10 only the old one, the rest both."""
    found = compared(scored([1] * 20 + [0] * 10 + [1] * 70, [0] * 20 + [1] * 10 + [1] * 70))
    middle = 10 / 102
    error = math.sqrt(((20.5 + 10.5) - 10.0**2 / 102) / 102**2)  # their formula, with 0.5 added to each cell
    assert (found.tasks, found.mean) == (100, pytest.approx(0.1))
    assert (found.low, found.high) == pytest.approx((middle - 1.6448536 * error, middle + 1.6448536 * error))


def test_a_few_wins_are_no_certainty_even_without_a_loss() -> None:
    found = compared(scored([1, 1], [0, 0]))
    assert (found.mean, found.high) == (1.0, 1.0)
    assert found.low < 0.01  # 2 / 4 - 1.645 sqrt((3 / 4 - 1 / 4) / 4)
    assert compared({}) == (0, 0.0, -1.0, 1.0)


def test_the_same_tasks_measured_again_are_no_further_tasks() -> None:
    once = scored([1, 0, 1], [0, 0, 1])
    twice = pooled([once, scored([0, 0, 1], [0, 1, 0])])
    assert twice == {"task 0": (2, 1.0), "task 1": (2, -1.0), "task 2": (2, 1.0)}
    assert differences(["a", "a"], [1, 1], [0, 1]) == {"a": (2, 1.0)}
    found = compared(twice)
    assert (found.tasks, found.mean) == (3, pytest.approx((0.5 - 0.5 + 0.5) / 3))


def test_what_better_not_worse_and_worse_mean() -> None:
    clear = compared(scored([1] * 40 + [0] * 60, [0] * 100))
    assert better(clear, 0.1)
    assert not better(clear, 0.5), "surely better, but not by so much"
    assert not_worse(clear, 0.01)
    even = compared(scored([1, 0] * 50, [0, 1] * 50))
    assert not better(even, 0.0)
    assert not worse(even)
    assert not_worse(even, 0.2)
    assert not not_worse(even, 0.05), "100 tasks cannot show that less than 0.05 is lost"
    assert not_worse(compared(scored([1] * 100, [1] * 100)), 0.05)
    assert worse(compared(scored([0] * 100, [1] * 40 + [0] * 60)))


@pytest.mark.parametrize(("new", "old"), [([1.5], [0]), ([0], [-0.1]), ([math.nan], [0]), ([0], [math.inf])])
def test_scores_outside_0_to_1_are_refused_by_their_task(new: list[float], old: list[float]) -> None:
    with pytest.raises(ComparisonError, match="task 0"):
        scored(new, old)


def test_each_task_needs_both_scores() -> None:
    with pytest.raises(ComparisonError, match="2 tasks, 1 new scores and 2 old ones"):
        differences(["a", "b"], [1], [0, 1])


@pytest.mark.parametrize("tasks", [30, 100])
@pytest.mark.parametrize("effect", [0.0, 0.2])
def test_each_end_of_the_interval_is_exceeded_about_as_often_as_alpha_says(tasks: int, effect: float) -> None:
    rng = np.random.default_rng(tasks)
    trials = 800
    low = high = 0
    for _ in range(trials):
        chance = rng.uniform(0.0, 1.0 - effect, tasks)
        found = compared(scored(rng.random(tasks) < chance + effect, rng.random(tasks) < chance))
        low += found.low > effect
        high += found.high < effect
    margin = 4 * math.sqrt(0.05 * 0.95 / trials)  # four standard errors of the simulation
    assert low / trials < 0.05 + margin
    assert high / trials < 0.065 + margin, "adding two tasks draws the middle towards 0"
