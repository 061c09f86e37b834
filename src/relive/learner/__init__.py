"""The agent that gets better from its own experience: `Agent` asks, records and recalls; `ContinualLearner` runs it."""

from relive.learner.agent import Agent, Answer, Model
from relive.learner.loop import EXPLORATION, EXPLORED, ContinualLearner, Step

__all__ = ["EXPLORATION", "EXPLORED", "Agent", "Answer", "ContinualLearner", "Model", "Step"]
