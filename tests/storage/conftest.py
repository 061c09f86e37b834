"""Stores for the tests of this room."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relive import Transition
from relive.storage import SqliteStorage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(path) as opened:
        yield opened


def transition(text: str = "Where is my card?", **fields: Any) -> Transition:
    return Transition(state={"messages": [{"role": "user", "content": text}]}, action="card_arrival", **fields)
