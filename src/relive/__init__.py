"""Relive: experience replay and continual learning for LLM agents."""

from relive.errors import ReliveError
from relive.experience import Feedback, TokenTrace, Transition, Usage

__version__ = "0.1.0"

__all__ = ["Feedback", "ReliveError", "TokenTrace", "Transition", "Usage", "__version__"]
