"""What tests of several rooms share: one real small model, started once."""

from collections.abc import Iterator

import pytest

from relive.llm import LocalServer


@pytest.fixture(scope="session")
def local_server() -> Iterator[LocalServer]:
    """SmolLM2-135M behind llama.cpp: two slots, one thread, 2,048 tokens each. Use temperature 0 and few tokens."""
    with LocalServer(slots=2, threads=1, context=2048) as server:
        yield server
