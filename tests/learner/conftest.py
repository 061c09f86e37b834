"""What the tests of the learner share lies beside them in `learner_calls`; here is a real model."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relive.llm import LocalServer, Upstream

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def model(local_server: LocalServer) -> Iterator[Upstream]:
    with Upstream(local_server.base_url, local_server.model) as upstream:
        yield upstream
