"""What any `Storage` must do. A test module of a store subclasses `StorageContract` and gives the fixture ``store``."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pytest

from relive import Feedback, TokenTrace, Transition, Usage
from relive.errors import InvalidExperienceError
from relive.storage import Query, SqliteStorage

START = datetime(2026, 3, 1, tzinfo=UTC)


def message(text: str, **fields: Any) -> Transition:
    return Transition(state={"messages": [{"role": "user", "content": text}]}, action="answer", **fields)


def full() -> Transition:
    """A transition with every field set to something that is not its default."""
    return Transition(
        state={"messages": [{"role": "user", "content": "Où est ma carte ? 🂡"}], "n": [1, 2.5, None, True]},
        action={"tool_calls": [{"arguments": '{"price": 1.10, "id": 2512292042121000001}'}]},
        next_state={"observation": [9007199254740993, 10**400, -0.0, 1e-300]},
        reward=-0.125,
        terminated=True,
        truncated=True,
        outcome="failure",
        agent="tester",
        episode_id="an episode",
        step=7,
        parent=3,
        group_id="a group",
        tags=("b", "a", "b"),
        policy="model",
        policy_version=12,
        usage=Usage(input_tokens=5, cached_tokens=0, output_tokens=2**40),
        cost=2**62,
        latency_ms=12.25,
        error="it failed",
        created_at=datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        tokens=TokenTrace(
            token_ids=[1, 2, 2**31 - 1],
            mask=[0, 1, 1],
            logprobs=[0.0, -0.1, -2.5],
            versions=[4, 4, 5],
            temperature=0.7,
            top_p=0.9,
            tokenizer="hash",
        ),
        info={"finish_reason": "stop"},
    )


class StorageContract:
    """Behaviour of a store, whatever holds the rows."""

    def test_every_field_comes_back_as_it_was(self, store: SqliteStorage) -> None:
        plain = Transition(state=None, action=None)
        ids = store.append([full(), plain])
        assert store.get(ids) == [full(), plain]
        assert store.get([ids[0]])[0] is not store.get([ids[0]])[0]

    def test_ids_increase_and_are_never_reused(self, store: SqliteStorage) -> None:
        first = store.append([message("a"), message("b"), message("c")])
        assert first == [1, 2, 3]
        assert store.delete([3, 2]) == 2
        assert store.append([message("d")]) == [4]
        assert [found is None for found in store.get([1, 2, 3, 4, 99])] == [False, True, True, False, True]

    def test_one_append_is_all_or_nothing(self, store: SqliteStorage) -> None:
        with pytest.raises(InvalidExperienceError, match="not made of JSON values"):
            store.append([message("a"), Transition(state=object(), action=None)])
        with pytest.raises(InvalidExperienceError, match="agent is 5; it must be text"):
            store.append([message("a"), Transition(state=1, action=1, agent=5)])  # type: ignore[arg-type]
        with pytest.raises(InvalidExperienceError, match=r"step is .* at most 64 bits"):
            store.append([Transition(state=1, action=1, step=2**63)])
        with pytest.raises(InvalidExperienceError, match="priority is nan"):
            store.append([message("a")], priorities=[float("nan")])
        with pytest.raises(InvalidExperienceError, match="2 experiences, 1 priorities"):
            store.append([message("a"), message("b")], priorities=[1.0])
        assert len(store) == 0
        assert store.append([message("a")]) == [1]

    def test_appending_nothing_is_no_error(self, store: SqliteStorage) -> None:
        assert store.append([]) == []
        assert store.read([]) == []

    def test_what_is_changed_after_handing_it_in_does_not_reach_the_store(self, store: SqliteStorage) -> None:
        transition = message("before")
        future = store.append_soon([transition])
        transition.state["messages"][0]["content"] = "after"
        [number] = future.result()
        assert store.search("before") != []
        found = store.get([number or 0])[0]
        assert found is not None
        assert found.state["messages"][0]["content"] == "before"

    def test_eviction_and_append_are_one_step(self, store: SqliteStorage) -> None:
        ids = store.append([message(f"old {n}", tags=("t",)) for n in range(4)])
        before = store.change_number()
        store.append([message("new")], evict=[ids[0], ids[2], 99])
        assert [row.id for row in store.query()] == [2, 4, 5]
        assert [row.id for row in store.query(tag="t")] == [2, 4]
        assert {number for number, _ in store.search("old")} == {2, 4}
        changes = store.changes(before)
        assert (changes.added, changes.removed) == ([5], [1, 3])
        assert store.stats().evicted == 2

    def test_a_uid_is_stored_once(self, store: SqliteStorage) -> None:
        uids = [bytes([n]) * 16 for n in range(3)]
        assert store.append([message("a"), message("b")], uids=uids[:2]) == [1, 2]
        assert store.append([message("b"), message("c"), message("c")], uids=[uids[1], uids[2], uids[2]]) == [
            None,
            3,
            None,
        ]
        assert store.ids_of([*uids, b"?" * 16]) == [1, 2, 3, None]
        assert [row.uid for row in store.query()] == uids
        store.delete([2])
        assert store.append([message("b")], uids=[uids[1]]) == [4]

    # ---- Queries

    def test_a_query_finds_what_meets_every_condition(self, store: SqliteStorage) -> None:
        store.append([
            message("red", agent="a", episode_id="e", reward=1.0, outcome="success", tags=("x", "y"), created_at=START),
            message("red", agent="a", reward=0.5, group_id="g", error="timeout after 60 s", policy="p"),
            message("blue", agent="b", episode_id="e", parent=1, policy="p", policy_version=2),
            message("blue", agent="b", outcome="failure", tags=("y",), created_at=START + timedelta(days=1)),
        ])  # fmt: skip
        cases: list[tuple[dict[str, Any], list[int]]] = [
            ({}, [1, 2, 3, 4]),
            ({"agent": "a"}, [1, 2]),
            ({"episode_id": "e"}, [1, 3]),
            ({"group_id": "g"}, [2]),
            ({"parent": 1}, [3]),
            ({"outcome": "unknown"}, [2, 3]),
            ({"min_reward": 0.5}, [1, 2]),
            ({"max_reward": 0.9}, [2]),
            ({"policy": "p"}, [2, 3]),
            ({"policy": "p", "policy_version": 2}, [3]),
            ({"tag": "y"}, [1, 4]),
            ({"since": START + timedelta(days=1), "until": START + timedelta(days=2)}, [4]),
            ({"until": START}, []),
            ({"error": True}, [2]),
            ({"error": False}, [1, 3, 4]),
            ({"error": "60 s"}, [2]),
            ({"text": "blue"}, [3, 4]),
            ({"text": "blue", "agent": "a"}, []),
            ({"text": "?!"}, []),
            ({"tag": "y", "agent": "b", "outcome": "failure"}, [4]),
            ({"newest_first": True, "limit": 3}, [4, 3, 2]),
            ({"newest_first": True, "after": 3}, [2, 1]),
            ({"after": 2, "limit": 1}, [3]),
        ]
        for conditions, expected in cases:
            assert [row.id for row in store.query(**conditions)] == expected, conditions
            if not conditions.keys() & {"limit", "after", "newest_first"}:
                assert store.count(Query(**conditions)) == len(expected), conditions

    def test_paging_stays_right_while_rows_arrive_and_leave(self, store: SqliteStorage) -> None:
        store.append([message(f"row {n}") for n in range(20)])
        seen: list[int] = []
        while page := store.query(after=seen[-1] if seen else None, limit=3):
            seen += [row.id for row in page]
            if len(store) < 26:
                store.append([message("late")])
                store.delete([seen[0], 19])
        assert seen == [n for n in range(1, seen[-1] + 1) if n != 19]
        assert seen[-1] >= 25

    def test_search_puts_the_most_alike_first(self, store: SqliteStorage) -> None:
        store.append([
            message("my card has not arrived", outcome="success"),
            message("the exchange rate is wrong", outcome="success"),
            message("card", outcome="failure", agent="other"),
        ])  # fmt: skip
        found = store.search("has my card arrived?")
        assert [number for number, _ in found] == [1, 3]
        assert found[0][1] > found[1][1] > 0
        assert [number for number, _ in store.search("card", outcome="success")] == [1]
        assert [number for number, _ in store.search("card", agent="other")] == [3]
        assert len(store.search("card rate", limit=1)) == 1
        for text in ("", "  ", '"', "a AND", "state_text:*", "NEAR(", "\x00", "\udc81"):
            store.search(text)

    def test_a_stored_row_can_be_seen_without_parsing_its_payload(self, store: SqliteStorage) -> None:
        raw = b'{"price": 1.10, "n": 1e400}'
        [number] = store.append([Transition(state=msgspec.Raw(raw), action=1, reward=2.0, agent="x")])
        stored = store.read([number or 0])[0]
        assert stored is not None
        assert stored.json() == b'{"state":' + raw + b',"action":1}'
        assert (stored.agent, stored.reward, stored.outcome) == ("x", 2.0, "unknown")
        assert stored.transition.state == {"price": 1.1, "n": float("inf")}

    def test_a_next_state_may_come_late_and_once(self, store: SqliteStorage) -> None:
        [one, two] = store.append([message("a"), message("b", next_state=1)])
        before = store.change_number()
        assert store.set_next_state(one or 0, {"observation": "x" * 1000})
        assert not store.set_next_state(one or 0, 2)
        assert not store.set_next_state(two or 0, 2)
        assert not store.set_next_state(99, 2)
        assert [t.next_state for t in store.get([1, 2]) if t] == [{"observation": "x" * 1000}, 1]
        assert store.changes(before).rewarded == [1]
        store.delete([1])

    # ---- Feedback

    def test_feedback_about_an_experience_sets_its_reward_and_outcome(self, store: SqliteStorage) -> None:
        store.append([message("a"), message("b", reward=1.0, outcome="success")])
        assert store.feedback(Feedback(experience_id=1, reward=0.8)) == 1
        assert store.feedback(Feedback(experience_id=2, reward=0.0, comment="wrong after all")) == 1
        assert [(t.reward, t.outcome) for t in store.get([1, 2]) if t] == [(0.8, "success"), (0.0, "failure")]
        stored = store.read([2])[0]
        assert stored is not None
        assert stored.recorded == (1.0, "success")

    def test_the_same_source_and_key_replaces_and_another_adds(self, store: SqliteStorage) -> None:
        store.append([message("a")])
        for reward in (0.2, 0.4, 0.4):
            store.feedback(Feedback(experience_id=1, source="anna", reward=reward))
        assert [t.reward for t in store.get([1]) if t] == [0.4]
        store.feedback(Feedback(experience_id=1, source="ben", reward=1.0))
        assert [t.reward for t in store.get([1]) if t] == [pytest.approx(0.7)]  # the mean of two sources
        store.feedback(Feedback(experience_id=1, source="ben", key="tone", reward=-0.5))
        assert [t.reward for t in store.get([1]) if t] == [pytest.approx(0.2)]  # the sum of two components
        store.feedback(Feedback(experience_id=1, source="ben", comment="no opinion any more"))
        assert [t.reward for t in store.get([1]) if t] == [pytest.approx(-0.1)]
        assert len(store.feedback_of(1)) == 3

    def test_feedback_about_an_episode_reaches_all_of_it_before_and_after(self, store: SqliteStorage) -> None:
        assert store.feedback(Feedback(episode_id="e", reward=1.0)) == 0
        store.append([message("a", episode_id="e", step=0), message("b", episode_id="other")])
        store.append([message("c", episode_id="e", step=1)])
        assert [t.reward for t in store.get([1, 2, 3]) if t] == [1.0, None, 1.0]
        assert store.feedback(Feedback(episode_id="e", source="judge", reward=0.0)) == 2
        assert [t.reward for t in store.get([1, 3]) if t] == [0.5, 0.5]
        assert store.feedback(Feedback(experience_id=3, source="judge", reward=1.0)) == 1
        assert [t.reward for t in store.get([1, 3]) if t] == [0.5, 1.0]  # about itself goes before about its episode

    def test_feedback_may_come_before_its_experience(self, store: SqliteStorage) -> None:
        assert store.feedback(Feedback(experience_id=2, reward=0.9)) == 0
        store.append([message("a"), message("b"), message("c")])
        assert [t.reward for t in store.get([1, 2, 3]) if t] == [None, 0.9, None]

    def test_feedback_about_what_has_left_changes_nothing(self, store: SqliteStorage) -> None:
        store.append([message("a", episode_id="e")])
        store.feedback(Feedback(experience_id=1, reward=1.0))
        store.delete([1])
        assert store.feedback(Feedback(experience_id=1, reward=1.0)) == 0
        assert store.stats().feedback == 0

    def test_a_demonstration_is_kept_and_changes_no_reward(self, store: SqliteStorage) -> None:
        store.append([message("a", reward=0.25)])
        shown = Feedback(experience_id=1, source="expert", demonstration={"tool": "refund", "amount": 10**20})
        store.feedback(shown)
        assert store.feedback_of(1) == [shown]
        assert [(t.reward, t.outcome) for t in store.get([1]) if t] == [(0.25, "unknown")]

    def test_weights_of_components_apply_to_what_is_stored_already(self, store: SqliteStorage) -> None:
        store.append([message("a", reward=1.0), message("b", reward=0.7)])
        store.feedback(Feedback(experience_id=1, key="brevity", reward=4.0))
        assert [t.reward for t in store.get([1, 2]) if t] == [5.0, 0.7]
        before = store.change_number()
        assert store.set_reward_rule({"brevity": 0.25, "reward": 0.5}, success_at=2.0) == 1
        assert [(t.reward, t.outcome) for t in store.get([1, 2]) if t] == [(1.5, "failure"), (0.7, "unknown")]
        assert store.changes(before).rewarded == [1]
        with pytest.raises(InvalidExperienceError, match="finite"):
            store.set_reward_rule({"brevity": float("nan")})

    # ---- Followers

    def test_changes_tell_what_happened_since(self, store: SqliteStorage) -> None:
        assert store.changes(0).number == 0
        store.append([message("a"), message("b")])
        first = store.changes(0)
        assert first.added == [1, 2]
        store.append([message("c")])
        store.feedback(Feedback(experience_id=1, reward=1.0))
        store.delete([2])
        since = store.changes(first.number)
        assert (since.added, since.rewarded, since.removed, since.complete) == ([3], [1], [2], True)
        assert store.changes(since.number) == store.changes(store.change_number())
        assert not store.changes(since.number + 5).complete  # an older copy of the store has come back

    def test_many_threads_append_and_read_at_once(self, store: SqliteStorage) -> None:
        def work(name: int) -> list[int | None]:
            ids = [store.append([message(f"{name} {n}")])[0] for n in range(20)]
            assert all(found is not None for found in store.get([number or 0 for number in ids]))
            return ids

        with ThreadPoolExecutor(8) as pool:
            ids = [number for part in pool.map(work, range(8)) for number in part]
        assert sorted(number or 0 for number in ids) == list(range(1, 161))

    def test_stats_count_what_is_stored(self, store: SqliteStorage) -> None:
        store.append([
            message("a", reward=1.0, cost=5, outcome="success", episode_id="e"),
            message("b", reward=-1.0, agent="b", episode_id="e"),
            message("c"),
        ])  # fmt: skip
        stats = store.stats()
        assert (stats.experiences, stats.episodes, stats.rewards) == (3, 2, 2)
        assert (stats.reward_min, stats.reward_mean, stats.reward_max) == (-1.0, 0.0, 1.0)
        assert (stats.cost, stats.unknown_costs) == (5, 2)
        assert stats.outcomes == {"unknown": 2, "success": 1, "failure": 0}
        assert stats.agents == {"default": 2, "b": 1}
        assert msgspec.json.encode(stats.to_dict())

    def test_an_empty_store_knows_no_reward_and_no_cost(self, store: SqliteStorage) -> None:
        stats = store.stats()
        assert (stats.experiences, stats.reward_mean, stats.cost) == (0, None, None)

    def test_numpy_ids_do_as_well_as_lists(self, store: SqliteStorage) -> None:
        store.append([message("a"), message("b")])
        found = store.get(np.array([2, 1, 2], np.int32))
        assert [t.state["messages"][0]["content"] for t in found if t] == ["b", "a", "b"]
