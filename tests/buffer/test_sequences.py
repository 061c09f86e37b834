"""N-step returns, slices, whole episodes and whole groups."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relive
from relive.buffer import (
    BufferSettingError,
    EpisodeFields,
    Episodes,
    Groups,
    Highest,
    Lowest,
    NotEnoughExperiencesError,
    NStep,
    Slices,
    n_step_returns,
)


def steps(episode, count, *, start=0, reward=None, terminated=False, truncated=False):
    """Steps of one episode, of which the last may end it."""
    return [
        relive.Transition(
            state=f"{episode}{n}",
            action="a",
            next_state=f"{episode}{n + 1}",
            reward=float(n + 1) if reward is None else reward,
            episode_id=episode,
            step=n,
            terminated=terminated and n == start + count - 1,
            truncated=truncated and n == start + count - 1,
        )
        for n in range(start, start + count)
    ]


# ---- N-step returns

STEPS = [
    relive.Transition(
        state=t,
        action="a",
        next_state=t + 1,
        reward=t + 1.0,
        episode_id="A" if t <= 4 else "B",
        step=t if t <= 4 else t - 5,
        terminated=t == 4,
    )
    for t in range(8)
]
EXPECTED = {  # return, factor of the bootstrapped value, the step whose next state it is of
    2: (10.65, 0.0, 4),
    3: (8.5, 0.0, 4),
    4: (5.0, 0.0, 4),
    5: (18.78, 0.729, 7),
    6: (14.2, 0.81, 7),
    7: (8.0, 0.9, 7),
}


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_buf_13_n_step_returns_stop_at_the_end_of_an_episode_and_at_the_write_position(batch):
    buffer = relive.ReplayBuffer(6, sampler=NStep(3, 0.9, sampler=relive.Uniform()))
    for start in range(0, 8, batch):
        buffer.add_batch(STEPS[start : start + batch])
    drawn = buffer.sample(7)
    assert sorted(t.state for t in drawn.experiences) == [2, 3, 4, 5, 6, 7]
    for place, first in enumerate(drawn.experiences):
        returned, factor, last = EXPECTED[first.state]
        assert drawn.n_step.rewards[place] == pytest.approx(returned)
        assert drawn.n_step.discounts[place] == pytest.approx(factor)
        assert drawn.n_step.last[place].state == last


def test_buf_13_only_whole_n_steps_are_offered_when_asked_for():
    buffer = relive.ReplayBuffer(6, sampler=NStep(3, 0.9, sampler=relive.Uniform(), whole=True))
    buffer.add_batch(STEPS)
    drawn = buffer.sample(7)
    assert sorted(t.state for t in drawn.experiences) == [2, 3, 4, 5]


def test_buf_13_rows_of_arrays_know_where_an_episode_ends():
    fields = EpisodeFields(reward="rew", terminated="done")
    storage = relive.ArrayStorage({"obs": "i8", "rew": "f4", "done": "?"})
    buffer = relive.ReplayBuffer(6, storage=storage, sampler=NStep(3, 0.9, sampler=relive.Uniform(), fields=fields))
    t = np.arange(8)
    buffer.add_batch({"obs": t, "rew": t + 1.0, "done": t == 4})
    drawn = buffer.sample(7)
    for place, first in enumerate(drawn["obs"].tolist()):
        returned, factor, last = EXPECTED[first]
        assert drawn.n_step.rewards[place] == pytest.approx(returned)
        assert drawn.n_step.discounts[place] == pytest.approx(factor)
        assert drawn.n_step.last["obs"][place] == last


def test_a_truncated_episode_bootstraps_and_a_terminated_one_does_not():
    buffer = relive.ReplayBuffer(20, sampler=NStep(3, 0.5, sampler=relive.Uniform()))
    buffer.add_batch(steps("t", 2, reward=1.0, terminated=True) + steps("c", 2, reward=1.0, truncated=True))
    drawn = buffer.sample(5)
    found = {
        t.state: (drawn.n_step.rewards[n], drawn.n_step.discounts[n], drawn.n_step.steps[n])
        for n, t in enumerate(drawn.experiences)
    }
    assert found == {"t0": (1.5, 0.0, 2), "t1": (1.0, 0.0, 1), "c0": (1.5, 0.25, 2), "c1": (1.0, 0.5, 1)}


def test_an_unknown_reward_makes_the_return_unknown_until_it_arrives():
    buffer = relive.ReplayBuffer(10, sampler=NStep(2, 0.5, sampler=relive.Fifo()))
    first, second = steps("e", 2, reward=1.0)
    import msgspec

    ids = buffer.add_batch([first, msgspec.structs.replace(second, reward=None)])
    assert np.isnan(buffer.sample(1).n_step.rewards[0])
    buffer.set_rewards(ids[1:], [4.0])
    assert buffer.sample(1).n_step.rewards[0] == 3.0


def test_a_missing_step_ends_the_sum():
    buffer = relive.ReplayBuffer(10, sampler=NStep(3, 0.5, sampler=relive.Fifo()))
    one, _, three = steps("e", 3, reward=1.0)
    buffer.add_batch([one, three])
    assert buffer.sample(1).n_step.steps.tolist() == [1]
    whole = relive.ReplayBuffer(10, sampler=NStep(3, 0.5, sampler=relive.Fifo()))
    ids = whole.add_batch(steps("e", 3, reward=1.0))
    whole.remove(ids[1:2])
    assert whole.sample(1).n_step.steps.tolist() == [1]


def slow_returns(rewards, terminated, truncated, n, gamma, t):
    total, factor, count = 0.0, 1.0, 0
    for k in range(t, min(t + n, len(rewards))):
        total += factor * rewards[k]
        factor *= gamma
        count += 1
        if terminated[k]:
            return total, 0.0, count
        if truncated[k]:
            break
    return total, factor, count


@given(
    rows=st.lists(st.tuples(st.floats(-2, 2), st.sampled_from(["", "", "", "t", "c", "tc"])), min_size=1, max_size=40),
    n=st.integers(1, 6),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    capacity=st.integers(1, 40),
    batch=st.integers(1, 9),
)
@settings(max_examples=150, deadline=None)
def test_n_step_returns_agree_with_a_loop_over_the_steps(rows, n, gamma, capacity, batch):
    rewards = [reward for reward, _ in rows]
    terminated = ["t" in end for _, end in rows]
    truncated = ["c" in end for _, end in rows]
    returns, factors, counts = n_step_returns(rewards, terminated, truncated, n=n, gamma=gamma)
    for t in range(len(rows)):
        expected = slow_returns(rewards, terminated, truncated, n, gamma, t)
        assert (returns[t], factors[t], counts[t]) == pytest.approx(expected)

    buffer = relive.ReplayBuffer(capacity, sampler=NStep(n, gamma, sampler=relive.Uniform()))
    experiences = [
        {"t": t, "reward": rewards[t], "terminated": terminated[t], "truncated": truncated[t]} for t in range(len(rows))
    ]
    for start in range(0, len(rows), batch):
        buffer.add_batch(experiences[start : start + batch])
    drawn = buffer.sample(capacity + 1)
    assert len(drawn) == min(capacity, len(rows))
    for place, experience in enumerate(drawn.experiences):
        expected = slow_returns(rewards, terminated, truncated, n, gamma, experience["t"])
        found = drawn.n_step.rewards[place], drawn.n_step.discounts[place], drawn.n_step.steps[place]
        assert found == pytest.approx(expected)
        assert drawn.n_step.last[place]["t"] == experience["t"] + expected[2] - 1


def test_returns_of_several_environments_side_by_side():
    returns, factors, counts = n_step_returns(
        [[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]],
        [[False, False], [False, True], [False, False]],
        np.zeros((3, 2)),
        n=2,
        gamma=0.5,
    )
    assert returns.tolist() == [[2.0, 20.0], [3.5, 20.0], [3.0, 30.0]]
    assert factors.tolist() == [[0.25, 0.0], [0.25, 0.0], [0.5, 0.5]]
    assert counts.tolist() == [[2, 2], [2, 1], [1, 1]]


# ---- Slices


def check_slices(batch, length):
    assert batch.lengths.tolist() == [length] * len(batch.lengths)
    rows = batch.experiences
    for start in range(0, len(rows), length):
        part = rows[start : start + length]
        assert len({t.episode_id for t in part}) == 1
        assert [t.step for t in part] == list(range(part[0].step, part[0].step + length))


@pytest.mark.parametrize("sampler", [relive.Uniform, lambda: relive.Prioritized(0.8)])
def test_buf_14_slices_never_span_the_write_position_or_two_episodes(sampler):
    buffer = relive.ReplayBuffer(1000, sampler=Slices(4, sampler=sampler()))
    wrapped = 0
    for episode, count in (("first", 999), ("second", 999), ("third", 7)):
        for start in range(0, count, 100):
            buffer.add_batch(steps(episode, min(100, count - start), start=start, terminated=start + 100 >= count))
        for _ in range(50):
            batch = buffer.sample(256)
            assert len(batch.lengths) == 256
            assert batch.shortfall == 0
            check_slices(batch, 4)
            slots = buffer._index.find(batch.ids).reshape(-1, 4)
            wrapped += int((np.diff(slots, axis=1) < 0).sum())
        buffer.update_priorities(batch.ids, np.random.default_rng(0).uniform(0.1, 2, len(batch)))
    assert wrapped > 0


def test_prioritised_slice_starts_follow_the_priority_of_the_first_row():
    buffer = relive.ReplayBuffer(100, sampler=Slices(3, sampler=relive.Prioritized(1.0, beta=1.0)))
    ids = buffer.add_batch(steps("e", 5, terminated=True))
    buffer.update_priorities(ids, [1.0, 2.0, 5.0, 9.0, 9.0])
    starts = collections.Counter()
    for _ in range(800):
        batch = buffer.sample(2)
        starts.update(t.step for t in batch.experiences[::3])
    assert set(starts) == {0, 1, 2}
    assert starts[2] / starts.total() == pytest.approx(5 / 8, abs=0.05)
    assert batch.probabilities[0] == pytest.approx([1 / 8, 2 / 8, 5 / 8][batch.experiences[0].step])


def test_interleaved_episodes_give_slices_of_one_episode_each():
    buffer = relive.ReplayBuffer(40, sampler=Slices(3))
    rows = [row for pair in zip(steps("x", 30), steps("y", 30), strict=True) for row in pair]
    for start in range(0, 60, 7):
        buffer.add_batch(rows[start : start + 7])
    check_slices(buffer.sample(64), 3)
    assert len(buffer.sample(1000).lengths) == 2 * (20 - 2)


def test_a_removed_row_takes_its_slices_with_it():
    buffer = relive.ReplayBuffer(40, sampler=Slices(3))
    ids = buffer.add_batch(steps("e", 10))
    buffer.remove(ids[4:5])
    starts = {t.step for t in buffer.sample(100).experiences[::3]}
    assert starts == {0, 1, 5, 6, 7}


def test_no_episode_is_long_enough():
    buffer = relive.ReplayBuffer(40, sampler=Slices(5))
    buffer.add_batch(steps("e", 4))
    batch = buffer.sample(3)
    assert (len(batch), len(batch.lengths), batch.shortfall) == (0, 0, 3)
    with pytest.raises(BufferSettingError, match="length is 0"):
        Slices(0)


# ---- Whole episodes and groups


def sequences(batch):
    ends = np.cumsum(batch.lengths)
    return [batch.experiences[end - length : end] for end, length in zip(ends, batch.lengths, strict=True)]


def test_only_whole_episodes_are_drawn():
    buffer = relive.ReplayBuffer(20, sampler=Episodes())
    buffer.add_batch(steps("old", 8, terminated=True) + steps("whole", 9, truncated=True))
    buffer.add_batch(steps("running", 6))
    batch = buffer.sample(10)
    assert [[t.state for t in rows] for rows in sequences(batch)] == [[f"whole{n}" for n in range(9)]]
    buffer.add_batch(steps("running", 2, start=6, terminated=True))
    assert {rows[0].episode_id for rows in sequences(buffer.sample(10))} == {"whole", "running"}


def test_episodes_of_arrays_are_cut_where_one_is_done():
    fields = EpisodeFields(reward="rew", terminated="done")
    storage = relive.ArrayStorage({"t": "i8", "done": "?"})
    buffer = relive.ReplayBuffer(10, storage=storage, sampler=Episodes(fields=fields))
    t = np.arange(14)
    buffer.add_batch({"t": t[:7], "done": t[:7] % 3 == 2})
    buffer.add_batch({"t": t[7:], "done": t[7:] % 3 == 2})
    batch = buffer.sample(10)  # 4 ... 13 are stored: 4 and 5 have lost their beginning, 12 and 13 are running
    assert sorted(rows[0]["t"].item() for rows in sequences(batch)) == [6, 9]
    assert batch.lengths.tolist() == [3, 3]


def test_groups_are_drawn_whole_or_not_at_all():
    def rollouts(group, count, start=0):
        return [
            relive.Transition(state=group, action=n, group_id=group, episode_id=f"{group}{n}")
            for n in range(start, start + count)
        ]

    buffer = relive.ReplayBuffer(12, sampler=Groups(4))
    buffer.add_batch(rollouts("p", 4) + rollouts("q", 3) + [relive.Transition(state="alone", action=0)])
    assert {rows[0].state for rows in sequences(buffer.sample(9))} == {"p"}
    buffer.add_batch(rollouts("q", 1, start=3) + rollouts("r", 4))  # the oldest of p leaves
    drawn = sequences(buffer.sample(9))
    assert sorted(rows[0].state for rows in drawn) == ["q", "r"]
    assert all([t.action for t in rows] == [0, 1, 2, 3] for rows in drawn)
    buffer.add_batch(rollouts("p", 1, start=4))
    assert sorted(rows[0].state for rows in sequences(buffer.sample(9))) == ["q", "r"]


def test_a_strict_draw_of_sequences_is_refused_when_there_are_fewer():
    for sampler, available in ((Episodes(), 2), (Slices(8), 0), (Slices(3), 4), (Groups(), 2)):
        buffer = relive.ReplayBuffer(50, sampler=sampler)
        rows = steps("x", 4, terminated=True) + steps("y", 4, terminated=True)
        import msgspec

        buffer.add_batch([msgspec.structs.replace(row, group_id=row.episode_id) for row in rows])
        with pytest.raises(NotEnoughExperiencesError, match=f"5 was asked for, but only {available} sequences"):
            buffer.sample(5, strict=True)
        assert len(buffer.sample(available, strict=True).lengths) == available


def test_whole_sequences_are_drawn_by_their_mean_priority():
    buffer = relive.ReplayBuffer(100, sampler=Episodes(sampler=relive.Prioritized(1.0)))
    a = buffer.add_batch(steps("a", 2, terminated=True))
    b = buffer.add_batch(steps("b", 4, terminated=True))
    buffer.update_priorities([*a, *b], [1.0, 1.0, 2.0, 4.0, 2.0, 4.0])
    counts = collections.Counter(sequences(buffer.sample(1))[0][0].episode_id for _ in range(1000))
    assert counts["b"] / 1000 == pytest.approx(0.75, abs=0.05)


SAMPLERS = {
    "n-step": lambda: NStep(3, 0.9),
    "slices": lambda: Slices(3, sampler=relive.Prioritized()),
    "episodes": lambda: Episodes(sampler=relive.Prioritized()),
    "groups": lambda: Groups(sampler=relive.Prioritized()),
    "groups of 2": lambda: Groups(2),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("kind", ["records", "dicts"])
def test_a_saved_state_goes_on_with_the_same_draws(name, kind, tmp_path):
    def make():
        return relive.ReplayBuffer(50, sampler=SAMPLERS[name](), seed=1)

    count = episode = step = 0

    def rows(rng):
        nonlocal count, episode, step
        for _ in range(4):
            count += 1
            ends = bool(rng.uniform() < 0.3)
            t = {"state": count, "reward": 1.0, "terminated": ends, "group_id": str(count // 2)}
            record = relive.Transition(action=0, episode_id=f"e{episode}", step=step, **t)
            episode, step = (episode + 1, 0) if ends else (episode, step + 1)
            if name == "groups of 2":
                record = relive.Transition(action=0, episode_id=f"e{count}", **t)
            yield t if kind == "dicts" else record

    rng = np.random.default_rng(0)
    buffer = make()
    for _ in range(30):
        buffer.add_batch(list(rows(rng)))
        buffer.update_priorities(buffer.sample(3).ids[:2], [0.5, 2.0][: len(buffer.sample(3).ids[:2])])
    buffer.remove(buffer._index.ids()[[5, 20, 49]])
    twin = make()
    buffer.save(tmp_path / "buffer")
    twin.load(tmp_path / "buffer")
    for _ in range(30):
        new = list(rows(rng))
        batches = []
        for each in (buffer, twin):
            each.add_batch(new)
            batches.append(each.sample(4))
        assert batches[0].ids.tolist() == batches[1].ids.tolist()
        assert len(batches[0]) >= 4
        if batches[0].n_step is not None:
            assert batches[0].n_step.rewards.tolist() == batches[1].n_step.rewards.tolist()


@pytest.mark.parametrize("inner", [Highest, Lowest])
def test_the_mean_priorities_of_episodes_outlast_a_load(inner):
    def make():
        return relive.ReplayBuffer(50, sampler=Episodes(sampler=inner()))

    buffer = make()
    ids = buffer.add_batch(steps("a", 2, terminated=True) + steps("b", 2, terminated=True))
    buffer.update_priorities(ids, [5.0, 1.0, 4.0, 4.0])  # means 3 and 4
    twin = make()
    twin.load_state_dict(buffer.state_dict())
    for each in (buffer, twin):
        assert each.sample(1).experiences[0].episode_id == ("b" if inner is Highest else "a")


def test_weights_of_whole_n_steps_are_over_those_that_remain():
    sampler = NStep(2, sampler=relive.Prioritized(1.0, beta=1.0), whole=True)
    buffer = relive.ReplayBuffer(9, sampler=sampler)
    buffer.add_batch(steps("e", 4), [1.0, 2.0, 4.0, 0.5])  # the last has no second step
    assert buffer.sample(5).weights.tolist() == [1.0, 0.5, 0.25]
