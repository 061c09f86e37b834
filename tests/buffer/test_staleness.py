"""Bounds on policy versions."""

import pytest

import relive
from relive.buffer import BufferSettingError, StaleExperienceError, check_staleness


def row(version, **fields):
    return relive.Transition(state=version, action="a", policy_version=version, **fields)


def versions(buffer):
    return sorted(t.policy_version for t in buffer.sample(len(buffer) + 1).experiences)


def test_a_fresh_row_beyond_its_bound_is_not_drawn():
    buffer = relive.ReplayBuffer(100, sampler=relive.Uniform(), max_staleness=2)
    buffer.add_batch([row(version) for version in range(6)])
    assert len(buffer) == 6  # nobody has said which version trains
    buffer.policy_version = 6
    assert versions(buffer) == [4, 5]
    assert buffer.stats().evicted == 4


def test_a_row_is_replayed_from_its_second_draw_on_and_has_a_bound_of_its_own():
    buffer = relive.ReplayBuffer(100, sampler=relive.Uniform(), max_staleness=1, max_replay_age=10)
    buffer.add_batch([row(0), row(0)])
    buffer.policy_version = 1
    batch = buffer.sample(3)
    assert batch.replayed.tolist() == [False, False]
    buffer.add(row(1))
    buffer.policy_version = 3
    batch = buffer.sample(4)  # the one of version 1 was never drawn: too stale to be fresh
    assert [t.policy_version for t in batch.experiences] == [0, 0]
    assert batch.replayed.all()
    buffer.policy_version = 11
    assert len(buffer.sample(4)) == 0


def test_what_is_tagged_as_replay_is_replayed_from_the_start():
    buffer = relive.ReplayBuffer(100, sampler=relive.Uniform(), max_staleness=0, max_replay_age=5)
    buffer.add_batch([row(0), row(0, tags=("replay",))])
    buffer.policy_version = 4
    batch = buffer.sample(4)
    assert [t.tags for t in batch.experiences] == [("replay",)]
    assert batch.replayed.tolist() == [True]


def test_a_token_trace_counts_by_its_oldest_sampled_token():
    def traced(versions_, mask):
        trace = relive.TokenTrace(token_ids=[1, 2, 3], mask=mask, versions=versions_)
        return relive.Transition(state=0, action=0, tokens=trace, policy_version=9)

    buffer = relive.ReplayBuffer(10, sampler=relive.Uniform(), max_staleness=2)
    ids = buffer.add_batch([traced([0, 7, 8], [0, 1, 1]), traced([0, 7, 8], [1, 1, 1])])
    buffer.policy_version = 9
    assert buffer.sample(3).ids.tolist() == [ids[0]]


def test_a_row_of_an_unknown_version_is_refused_while_staleness_is_bounded():
    buffer = relive.ReplayBuffer(10, max_staleness=2)
    with pytest.raises(StaleExperienceError, match="New experience 1 has no policy_version"):
        buffer.add_batch([row(1), relive.Transition(state=0, action=0)])
    assert len(buffer) == 0


def test_the_version_cannot_go_back_and_needs_a_bound():
    buffer = relive.ReplayBuffer(10, max_staleness=2)
    buffer.policy_version = 4
    with pytest.raises(BufferSettingError, match="cannot go back to 3"):
        buffer.policy_version = 3
    with pytest.raises(BufferSettingError, match="bounds no staleness"):
        relive.ReplayBuffer(10).policy_version = 1


def test_training_asserts_the_bounds_again():
    rows = [row(3), row(7)]
    check_staleness(rows, 8, max_staleness=5)
    check_staleness(rows, 8, max_staleness=1, max_replay_age=5, replayed=[True, False])
    with pytest.raises(StaleExperienceError, match="Row 0 is fresh and of policy version 3; now it is 8 and max_stal"):
        check_staleness(rows, 8, max_staleness=4)
    with pytest.raises(StaleExperienceError, match="policy version None"):
        check_staleness([relive.Transition(state=0, action=0)], 8, max_staleness=4)


def test_bounds_go_on_across_save_and_load(tmp_path):
    def make():
        return relive.ReplayBuffer(50, sampler=relive.Uniform(), max_staleness=1, max_replay_age=3)

    buffer = make()
    buffer.add_batch([row(0), row(1)])
    buffer.policy_version = 1
    assert versions(buffer) == [0, 1]  # both are replayed from now on
    buffer.add_batch([row(1), row(2)])
    twin = make()
    buffer.save(tmp_path / "buffer")
    twin.load(tmp_path / "buffer")
    assert twin.policy_version == 1
    for each in (buffer, twin):
        each.policy_version = 3
        assert versions(each) == [0, 1, 2]  # the fresh one of version 1 has left


def test_what_comes_or_is_drawn_beyond_its_bound_leaves_before_the_next_draw():
    buffer = relive.ReplayBuffer(50, sampler=relive.Uniform(), max_staleness=3, max_replay_age=1)
    buffer.policy_version = 4
    buffer.add_batch([row(0), row(2)])
    assert versions(buffer) == [2]  # 0 came too late; 2 is replayed now, and as such too old
    assert versions(buffer) == []
