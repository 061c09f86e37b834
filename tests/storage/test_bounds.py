"""What could grow for ever, or be larger than the database can hold."""

import pytest
from contract import message

from relive import Feedback
from relive.errors import InvalidExperienceError
from relive.storage import SqliteStorage
from relive.storage import feedback as rule

HUGE = 2**63


def test_feedback_for_what_never_comes_is_bounded_and_counted(
    store: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "MOST_WAITING", 20)
    monkeypatch.setattr(rule, "LOOK_EVERY", 10)
    store.append([message("a", episode_id="here")])
    store.feedback(Feedback(experience_id=1, reward=1.0))
    store.feedback(Feedback(episode_id="here", reward=1.0))
    for number in range(100):
        store.feedback(Feedback(episode_id=f"never {number}", reward=1.0))
        store.feedback(Feedback(experience_id=1000 + number, reward=1.0))
        assert store.stats().feedback_waiting <= 30
    figures = store.stats()
    assert figures.feedback == figures.feedback_waiting + 2 >= 22
    store.append([message("b", episode_id="never 99"), message("c", episode_id="never 0")])
    assert [stored.reward for stored in store.query()] == [1.0, 1.0, None]
    assert store.stats().feedback_waiting == figures.feedback_waiting - 1


def test_feedback_that_waited_too_long_is_let_go(store: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "LOOK_EVERY", 2)
    now = 1_800_000_000 * 10**9
    monkeypatch.setattr("time.time_ns", lambda: now)
    store.feedback(Feedback(episode_id="early", reward=1.0))
    now += 91 * 86_400 * 10**9
    store.feedback(Feedback(episode_id="late", reward=1.0))
    assert store.stats().feedback_waiting == 1
    store.append([message("a", episode_id="early"), message("b", episode_id="late")])
    assert [stored.reward for stored in store.query()] == [None, 1.0]


@pytest.mark.parametrize("number", [HUGE, -HUGE - 1, 10**30])
def test_a_number_too_large_for_an_id_finds_nothing(store: SqliteStorage, number: int) -> None:
    store.append([message("a"), message("b")])
    everything = store.query()
    assert len(store.query(after=number)) == (0 if number > 0 else 2)
    assert len(store.query(after=number, newest_first=True)) == (2 if number > 0 else 0)
    assert store.query(parent=number) == store.query(policy_version=number) == []
    assert len(store.query(limit=abs(number))) == len(everything)
    assert store.read([number, 1])[0] is None
    assert store.read([number, 1])[1] is not None
    assert store.get([number]) == [None]
    assert store.delete([number]) == 0
    assert store.feedback_of(number) == []
    assert not store.set_next_state(number, "x")
    assert store.audit(after=number, limit=abs(number)) == []
    assert store.changes(number).number == 1
    with pytest.raises(InvalidExperienceError, match=f"experience_id is {number}"):
        store.feedback(Feedback(experience_id=number, reward=1.0))
    assert len(store) == 2
