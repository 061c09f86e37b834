"""How much a model forgets while it learns one task after another, from its accuracies alone.

`accuracy[i, j]` is the accuracy on task j after the tasks 0 … i were learnt in that order. With T tasks:

- average accuracy ``mean_j a[T-1, j]``, and backward transfer ``mean_{j < T-1} (a[T-1, j] - a[j, j])``, below 0 where
  later tasks did harm: Lopez-Paz and Ranzato 2017, "Gradient episodic memory for continual learning", arXiv 1706.08840.
- forgetting ``mean_{j < T-1} (max_{i < T-1} a[i, j] - a[T-1, j])``, what was lost of the best there ever was: Chaudhry
  et al. 2018, "Riemannian walk for incremental learning", arXiv 1801.10112.

A cell that was not measured is NaN. Above the diagonal, where a task was not learnt yet, it is left out; elsewhere a
figure that needs it is NaN too, never a guess.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Forgetting(NamedTuple):
    """What a sequence of tasks did to a model.

    Attributes:
        average_accuracy: Mean over all tasks, at the end.
        backward_transfer: Mean change of the earlier tasks since each was learnt; 0 with one task.
        forgetting: Mean loss of the earlier tasks against their best; 0 with one task.
        by_task: ``[T - 1]``, the loss of each of them.
    """

    average_accuracy: float
    backward_transfer: float
    forgetting: float
    by_task: npt.NDArray[np.float64]


def forgetting(accuracy: npt.ArrayLike) -> Forgetting:
    """The figures of an accuracy matrix.

    Args:
        accuracy: ``[T, T]``, row: after which task, column: on which task; at least one task. Above the
            diagonal it may be NaN.

    Raises:
        ValueError: it is not square, is empty, or holds something that is no accuracy from 0 to 1.
    """
    matrix = np.asarray(accuracy, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(
            f"The accuracy matrix has the shape {matrix.shape}; it needs a row and a column for each task."
        )
    if np.any((matrix < 0) | (matrix > 1)):
        raise ValueError("The accuracy matrix holds a number outside 0 to 1.")
    last = matrix[-1]
    if len(matrix) == 1:
        return Forgetting(float(last[0]), 0.0, 0.0, np.empty(0))
    above = np.triu(np.ones_like(matrix, np.bool_), 1)
    known = np.where(above & np.isnan(matrix), 0.0, matrix)  # 0 is never the best of a column
    lost = (known[:-1].max(0) - last)[:-1]
    return Forgetting(
        average_accuracy=float(last.mean()),
        backward_transfer=float((last[:-1] - matrix.diagonal()[:-1]).mean()),
        forgetting=float(lost.mean()),
        by_task=lost,
    )
