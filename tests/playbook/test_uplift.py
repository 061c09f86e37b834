"""Uplift: the estimate by enumeration, the interval by the paper's formula, decisions by simulation."""

import importlib.util
import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from relive.playbook import uplift
from relive.playbook.uplift import NOTHING, Rules, add, assigned, gather, interval, judge, shrink

KEY = b"secret"


def simulation():  # the benchmark's own simulation, in a smaller form
    folder = Path(__file__).parents[2] / "benchmarks"
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("playbook_benchmark", folder / "playbook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_estimate_is_unbiased_over_all_assignments_even_when_the_share_held_out_changes() -> None:
    if_shown, if_held = [1.0, 0.0, 1.0, 0.5, 1.0], [0.0, 0.0, 1.0, 0.25, 1.0]
    propensity = [0.5, 0.5, 0.9, 0.9, 0.3]
    mean = 0.0
    for shown in itertools.product([False, True], repeat=5):
        chance = math.prod(p if z else 1 - p for z, p in zip(shown, propensity, strict=True))
        evidence = NOTHING
        for z, p, one, zero in zip(shown, propensity, if_shown, if_held, strict=True):
            evidence = add(evidence, z, p, one if z else zero)
        mean += chance * float(interval(evidence).estimate)
    assert mean == pytest.approx((1.0 + 0.0 + 0.0 + 0.25 + 0.0) / 5, abs=1e-12)


def test_evidence_gathered_at_once_is_evidence_added_one_by_one() -> None:
    rng = np.random.default_rng(0)
    shown, outcome = rng.random(50) < 0.6, rng.random(50)
    propensity = rng.uniform(0.2, 0.9, 50)
    slow = NOTHING
    for z, p, y in zip(shown, propensity, outcome, strict=True):
        slow = add(slow, bool(z), float(p), float(y))
    assert gather(shown, propensity, outcome) == pytest.approx(slow)
    assert gather(shown[:0], propensity[:0], outcome[:0]) == NOTHING


def test_lessons_in_an_array_are_counted_as_each_alone() -> None:
    zeros = np.zeros(2)
    both = add(uplift.Evidence(*[zeros] * 6), np.array([True, False]), 0.5, np.array([1.0, 0.5]))
    both = add(both, np.array([True, True]), np.array([0.5, 0.9]), np.array([0.0, 1.0]), np.array([False, True]))
    first = add(NOTHING, True, 0.5, 1.0)
    second = add(add(NOTHING, False, 0.5, 0.5), True, 0.9, 1.0)
    for number, alone in enumerate((first, second)):
        assert [float(column[number]) for column in both] == pytest.approx(list(alone))


def test_the_interval_is_the_papers_boundary_around_the_mean_score() -> None:
    # 1,000 scores of mean 0.1 whose squares sum to 1,010: deviations 1,010 - 1,000 · 0.01 = 1,000, variance 1 with the
    # prior's five scores of variance 1; ρ² = (5.9915 + 1.7903 + 1) / 1,000
    evidence = uplift.Evidence(1000.0, 500.0, 300.0, 250.0, 100.0, 1010.0)
    found = interval(evidence, alpha=0.05, tightest_at=1000)
    spread, rho = 1000.0, (-2 * math.log(0.05) + math.log(-2 * math.log(0.05)) + 1) / 1000
    margin = math.sqrt(2 * (spread * rho + 1) / rho * math.log(math.sqrt(spread * rho + 1) / 0.05)) / 1000
    assert margin == pytest.approx(0.0960, abs=1e-4)  # by hand
    assert (found.estimate, found.low, found.high) == pytest.approx((0.1, 0.1 - margin, 0.1 + margin))
    assert found.error == pytest.approx(math.sqrt(1 / 1000))


def test_without_any_call_the_interval_says_that_nothing_is_known() -> None:
    assert interval(NOTHING) == (0.0, -1.0, 1.0, 1.0)


def test_ten_successes_with_a_lesson_alone_prove_nothing() -> None:
    evidence = NOTHING
    for _ in range(10):
        evidence = add(evidence, True, 0.5, 1.0)
    assert interval(evidence).low < 0 < interval(evidence).high
    assert uplift.VERDICTS[judge(evidence, Rules())] == "testing"


def test_an_assignment_is_the_same_each_time_and_splits_as_its_propensity_says() -> None:
    names = [f"episode {n}" for n in range(20_000)]
    for propensity in (0.5, 0.9):
        shown = [assigned(KEY, 1, name, propensity) for name in names]
        assert shown == [assigned(KEY, 1, name, propensity) for name in names]
        error = math.sqrt(propensity * (1 - propensity) / len(names))
        assert abs(np.mean(shown) - propensity) < 4 * error
    assert not any(assigned(KEY, 1, name, 0.0) for name in names)
    assert all(assigned(KEY, 1, name, 1.0) for name in names)


def test_assignments_of_two_lessons_and_under_two_keys_have_nothing_to_do_with_each_other() -> None:
    names = [f"episode {n}" for n in range(20_000)]
    one, two, other = (
        np.array([assigned(key, lesson, name, 0.5) for name in names])
        for key, lesson in ((KEY, 1), (KEY, 2), (b"another", 1))
    )
    for a, b in ((one, two), (one, other)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(len(names))


def test_who_is_shown_a_lesson_that_is_tested_is_shown_it_once_it_is_settled_too() -> None:
    names = [f"episode {n}" for n in range(1000)]
    assert all(assigned(KEY, 1, name, 0.9) for name in names if assigned(KEY, 1, name, 0.5))


@pytest.mark.parametrize(
    ("estimate", "calls", "proved", "verdict"),
    [
        (-0.2, 1000, False, "harmful"),
        (-0.2, 1000, True, "harmful"),
        (0.2, 1000, False, "proved"),
        (0.0, 1000, False, "testing"),
        (0.0, 1700, False, "useless"),  # its time is over
        (0.0, 1700, True, "proved"),  # once proved, only its interval speaks
        (0.05, 1500, False, "testing"),
        (-0.05, 20_000, False, "harmful"),
        (0.0, 30_000, True, "useless"),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_time_given(
    estimate: float, calls: int, proved: bool, verdict: str
) -> None:
    evidence = uplift.Evidence(calls, calls / 2, 0.0, 0.0, estimate * calls, calls * (1 + estimate**2))
    assert uplift.VERDICTS[judge(evidence, Rules(), proved)] == verdict


def test_shrunken_estimates_are_those_of_the_textbook_formula() -> None:
    # Two estimates 0.3 and -0.1 with errors 0.1: weights 100, mean 0.1, Q = 8, scale = 200 - 100 = 100, τ² = 0.07.
    found = shrink([0.3, -0.1], [0.1, 0.1])
    assert found.prior_mean == pytest.approx(0.1)
    assert found.prior_error**2 == pytest.approx(0.07)
    expected = (0.1 / 0.07 + np.array([0.3, -0.1]) / 0.01) / (1 / 0.07 + 1 / 0.01)
    assert found.means == pytest.approx(expected)
    assert found.errors == pytest.approx([math.sqrt(1 / (1 / 0.07 + 100))] * 2)


def test_a_lucky_start_does_not_outrank_a_proved_lesson() -> None:
    found = shrink([0.50, 0.15, 0.0, 0.02, -0.01], [0.40, 0.02, 0.02, 0.02, 0.02])
    assert np.argmax(found.means) == 1


@pytest.mark.parametrize("together", [False, True])
def test_of_twenty_planted_lessons_the_right_ones_are_retired_and_intervals_cover_at_every_look(together: bool) -> None:
    module = simulation()
    found = module.simulate(module.EFFECTS, runs=20, calls=2_000, together=together, seed=7)
    assert found.always.mean() >= 0.93
    assert found.retired[:, 15:].mean() >= 0.90
    assert found.retired[:, 5:15].mean() >= 0.50
    assert found.retired[:, :5].mean() <= 0.05


@pytest.mark.parametrize("bad", [{"alpha": 0.0}, {"new": 1.0}, {"settled": float("nan")}, {"probation": 5}])
def test_rules_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Rules(**bad)
