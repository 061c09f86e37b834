"""The native index: sums, draws and extremes against slow references."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.buffer import _core
from relive.buffer.blocks import HEADS

NONE = np.empty(0, dtype=np.int64)


def filled(priorities, *, capacity=None, alpha=1.0, seed=0):
    """An index that holds these priorities under the ids 0, 1, 2, ..."""
    priorities = np.asarray(priorities, dtype=np.float64)
    index = _core.Index(capacity or len(priorities), alpha, seed)
    index.replace(NONE, np.arange(len(priorities)), priorities)
    return index


def draw(index, count, beta=0.0, over_buffer=False, stratified=True):
    """ids, probabilities and weights of one draw."""
    drawing = _core.Drawing.STRATIFIED if stratified else _core.Drawing.INDEPENDENT
    parts = HEADS.parts(index.draw(count, drawing, beta, over_buffer))
    return parts["ids"], parts["probabilities"], parts["weights"]


def many(index, count, stratified=False):
    """ids and probabilities of at least `count` draws, in batches no larger than what is stored."""
    size = min(index.size, 65_536)
    parts = [draw(index, size, stratified=stratified) for _ in range(-(-count // size))]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def exact_sum(index):
    """The leaves added without rounding."""
    return math.fsum(index.leaves(index.ids()).astype(float).tolist())


def test_buf_01_no_draw_falls_on_an_unfilled_leaf(kernels):
    rng = np.random.default_rng(0)
    index = filled(np.ones(100), capacity=500)
    hits_of_last, expected, variance = 0, 0.0, 0.0
    for _ in range(200):
        priorities = rng.uniform(0, 1, 100) + 1e-8
        index.update(np.arange(100), priorities)
        ids, probabilities = many(index, 20_000)
        assert ids.min() >= 0
        assert ids.max() <= 99
        assert probabilities.min() > 0
        hits_of_last += int((ids == 99).sum())
        p = priorities[99] / priorities.sum()
        expected += 20_000 * p
        variance += 20_000 * p * (1 - p)
    assert abs(hits_of_last - expected) < 5 * math.sqrt(variance)
    assert index.locate(np.array([1.0, 0.9999999999999999])).tolist() == [99, 99]


def test_buf_01_a_draw_at_the_very_end_returns_the_last_item_with_a_positive_priority(kernels):
    index = filled([1.0, 2.0, 3.0, 0.0, 0.0])
    assert index.locate(np.array([0.0, 1.0, 0.9999999999999999])).tolist() == [0, 2, 2]


def test_buf_02_a_priority_that_was_huge_leaves_no_trace_in_the_total(kernels):
    index = filled(np.full(1024, 0.001))
    index.update(np.array([0]), np.array([1e12]))
    index.update(np.array([0]), np.array([0.001]))
    # Leaves are float32: their exact sum is 1024 times the float32 nearest to 0.001, and the total has no error on it.
    assert index.total == pytest.approx(1024 * float(np.float32(0.001)), rel=1e-15)
    assert index.total == exact_sum(index)
    assert math.fsum(index.priorities(index.ids()).tolist()) == pytest.approx(1.024, rel=1e-9)


def test_buf_02_many_updates_leave_the_total_exact(kernels):
    rng = np.random.default_rng(0)
    index = filled(np.ones(8192))
    for round_ in range(1000):
        index.update(rng.integers(0, 8192, 32), rng.uniform(0.1, 5, 32))
        if round_ % 100 == 99:
            assert index.total == pytest.approx(exact_sum(index), rel=1e-9)
            assert set(draw(index, 512)[0].tolist()) <= set(range(8192))


def test_buf_04_masses_map_to_items_in_order_at_a_capacity_of_five(kernels):
    index = filled([1, 2, 3, 4, 5])
    assert index.locate(np.array([0.5, 1.5, 3.5, 7.0, 14.9]) / 15).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("capacity", [3, 5, 6, 7, 1000])
def test_buf_04_shares_follow_priorities_at_any_capacity(capacity, kernels, fits):
    priorities = np.arange(1.0, capacity + 1)
    index = filled(priorities)
    ids, probabilities = many(index, 200_000)
    exact = priorities / priorities.sum()
    np.testing.assert_allclose(probabilities, exact[ids], rtol=1e-12)
    counts = np.bincount(ids, minlength=capacity)
    np.testing.assert_allclose(counts / len(ids), exact, atol=0.005)
    assert fits(counts, exact * len(ids))


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("size", [5, 1000])
def test_draw_frequencies_agree_with_priorities_over_twelve_powers_of_e(size, stratified, fits):
    rng = np.random.default_rng(1)
    priorities = np.exp(rng.uniform(-6, 6, size))
    index = filled(priorities, seed=3)
    counts = np.bincount(many(index, 500_000, stratified)[0], minlength=size)
    expected = priorities / priorities.sum() * counts.sum()
    common = expected >= 5  # where Pearson's test is valid; the rest counts as one
    folded = np.append(counts[common], counts[~common].sum()), np.append(expected[common], expected[~common].sum())
    kept = folded[1] > 0
    # Stratified draws vary less than independent ones: the statistic lies below the critical value all the more.
    assert fits(folded[0][kept], folded[1][kept])


def test_draws_of_a_million_items_agree_with_priorities(fits):
    rng = np.random.default_rng(2)
    size = 2**20
    priorities = np.exp(rng.uniform(-6, 6, size))
    index = filled(priorities)
    bins = np.arange(size) // 1024  # 1,024 groups of neighbours
    counts = np.bincount(bins[many(index, 16 * 65_536)[0]], minlength=1024)
    expected = np.bincount(bins, weights=priorities) / priorities.sum() * 16 * 65_536
    assert fits(counts, expected)


def test_an_explicit_zero_is_never_drawn(kernels):
    rng = np.random.default_rng(4)
    priorities = rng.uniform(0.1, 2, 10_007) * (rng.uniform(size=10_007) < 0.1)
    index = filled(priorities)
    for _ in range(1000):
        ids = draw(index, 1000)[0]
        assert (priorities[ids] > 0).all()


@given(
    capacity=st.integers(1, 1100),
    writes=st.lists(
        st.tuples(st.integers(0, 10**9), st.one_of(st.just(0.0), st.floats(2.0**-20, 2.0**20, width=32))), max_size=60
    ),
    batch=st.integers(1, 40),
)
@settings(max_examples=150, deadline=None)
def test_the_tree_agrees_with_a_plain_array(capacity, writes, batch):
    index = filled(np.ones(capacity))
    plain = np.ones(capacity)
    for start in range(0, len(writes), batch):
        ids = np.array([place % capacity for place, _ in writes[start : start + batch]], dtype=np.int64)
        values = np.array([value for _, value in writes[start : start + batch]], dtype=np.float64)
        index.update(ids, values)
        for id_, value in zip(ids, values, strict=True):
            plain[id_] = value
        assert index.total == pytest.approx(math.fsum(plain), rel=1e-12)
        assert index.drawable == np.count_nonzero(plain)
        positive = plain[plain > 0]
        assert np.float32(index.default_priority(NONE)) == (plain.max() if len(positive) else 1.0)
        if len(positive):
            ids_drawn, probabilities, weights = draw(index, 3, beta=1.0, over_buffer=True)
            np.testing.assert_allclose(probabilities, plain[ids_drawn] / plain.sum(), rtol=1e-9)
            np.testing.assert_allclose(weights, positive.min() / plain[ids_drawn], rtol=1e-9)
            cumulative = np.cumsum(plain)
            shares = np.array([0.1, 0.37, 0.5, 0.93])
            for share, found in zip(shares, index.locate(shares), strict=True):
                before = cumulative[found] - plain[found]
                slack = 1e-9 * cumulative[-1]
                assert plain[found] > 0
                assert before - slack <= share * cumulative[-1] <= cumulative[found] + slack


@given(
    st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=40),
    st.sampled_from([0.1, 0.5, 0.6, 0.7, 1.0]),
    st.floats(0, 1),
)
@settings(max_examples=150, deadline=None)
def test_leaves_and_weights_agree_with_the_library_power(priorities, alpha, beta):
    index = filled(priorities, alpha=alpha)
    leaves = index.leaves(np.arange(len(priorities)))
    reference = np.maximum(np.float32(priorities).astype(float) ** alpha, np.finfo(np.float32).tiny).astype(np.float32)
    np.testing.assert_array_max_ulp(leaves, reference, maxulp=1)
    ids, probabilities, weights = draw(index, 16, beta=beta)
    exact = leaves.astype(float) / math.fsum(leaves.astype(float).tolist())
    np.testing.assert_allclose(probabilities, exact[ids], rtol=1e-9)
    raw = (len(priorities) * exact[ids]) ** -beta
    np.testing.assert_allclose(weights, raw / raw.max(), rtol=1e-9)
    assert weights.max() <= 1.0


def test_both_kernels_draw_the_same():
    rng = np.random.default_rng(5)
    priorities = np.exp(rng.uniform(-6, 6, 70_001))
    drawn = {}
    before = _core.kernels()
    for name in ("avx2", "portable"):
        if not _core.use_kernels(name):
            pytest.skip("this processor has no AVX2")
        index = filled(priorities, alpha=0.6, seed=11)
        index.update(np.arange(0, 70_001, 97), np.linspace(0, 5, 722))
        drawn[name] = [draw(index, count, beta=0.4) for count in (1, 7, 16, 300, 4096)]
    _core.use_kernels(before)
    for fast, slow in zip(drawn["avx2"], drawn["portable"], strict=True):
        for a, b in zip(fast, slow, strict=True):
            assert a.tobytes() == b.tobytes()


def test_the_random_stream_is_xoshiro256_plus_plus_seeded_by_splitmix64():
    """Against a direct transcription of the authors' reference code."""
    mask = 2**64 - 1

    def splitmix(state):
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def rotate(x, k):
        return ((x << k) | (x >> (64 - k))) & mask

    s = [splitmix((42 + 0x9E3779B97F4A7C15 * (i + 1)) & mask) for i in range(4)]
    index = _core.Index(4, 1.0, 42)
    assert index.random_state == s
    expected = []
    for _ in range(5):
        expected.append(((rotate((s[0] + s[3]) & mask, 23) + s[0]) & mask) >> 11)
        t = (s[1] << 17) & mask
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotate(s[3], 45)
    assert index.random(5).tolist() == [value * 2.0**-53 for value in expected]


def test_ten_million_draws_find_no_explicit_zero_among_nine_tenths():
    rng = np.random.default_rng(6)
    size = 2**20
    priorities = rng.uniform(0.1, 2, size) * (rng.uniform(size=size) < 0.1)
    index = filled(priorities)
    for _ in range(153):
        assert (priorities[draw(index, 65_536, stratified=False)[0]] > 0).all()


def test_ten_million_updates_leave_the_total_exact():
    """The benchmark does the same with 10^8."""
    rng = np.random.default_rng(7)
    index = filled(np.ones(2**16))
    ids = rng.integers(0, 2**16, 2**18)
    priorities = np.exp(rng.uniform(-6, 6, 2**18))
    for _ in range(38):
        for start in range(0, 2**18, 4096):
            index.update(ids[start : start + 4096], priorities[start : start + 4096])
    assert index.total == pytest.approx(exact_sum(index), rel=1e-9)
