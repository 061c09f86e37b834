"""Stores for the tests of this room; what any store must do lies beside them in `contract`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relive.storage import SqliteStorage

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("contract")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(path) as opened:
        yield opened
