"""Priority rules: what each gives, that they multiply, and that they are evaluated again when more is known."""

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relive
from relive.buffer import (
    AbsReward,
    BufferSettingError,
    Filter,
    InvalidPriorityError,
    Learnability,
    LowReward,
    OfExperience,
    Rarity,
    Recency,
    SchemaError,
    TdError,
    article_001,
    td_errors,
)
from relive.buffer.slot_maximum import SlotMaximum


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def step(state=0, action="a", **fields):
    return relive.Transition(state=state, action=action, **fields)


def plain(state=0, action="a", **fields):
    """The same without a time of its own, so that only the test's clock decides its age."""
    return {"state": state, "action": action, **fields}


def buffer_with(rule, **settings):
    return relive.ReplayBuffer(100, sampler=relive.Prioritized(1.0), priority=rule, **settings)


def shown(buffer, ids):
    """Priorities as of the next draw."""
    buffer.sample(0)
    return buffer.priorities(ids).tolist()


# ---- TD errors


def test_td_errors_bootstrap_where_the_episode_goes_on_and_not_where_it_terminated():
    # r + 0.9 V(s') - V(s), by hand: 1 + 1.8 - 0.5; 1 - 0.5 (terminated); -2 + 0 - 3.
    errors = td_errors([1, 1, -2], [0.5, 0.5, 3], [2, 999, 0], [False, True, False], gamma=0.9)
    np.testing.assert_allclose(errors, [2.3, 0.5, -5.0])


def test_td_errors_refuse_other_shapes_and_a_gamma_out_of_range():
    with pytest.raises(BufferSettingError, match="shapes differ"):
        td_errors([1, 2], [1], [1], [False])
    with pytest.raises(BufferSettingError, match=r"gamma is 1\.5"):
        td_errors([1], [1], [1], [False], gamma=1.5)


def test_a_td_error_is_remembered_and_multiplied():
    buffer = buffer_with(TdError(epsilon=0.0) * AbsReward(offset=0.0))
    ids = buffer.add_batch([step(reward=2.0), step(reward=-3.0), step(reward=0.5)])
    assert shown(buffer, ids) == [2.0, 3.0, 0.5]  # nothing is known yet: an error of 1
    assert buffer.update_priorities(ids[:2], td_errors=[-4.0, 0.25]) == 2
    assert shown(buffer, ids) == [8.0, 0.75, 0.5]
    newest = buffer.add(step(reward=1.0))
    assert shown(buffer, [newest]) == [4.0]  # the largest error stored, times its own reward


def test_the_largest_error_is_that_of_what_is_still_stored():
    buffer = relive.ReplayBuffer(2, sampler=relive.Prioritized(1.0), priority=TdError(epsilon=0.0))
    ids = buffer.add_batch([step(), step()])
    buffer.update_priorities(ids, td_errors=[1e6, 0.1])
    newest = buffer.add(step())  # the one with 1e6 leaves; it is seen once more
    buffer.update_priorities([newest], td_errors=[0.2])
    assert shown(buffer, [buffer.add(step())]) == pytest.approx([0.2])


def test_of_an_id_named_twice_the_last_error_counts():
    buffer = buffer_with(TdError(epsilon=0.0))
    [id_] = buffer.add_batch([step()])
    buffer.update_priorities([id_, id_], td_errors=[5.0, 0.5])
    assert shown(buffer, [id_]) == [0.5]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_error_changes_nothing(bad):
    buffer = buffer_with(TdError(epsilon=0.0) * Recency(10.0))
    ids = buffer.add_batch([plain(), plain()])
    before = shown(buffer, ids)
    with pytest.raises(InvalidPriorityError, match=f"experience {ids[1]}"):
        buffer.update_priorities(ids, td_errors=[3.0, bad])
    assert shown(buffer, ids) == pytest.approx(before)


# ---- Rewards


def test_a_late_reward_evaluates_the_rule_again():
    buffer = buffer_with(AbsReward(offset=0.5))
    ids = buffer.add_batch([step(), step(reward=-2.0)])
    assert shown(buffer, ids) == [1.5, 2.5]  # an unknown reward counts as one of size 1
    assert buffer.set_rewards([ids[0], 999], [7.0, 1.0]) == 1
    assert shown(buffer, ids) == [7.5, 2.5]
    assert buffer.stats().reward_max == 7.0


def test_a_plain_function_is_asked_again_too():
    buffer = buffer_with(lambda t: 1.0 if t.reward is None else 1.0 + t.reward)
    id_ = buffer.add(step())
    buffer.set_rewards([id_], [3.0])
    assert shown(buffer, [id_]) == [4.0]


def test_late_rewards_reach_rows_of_arrays_and_dicts():
    arrays = relive.ReplayBuffer(8, storage=relive.ArrayStorage({"rew": "f4"}), priority=AbsReward(reward="rew"))
    ids = arrays.add_batch({"rew": np.array([0.5, 1.5], np.float32)})
    arrays.set_rewards(ids[:1], [4.0])
    np.testing.assert_allclose(shown(arrays, ids), [4.01, 1.51])
    dicts = relive.ReplayBuffer(8, priority=AbsReward())
    mine = {"reward": 0.0}
    id_ = dicts.add(mine)
    dicts.set_rewards([id_], [2.0])
    assert dicts.sample(1).experiences == [{"reward": 2.0}]
    assert mine == {"reward": 0.0}


def test_a_reward_for_what_can_take_none_is_refused():
    buffer = relive.ReplayBuffer(8)
    id_ = buffer.add("text")
    with pytest.raises(BufferSettingError, match="type str cannot take a reward"):
        buffer.set_rewards([id_], [1.0])
    with pytest.raises(BufferSettingError, match="finite reward for each of the 1 ids"):
        buffer.set_rewards([id_], [math.nan])


def test_low_rewards_come_first():
    buffer = buffer_with(LowReward(scale=2.0))
    ids = buffer.add_batch([step(reward=r) for r in (-2.0, 0.0, 4.0)])
    np.testing.assert_allclose(shown(buffer, ids), np.exp([1.0, 0.0, -2.0]), rtol=1e-6)


# ---- Time


@pytest.mark.parametrize("hyperbolic", [False, True])
def test_recency_follows_the_clock_for_all_at_once(hyperbolic):
    clock = Clock()
    buffer = buffer_with(Recency(10.0, hyperbolic=hyperbolic, clock=clock))
    first = buffer.add(plain())
    clock.now += 5
    second = buffer.add(plain())
    clock.now += 5

    def expected(age):
        return 1 / (1 + age / 10) if hyperbolic else math.exp(-age / 10)

    assert shown(buffer, [first, second]) == pytest.approx([expected(10), expected(5)], rel=1e-4)
    clock.now += 0.05  # less than a hundredth of the time constant: not worth a pass
    assert shown(buffer, [first]) == pytest.approx([expected(10)], rel=1e-4)


def test_an_old_record_begins_with_its_age():
    clock = Clock()
    buffer = buffer_with(Recency(100.0, clock=clock))
    id_ = buffer.add(step(created_at=datetime.now(UTC) - timedelta(seconds=100)))
    assert shown(buffer, [id_]) == pytest.approx([math.exp(-1)], rel=1e-3)


# ---- Counts


def test_rarity_is_a_true_count_of_state_and_action():
    buffer = buffer_with(Rarity(exponent=0.5))
    same = buffer.add_batch([step("s", "a"), step("s", "a"), step("s", "b"), step({"deep": [1, 2]}, "a")])
    assert shown(buffer, same) == pytest.approx([0.5**0.5, 0.5**0.5, 1, 1], rel=1e-6)
    more = buffer.add_batch([step("s", "a"), step({"deep": [1, 2]}, "a")])
    assert shown(buffer, [*same, *more]) == pytest.approx([3**-0.5, 3**-0.5, 1, 2**-0.5, 3**-0.5, 2**-0.5], rel=1e-6)
    buffer.remove(same[:2])
    assert shown(buffer, more) == pytest.approx([1, 2**-0.5], rel=1e-6)


def test_learnability_is_highest_for_groups_that_may_go_either_way():
    buffer = buffer_with(Learnability())
    outcomes = {"even": "sfsf", "hard": "ffff", "easy": "sss"}
    names = {"s": "success", "f": "failure"}
    ids = {
        group: buffer.add_batch([step(group_id=group, outcome=names[letter]) for letter in letters])
        for group, letters in outcomes.items()
    }
    alone = buffer.add(step())

    def expected(successes, known):  # 4 p (1 - p) with Laplace's p
        p = (successes + 1) / (known + 2)
        return 4 * p * (1 - p)

    assert shown(buffer, ids["even"]) == pytest.approx([expected(2, 4)] * 4, rel=1e-6)
    assert shown(buffer, ids["hard"]) == pytest.approx([expected(0, 4)] * 4, rel=1e-6)
    assert shown(buffer, ids["easy"]) == pytest.approx([expected(3, 3)] * 3, rel=1e-6)
    assert shown(buffer, [alone]) == pytest.approx([1.0])


# ---- Together


def test_rules_functions_and_constants_multiply():
    buffer = buffer_with(2.0 * AbsReward(offset=0.0) * (lambda t: t.state) * 3)
    assert shown(buffer, [buffer.add(step(5, reward=0.5))]) == [15.0]


def test_a_priority_by_hand_stands_until_something_becomes_known():
    clock = Clock()
    buffer = buffer_with(AbsReward(offset=0.0) * Recency(10.0, clock=clock))
    by_hand = buffer.add(plain(reward=1.0), priority=0.0)
    ruled = buffer.add(plain(reward=1.0))
    clock.now += 10
    assert shown(buffer, [by_hand, ruled]) == pytest.approx([0.0, math.exp(-1)], rel=1e-4)
    buffer.set_rewards([by_hand], [2.0])
    assert shown(buffer, [by_hand]) == pytest.approx([2 * math.exp(-1)], rel=1e-4)
    buffer.update_priorities([ruled], [5.0])
    clock.now += 10
    assert shown(buffer, [ruled]) == [5.0]


def test_article_001_with_its_rarity_made_real():
    clock = Clock()
    buffer = relive.ReplayBuffer(100, sampler=relive.Prioritized(1.0), priority=article_001(0.6, clock=clock))
    ids = buffer.add_batch([step("s", "a", reward=-2.0), step("s", "a", reward=0.0), step("t", "a", reward=1.0)])
    clock.now += 86_400  # a day
    # (|r| + 1) / (1 + days) * (1 + 1 / count) * (1 + 0.6 |r|), by hand
    expected = [3 / 2 * 1.5 * 2.2, 1 / 2 * 1.5 * 1.0, 2 / 2 * 2.0 * 1.6]
    assert shown(buffer, ids) == pytest.approx(expected, rel=1e-4)


def test_a_rule_goes_on_across_save_and_load(tmp_path):
    def make(clock):
        rule = TdError(epsilon=0.0) * Recency(50.0, clock=clock) * Rarity() * Learnability()
        return buffer_with(rule, seed=4), clock

    rng = np.random.default_rng(0)
    buffer, clock = make(Clock())
    for _ in range(30):
        clock.now += 3
        buffer.add_batch(
            [
                plain(int(s), "a", group_id=str(g), outcome="success" if o > 2 else "failure")
                for s, g, o in rng.integers(5, size=(6, 3))
            ]
        )
        batch = buffer.sample(5)
        buffer.update_priorities(batch.ids, td_errors=rng.normal(size=5))
    by_hand = buffer.sample(3).ids
    buffer.update_priorities(by_hand, [1.0, 2.0, 3.0])
    buffer.add_batch([plain(1, "a")] * 9)  # all are to be refreshed at the next draw
    clock.now += 0.3
    twin, later = make(Clock())
    buffer.save(tmp_path / "buffer")
    twin.load(tmp_path / "buffer")
    for _ in range(20):
        clock.now += 3
        later.now += 3
        deltas = rng.normal(size=8)
        batches = buffer.sample(8), twin.sample(8)
        assert batches[0].ids.tolist() == batches[1].ids.tolist()
        for each, batch in zip((buffer, twin), batches, strict=True):
            each.update_priorities(batch.ids, td_errors=deltas)
            each.add_batch([plain(1, "a", group_id="0", outcome="success")] * 2)


@given(
    capacity=st.integers(1, 3000),
    calls=st.lists(st.lists(st.tuples(st.integers(0, 2999), st.sampled_from([0.0, 1.0, 2.5, 7.0, -math.inf])))),
)
@settings(max_examples=100, deadline=None)
def test_the_largest_value_over_slots_is_always_at_hand(capacity, calls):
    maximum, reference = SlotMaximum(), {}
    for call in calls:
        slots = np.array([slot % capacity for slot, _ in call], dtype=np.int64)
        values = np.array([value for _, value in call])
        maximum[slots] = values
        reference |= dict(zip(slots.tolist(), values.tolist(), strict=True))
        assert maximum.largest() == max(reference.values(), default=-math.inf)
        assert maximum[slots].tolist() == [reference[slot] for slot in slots.tolist()]


def test_a_new_experience_is_taken_for_the_largest_error_of_what_is_stored():
    buffer = buffer_with(TdError(epsilon=0.0))
    ids = buffer.add_batch([plain(n, "a") for n in range(3)])
    buffer.update_priorities(ids, td_errors=[-9.0, 4.0, 2.0])
    assert shown(buffer, [buffer.add(plain(3, "a"))]) == [9.0]
    buffer.remove(ids[:1])
    assert shown(buffer, [buffer.add(plain(4, "a"))]) == [4.0]
    buffer.update_priorities(ids[1:2], td_errors=[0.5])
    assert shown(buffer, [buffer.add(plain(5, "a"))]) == [2.0]


@pytest.mark.parametrize("storage", [None, {"reward": "f4", "x": "f4"}])
@pytest.mark.parametrize("make", [lambda reward: reward, lambda reward: OfExperience(reward) * TdError()])
def test_rewards_whose_priorities_are_refused_change_nothing(make, storage):
    rows = None if storage is None else relive.ArrayStorage(storage)
    rule = make(lambda e: e["reward"])
    buffer = relive.ReplayBuffer(5, storage=rows, sampler=Filter(where=lambda e: e["reward"] < 3), priority=rule)
    ids = buffer.add_batch([{"reward": 1.0, "x": 0.0}, {"reward": 2.0, "x": 0.0}])
    before = shown(buffer, ids)
    with pytest.raises(InvalidPriorityError, match=r"experience 0 is -1\.0"):
        buffer.set_rewards(ids, [-1.0, 5.0])
    assert [e["reward"] for e in buffer.sample(3).experiences] == [1.0, 2.0]
    assert shown(buffer, ids) == before
    assert buffer.set_rewards([*ids, ids[0]], [9.0, 5.0, 2.5]) == 3  # of an id named twice the last counts
    assert [e["reward"] for e in buffer.sample(3).experiences] == [2.5]
    assert shown(buffer, ids) == pytest.approx([2.5 / 1.0 * before[0], 5.0 / 2.0 * before[1]])


def test_a_reward_that_a_field_cannot_hold_is_refused():
    for kind, reward in (("i8", 0.5), ("f4", 1e300)):
        buffer = relive.ReplayBuffer(5, storage=relive.ArrayStorage({"reward": kind}))
        ids = buffer.add_batch({"reward": [1, 2]})
        with pytest.raises(SchemaError, match="Field 'reward' is"):
            buffer.set_rewards(ids, [1.0, reward])
        assert buffer.sample(3)["reward"].tolist() == [1, 2]


def test_a_selector_that_fails_over_a_new_reward_leaves_everything_as_it_was():
    def fits(experience):
        if experience["reward"] > 5:
            raise KeyError("unexpected")
        return True

    rule = Learnability() * AbsReward(offset=0.0)
    buffer = relive.ReplayBuffer(5, sampler=Filter(where=fits), priority=rule)
    ids = buffer.add_batch([{"reward": 1.0, "group_id": "g"}, {"reward": 2.0, "group_id": "g"}])
    before = shown(buffer, ids)
    with pytest.raises(KeyError, match="unexpected"):
        buffer.set_rewards(ids, [3.0, 6.0])
    assert [e["reward"] for e in buffer.sample(3).experiences] == [1.0, 2.0]
    buffer.set_rewards(ids, [1.0, 2.0])
    assert shown(buffer, ids) == before


def test_buf_11_an_infinite_reward_poisons_no_rule():
    for rule in (AbsReward(), AbsReward() * LowReward(), AbsReward() * OfExperience(lambda e: 0.0)):
        buffer = relive.ReplayBuffer(5, priority=rule)
        with pytest.raises(InvalidPriorityError, match="experience 1 of the new ones is"):
            buffer.add_batch([{"reward": 1.0}, {"reward": math.inf}, {"reward": 2.0}])
        assert len(buffer) == 0


def test_finite_factors_that_overflow_count_as_the_largest_priority():
    buffer = relive.ReplayBuffer(5, sampler=relive.Prioritized(1.0), priority=AbsReward() * AbsReward() * 1e300)
    id_ = buffer.add({"reward": 1e200})
    assert shown(buffer, [id_]) == [pytest.approx(3.4028235e38)]


def test_rules_refuse_settings_out_of_range():
    for make, named in (
        (lambda: Recency(0.0), "time_constant is 0.0"),
        (lambda: AbsReward(offset=-1.0), "offset is -1.0"),
        (lambda: Rarity(exponent=math.inf), "exponent is inf"),
        (lambda: TdError() * -1.0, "constant factor is -1.0"),
    ):
        with pytest.raises(BufferSettingError, match=named):
            make()


def test_a_priority_by_hand_does_not_hide_what_the_rule_will_refuse():
    buffer = relive.ReplayBuffer(5, priority=AbsReward() * TdError())
    with pytest.raises(InvalidPriorityError, match="experience 0 of the new ones is inf"):
        buffer.add({"reward": math.inf}, priority=1.0)
    assert len(buffer) == 0
