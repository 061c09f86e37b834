"""`ReplayBuffer` over Python objects: what it draws, keeps, refuses and reports."""

import json
import random
import sys
import threading

import numpy as np
import pytest

import relive
from relive.buffer import (
    BufferSettingError,
    BufferStateError,
    Fifo,
    InvalidPriorityError,
    NotEnoughExperiencesError,
    Prioritized,
    ReplayBuffer,
    Selection,
    Selector,
    Uniform,
)
from relive.experience import Transition


def plain(alpha=1.0, **settings):
    """A sampler whose leaves are the priorities themselves and whose epsilon is 0."""
    return Prioritized(alpha=alpha, beta=1.0, epsilon=0.0, **settings)


def with_priorities(priorities, capacity=None, **settings):
    buffer = ReplayBuffer(capacity or len(priorities), sampler=plain(**settings))
    ids = buffer.add_batch([f"experience {i}" for i in range(len(priorities))], priorities)
    return buffer, ids


def drawn_ids(buffer, batches=200):
    """Ids of many batches, each as large as the buffer."""
    return np.concatenate([buffer.sample(len(buffer)).ids for _ in range(batches)])


def total(buffer):
    return float(buffer.priorities(buffer.state_dict()["index"]["ids"]).sum())


# ---- Adding and drawing


def test_a_batch_holds_what_was_added_under_its_ids():
    buffer = ReplayBuffer(100)
    ids = [buffer.add({"n": n}) for n in range(10)]
    assert ids == list(range(10))
    batch = buffer.sample(6)
    assert len(batch) == 6
    assert batch.ids.dtype == np.int64
    assert [experience["n"] for experience in batch.experiences] == batch.ids.tolist()
    np.testing.assert_allclose(batch.probabilities, 0.1)
    np.testing.assert_allclose(batch.weights, 1.0)


def test_the_oldest_leave_first():
    buffer = ReplayBuffer(3)
    for n in range(8):
        buffer.add(n)
    assert len(buffer) == 3
    assert buffer.sample(10).experiences == [5, 6, 7]


def test_an_empty_buffer_gives_an_empty_batch():
    batch = ReplayBuffer(5).sample(4)
    assert len(batch) == 0
    assert batch.shortfall == 4
    assert list(batch.experiences) == []
    assert len(ReplayBuffer(5, sampler=Uniform()).sample(0)) == 0


def test_weights_follow_the_paper():
    """Schaul et al. 2016, section 3.4: w = (N P(i))^-beta, over the largest, by hand: P = 1/6, 2/6, 3/6."""
    buffer, _ = with_priorities([1.0, 2.0, 3.0])
    batch = buffer.sample(5)
    assert batch.ids.tolist() == [0, 1, 2]
    np.testing.assert_allclose(batch.probabilities, [1 / 6, 2 / 6, 3 / 6], rtol=1e-12)
    np.testing.assert_allclose(batch.weights, [1.0, 1 / 2, 1 / 3], rtol=1e-12)


def test_beta_grows_with_each_draw_up_to_one():
    sampler = Prioritized(beta=0.9985, beta_increment=0.001)
    buffer = ReplayBuffer(4, sampler=sampler)
    buffer.add_batch("abcd", [1, 2, 3, 4])
    for expected in (0.9985, 0.9995, 1.0, 1.0):
        assert sampler.beta == pytest.approx(expected, abs=1e-12)
        buffer.sample(2)


def test_uniform_draws_ignore_priorities_but_not_zero(fits):
    buffer = ReplayBuffer(4, sampler=Uniform())
    buffer.add_batch("abcd", [1.0, 1000.0, 0.001, 0.0])
    counts = np.bincount(drawn_ids(buffer, 5000), minlength=4)
    assert counts[3] == 0
    assert fits(counts[:3], np.full(3, counts.sum() / 3))
    full = ReplayBuffer(1000, sampler=Uniform())
    full.add_batch(range(1500))
    counts = np.bincount(drawn_ids(full, 200) - 500, minlength=1000)
    assert fits(counts, np.full(1000, 200.0))
    assert (full.sample(5).weights == 1).all()


def test_the_priority_rule_sets_what_is_not_given():
    buffer = ReplayBuffer(10, sampler=plain(), priority=lambda experience: experience["reward"] + 1.0)
    buffer.add({"reward": 3.0})
    buffer.add_batch([{"reward": 0.0}, {"reward": 1.5}])
    buffer.add({"reward": 3.0}, priority=0.25)
    assert buffer.priorities([0, 1, 2, 3]).tolist() == [4.0, 1.0, 2.5, 0.25]


def test_td_errors_become_their_absolute_value_plus_epsilon():
    buffer = ReplayBuffer(4, sampler=Prioritized(alpha=1.0, epsilon=0.5))
    buffer.add_batch("abc")
    assert buffer.update_priorities([0, 1, 2], td_errors=[-2.0, 0.0, 1.0]) == 3
    assert buffer.priorities([0, 1, 2]).tolist() == [2.5, 0.5, 1.5]


# ---- Cases


def test_buf_05_stale_update_is_ignored():
    buffer, _ = with_priorities([1.0, 1.0, 1.0, 1.0])
    a = buffer.sample(4).ids[:1]
    assert a.tolist() == [0]
    buffer.add("E")
    before = total(buffer)
    assert buffer.update_priorities(a, [100.0]) == 0
    assert buffer.priorities([4]).tolist() == [1.0]
    assert total(buffer) == before == 4.0
    assert buffer.stats().stale_updates == 1


def test_buf_05_stale_update_is_ignored_after_removal_and_after_a_reload():
    buffer, _ = with_priorities([1.0, 1.0, 1.0, 1.0])
    kept = buffer.sample(4).ids
    assert buffer.remove([1, 1]) == 1
    assert buffer.remove([1]) == 0
    twin, _ = with_priorities([5.0, 5.0, 5.0, 5.0])
    twin.load_state_dict(buffer.state_dict())
    for each in (buffer, twin):
        new = each.add("E")  # takes the slot that id 1 had
        assert new == 4
        assert each.update_priorities(kept, [2.0, 100.0, 2.0, 2.0]) == 3
        assert each.priorities([4]).tolist() == [1.0]
        assert total(each) == 7.0
        assert each.stats().stale_updates == 1


def test_buf_08_a_new_item_gets_the_largest_live_priority_not_the_largest_ever():
    buffer = ReplayBuffer(4, sampler=plain())
    buffer.add("X", priority=1e6)
    for name in "abcd":
        buffer.add(name, priority=0.1)
    new = buffer.add("e")
    assert buffer.priorities([new]).tolist() == [0.1]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_buf_08_the_default_is_the_same_as_the_explicit_priority(alpha):
    buffer = ReplayBuffer(8, sampler=Prioritized(alpha=alpha))
    first = buffer.add("a", priority=0.75)
    buffer.add("b", priority=0.2)
    new = buffer.add("c")
    many = buffer.add_batch("de")
    leaves = buffer.state_dict()["index"]["leaves"]
    assert leaves[new] == leaves[first] == leaves[many[0]] == leaves[many[1]]
    if alpha:
        assert buffer.priorities([new]).tolist() == [0.75]


def test_buf_08_an_empty_buffer_starts_at_one():
    buffer = ReplayBuffer(8, sampler=plain())
    assert buffer.priorities([buffer.add("a")]).tolist() == [1.0]
    silent = ReplayBuffer(8, sampler=plain())
    silent.add("never drawn", priority=0.0)
    assert silent.priorities([silent.add("b")]).tolist() == [1.0]


def test_buf_10_of_an_id_named_twice_the_last_value_counts():
    buffer, _ = with_priorities([1.0, 1.0, 1.0, 1.0])
    buffer.update_priorities([2, 2], [5.0, 0.5])
    assert buffer.priorities([2]).tolist() == [0.5]
    assert buffer._index.total == 3.5
    buffer.update_priorities([2, 2], [5.0, 5.0])
    assert buffer.priorities([2]).tolist() == [5.0]
    assert buffer._index.total == 8.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), -0.5, 1e308])
def test_buf_11_a_bad_priority_is_refused_and_nothing_is_half_applied(bad):
    buffer, _ = with_priorities([1.0] * 8)
    with pytest.raises(InvalidPriorityError, match="experience 3"):
        buffer.update_priorities([3], [bad])
    with pytest.raises(InvalidPriorityError, match="experience 3"):
        buffer.update_priorities([0, 1, 3, 4, 5], [2.0, 2.0, bad, bad, 2.0])
    with pytest.raises(InvalidPriorityError):
        buffer.add("new", priority=bad)
    with pytest.raises(InvalidPriorityError, match="experience 1 of the new ones"):
        buffer.add_batch("ab", [1.0, bad])
    assert buffer._index.total == 8.0
    assert buffer.priorities(range(8)).tolist() == [1.0] * 8
    assert buffer.stats().added == 8


def test_buf_11_a_nan_or_infinite_td_error_is_refused():
    buffer, _ = with_priorities([1.0] * 8)
    for bad in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(InvalidPriorityError, match="experience 3"):
            buffer.update_priorities([2, 3], td_errors=[0.5, bad])
    assert buffer._index.total == 8.0


def test_buf_11_the_largest_priorities_leave_the_total_finite():
    buffer, _ = with_priorities([1.0] * 8)
    buffer.update_priorities([3, 4], [3.4e38, 3.4e38])
    assert np.isfinite(buffer._index.total)
    assert set(buffer.sample(8).ids.tolist()) == {3, 4}
    buffer.update_priorities([3, 4], [1.0, 1.0])
    assert buffer._index.total == 8.0


def test_buf_11_a_td_error_of_zero_becomes_epsilon_and_an_explicit_zero_is_never_drawn():
    buffer = ReplayBuffer(8, sampler=Prioritized(alpha=1.0, epsilon=1e-6))
    buffer.add_batch("abcdefgh")
    buffer.update_priorities([0], td_errors=[0.0])
    assert buffer.priorities([0]).tolist() == [1e-6]
    buffer.update_priorities([3], [0.0])
    assert buffer.priorities([3]).tolist() == [0.0]
    assert 3 not in drawn_ids(buffer)
    assert 3 in buffer.state_dict()["index"]["ids"]


def test_buf_11_alpha_zero_gives_uniform_shares(fits):
    buffer, _ = with_priorities([0.001, 1.0, 50.0, 1e6], alpha=0.0)
    batch = buffer.sample(4)
    np.testing.assert_allclose(batch.probabilities, 0.25)
    assert fits(np.bincount(drawn_ids(buffer, 2000)), np.full(4, 2000.0))


def test_buf_11_a_tiny_priority_does_not_become_zero():
    buffer, _ = with_priorities([1e-60, 5e-324], alpha=0.6)
    assert sorted(buffer.sample(4).ids.tolist()) == [0, 1]


def test_buf_18_more_than_the_capacity_in_one_call_keeps_the_last():
    buffer = ReplayBuffer(1)
    ids = buffer.add_batch([f"row {i}" for i in range(16)])
    assert ids.tolist() == list(range(16))
    assert buffer.stats().evicted == 15
    assert buffer.sample(16).experiences == ["row 15"]


@pytest.mark.parametrize("sampler", [Prioritized, Uniform])
def test_buf_18_asking_for_more_than_is_stored_gives_each_once(sampler):
    buffer = ReplayBuffer(100, sampler=sampler())
    buffer.add_batch(range(5))
    batch = buffer.sample(8)
    assert batch.experiences == [0, 1, 2, 3, 4]
    assert batch.requested == 8
    assert batch.shortfall == 3
    with pytest.raises(NotEnoughExperiencesError, match="batch of 8 was asked for, but only 5 of the 5"):
        buffer.sample(8, strict=True)


@pytest.mark.parametrize("sampler", [Prioritized, Uniform])
def test_buf_18_experiences_with_priority_zero_do_not_fill_a_batch(sampler):
    buffer = ReplayBuffer(100, sampler=sampler())
    buffer.add_batch(range(5), [1.0, 0.0, 2.0, 0.0, 0.0])
    assert buffer.sample(4).experiences == [0, 2]
    assert buffer.sample(4).shortfall == 2
    assert len(buffer.sample(2)) == 2
    with pytest.raises(NotEnoughExperiencesError, match="only 2 of the 5"):
        buffer.sample(4, strict=True)
    buffer.update_priorities([0, 2], [0.0, 0.0])
    assert len(buffer.sample(4)) == 0


class OnePerTask(Selector):
    """At most one experience of each task in a batch."""

    def __init__(self):
        self.newest = {}

    def insert(self, ids, priorities, experiences):
        for id_, experience in zip(ids.tolist(), experiences, strict=True):
            self.newest[experience["task"]] = id_

    def select(self, count):
        chosen = np.array(list(self.newest.values())[:count], dtype=np.int64)
        return Selection(ids=chosen, probabilities=np.ones(len(chosen)))


def test_buf_18_a_diversity_limit_reports_its_shortfall():
    buffer = ReplayBuffer(100, sampler=OnePerTask())
    buffer.add_batch([{"task": n % 3} for n in range(5)])
    batch = buffer.sample(8)
    assert len(batch) == 3
    assert batch.shortfall == 5
    with pytest.raises(NotEnoughExperiencesError):
        buffer.sample(4, strict=True)


# ---- Custom selectors as removers


class Lowest(Selector):
    """The lowest priority leaves first."""

    def __init__(self):
        self.priority_of = {}

    def insert(self, ids, priorities, experiences):
        self.priority_of.update(zip(ids.tolist(), priorities.tolist(), strict=True))

    def delete(self, ids):
        for id_ in ids.tolist():
            del self.priority_of[id_]

    update = lambda self, ids, priorities: self.insert(ids, priorities, ())  # noqa: E731

    def reset(self):
        self.priority_of = {}

    def select(self, count):
        chosen = sorted(self.priority_of, key=self.priority_of.get)[:count]
        return Selection(ids=np.array(chosen, dtype=np.int64), probabilities=np.ones(len(chosen)))


def test_a_remover_chooses_who_leaves_and_survives_a_reload():
    buffer = ReplayBuffer(3, sampler=plain(), remover=Lowest())
    buffer.add_batch("abc", [2.0, 1.0, 3.0])
    buffer.add("d")  # b leaves; the largest live priority is 3
    assert buffer.sample(9).experiences == ["a", "c", "d"]
    buffer.update_priorities([0, 2], [9.0, 0.5])
    twin = ReplayBuffer(3, sampler=plain(), remover=Lowest())
    twin.load_state_dict(buffer.state_dict())
    for each in (buffer, twin):
        each.add_batch("ef", [4.0, 5.0])
        assert each.sample(9).experiences == ["a", "e", "f"]
        assert each.stats().evicted == 3


def test_a_sampler_serves_one_buffer_only():
    sampler = Prioritized()
    ReplayBuffer(3, sampler=sampler)
    with pytest.raises(BufferSettingError, match="already serves another buffer"):
        ReplayBuffer(3, sampler=sampler)


def test_fifo_as_a_sampler_gives_the_oldest():
    buffer = ReplayBuffer(3, sampler=Fifo())
    buffer.add_batch("abcd")
    assert buffer.sample(2).experiences == ["b", "c"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -0.1}, "alpha is -0.1"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"beta": 1.5}, "beta is 1.5; it must be between 0 and 1"),
        ({"beta_increment": -1}, "beta_increment"),
        ({"epsilon": float("inf")}, "epsilon is inf"),
        ({"weights": "memory"}, "weights is 'memory'"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(settings, message):
    with pytest.raises(BufferSettingError, match=message):
        Prioritized(**settings)


def test_arguments_of_the_wrong_shape_are_refused():
    with pytest.raises(BufferSettingError, match="capacity is 0"):
        ReplayBuffer(0)
    buffer, _ = with_priorities([1.0, 2.0])
    with pytest.raises(BufferSettingError, match="batch_size is -1"):
        buffer.sample(-1)
    with pytest.raises(InvalidPriorityError, match="There are 1 values for 2 ids"):
        buffer.update_priorities([0, 1], [1.0])
    with pytest.raises(InvalidPriorityError, match="exactly one"):
        buffer.update_priorities([0])
    with pytest.raises(InvalidPriorityError, match="3 priorities for 2 experiences"):
        buffer.add_batch("ab", [1, 2, 3])
    with pytest.raises(InvalidPriorityError, match="must be numbers"):
        buffer.add_batch("ab", ["high", "low"])
    with pytest.raises(InvalidPriorityError, match="must be a number"):
        buffer.add("a", priority="high")
    with pytest.raises(BufferSettingError, match="ids have type float64"):
        buffer.update_priorities([0.5], [1.0])


# ---- State


def test_stats_count_rewards_and_costs():
    buffer = ReplayBuffer(4, sampler=plain())
    buffer.add(Transition(state=1, action=1, reward=0.5, cost=2_000_000), priority=2.0)
    buffer.add(Transition(state=1, action=2, reward=-1.0), priority=1.0)
    buffer.add({"reward": 2.0, "cost": 500_000}, priority=1.0)
    buffer.add("nothing known", priority=0.0)
    buffer.sample(4)
    buffer.update_priorities([99], [1.0])
    stats = buffer.stats()
    expected = {
        "size": 4,
        "capacity": 4,
        "added": 4,
        "evicted": 0,
        "sampled": 3,
        "stale_updates": 1,
        "mean_priority": 1.0,
        "reward_min": -1.0,
        "reward_mean": 0.5,
        "reward_max": 2.0,
        "unknown_rewards": 1,
        "cost": 2_500_000,
        "experiences_per_dollar": 1600.0,
    }
    assert stats.to_dict() == {**expected, "bytes": stats.bytes}
    assert stats.bytes > sys.getsizeof("nothing known")


def test_stats_of_an_empty_buffer_know_nothing():
    stats = ReplayBuffer(4).stats()
    assert (stats.mean_priority, stats.reward_mean, stats.cost, stats.experiences_per_dollar) == (None,) * 4


def test_mean_priority_is_of_raw_priorities():
    buffer, _ = with_priorities([0.25, 0.5, 3.0], alpha=0.6)
    assert buffer.stats().mean_priority == 1.25


def churn(buffer, rng, steps):
    """Adds, draws and updates; gives what was drawn."""
    drawn = []
    for step in range(steps):
        buffer.add_batch([f"{step}.{i}" for i in range(3)], rng.uniform(0, 2, 3))
        batch = buffer.sample(5)
        buffer.update_priorities(batch.ids, td_errors=rng.normal(size=len(batch)))
        drawn.append((batch.ids.tolist(), batch.weights.tolist(), list(batch.experiences)))
    return drawn


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("sampler", [Prioritized, Uniform])
def test_the_same_seed_gives_the_same_draws_across_a_reload(sampler, remove):
    buffer = ReplayBuffer(37, sampler=sampler(), seed=5)
    churn(buffer, np.random.default_rng(0), 20)
    if remove:
        buffer.remove(buffer.sample(4).ids)
    state = buffer.state_dict()
    expected = churn(buffer, np.random.default_rng(1), 20)
    twin = ReplayBuffer(37, sampler=sampler(), seed=99)
    twin.add("gone after the reload")
    twin.load_state_dict(state)
    assert twin.stats().to_dict().items() >= {"added": 60, "size": len(state["index"]["ids"])}.items()
    assert churn(twin, np.random.default_rng(1), 20) == expected
    buffer.load_state_dict(state)
    assert churn(buffer, np.random.default_rng(1), 20) == expected


def test_a_state_is_arrays_and_json_values():
    buffer = ReplayBuffer(5)
    buffer.add(Transition(state={"a": [1]}, action="b", reward=1.0))
    buffer.add({"plain": "dictionary"})
    state = buffer.state_dict()
    json.dumps(state, default=lambda array: array.tolist())
    twin = ReplayBuffer(5)
    twin.load_state_dict(state)
    assert twin.sample(5).experiences == buffer.sample(5).experiences
    assert isinstance(twin.sample(5).experiences[0], Transition)


def test_a_state_that_does_not_fit_is_refused_untouched():
    buffer, _ = with_priorities([1.0, 2.0], capacity=5)
    state = buffer.state_dict()
    for other, message in (
        (ReplayBuffer(6, sampler=plain()), "capacity 5, this one has 6"),
        (ReplayBuffer(5, sampler=plain(alpha=0.5)), r"alpha 1\.0, this one has 0\.5"),
    ):
        other.add("mine")
        with pytest.raises(BufferStateError, match=message):
            other.load_state_dict(state)
        assert other.sample(3).experiences == ["mine"]
    with pytest.raises(BufferStateError, match="version 4"):
        buffer.load_state_dict({**state, "version": 4})


def test_different_seeds_give_different_draws():
    def first(seed):
        buffer = ReplayBuffer(1000, seed=seed)
        buffer.add_batch(range(1000))
        return buffer.sample(50).ids.tolist()

    assert first(1) == first(1)
    assert first(1) != first(2)
    assert first(None) != first(None)


def test_the_global_random_states_are_neither_read_nor_changed():
    def state():
        name, keys, *rest = np.random.get_state()
        return random.getstate(), name, keys.tolist(), rest

    before = state()
    drawn = [
        churn(ReplayBuffer(20, sampler=sampler()), np.random.default_rng(0), 10) for sampler in (Prioritized, Uniform)
    ]
    assert state() == before
    random.Random(1)
    np.random.standard_normal(3)
    again = [
        churn(ReplayBuffer(20, sampler=sampler()), np.random.default_rng(0), 10) for sampler in (Prioritized, Uniform)
    ]
    assert drawn == again


def test_many_threads_may_use_one_buffer():
    buffer = ReplayBuffer(64, sampler=Prioritized())
    errors = []
    added = {}

    def work(number):
        try:
            for i in range(300):
                added[buffer.add((number, i))] = (number, i)
                batch = buffer.sample(8)
                assert all(isinstance(experience, tuple) for experience in batch.experiences)
                buffer.update_priorities(batch.ids, td_errors=np.ones(len(batch)))
                if i % 50 == 0:
                    buffer.remove(batch.ids[:2])
        except Exception as error:  # noqa: BLE001  (any failure of a thread must reach the test)
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(added) == list(range(1200))  # each got an id of its own
    held = buffer.sample(65)
    assert len(held) == len(buffer) > 32
    assert [added[id_] for id_ in held.ids.tolist()] == held.experiences
    assert buffer.stats().added == 1200


def test_the_package_exports_the_buffer():
    buffer = relive.ReplayBuffer(
        capacity=10_000, sampler=relive.Prioritized(alpha=0.6, beta=0.4), priority=None, seed=0
    )
    id_ = buffer.add({"any": "object"}, priority=None)
    batch = buffer.sample(32)
    assert buffer.update_priorities(batch.ids, [2.0]) == 1
    assert batch.ids.tolist() == [id_]


@pytest.mark.parametrize("role", ["sampler", "remover"])
@pytest.mark.parametrize("given", ["prioritized", relive.Prioritized])
def test_what_is_no_selector_is_refused_by_name(role, given):
    with pytest.raises(BufferSettingError, match=rf"{role} is .*; give a selector"):
        relive.ReplayBuffer(10, **{role: given})
