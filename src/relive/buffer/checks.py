"""Checks of what users pass to a buffer: values in the types that the native core takes, or an error that says what."""

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer.arrays import Columns
from relive.buffer.errors import BufferSettingError, InvalidPriorityError
from relive.buffer.rows import Experiences, Floats, Ids
from relive.buffer.schema import has_masked

LARGEST_PRIORITY = float(np.finfo(np.float32).max)
"""Priorities are kept as float32."""


def is_priority(value: Any) -> bool:
    """Whether a value is a number that can be kept as a priority."""
    return isinstance(value, int | float | np.integer | np.floating) and bool(0 <= value <= LARGEST_PRIORITY)


def keepable(priorities: npt.NDArray[np.floating[Any]], alpha: float = 1.0) -> Floats:
    """The nearest priorities that can be kept and raised to `alpha`; NaN stays, as "none was given".

    For what a file holds: a caller's own bad priority is refused instead.
    """
    largest = LARGEST_PRIORITY if alpha <= 1 else 0.999 * LARGEST_PRIORITY ** (1 / alpha)  # powers are approximate
    return np.clip(np.asarray(priorities, dtype=np.float64), 0.0, largest)


def positive(name: str, value: int) -> int:
    """A whole number of at least 1, and no larger than 64 bits can say.

    Raises:
        BufferSettingError: it is something else.
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise BufferSettingError(f"{name} is {value!r}; it must be a whole number.") from error
    if number < 1:
        raise BufferSettingError(f"{name} is {number}; it must be at least 1.")
    if number >= 2**63:
        raise BufferSettingError(f"{name} is {number}; it must be less than 2**63.")
    return number


def ids_of(ids: npt.ArrayLike) -> Ids:
    """Ids as int64 ``[B]``.

    Raises:
        BufferSettingError: they are not integers.
    """
    if type(ids) is np.ndarray and ids.dtype == np.int64 and ids.ndim == 1 and ids.flags.c_contiguous:
        return ids  # as a batch's are
    if has_masked(ids):
        raise BufferSettingError("ids has masked values, which stand for no experience; leave them out.")
    array = np.asarray(ids)
    if array.dtype.kind not in "iu" and array.size:
        raise BufferSettingError(f"ids have type {array.dtype}; they must be integers.")
    return np.ascontiguousarray(array, dtype=np.int64).reshape(-1)


def floats_of(name: str, values: npt.ArrayLike | None) -> Floats:
    """Priorities or errors as float64 ``[B]``.

    Raises:
        InvalidPriorityError: they are not numbers.
    """
    if type(values) is np.ndarray and values.dtype == np.float64 and values.ndim == 1 and values.flags.c_contiguous:
        return values
    if has_masked(values):
        raise InvalidPriorityError(f"{name} has masked values, which are no numbers; fill them first.")
    try:
        return np.ascontiguousarray(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InvalidPriorityError(f"{name} must be numbers: {error}") from error


def float_of(value: Any) -> float:
    """One priority.

    Raises:
        InvalidPriorityError: it is not a number.
    """
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InvalidPriorityError(f"The priority must be a number: {error}") from error


def refusal(whose: str, priority: float) -> InvalidPriorityError:
    """The error for a priority that cannot be kept."""
    return InvalidPriorityError(
        f"The priority of {whose} is {priority}; it must be a finite number from 0 to {LARGEST_PRIORITY:.2g}. "
        "Nothing was changed."
    )


def count_of(experiences: Experiences) -> int:
    """How many experiences there are."""
    return experiences.count if isinstance(experiences, Columns) else len(experiences)


def part_of(experiences: Experiences, start: int, stop: int) -> Experiences:
    """The experiences from `start` up to `stop`."""
    return experiences.part(start, stop) if isinstance(experiences, Columns) else experiences[start:stop]


def take_of(experiences: Experiences, places: list[int]) -> Experiences:
    """The experiences at these places."""
    if isinstance(experiences, Columns):
        return Columns({field: array[places] for field, array in experiences.items()}, len(places))
    return [experiences[place] for place in places]
