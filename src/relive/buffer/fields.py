"""Reads one field of many experiences, whatever they are: records, mappings, other objects, or columns of arrays.

A key is the name of a field or a function of one experience. A name that a `Transition` has no field for is looked up
in its tags (``"task"`` finds ``"task:refund"`` and gives ``"refund"``), then in its `info`.
"""

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from relive.buffer.rows import Floats

Key = str | Callable[[Any], Any]
"""The name of a field, or a function of one experience."""


def field(experience: Any, name: str) -> Any:
    """One field of one experience; ``None`` where it has none."""
    if isinstance(experience, Mapping):
        return experience.get(name)
    value = getattr(experience, name, None)
    if value is not None:
        return value
    for tag in getattr(experience, "tags", ()):
        if isinstance(tag, str) and tag.startswith(f"{name}:"):
            return tag[len(name) + 1 :]
    info = getattr(experience, "info", None)
    return info.get(name) if isinstance(info, Mapping) else None


def column(experiences: Any, key: Key) -> Any:
    """The key of each experience, in order: a list or an array.

    Args:
        experiences: A sequence of experiences, or columns: a mapping from names to arrays ``[B, ...]``, or an array of
            structs ``[B]``.
        key: A name or a function; a function of columns is called with a mapping of one row.
    """
    if isinstance(key, str):
        if isinstance(experiences, Mapping):
            return experiences[key] if key in experiences else [None] * count_of(experiences)
        if isinstance(experiences, np.ndarray) and experiences.dtype.names is not None:
            return experiences[key] if key in experiences.dtype.names else [None] * len(experiences)
        return [field(experience, key) for experience in experiences]
    return [key(experience) for experience in rows(experiences)]


def rows(experiences: Any) -> Sequence[Any]:
    """The experiences one by one; a row of columns becomes a mapping."""
    if isinstance(experiences, Mapping):
        names = list(experiences)
        return [{name: experiences[name][row] for name in names} for row in range(count_of(experiences))]
    if isinstance(experiences, np.ndarray) and experiences.dtype.names is not None:
        return [{name: row[name] for name in experiences.dtype.names} for row in experiences]
    return list(experiences)


def count_of(experiences: Any) -> int:
    """How many experiences there are."""
    if isinstance(experiences, Mapping):
        return len(next(iter(experiences.values()), ()))
    return len(experiences)


def labels(experiences: Any, key: Key) -> list[Hashable]:
    """The key of each experience as something that can be compared and counted; NumPy values become Python's."""
    return [hashable(value) for value in column(experiences, key)]


def hashable(value: Any) -> Hashable:
    """The value itself where it is short and can be hashed, else a digest: equal values have equal ones."""
    if isinstance(value, np.generic):
        return hashable(value.item())
    if value is None or isinstance(value, int | float | bytes) or (isinstance(value, str) and len(value) <= 64):
        return value
    return digest(value)


def digest(value: Any) -> bytes:
    """16 bytes that are equal for equal values (BLAKE2b of the value as JSON, keys sorted)."""
    return hashlib.blake2b(msgspec.json.encode(value, enc_hook=_as_json, order="sorted"), digest_size=16).digest()


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, value.tobytes()]
    return value.item() if isinstance(value, np.generic) else repr(value)


def numbers(experiences: Any, key: Key) -> Floats:
    """The key of each experience as float64 ``[B]``; NaN where it is not known."""
    values = column(experiences, key)
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "fiub":
        return values.astype(np.float64)
    return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)


def flags(experiences: Any, key: Key) -> npt.NDArray[np.bool_]:
    """The key of each experience as bool ``[B]``; False where it has none."""
    return np.array([bool(value) for value in column(experiences, key)], dtype=np.bool_)


def created(experiences: Any) -> list[datetime | None]:
    """When each experience happened; ``None`` where it does not say."""
    return [
        value if isinstance(value, datetime) and value.tzinfo is not None else None
        for value in column(experiences, "created_at")
    ]
