"""Relive: experience replay and continual learning for LLM agents."""

from relive.buffer import ArrayStorage, Batch, BufferStats, Fifo, Prioritized, ReplayBuffer, Uniform
from relive.errors import ReliveError
from relive.experience import Feedback, TokenTrace, Transition, Usage
from relive.memory import Memory, open  # noqa: A004 - read as `relive.open`

__version__ = "0.1.0"

__all__ = [
    "ArrayStorage",
    "Batch",
    "BufferStats",
    "Feedback",
    "Fifo",
    "Memory",
    "Prioritized",
    "ReliveError",
    "ReplayBuffer",
    "TokenTrace",
    "Transition",
    "Uniform",
    "Usage",
    "__version__",
    "open",
]
