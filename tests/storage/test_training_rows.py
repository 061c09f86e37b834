"""Rows to train on: what was right as chats, what was shown as right beside what was answered."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from relive.experience import Feedback, Transition
from relive.playbook.book import Playbook
from relive.storage import Query, SqliteStorage
from relive.storage.record import NEVER_LEARNT
from relive.storage.training_rows import export_chats, export_preferences

ASKED: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}]
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {}}}]
CALL = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "find"}}]}


def said(content: str) -> dict[str, Any]:
    """An assistant's message."""
    return {"role": "assistant", "content": content}


@pytest.fixture
def storage(tmp_path: Path) -> Any:
    with SqliteStorage(tmp_path / "agent.db") as storage:
        yield storage


def rows(export: Any, storage: SqliteStorage, query: Query | None = None) -> list[Any]:
    """The lines of an export, and that it counts them."""
    out = io.BytesIO()
    count = export(storage, out, query)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert count == len(lines)
    return lines


def test_successes_become_chats_and_all_else_does_not(storage: SqliteStorage) -> None:
    asked = {"messages": ASKED, "tools": TOOLS}
    storage.append(
        [
            Transition(state=asked, action={**CALL, "other_choices": [said("x")]}, outcome="success", agent="a"),
            Transition(state="How far?", action="A mile.", outcome="success", agent="b"),
            Transition(state=asked, action=said("no"), outcome="failure"),
            Transition(state=asked, action=said("who knows")),
            Transition(state=asked, action=None, outcome="success"),
            Transition(state=[0.1, 0.2], action=3, outcome="success"),
            Transition(state=asked, action=said("again"), outcome="success", tags=(NEVER_LEARNT,)),
        ]
    )
    first = {"messages": [*ASKED, CALL], "tools": TOOLS}
    second = {"messages": [{"role": "user", "content": "How far?"}, said("A mile.")]}
    assert rows(export_chats, storage) == [first, second]
    assert rows(export_chats, storage, Query(agent="b")) == [second]
    assert rows(export_preferences, storage) == []


def test_what_a_rollback_reached_is_not_trained_on(storage: SqliteStorage) -> None:
    bad, _ = storage.append(
        [Transition(state=state, action="A mile.", outcome="success") for state in ("How far?", "How long?")]
    )
    Playbook(storage).rollback(experience=bad)
    assert [row["messages"][0]["content"] for row in rows(export_chats, storage)] == ["How long?"]


def test_a_demonstration_is_one_chat_and_one_half_of_a_pair(storage: SqliteStorage) -> None:
    asked = {"messages": ASKED, "tools": TOOLS}
    storage.append([Transition(state=asked, action=said("In Leeds.")), Transition(state="Hi", action="Hello.")])
    storage.feedback(Feedback(experience_id=1, source="anna", reward=0.0, demonstration="In York."))
    storage.feedback(Feedback(experience_id=1, source="bob", demonstration=said("In York.")))  # the same, said again
    storage.feedback(Feedback(experience_id=2, source="anna", demonstration="Hello."))  # nothing is better than it was
    chats = [
        {"messages": [*ASKED, said("In York.")], "tools": TOOLS},
        {"messages": [{"role": "user", "content": "Hi"}, said("Hello.")]},
    ]
    pair = {"prompt": ASKED, "chosen": [said("In York.")], "rejected": [said("In Leeds.")], "tools": TOOLS}
    assert rows(export_chats, storage) == chats
    assert rows(export_preferences, storage) == [pair]
