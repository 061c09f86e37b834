"""What the tests of the learner share: a model that says what it is told to, and the last record."""

from collections.abc import Mapping, Sequence
from typing import Any

from relive import Memory, Transition
from relive.llm import Completion

QUESTION = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "I lost my card"}]
ACTIONS = ["block", "refund", "close"]
PARAMS: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


class Parrot:
    """A model that keeps what it was sent and answers with what it was made with."""

    model = "parrot"

    def __init__(self, text: str = '{"action": "block"}') -> None:
        self.text = text
        self.seen: list[list[dict[str, Any]]] = []
        self.requests: list[dict[str, Any]] = []

    def chat_sync(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> Completion:
        self.seen.append([dict(message) for message in messages])
        self.requests.append(request)
        return Completion(
            message={"role": "assistant", "content": self.text},
            finish_reason="stop",
            usage=None,
            cost=7,
            latency_ms=1.5,
            attempts=(),
            model="parrot-1",
            raw={},
        )

    async def chat(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> Completion:
        return self.chat_sync(messages, **request)


def last(memory: Memory) -> Transition:
    """The newest record."""
    return memory.query(newest_first=True, limit=1)[0].transition
