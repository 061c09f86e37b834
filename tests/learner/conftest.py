"""What the tests of the learner share lies beside them in `learner_calls`; here are a memory and a real model."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import relive
from relive import Memory
from relive.llm import LocalServer, Upstream

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with relive.open(tmp_path / "memory.db") as opened:
        yield opened


@pytest.fixture
def model(local_server: LocalServer) -> Iterator[Upstream]:
    with Upstream(local_server.base_url, local_server.model) as upstream:
        yield upstream
