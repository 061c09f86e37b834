"""Reflection by contrast: exact tests against published numbers, patterns on planted and on real episodes."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import relive
from relive import Memory, Transition
from relive.playbook.book import Playbook
from relive.reflect.contrast import Settings, contrast, episodes_of, lesson_of, lift, reflect
from relive.reflect.exact import Table, adjusted, odds_interval, p_value
from relive.reflect.features import Episode, Feature, episode_of
from relive.storage import SqliteStorage
from relive.storage.importer import import_file

TAU = Path(__file__).parents[1] / "data" / "tau_bench" / "gpt-4o-airline.json.zst"


def test_fishers_tea_tasting_has_his_p_value_and_an_interval_that_solves_his_equation() -> None:
    # Fisher 1935: 3 of 4 cups right both ways. Under the odds ratio w the counts 0 to 4 have chances in proportion to
    # 1, 16 w, 36 w², 16 w³, w⁴; at the interval's ends the tail from 3 on, and that up to 3, is 0.025.
    table = Table(3, 4, 4, 8)
    assert p_value([table]) == pytest.approx(34 / 70)
    low, high = odds_interval([table])
    weights = [[c * w**k for k, c in enumerate((1, 16, 36, 16, 1))] for w in (low, high)]
    assert sum(weights[0][3:]) / sum(weights[0]) == pytest.approx(0.025)
    assert sum(weights[1][:4]) / sum(weights[1]) == pytest.approx(0.025)


def test_a_table_without_failures_with_the_feature_has_no_upper_bound() -> None:
    low, high = odds_interval([Table(5, 5, 6, 12)])
    assert low > 1
    assert high == math.inf
    assert p_value([Table(5, 5, 6, 12)]) == pytest.approx(2 * 6 / 792)  # C(6,5)·C(6,0) / C(12,5), and its mirror


def slow_p(tables: list[Table]) -> float:
    """By going through all tables with these margins."""
    chances: dict[int, float] = defaultdict(float)
    ranges = [range(max(0, t.with_it + t.good - t.episodes), min(t.with_it, t.good) + 1) for t in tables]
    for counts in itertools.product(*ranges):
        chance = math.prod(
            math.comb(t.good, k) * math.comb(t.episodes - t.good, t.with_it - k) / math.comb(t.episodes, t.with_it)
            for k, t in zip(counts, tables, strict=True)
        )
        chances[sum(counts)] += chance
    observed = chances[sum(t.good_with for t in tables)]
    return sum(chance for chance in chances.values() if chance <= observed * (1 + 1e-9))


def test_strata_are_put_together_as_going_through_all_tables_does() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        tables = []
        for _ in range(3):
            count = int(rng.integers(2, 9))
            good, with_it = (int(n) for n in rng.integers(0, count + 1, 2))
            low, high = max(0, with_it + good - count), min(with_it, good)
            tables.append(Table(int(rng.integers(low, high + 1)), with_it, good, count))
        assert p_value(tables) == pytest.approx(slow_p(tables))


def test_corrected_p_values_are_those_of_benjamini_and_hochberg() -> None:
    assert adjusted([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])
    assert len(adjusted([])) == 0


def episode(number: int, success: bool, *names: str, agent: str = "a", group: str | None = None) -> Episode:
    features = frozenset(Feature("tool", name) for name in names)
    return Episode(f"e{number}", agent, "success" if success else "failure", group, features, number)


def test_a_planted_pattern_is_found_and_noise_is_not() -> None:
    rng = np.random.default_rng(1)
    episodes = []
    for number in range(200):
        noise = [f"noise{k}" for k in range(100) if rng.random() < 0.5]
        helped = rng.random() < 0.5
        episodes.append(
            episode(number, rng.random() < (0.8 if helped else 0.4), *noise, *(["look up"] if helped else []))
        )
    found = contrast(episodes)
    assert found.patterns[0].feature.name == "look up"
    assert len(found.patterns) <= 2, "at most a tenth of what is found may be false, on average"
    best = found.patterns[0]
    rate = best.good_with / best.with_it
    assert best.lift == pytest.approx(rate / (best.good / best.count))
    assert best.odds[0] > 1.5
    assert lesson_of(best).text.do == "Use look up where it applies"


def test_without_effect_a_false_pattern_is_rare() -> None:
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(40):
        episodes = [
            episode(n, rng.random() < 0.5, *(f"f{k}" for k in range(20) if rng.random() < 0.5)) for n in range(60)
        ]
        found += bool(contrast(episodes).patterns)
    assert found <= 8  # a tenth of 40 is 4; 9 or more have a chance below 0.02


def test_a_pattern_of_one_task_is_none() -> None:
    episodes = [
        episode(n, n % 2 == 0, *(["odd tool"] if n < 10 and n % 2 == 0 else []), group=f"g{n // 10}")
        for n in range(100)
    ]
    assert contrast(episodes).patterns == ()


def test_agents_are_compared_with_themselves_only() -> None:
    good = [episode(n, True, "x", agent="good") for n in range(30)]
    bad = [episode(n, False, agent="bad") for n in range(30)]
    found = contrast(good + bad)
    assert (found.patterns, found.tested) == ((), 0)
    assert found.reason == "There are 60 episodes with a known outcome, 30 of them successes: too few."


def test_fewer_than_ten_episodes_and_unknown_outcomes_say_nothing() -> None:
    few = [episode(n, n < 5, *(["x"] if n < 5 else [])) for n in range(9)]
    assert contrast(few).reason.startswith("There are 9 episodes")
    unknown = [Episode(f"u{n}", "a", "unknown", None, frozenset({Feature("tool", "x")})) for n in range(50)]
    assert contrast(unknown).episodes == 0


def test_features_are_what_was_called_said_asked_and_how_it_went() -> None:
    question = {"role": "user", "content": "Refund my parcel <relive-notes>\nzebra\n</relive-notes>"}
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "find", "arguments": "{}"}}]}
    result = {"role": "tool", "content": "Error: none"}
    steps = [
        Transition(state={"messages": [question]}, action=call),
        Transition(state={"messages": [question, call, result]}, action=call),
        Transition(
            state={"messages": [question, call, result, call, result]},
            action={"role": "assistant", "content": "The refund is approved"},
        ),
    ]
    names = {(one.kind, one.name) for one in episode_of(steps).features}
    assert names == {
        ("asked", "refund"),
        ("asked", "parcel"),
        ("tool", "find"),
        ("order", "find twice in a row"),
        ("order", "find first"),
        ("order", "find last"),
        ("phrase", "the refund"),
        ("phrase", "refund is"),
        ("phrase", "is approved"),
        ("course", "a tool that answers with an error"),
    }


@pytest.fixture(scope="module")
def tau(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Episode]]:
    with SqliteStorage(tmp_path_factory.mktemp("tau") / "tau.db", text_index=False) as store:
        import_file(TAU, store)
        yield episodes_of(store)


def test_patterns_of_tool_use_found_on_30_tasks_keep_their_direction_on_20_others(tau: list[Episode]) -> None:
    tasks = sorted({one.group or "" for one in tau}, key=lambda name: int(name.split("-")[2]))
    splits = [np.arange(50), *(np.random.default_rng(seed).permutation(50) for seed in range(4))]
    kept = total = 0
    for order in splits:
        chosen = {tasks[at] for at in order[:30]}
        found = contrast([one for one in tau if one.group in chosen], Settings(held_back=0.0, most=500))
        others = [one for one in tau if one.group not in chosen]
        patterns = [one for one in found.patterns if one.feature.kind in ("tool", "order")]
        lifts = [(one.helps, lift(others, one.feature)) for one in patterns]
        kept += sum((found_lift > 1) == helps for helps, found_lift in lifts if found_lift is not None)
        total += sum(found_lift is not None for _, found_lift in lifts)
    assert total >= 20
    assert kept >= 0.8 * total


def test_reflection_writes_candidates_once_and_never_from_what_is_distrusted(tmp_path: Path) -> None:
    with relive.open(tmp_path / "a.db") as memory:
        book = Playbook(memory)
        for number in range(60):
            _act(memory, number, helped=number % 2 == 0)
        found, applied = reflect(book)
        assert "look_up" in found.patterns[0].feature.name
        lesson = book.get(applied[0].lesson or 0)
        assert (lesson.status, lesson.agent, lesson.origin) == ("candidate", "support", "contrast")
        assert lesson.support == 24
        again = reflect(book)[1]
        assert {one.what for one in again} == {"known"}
        book.rollback(agent="support")
        assert reflect(book)[0].episodes == 0


def _act(memory: Memory, number: int, *, helped: bool) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look_up"}}]}
    memory.add(
        Transition(
            state={"messages": [{"role": "user", "content": f"Question {number}"}]},
            action=call if helped else {"role": "assistant", "content": "No"},
            agent="support",
            episode_id=f"e{number}",
            outcome="success" if (number % 10 < 8) == helped else "failure",
        )
    )


def test_what_to_choose_at_a_word_of_the_request_becomes_a_lesson_and_a_choice_alone_does_not(tmp_path: Path) -> None:
    routes = {"parcel": "delivery", "refund": "money", "password": "account"}
    with relive.open(tmp_path / "a.db") as memory:
        for number in range(180):
            word, tried = list(routes)[number % 3], list(routes.values())[number // 3 % 3]
            memory.add(
                Transition(
                    state=f"customer {number} asks about the {word}",
                    action=tried,
                    agent="router",
                    outcome="success" if routes[word] == tried else "failure",
                )
            )
        book = Playbook(memory)
        found, _ = reflect(book)
        said = {(lesson.text.when, lesson.text.do) for lesson in book.lessons()}
    right = {(f'the request says "{word}"', f"Choose {route}") for word, route in routes.items()}
    wrong = {(f'the request says "{word}"', f"Do not choose {route}") for word in routes for route in routes.values()}
    assert right <= said <= right | wrong
    assert {one.feature.kind for one in found.patterns} == {"choice"}


def test_episodes_without_a_task_do_not_undo_the_check_on_tasks_kept_back() -> None:
    look, good = Feature("tool", "look_up"), ("success", "failure")
    made = [
        Episode(str(n), "a", good[n % 2], f"task {n // 4}", frozenset({look} if n % 2 == 0 else ())) for n in range(80)
    ]
    made.append(Episode("80", "a", "success", None, frozenset({look})))
    (found,) = (one for one in contrast(made).patterns if one.feature == look)
    assert found.count == 56 + 1, "14 of 20 tasks, and what has none"
    assert found.held_out_lift == 2
