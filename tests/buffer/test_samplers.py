"""Samplers: what each draws, in which shares, and that a saved state goes on with the same draws."""

import collections

import numpy as np
import pytest

import relive
from relive.buffer import (
    BufferSettingError,
    Diverse,
    Filter,
    Highest,
    Lifo,
    Lowest,
    Mixture,
    OncePerPass,
    Stratified,
    TokenBudget,
)


def transition(number, **fields):
    return relive.Transition(state=f"state {number}", action=number, episode_id=f"e{number}", **fields)


def filled(sampler, experiences, priorities=None, *, capacity=None, **settings):
    buffer = relive.ReplayBuffer(capacity or len(experiences), sampler=sampler, **settings)
    buffer.add_batch(experiences, priorities)
    return buffer


def test_lifo_gives_the_newest_first():
    buffer = filled(Lifo(), list("abcdef"), capacity=4)
    assert buffer.sample(3).experiences == ["f", "e", "d"]


def test_lifo_finds_the_newest_behind_a_large_gap_in_the_ids():
    buffer = filled(Lifo(), list(range(1000)))
    buffer.remove(range(3, 1000))
    assert buffer.sample(2).ids.tolist() == [2, 1]


def test_no_ordered_sampler_draws_a_priority_of_zero():
    for sampler in (Lifo(), Lowest(), Highest(), relive.Fifo(), OncePerPass()):
        buffer = filled(sampler, list("abc"), [0.0, 1.0, 2.0])
        assert sorted(buffer.sample(3).experiences) == ["b", "c"]


def test_highest_and_lowest_follow_updates_and_prefer_the_older_of_equals():
    highest = filled(Highest(), list("abcd"), [1, 3, 3, 2])
    lowest = filled(Lowest(), list("abcd"), [1, 3, 3, 2])
    assert highest.sample(3).experiences == ["b", "c", "d"]
    assert lowest.sample(3).experiences == ["a", "d", "b"]
    for buffer in (highest, lowest):
        buffer.update_priorities([0, 1], [9, 0.5])
    assert highest.sample(2).experiences == ["a", "c"]
    assert lowest.sample(2).experiences == ["b", "d"]


def test_lowest_as_remover_keeps_the_highest_priorities_of_a_stream():
    rng = np.random.default_rng(0)
    priorities = rng.uniform(0, 1, 1000)
    buffer = relive.ReplayBuffer(50, sampler=relive.Uniform(), remover=Lowest())
    for start in range(0, 1000, 7):
        buffer.add_batch(list(range(start, min(start + 7, 1000))), priorities[start : start + 7])
    kept = set(buffer.sample(51).experiences)  # more than there are: each once
    # The newest batch is always in, whatever its priority: the remover chooses among what was there before.
    best = set(np.argsort(priorities)[-50:].tolist())
    assert len(kept & best) >= 50 - 7


def test_uniform_as_remover_is_uniform_whatever_the_priorities():
    counts = collections.Counter()
    for seed in range(400):
        buffer = relive.ReplayBuffer(10, sampler=relive.Prioritized(1.0), remover=relive.Uniform(), seed=seed)
        buffer.add_batch(list(range(10)), [0.0, 100.0, *[1.0] * 8])
        buffer.add("new", 1.0)
        counts.update(id_ for id_ in range(10) if np.isnan(buffer.priorities([id_])[0]))
    assert counts.total() == 400
    assert max(counts.values()) < 400 * 0.1 + 5 * (400 * 0.1 * 0.9) ** 0.5
    assert min(counts[id_] for id_ in range(10)) > 400 * 0.1 - 5 * (400 * 0.1 * 0.9) ** 0.5


def test_once_per_pass_draws_each_once_in_a_pass_and_never_twice_in_a_batch():
    buffer = filled(OncePerPass(), list(range(10)))
    drawn = [buffer.sample(4).experiences for _ in range(5)]
    assert all(len(set(batch)) == 4 for batch in drawn)
    flat = [item for batch in drawn for item in batch]
    assert collections.Counter(flat) == dict.fromkeys(range(10), 2)


def test_once_per_pass_takes_what_is_added_into_the_running_pass_and_skips_what_has_left():
    buffer = filled(OncePerPass(), list(range(10)), capacity=10)
    seen = buffer.sample(4).experiences
    buffer.add_batch(["a", "b"])  # 0 and 1 leave
    rest = buffer.sample(10 - len(set(seen) - {0, 1})).experiences
    assert set(rest) | set(seen) >= {"a", "b", *range(2, 10)}
    assert not {0, 1} & set(rest)
    assert len(set(rest)) == len(rest)


def test_filter_draws_only_what_fits_and_follows_late_outcomes():
    experiences = [
        transition(0, agent="a", outcome="success", policy_version=1, tags=("x",)),
        transition(1, agent="a", outcome="failure", policy_version=2),
        transition(2, agent="b", outcome="success", policy_version=3, tags=("x", "y")),
        transition(3, agent="b"),
    ]
    for conditions, expected in (
        ({"agent": "a"}, {0, 1}),
        ({"agent": ["a", "b"], "outcome": "success"}, {0, 2}),
        ({"policy_version": 2}, {1}),
        ({"min_policy_version": 2}, {1, 2}),
        ({"tag": "x"}, {0, 2}),
        ({"tag": ["y", "z"]}, {2}),
        ({"where": lambda t: t.action > 1}, {2, 3}),
    ):
        buffer = filled(Filter(**conditions), experiences)
        batch = buffer.sample(10)
        assert {t.action for t in batch.experiences} == expected
        assert len(batch) == len(expected)
        assert batch.probabilities.sum() == pytest.approx(1)
    with pytest.raises(BufferSettingError, match="condition"):
        Filter()


def test_filter_leaves_out_what_was_evicted_and_prefers_priorities_among_the_rest():
    buffer = filled(Filter(relive.Prioritized(1.0), where=lambda x: x % 2 == 0), list(range(20)), capacity=10)
    buffer.update_priorities([18], [9.0])
    drawn = collections.Counter(item for _ in range(300) for item in buffer.sample(4).experiences)
    assert set(drawn) == {10, 12, 14, 16, 18}
    assert drawn[18] / drawn.total() == pytest.approx(9 / 13, abs=0.05)


def test_filter_as_remover_lets_go_what_fits_before_the_oldest():
    buffer = relive.ReplayBuffer(4, remover=Filter(relive.Fifo(), where=lambda x: x < 0))
    buffer.add_batch([1, -2, 3, -4])
    buffer.add_batch([5, 6, 7])
    assert sorted(buffer.sample(5).experiences) == [3, 5, 6, 7]


def test_stratified_draws_groups_in_equal_or_given_shares():
    experiences = [transition(n, agent="big") for n in range(900)] + [transition(n, agent="small") for n in range(100)]
    equal = filled(Stratified("agent"), experiences)
    batch = equal.sample(64)
    assert collections.Counter(t.agent for t in batch.experiences) == {"big": 32, "small": 32}
    given = filled(Stratified("agent", {"big": 3, "small": 1}), experiences)
    assert collections.Counter(t.agent for t in given.sample(64).experiences) == {"big": 48, "small": 16}


def test_stratified_fills_from_other_groups_instead_of_repeating_a_small_one():
    experiences = [("a", n) for n in range(100)] + [("b", 0), ("b", 1)]
    buffer = filled(Stratified(lambda pair: pair[0], sampler=relive.Uniform()), experiences)
    batch = buffer.sample(20)
    assert collections.Counter(group for group, _ in batch.experiences) == {"a": 18, "b": 2}
    assert len(buffer.sample(200)) == 102


def test_stratified_probabilities_and_weights_follow_from_shares_and_priorities():
    buffer = filled(
        Stratified(lambda pair: pair[0], sampler=relive.Prioritized(1.0, beta=1.0)),
        [("a", 1.0), ("a", 3.0), ("b", 2.0), ("b", 2.0)],
        [1.0, 3.0, 2.0, 2.0],
    )
    batch = buffer.sample(4)
    expected = {("a", 1.0): (1 / 8, 1.0), ("a", 3.0): (3 / 8, 1 / 3), ("b", 2.0): (1 / 4, 1 / 2)}
    smallest = min(expected[item][0] for item in batch.experiences)
    for item, probability, weight in zip(batch.experiences, batch.probabilities, batch.weights, strict=True):
        assert probability == pytest.approx(expected[item][0])
        # (N_g P(i|g))^-1 over the batch's largest: 2, 2/3 and 1 before scaling.
        assert weight == pytest.approx(smallest / expected[item][0])


def test_mixture_draws_from_each_in_its_share_and_never_fills_up():
    mixture = Mixture((relive.Prioritized(1.0), 3), (relive.Uniform(), 1), (Filter(where=lambda x: x == "rare"), 4))
    buffer = filled(mixture, list(range(50)))
    batch = buffer.sample(16)
    assert len(batch) == 8
    assert batch.shortfall == 8
    buffer = filled(Mixture((Lifo(), 1), (relive.Fifo(), 1)), list(range(50)))
    assert sorted(buffer.sample(4).experiences) == [0, 1, 48, 49]


def test_mixture_gives_samplers_of_different_alpha_their_own_shares():
    mixture = Mixture((relive.Prioritized(1.0), 0.5), (relive.Uniform(), 0.5))
    buffer = filled(mixture, list(range(4)), [1, 1, 1, 97])
    drawn = collections.Counter(item for _ in range(1000) for item in buffer.sample(4).experiences)
    assert drawn[3] / drawn.total() == pytest.approx(0.5 * 0.97 + 0.5 * 0.25, abs=0.03)


def test_token_budget_never_exceeds_the_budget_and_passes_over_what_never_fits():
    sizes = [10, 20, 30, 1000, 5]
    buffer = filled(TokenBudget(64, relive.Uniform(), count=lambda size: size), sizes * 20)
    drawn = [buffer.sample(16) for _ in range(100)]
    assert all(sum(batch.experiences) <= 64 for batch in drawn)
    assert all(batch.experiences for batch in drawn)
    assert not any(1000 in batch.experiences for batch in drawn)


def test_token_budget_draws_long_experiences_as_often_as_short_ones():
    buffer = filled(TokenBudget(1000, relive.Uniform(), count=lambda size: size), [10, 100] * 50)
    first = collections.Counter(buffer.sample(8).experiences[0] for _ in range(1000))
    assert first[100] / 1000 == pytest.approx(0.5, abs=0.08)


def test_tokens_are_counted_from_the_trace_the_usage_or_an_estimate():
    from relive.buffer import token_count

    trace = relive.TokenTrace(token_ids=np.arange(7), mask=np.ones(7))
    assert token_count(transition(0, tokens=trace)) == 7
    assert token_count(transition(0, usage=relive.Usage(input_tokens=11, output_tokens=4))) == 15
    estimate = token_count(transition(0, usage=relive.Usage(output_tokens=4)))
    assert estimate == len('{"state":"state 0","action":0}') // 3 + 1


def near_copies(rng, count):
    """One text with a word changed here and there."""
    text = "the customer asks about a card payment that was declined twice in a shop abroad this week"
    copies = []
    for _ in range(count):
        changed = text.split()
        changed[int(rng.integers(len(changed)))] = f"w{rng.integers(1000)}"
        copies.append(" ".join(changed))
    return copies


def originals(rng, count):
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    return [" ".join("".join(rng.choice(letters, 6)) for _ in range(16)) for _ in range(count)]


def test_diverse_finds_at_least_three_times_the_distinct_originals_among_near_copies():
    rng = np.random.default_rng(0)
    copies, unique = near_copies(rng, 900), originals(rng, 100)
    texts = [*copies, *unique]
    order = rng.permutation(len(texts))
    experiences = [relive.Transition(state=texts[n], action="answer", episode_id=str(n)) for n in order]
    originality = {text: text for text in unique} | dict.fromkeys(copies, "the copied one")

    def distinct(sampler):
        buffer = filled(sampler, experiences)
        return np.mean([len({originality[t.state] for t in buffer.sample(64).experiences}) for _ in range(10)])

    assert distinct(Diverse(weight=0.3)) >= 3 * distinct(relive.Prioritized())


def test_diverse_finds_originals_among_near_copies_of_vectors():
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(100, 16))
    vectors = np.concatenate([centres[:1] + 0.01 * rng.normal(size=(900, 16)), centres])
    names = [0] * 900 + list(range(100))
    experiences = [{"obs": vector, "name": name} for vector, name in zip(vectors, names, strict=True)]

    def distinct(sampler):
        buffer = filled(sampler, experiences)
        return np.mean([len({e["name"] for e in buffer.sample(64).experiences}) for _ in range(10)])

    assert distinct(Diverse(weight=0.3)) >= 3 * distinct(relive.Prioritized())


def test_diverse_of_weight_zero_is_a_draw_without_replacement_by_priority():
    counts = collections.Counter()
    for seed in range(600):
        buffer = filled(Diverse(0.0, alpha=1.0), ["a", "b", "c"], [1, 2, 5], seed=seed)
        counts[buffer.sample(1).experiences[0]] += 1
        assert sorted(buffer.sample(3).experiences) == ["a", "b", "c"]
    assert counts["c"] / 600 == pytest.approx(5 / 8, abs=0.08)


def test_buf_18_a_diversity_limit_gives_what_there_is_and_reports_the_shortfall():
    experiences = [{"task": task, "state": n} for n, task in enumerate(["a", "b", "c", "a", "b"])]
    buffer = filled(Diverse(limit=1, key="task"), experiences, capacity=100)
    batch = buffer.sample(8)
    assert sorted(e["task"] for e in batch.experiences) == ["a", "b", "c"]
    assert batch.shortfall == 5


def test_a_limit_is_met_from_the_whole_buffer_when_the_pool_is_too_uniform():
    tasks = ["common"] * 5000 + ["rare 1", "rare 2"]
    buffer = filled(Diverse(limit=1, key="task"), [{"task": task, "state": task} for task in tasks])
    assert sorted(e["task"] for e in buffer.sample(3).experiences) == ["common", "rare 1", "rare 2"]


SAMPLERS = {
    "lifo": Lifo,
    "highest": Highest,
    "lowest": Lowest,
    "once": OncePerPass,
    "distinct": lambda: relive.Prioritized(replacement=False),
    "filter": lambda: Filter(relive.Prioritized(0.7), outcome=["success", "unknown"]),
    "filter of filters": lambda: Filter(Filter(agent=["1", "2"]), outcome=["success", "unknown"]),
    "stratified": lambda: Stratified("agent", sampler=relive.Prioritized(0.7)),
    "mixture": lambda: Mixture((relive.Prioritized(), 2), (relive.Uniform(), 1), (OncePerPass(), 1)),
    "budget": lambda: TokenBudget(200),
    "diverse": lambda: Diverse(0.5),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_saved_state_goes_on_with_the_same_draws(name, tmp_path):
    rng = np.random.default_rng(0)

    def make():
        return relive.ReplayBuffer(60, sampler=SAMPLERS[name](), seed=3)

    def step(buffer, rng):
        kinds = rng.choice(["success", "failure", "unknown"], 5)
        buffer.add_batch(
            [transition(int(rng.integers(100)), outcome=str(kind), agent=str(rng.integers(3))) for kind in kinds],
            rng.uniform(0, 2, 5),
        )
        batch = buffer.sample(6)
        buffer.update_priorities(batch.ids, rng.uniform(0, 2, len(batch)))
        return batch.ids.tolist(), batch.weights.tolist()

    buffer = make()
    for _ in range(40):
        step(buffer, rng)
    buffer.remove(buffer.sample(5).ids)
    twin = make()
    buffer.save(tmp_path / "buffer")
    twin.load(tmp_path / "buffer")
    again = np.random.default_rng(9), np.random.default_rng(9)
    for _ in range(30):
        assert step(buffer, again[0]) == step(twin, again[1])
    twice = make()
    twice.load_state_dict(twin.state_dict())
    assert twice.sample(6).ids.tolist() == twin.sample(6).ids.tolist()


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_global_random_states_are_neither_read_nor_changed(name):
    import random

    def draws():
        buffer = relive.ReplayBuffer(50, sampler=SAMPLERS[name](), seed=5)
        buffer.add_batch([transition(n, agent=str(n % 3)) for n in range(50)])
        return [buffer.sample(7).ids.tolist() for _ in range(5)]

    before = random.getstate(), np.random.get_state()[1].tobytes()
    first = draws()
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before
    random.seed(1)  # noqa: TID251
    np.random.seed(1)  # noqa: TID251
    assert draws() == first


def test_a_sampler_that_only_samples_cannot_remove_and_the_other_way_round():
    with pytest.raises(BufferSettingError, match="OncePerPass cannot be the remover"):
        relive.ReplayBuffer(4, remover=OncePerPass())
    with pytest.raises(BufferSettingError, match="Reservoir cannot be the sampler"):
        relive.ReplayBuffer(4, sampler=relive.buffer.Reservoir())


def test_samplers_work_on_rows_of_arrays():
    storage = relive.ArrayStorage({"agent": "i8", "obs": ("f4", (4,)), "rew": "f4"})
    buffer = relive.ReplayBuffer(100, storage=storage, sampler=Stratified("agent", sampler=relive.Uniform()))
    rng = np.random.default_rng(0)
    agents = np.repeat([0, 1], [90, 10])
    buffer.add_batch({"agent": agents, "obs": rng.normal(size=(100, 4)), "rew": np.zeros(100)})
    assert np.bincount(buffer.sample(10)["agent"]).tolist() == [5, 5]


def test_beta_follows_a_schedule_across_save_and_load(tmp_path):
    def make():
        return filled(relive.Prioritized(1.0, beta=lambda draws: min(1.0, 0.5 + 0.25 * draws)), ["a", "b"], [1.0, 4.0])

    buffer = make()
    smallest = [buffer.sample(3).weights.min() for _ in range(2)]
    twin = make()
    buffer.save(tmp_path / "buffer")
    twin.load(tmp_path / "buffer")
    smallest += [twin.sample(3).weights.min() for _ in range(2)]
    # Weights of priority 4 beside 1: (1/4)^beta with beta 0.5, 0.75, 1, 1.
    assert smallest == pytest.approx([0.25**0.5, 0.25**0.75, 0.25, 0.25])
    with pytest.raises(BufferSettingError, match="beta is 2"):
        relive.Prioritized(beta=lambda draws: 2.0)
