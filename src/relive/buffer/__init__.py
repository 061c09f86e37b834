"""Replay buffers: `ReplayBuffer`, what it draws and lets go, how priorities come about, and its limits."""

from relive.buffer.arrays import ArrayStorage, Columns
from relive.buffer.batch import Batch, BufferStats
from relive.buffer.composites import Filter, Mixture, Stratified
from relive.buffer.diverse import Diverse
from relive.buffer.episodes import EpisodeFields
from relive.buffer.errors import (
    BufferSettingError,
    BufferStateError,
    BufferStateWarning,
    ExperienceTooLargeError,
    InvalidPriorityError,
    NotEnoughExperiencesError,
    RateLimitError,
    SchemaError,
    SelectorError,
    StaleExperienceError,
)
from relive.buffer.native_selectors import Fifo, Prioritized, Uniform
from relive.buffer.nstep import NStep, n_step_returns
from relive.buffer.priorities import AbsReward, LowReward, OfReward, Recency, TdError, article_001, td_errors
from relive.buffer.priority_rule import OfExperience, PriorityRule
from relive.buffer.rarity import Learnability, Rarity
from relive.buffer.rate_limiter import RateLimiter
from relive.buffer.removers import Reservoir, TaskBalanced
from relive.buffer.replay import ReplayBuffer
from relive.buffer.rows import Changes, ObjectRows, Rows, Summary
from relive.buffer.samplers import Highest, Lifo, Lowest, OncePerPass
from relive.buffer.selector import BufferView, NStepReturns, Selection, Selector
from relive.buffer.sequences import Episodes, Groups, Slices
from relive.buffer.staleness import check as check_staleness
from relive.buffer.token_budget import TokenBudget, token_count

__all__ = [
    "AbsReward",
    "ArrayStorage",
    "Batch",
    "BufferSettingError",
    "BufferStateError",
    "BufferStateWarning",
    "BufferStats",
    "BufferView",
    "Changes",
    "Columns",
    "Diverse",
    "EpisodeFields",
    "Episodes",
    "ExperienceTooLargeError",
    "Fifo",
    "Filter",
    "Groups",
    "Highest",
    "InvalidPriorityError",
    "Learnability",
    "Lifo",
    "LowReward",
    "Lowest",
    "Mixture",
    "NStep",
    "NStepReturns",
    "NotEnoughExperiencesError",
    "ObjectRows",
    "OfExperience",
    "OfReward",
    "OncePerPass",
    "Prioritized",
    "PriorityRule",
    "Rarity",
    "RateLimitError",
    "RateLimiter",
    "Recency",
    "ReplayBuffer",
    "Reservoir",
    "Rows",
    "SchemaError",
    "Selection",
    "Selector",
    "SelectorError",
    "Slices",
    "StaleExperienceError",
    "Stratified",
    "Summary",
    "TaskBalanced",
    "TdError",
    "TokenBudget",
    "Uniform",
    "article_001",
    "check_staleness",
    "n_step_returns",
    "td_errors",
    "token_count",
]
