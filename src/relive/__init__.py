"""Relive: experience replay and continual learning for LLM agents."""

from typing import TYPE_CHECKING, Any

from relive.buffer import ArrayStorage, Batch, BufferStats, Fifo, Prioritized, ReplayBuffer, Uniform
from relive.errors import ReliveError
from relive.experience import Feedback, TokenTrace, Transition, Usage
from relive.memory import Memory, open  # noqa: A004 - read as `relive.open`

if TYPE_CHECKING:
    from relive.client import RemoteMemory
    from relive.learner import Agent, Answer, ContinualLearner
    from relive.observation import observe

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Answer",
    "ArrayStorage",
    "Batch",
    "BufferStats",
    "ContinualLearner",
    "Feedback",
    "Fifo",
    "Memory",
    "Prioritized",
    "ReliveError",
    "RemoteMemory",
    "ReplayBuffer",
    "TokenTrace",
    "Transition",
    "Uniform",
    "Usage",
    "__version__",
    "observe",
    "open",
]

_CALLS_A_MODEL = {"Agent", "Answer", "ContinualLearner"}


def __getattr__(name: str) -> Any:
    """Loads what goes over a network when it is first asked for: a buffer alone need not wait for an HTTP client."""
    if name == "RemoteMemory":
        from relive.client import RemoteMemory

        return RemoteMemory
    if name == "observe":
        from relive.observation import observe

        return observe
    if name in _CALLS_A_MODEL:
        from relive import learner

        return getattr(learner, name)
    raise AttributeError(f"module 'relive' has no attribute {name!r}")
