"""Who did what to a store is written down with it, and can neither be changed nor taken out."""

import getpass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import numpy as np
import pytest

import relive
from relive.experience import Feedback, Transition
from relive.storage import IndexOwnedError, SqliteStorage, audit
from relive.storage.connection import connect
from relive.storage.sampling import IndexChange
from relive.storage.transaction import Transaction


def step(**fields: object) -> Transition:
    return Transition(state="s", action="a", **fields)  # type: ignore[arg-type]


def test_feedback_is_written_down_with_what_it_replaced_but_without_its_words(store: SqliteStorage) -> None:
    [number] = store.append([step()])
    started = datetime.now(UTC)
    store.feedback(Feedback(experience_id=number, source="judge", reward=0.25, comment="weak, says Alice"))
    store.feedback(Feedback(experience_id=number, source="judge", reward=1.0, demonstration="do it so"))
    first, second = store.audit()
    assert (first.action, first.who, first.target) == ("feedback", "judge", f"experience {number}: reward")
    assert (first.before, first.after) == (None, {"reward": 0.25, "comment": True, "demonstration": False})
    assert (second.before, second.after) == (first.after, {"reward": 1.0, "comment": False, "demonstration": True})
    assert second.number > first.number
    assert started - timedelta(seconds=1) <= first.at <= second.at <= datetime.now(UTC)
    assert "Alice" not in repr(store.audit())


def test_an_episode_is_named_by_a_hash_that_differs_between_stores(store: SqliteStorage, tmp_path: Path) -> None:
    about = Feedback(episode_id="alice@example.com", reward=1.0)
    store.feedback(about)
    with SqliteStorage(tmp_path / "other.db") as other:
        other.feedback(about)
        assert "alice" not in store.audit()[0].target
        assert other.audit()[0].target != store.audit()[0].target
    store.feedback(Feedback(episode_id="alice@example.com", reward=0.0))
    assert len({entry.target for entry in store.audit()}) == 1


def test_feedback_about_what_is_gone_leaves_no_entry(store: SqliteStorage) -> None:
    [number] = store.append([step()])
    store.delete([number])
    store.feedback(Feedback(experience_id=number, reward=1.0))
    assert store.audit() == []


def test_a_setting_of_priorities_is_written_down_by_who_runs_the_process(store: SqliteStorage) -> None:
    slots = np.array([0, 1], np.int32)
    store.write(lambda t: t.save_index(IndexChange(slots, np.array([1.0, 2.0], np.float32), np.array([7, 8])))).result()
    store.set_priorities([8], [0.5])
    [entry] = store.audit(action="priority")
    assert entry.who == getpass.getuser()
    assert (entry.before, entry.after) == ({"8": 2.0}, {"8": 0.5})


def test_priorities_are_set_past_no_owner(path: Path) -> None:
    with relive.open(path) as owner, SqliteStorage(path) as tool:
        owner.add_batch([step(), step()])
        with pytest.raises(IndexOwnedError, match="is held by"):
            tool.set_priorities([1], [5.0])
        assert tool.audit() == []
    with SqliteStorage(path) as tool:
        assert tool.set_priorities([1, 7], [5.0, 5.0]) == 1
        assert not tool.owns_index
    with relive.open(path) as owner:
        assert owner.priorities([1, 2]).tolist() == [5.0, 1.0]


def test_priorities_that_somebody_sets_are_written_down_and_td_errors_are_not(path: Path) -> None:
    with relive.open(path) as memory:
        memory.add_batch([step() for number in range(20)])
        memory.update_priorities(np.arange(1, 21), td_errors=np.ones(20))
        before = memory.priorities([1, 2]).tolist()
        assert memory.storage.audit() == []
        assert memory.update_priorities([1, 2, 999], [3.0, 4.0, 5.0]) == 2
        memory.update_priorities([999], [5.0])
        memory.update_priorities(np.arange(1, 21), np.full(20, 2.0))
        entry, many = memory.storage.audit(action="priority")
        assert (entry.before, entry.after) == (dict(zip("12", before, strict=True)), {"1": 3.0, "2": 4.0})
        assert entry.target == "2 experiences"
        assert many.target == "20 experiences"
        assert len(many.after) == 8


def test_a_changed_rule_for_rewards_is_written_down(store: SqliteStorage) -> None:
    store.set_reward_rule({"speed": 0.5})
    [entry] = store.audit(action="settings")
    assert (entry.before, entry.after) == ({"reward_weights": {}}, {"reward_weights": {"speed": 0.5}})


def test_an_entry_is_there_only_if_what_it_tells_of_is(store: SqliteStorage) -> None:
    def fail(transaction: Transaction) -> None:
        transaction.audit("forget", target="all")
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        store.write(fail).result()
    assert store.audit() == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET who = 'nobody'",
        "UPDATE audit SET number = 99",
        "DELETE FROM audit",
        "DELETE FROM audit WHERE number = 1",
        "INSERT OR REPLACE INTO audit VALUES (1, 0, 'x', 'x', 'x', NULL, NULL)",
        "INSERT INTO audit VALUES (1, 0, 'x', 'x', 'x', NULL, NULL) ON CONFLICT DO UPDATE SET who = 'x'",
        "REPLACE INTO audit VALUES (2, 0, 'x', 'x', 'x', NULL, NULL)",
    ],
)
@pytest.mark.parametrize("recursive_triggers", [0, 1])
def test_the_database_refuses_to_change_the_audit(tmp_path: Path, statement: str, recursive_triggers: int) -> None:
    path = tmp_path / "s.db"
    with SqliteStorage(path) as store:
        store.feedback(Feedback(experience_id=1, reward=1.0))
        store.feedback(Feedback(experience_id=1, reward=0.0))
        before = store.audit()
    connection = connect(path)
    connection.pragma("recursive_triggers", recursive_triggers)
    with pytest.raises(apsw.ConstraintError, match="only ever added to"):
        connection.execute(statement)
    connection.close()
    with SqliteStorage(path, readonly=True) as store:
        assert store.audit() == before


def test_the_audit_can_be_paged_and_asked_for_by_action_author_and_time(store: SqliteStorage) -> None:
    for source, reward in (("a", 0.0), ("b", 0.5), ("a", 1.0)):
        store.feedback(Feedback(experience_id=1, source=source, reward=reward))
    store.write(lambda t: t.audit("import", who="c", target="file.jsonl", after={"imported": 3})).result()
    numbers = [entry.number for entry in store.audit()]
    assert len(numbers) == 4
    assert [entry.number for entry in store.audit(newest_first=True)] == numbers[::-1]
    assert [entry.number for entry in store.audit(after=numbers[0], limit=2)] == numbers[1:3]
    assert [entry.number for entry in store.audit(after=numbers[2], newest_first=True, limit=1)] == [numbers[1]]
    assert [entry.number for entry in store.audit(who="a")] == [numbers[0], numbers[2]]
    assert [entry.target for entry in store.audit(action="import")] == ["file.jsonl"]
    at = store.audit()[-1].at
    assert store.audit(since=at + timedelta(microseconds=1)) == []
    assert store.audit(until=at + timedelta(microseconds=1)) == store.audit()


def test_a_user_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert audit.system_user().isdigit()
