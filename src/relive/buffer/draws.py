"""Draws without replacement in proportion to priority^alpha, and the weights of drawn experiences."""

import numpy as np

from relive.buffer._core import Drawing
from relive.buffer.blocks import HEADS
from relive.buffer.rows import NO_IDS, Floats, Ids
from relive.buffer.selector import BufferView


def distinct(view: BufferView, count: int) -> Ids:
    """Different stored ids, as successive draws without replacement would give them, in that order.

    Each next one is drawn among those that are left, in proportion to its leaf (priority^alpha). Where most of the
    buffer is asked for, each item's exponential arrival time E_i / leaf_i is drawn instead, and the earliest come
    first, which is the same (Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir").

    Args:
        view: The buffer.
        count: How many.

    Returns:
        int64 ``[min(count, drawable)]``.
    """
    index = view.index
    count = min(count, index.drawable)
    if count <= 0:
        return NO_IDS
    if index.drawable > 2 * count:
        ids: Ids = HEADS.parts(index.draw(count, Drawing.DISTINCT))["ids"]
        return ids
    ids = view.ids()
    leaves = index.leaves(ids).astype(np.float64)
    ids, leaves = ids[leaves > 0], leaves[leaves > 0]
    arrival = -np.log1p(-view.random(len(ids))) / leaves
    earliest = np.argpartition(arrival, count - 1)[:count]
    return ids[earliest[np.argsort(arrival[earliest], kind="stable")]]


def as_kept(priorities: Floats) -> Floats:
    """Raw priorities as the index keeps them: to float32's 24 bits, and no positive one becomes 0."""
    kept = np.maximum(priorities.astype(np.float32), np.finfo(np.float32).tiny)
    return np.where(priorities > 0.0, kept, 0.0).astype(np.float64)


def chances(view: BufferView, ids: Ids) -> Floats:
    """How likely one draw in proportion to the leaves is to choose each of these stored ids."""
    return view.index.leaves(ids).astype(np.float64) / view.index.total


def importance_weights(population: int | Floats, probabilities: Floats, beta: float | Floats) -> Floats:
    """(N P)^-beta over the largest of them (Schaul et al. 2016, section 3.4); never above 1.

    Args:
        population: N, one for all or float64 ``[B]``.
        probabilities: float64 ``[B]``, each positive.
        beta: 0 to 1, one for all or float64 ``[B]``.
    """
    if not len(probabilities):
        return np.ones(0)
    raw = (population * probabilities) ** -np.asarray(beta, dtype=np.float64)
    return np.asarray(raw / raw.max(), dtype=np.float64)


def apportion(targets: Floats, offset: float) -> Ids:
    """Whole numbers whose sum is the rounded sum of the targets, each target rounded up or down.

    Systematic sampling: with a uniform `offset` in [0, 1) the expectation of each number is its target.
    """
    edges = np.floor(np.round(np.concatenate([[0.0], np.cumsum(targets)]), 9) + offset)
    edges[0] = 0.0
    edges[-1] = np.round(targets.sum())
    numbers: Ids = np.diff(np.minimum(edges, edges[-1])).astype(np.int64)
    return numbers
