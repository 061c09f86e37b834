"""`relive demo`: a small real model routes customers' messages and gets better from its own experience."""

from relive.demo.present import present
from relive.demo.runner import ARMS, Answered, Result, answers_in, compared, run
from relive.demo.settings import DemoError, Settings

__all__ = ["ARMS", "Answered", "DemoError", "Result", "Settings", "answers_in", "compared", "present", "run"]
