"""`relive.observe`: records what an agent does that is no call to a model: tools, rules, decisions made by code."""

from relive.observation.observe import ObserveError, Observer, observe
from relive.observation.step import Step, current
from relive.observation.writer import ObservationStats, flush, stats

__all__ = ["ObservationStats", "ObserveError", "Observer", "Step", "current", "flush", "observe", "stats"]
