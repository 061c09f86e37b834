"""What tests of the playbook share: a book, and a model that tells what it was asked."""

import json
from typing import Any

import pytest

from relive import Memory
from relive.llm import Completion
from relive.playbook.book import Playbook


class Echo:
    """A model that answers with the messages and the settings that it was sent."""

    model = "large"

    def chat_sync(self, messages: Any, *, response_format: Any = None, **params: Any) -> Completion:
        return Completion(
            message={"role": "assistant", "content": json.dumps([messages, params])},
            finish_reason="stop",
            usage=None,
            cost=None,
            latency_ms=1.0,
            attempts=(),
            model=params.get("model", self.model),
            raw={},
        )


@pytest.fixture
def book(memory: Memory) -> Playbook:
    return Playbook(memory, author="ann")


@pytest.fixture
def echo() -> Echo:
    return Echo()
