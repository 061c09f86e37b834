"""Figures of forgetting, by hand."""

import math

import numpy as np
import pytest

from relive.train.forgetting import forgetting

NAN = math.nan


def test_three_tasks_by_hand() -> None:
    found = forgetting([[0.75, 0.1, 0.0], [0.5, 0.5, 0.25], [0.25, 0.75, 0.875]])
    assert found.average_accuracy == pytest.approx((0.25 + 0.75 + 0.875) / 3)
    assert found.backward_transfer == pytest.approx(((0.25 - 0.75) + (0.75 - 0.5)) / 2)
    assert found.by_task.tolist() == pytest.approx([0.75 - 0.25, 0.5 - 0.75])
    assert found.forgetting == pytest.approx((0.5 - 0.25) / 2)


def test_forgetting_is_measured_from_the_best_and_not_from_when_the_task_was_learnt() -> None:
    found = forgetting([[0.5, 0.0, 0.0], [0.875, 0.5, 0.0], [0.5, 0.5, 0.5]])
    assert found.backward_transfer == 0.0
    assert found.by_task.tolist() == [0.375, 0.0]


def test_what_a_model_could_do_before_it_was_taught_counts_where_it_was_measured() -> None:
    assert forgetting([[1.0, 0.875, 0.0], [1.0, 0.5, 0.0], [1.0, 0.5, 1.0]]).by_task.tolist() == [0.0, 0.375]
    assert forgetting([[1.0, NAN, NAN], [1.0, 0.5, NAN], [1.0, 0.5, 1.0]]).by_task.tolist() == [0.0, 0.0]


def test_with_one_task_nothing_can_be_forgotten() -> None:
    found = forgetting([[0.75]])
    assert found[:3] == (0.75, 0.0, 0.0)
    assert len(found.by_task) == 0


def test_above_the_diagonal_nothing_needs_to_be_measured() -> None:
    assert forgetting([[1.0, NAN], [0.5, 1.0]])[:3] == (0.75, -0.5, 0.5)


def test_what_was_not_measured_is_not_guessed() -> None:
    found = forgetting([[NAN, NAN], [0.5, 1.0]])
    assert found.average_accuracy == 0.75
    assert np.isnan([found.backward_transfer, found.forgetting]).all()


@pytest.mark.parametrize("accuracy", [[], [[]], [0.5], [[0.5, 0.5]], [[0.5, 0], [0.5]], [[1.5]], [[-0.1]]])
def test_what_is_no_accuracy_matrix_is_refused(accuracy: list) -> None:
    with pytest.raises(ValueError, match=r"accuracy matrix|inhomogeneous"):
        forgetting(accuracy)
