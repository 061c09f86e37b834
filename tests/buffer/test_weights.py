"""Importance weights, and draws without replacement."""

import itertools

import numpy as np
import pytest

from relive.buffer import Prioritized, ReplayBuffer


def filled(priorities, **settings):
    buffer = ReplayBuffer(len(priorities), sampler=Prioritized(beta_increment=0.0, **settings))
    buffer.add_batch(range(len(priorities)), priorities)
    return buffer


def batch_without_the_rare_one(buffer):
    """A batch of the items 0, 1 and 2 alone: others are drawn until it comes."""
    for _ in range(10_000):
        batch = buffer.sample(3)
        if set(batch.ids.tolist()) <= {0, 1, 2, 3}:
            return batch
    raise AssertionError


@pytest.mark.parametrize(("scale", "expected"), [("batch", 1.0), ("buffer", 0.01)])
def test_buf_07_weights_are_over_the_batch_or_the_buffer_as_asked(scale, expected):
    buffer = filled([1, 1, 1, 1, 0.01], alpha=1.0, beta=1.0, weights=scale)
    np.testing.assert_allclose(batch_without_the_rare_one(buffer).weights, expected, rtol=1e-6)
    every = buffer.sample(9)
    assert every.ids.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(every.weights, [0.01, 0.01, 0.01, 0.01, 1.0], rtol=1e-6)


def test_buf_07_the_default_is_over_the_batch():
    assert Prioritized().weights == "batch"


@pytest.mark.parametrize("scale", ["batch", "buffer"])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_buf_07_weights_agree_with_the_formula_and_never_exceed_one(alpha, beta, scale):
    rng = np.random.default_rng(0)
    priorities = np.exp(rng.uniform(-6, 6, 1000))
    buffer = filled(priorities, alpha=alpha, beta=beta, weights=scale)
    leaves = (np.float32(priorities).astype(float) ** alpha).astype(np.float32).astype(float)
    chance = leaves / leaves.sum()
    raw = (1000 * chance) ** -beta
    for _ in range(20):
        batch = buffer.sample(64)
        largest = raw.max() if scale == "buffer" else raw[batch.ids].max()
        # Leaves are float32: where the library's power rounds to the neighbouring one, both are 6e-8 apart.
        np.testing.assert_allclose(batch.probabilities, chance[batch.ids], rtol=1e-6)
        np.testing.assert_allclose(batch.weights, raw[batch.ids] / largest, rtol=1e-6)
        exact = (batch.probabilities / batch.probabilities.min()) ** -beta
        if scale == "batch":
            np.testing.assert_allclose(batch.weights, exact, rtol=1e-9)
        assert batch.weights.max() <= 1.0
        if beta == 0:
            assert (batch.weights == 1.0).all()


def test_the_smallest_priority_of_the_buffer_is_the_live_one():
    buffer = filled([1.0, 0.01, 1.0], alpha=1.0, beta=1.0, weights="buffer")
    buffer.update_priorities([1], [0.5])
    np.testing.assert_allclose(buffer.sample(9).weights, [0.5, 1.0, 0.5])
    buffer.update_priorities([1], [0.0])
    np.testing.assert_allclose(buffer.sample(9).weights, [1.0, 1.0])
    buffer.remove([0])
    np.testing.assert_allclose(buffer.sample(9).weights, [1.0])


def test_weights_at_beta_one_make_the_mean_over_batches_that_of_the_buffer():
    """E over draws of w_i x_i, w_i = 1 / (N P(i)), is the plain mean of x (importance sampling)."""
    priorities = np.array([0.5, 1.0, 2.0, 4.0, 8.0])
    x = np.array([3.0, -1.0, 0.0, 10.0, 2.0])
    buffer = filled(priorities, alpha=1.0, beta=1.0, weights="buffer")
    batches = [buffer.sample(5) for _ in range(4000)]
    scale = (len(priorities) * batches[0].probabilities * batches[0].weights)[0]  # what the weights were divided by
    mean = np.mean([(batch.weights * x[batch.ids] / scale).mean() for batch in batches])
    assert mean == pytest.approx(x.mean(), abs=0.05)


def test_without_replacement_no_batch_holds_an_experience_twice():
    buffer = filled(np.exp(np.linspace(-12, 12, 300)), replacement=False)
    for size in (1, 2, 50, 299, 300):
        ids = buffer.sample(size).ids
        assert len(set(ids.tolist())) == size
    assert buffer.sample(400).ids.tolist() == list(range(300))


def test_draws_without_replacement_are_successive_draws_from_what_is_left(fits):
    """P(i then j) = p_i p_j / (1 - p_i), summed over both orders, for all pairs of four items."""
    priorities = np.array([1.0, 2.0, 3.0, 4.0])
    p = priorities / priorities.sum()
    pairs = list(itertools.combinations(range(4), 2))
    exact = np.array([p[i] * p[j] * (1 / (1 - p[i]) + 1 / (1 - p[j])) for i, j in pairs])
    assert exact.sum() == pytest.approx(1.0)
    buffer = filled(priorities, alpha=1.0, replacement=False)
    counts = np.zeros(len(pairs))
    for _ in range(20_000):
        counts[pairs.index(tuple(sorted(buffer.sample(2).ids.tolist())))] += 1
    assert fits(counts, exact * counts.sum())


def test_draws_without_replacement_leave_the_priorities_as_they_were():
    rng = np.random.default_rng(0)
    priorities = rng.uniform(0, 3, 5000) * (rng.uniform(size=5000) < 0.5)
    buffer = filled(priorities, alpha=1.0, replacement=False)
    total = buffer._index.total
    for _ in range(50):
        batch = buffer.sample(700)
        chance = np.float32(priorities[batch.ids]).astype(float) / total
        np.testing.assert_allclose(batch.probabilities, chance, rtol=1e-12)
    assert buffer._index.total == total
    assert buffer.priorities(range(5000)).astype(np.float32).tolist() == np.float32(priorities).tolist()
