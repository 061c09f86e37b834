"""Replay buffers: `ReplayBuffer`, how it draws and evicts (`Prioritized`, `Uniform`, `Fifo`), and what it gives."""

from relive.buffer.arrays import ArrayStorage, Columns
from relive.buffer.batch import Batch, BufferStats
from relive.buffer.errors import (
    BufferSettingError,
    BufferStateError,
    InvalidPriorityError,
    NotEnoughExperiencesError,
    SchemaError,
)
from relive.buffer.native_selectors import Fifo, Prioritized, Uniform
from relive.buffer.replay import ReplayBuffer
from relive.buffer.rows import Changes, ObjectRows, Rows, Summary
from relive.buffer.selector import BufferView, Selection, Selector

__all__ = [
    "ArrayStorage",
    "Batch",
    "BufferSettingError",
    "BufferStateError",
    "BufferStats",
    "BufferView",
    "Changes",
    "Columns",
    "Fifo",
    "InvalidPriorityError",
    "NotEnoughExperiencesError",
    "ObjectRows",
    "Prioritized",
    "ReplayBuffer",
    "Rows",
    "SchemaError",
    "Selection",
    "Selector",
    "Summary",
    "Uniform",
]
