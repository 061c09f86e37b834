"""Relive: experience replay and continual learning for LLM agents."""

from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relive.buffer import ArrayStorage, Batch, BufferStats, Fifo, Prioritized, ReplayBuffer, Uniform
    from relive.client import RemoteMemory
    from relive.errors import ReliveError
    from relive.experience import Feedback, TokenTrace, Transition, Usage
    from relive.learner import Agent, Answer, ContinualLearner
    from relive.memory import Memory, open  # noqa: A004 - read as `relive.open`
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

_BUFFER = {"ArrayStorage", "Batch", "BufferStats", "Fifo", "Prioritized", "ReplayBuffer", "Uniform"}
_EXPERIENCE = {"Feedback", "TokenTrace", "Transition", "Usage"}
_LEARNER = {"Agent", "Answer", "ContinualLearner"}
_MEMORY = {"Memory", "open"}


def __getattr__(name: str) -> Any:
    """Loads a name's room when it is first asked for: a buffer alone need not wait for an HTTP client."""
    room: ModuleType
    if name in _BUFFER:
        from relive import buffer as room
    elif name in _EXPERIENCE:
        from relive import experience as room
    elif name in _LEARNER:
        from relive import learner as room
    elif name in _MEMORY:
        from relive import memory as room
    elif name == "ReliveError":
        from relive import errors as room
    elif name == "RemoteMemory":
        from relive import client as room
    elif name == "observe":
        from relive import observation as room
    else:
        raise AttributeError(f"module 'relive' has no attribute {name!r}")
    value = globals()[name] = getattr(room, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
