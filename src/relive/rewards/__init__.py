"""Rewards without a person: functions that look at a transition and give a reward, or ``None`` for not scored.

A reward function is anything callable with one `Transition`. Those here read the answer (`answers`), run its code
(`code`), ask a model (`judge`), or put others together (`compose`); `check` looks at whether rewards are fit to learn
from. ``None`` is never 0: an answer that nobody could score teaches nothing.
"""

from relive.rewards.answers import (
    Contains,
    ExactMatch,
    Format,
    JSONValid,
    LengthBand,
    Regex,
    RewardError,
    answer_quality,
    answer_text,
)
from relive.rewards.check import Disagreement, RewardReport, check
from relive.rewards.code import CodeLimits, CodePasses, CodePrints, CodeRun, run_python
from relive.rewards.compose import RewardFunction, Weighted, evaluate, from_settings, is_weak_proxy
from relive.rewards.judge import LLMJudge, Verdict

__all__ = [
    "CodeLimits",
    "CodePasses",
    "CodePrints",
    "CodeRun",
    "Contains",
    "Disagreement",
    "ExactMatch",
    "Format",
    "JSONValid",
    "LLMJudge",
    "LengthBand",
    "Regex",
    "RewardError",
    "RewardFunction",
    "RewardReport",
    "Verdict",
    "Weighted",
    "answer_quality",
    "answer_text",
    "check",
    "evaluate",
    "from_settings",
    "is_weak_proxy",
    "run_python",
]
