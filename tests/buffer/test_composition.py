"""Selectors inside selectors: what works together, and what is refused because something would be lost."""

import collections

import numpy as np
import pytest

import relive
from relive.buffer import (
    BufferSettingError,
    Diverse,
    Episodes,
    Filter,
    Groups,
    Highest,
    Lifo,
    Lowest,
    Mixture,
    NStep,
    OncePerPass,
    Slices,
    Stratified,
    TokenBudget,
)

HOLDERS = {
    "Stratified": lambda inner: Stratified("agent", sampler=inner),
    "Mixture": lambda inner: Mixture((relive.Uniform(), 1), (inner, 1)),
    "TokenBudget": lambda inner: TokenBudget(10, inner),
    "NStep": lambda inner: NStep(sampler=inner),
    "Slices": lambda inner: Slices(2, sampler=inner),
    "Episodes": lambda inner: Episodes(sampler=inner),
    "Groups": lambda inner: Groups(sampler=inner),
}
MORE_THAN_ROWS = {
    "NStep": NStep,
    "Slices": lambda: Slices(2),
    "Episodes": Episodes,
    "Groups": Groups,
    r"Filter\(NStep\(Prioritized\)\)": lambda: Filter(NStep(), agent="a"),
}


def episode(name, agent, length=4, **changes):
    return [
        relive.Transition(
            state=n, action="a", reward=1.0, episode_id=name, step=n, agent=agent, terminated=n == length - 1, **changes
        )
        for n in range(length)
    ]


@pytest.mark.parametrize("outer", HOLDERS)
@pytest.mark.parametrize("inner", MORE_THAN_ROWS)
def test_what_chooses_single_rows_refuses_what_gives_more_and_says_how_else(outer, inner):
    with pytest.raises(BufferSettingError, match=f"{outer} chooses single rows and would lose what {inner}"):
        HOLDERS[outer](MORE_THAN_ROWS[inner]())


@pytest.mark.parametrize("holder", ["Stratified", "Mixture"])
def test_the_other_way_round_nothing_is_lost(holder):
    rows = episode("x", "p") + episode("y", "q") + episode("z", "p")
    episodes = relive.ReplayBuffer(50, sampler=Episodes(sampler=HOLDERS[holder](relive.Uniform())))
    episodes.add_batch(rows)
    batch = episodes.sample(2)
    assert (batch.lengths.tolist(), batch.shortfall) == ([4, 4], 0)
    if holder == "Stratified":
        assert {t.agent for t in batch.experiences} == {"p", "q"}
    steps = relive.ReplayBuffer(50, sampler=NStep(3, 1.0, sampler=HOLDERS[holder](relive.Uniform())))
    steps.add_batch(rows)
    batch = steps.sample(8)
    assert batch.n_step.rewards.tolist() == [min(3.0, 4.0 - t.step) for t in batch.experiences]


def test_a_filter_passes_on_sequences_and_n_step_returns():
    rows = episode("x", "p") + episode("y", "q")
    episodes = relive.ReplayBuffer(50, sampler=Filter(Episodes(), agent="p"))
    episodes.add_batch(rows)
    batch = episodes.sample(3)
    assert [t.episode_id for t in batch.experiences] == ["x"] * 4
    assert (batch.lengths.tolist(), batch.shortfall) == ([4], 2)
    steps = relive.ReplayBuffer(50, sampler=Filter(NStep(2, 1.0), agent="q"))
    steps.add_batch(rows)
    batch = steps.sample(8)
    assert batch.n_step.steps.tolist() == [min(2, 4 - t.step) for t in batch.experiences]


@pytest.mark.parametrize(
    "sampler",
    [relive.Prioritized(weights="buffer"), TokenBudget(9), Filter(agent="a"), Mixture((relive.Prioritized(), 1))],
    ids=lambda sampler: sampler.kind,
)
def test_stratified_refuses_weights_that_it_cannot_put_on_one_scale(sampler):
    with pytest.raises(BufferSettingError, match="Stratified weighs its draws over the batch"):
        Stratified("agent", sampler=sampler)


@pytest.mark.parametrize("nested", [lambda s: s, lambda s: TokenBudget(10**6, s), lambda s: Mixture((s, 1))])
def test_a_mixture_draws_by_priority_whatever_stands_beside_and_around_the_sampler(nested):
    mixture = Mixture((relive.Uniform(), 1), (nested(relive.Prioritized(1.0)), 1))
    buffer = relive.ReplayBuffer(4, sampler=mixture)
    buffer.add_batch(list(range(4)), [1, 1, 1, 97])
    drawn = collections.Counter(item for _ in range(1000) for item in buffer.sample(4).experiences)
    assert drawn[3] / drawn.total() == pytest.approx(0.5 * 0.97 + 0.5 * 0.25, abs=0.03)


@pytest.mark.parametrize("first", ["uniform", "prioritized"])
def test_buf_08_a_new_item_gets_the_largest_live_priority_in_a_mixture_of_any_order(first):
    parts = [(relive.Uniform(), 1), (relive.Prioritized(1.0), 1)]
    buffer = relive.ReplayBuffer(10, sampler=Mixture(*(parts if first == "uniform" else parts[::-1])))
    buffer.add_batch([0, 1], [100.0, 100.0])
    new = buffer.add(2)
    assert buffer.priorities([new]).tolist() == [100.0]
    drawn = collections.Counter(item for _ in range(1500) for item in buffer.sample(4).experiences)
    assert drawn[2] / drawn.total() == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("remover", [Lowest, Highest, relive.Prioritized], ids=lambda kind: kind.__name__)
def test_buf_08_a_new_item_gets_the_largest_live_priority_where_the_sampler_is_uniform(remover):
    buffer = relive.ReplayBuffer(3, sampler=relive.Uniform(), remover=remover())
    buffer.add_batch("abc", [100.0, 50.0, 70.0])
    buffer.update_priorities([0], [60.0])
    leaves = {Lowest: "b", Highest: "c"}
    new = buffer.add("d")
    assert buffer.priorities([new])[0] in (70.0, 60.0)  # the second where 70 has left for it
    if remover in leaves:
        assert sorted(buffer.sample(9).experiences) == sorted({*"abcd"} - {leaves[remover]})


@pytest.mark.parametrize("sampler", [relive.Uniform, relive.Prioritized, lambda: relive.Prioritized(0.05)])
@pytest.mark.parametrize("remover", [Lowest, Highest])
def test_a_loaded_buffer_lets_go_what_the_saved_one_would(sampler, remover, tmp_path):
    def make():
        return relive.ReplayBuffer(40, sampler=sampler(), remover=remover())

    rng = np.random.default_rng(0)
    buffer = make()
    # Priorities that differ in the last bits that are kept, and beyond.
    buffer.add_batch(list(range(40)), 1.0 + rng.permutation(40) * 2.0**-25)
    twin = make()
    buffer.save(tmp_path / "buffer")
    twin.load(tmp_path / "buffer")
    for number in range(20):
        priority = 1.0 + float(rng.uniform()) * 1e-5
        for each in (buffer, twin):
            each.add(f"new {number}", priority)
        assert sorted(map(str, buffer.sample(41).experiences)) == sorted(map(str, twin.sample(41).experiences))


@pytest.mark.parametrize(
    "make",
    [
        Lifo,
        Highest,
        OncePerPass,
        Diverse,
        NStep,
        Episodes,
        Groups,
        lambda: Slices(2),
        lambda: Filter(agent="a"),
        lambda: Stratified("agent"),
        lambda: Mixture((relive.Prioritized(), 2), (relive.Uniform(), 1)),
        lambda: TokenBudget(200),
    ],
)
def test_a_batch_of_none_is_empty_with_every_sampler(make):
    buffer = relive.ReplayBuffer(60, sampler=make())
    buffer.add_batch(episode("e", "a", group_id="g"))
    batch = buffer.sample(0)
    assert (len(batch), batch.shortfall) == (0, 0)


def test_a_token_budget_keeps_weights_over_the_buffer():
    inner = relive.Prioritized(1.0, beta=1.0, weights="buffer")
    buffer = relive.ReplayBuffer(3, sampler=TokenBudget(10, inner, count=lambda size: size))
    buffer.add_batch([6, 6, 50], [1.0, 2.0, 0.5])
    seen = collections.Counter()
    for _ in range(50):
        batch = buffer.sample(3)
        seen.update(zip(buffer.priorities(batch.ids).tolist(), batch.weights.tolist(), strict=True))
    assert set(seen) == {(1.0, 0.5), (2.0, 0.25)}  # 0.5 / priority


def test_a_limit_by_a_reward_follows_the_reward():
    buffer = relive.ReplayBuffer(10, sampler=Diverse(limit=1, key="reward"))
    ids = buffer.add_batch([{"state": str(n), "reward": 0.0} for n in range(3)])
    assert len(buffer.sample(3)) == 1
    buffer.set_rewards(ids, [1.0, 2.0, 3.0])
    assert sorted(e["reward"] for e in buffer.sample(3).experiences) == [1.0, 2.0, 3.0]


def test_a_mixture_has_its_samplers_scale_of_weights_and_refuses_two():
    over_buffer = relive.Prioritized(1.0, beta=1.0, weights="buffer")
    sampler = TokenBudget(12, Mixture((over_buffer, 1)), count=lambda size: size)
    buffer = relive.ReplayBuffer(3, sampler=sampler)
    buffer.add_batch([6, 6, 50], [1.0, 2.0, 0.5])
    batches = [buffer.sample(3) for _ in range(20)]
    seen = {pair for b in batches for pair in zip(buffer.priorities(b.ids).tolist(), b.weights.tolist(), strict=True)}
    assert seen == {(1.0, 0.5), (2.0, 0.25)}  # 0.5 / priority
    with pytest.raises(BufferSettingError, match="over the batch and over the buffer, which no batch can hold"):
        Mixture((relive.Prioritized(), 1), (relive.Prioritized(weights="buffer"), 1))
