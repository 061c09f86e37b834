"""Single values on their way into a store: what it can hold, or an error that names the field."""

import math

from relive.errors import InvalidExperienceError
from relive.storage.codec import clean_text

LEAST = -(2**63)
"""The least integer that a column holds."""

_MOST = 2**63 - 1
_LONGEST_SHOWN = 80  # characters of a value in a message


def text(value: object, field: str) -> str:
    """A text as UTF-8 can hold it.

    Raises:
        InvalidExperienceError: it is no text.
    """
    if not isinstance(value, str):
        raise InvalidExperienceError(f"{field} is {shown(value)}; it must be text.")
    return clean_text(value)


def number(value: object, field: str, least: float = -math.inf) -> float:
    """A finite number.

    Raises:
        InvalidExperienceError: it is none, or less than `least`.
    """
    try:
        result = math.nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if math.isfinite(result) and result >= least:
        return result
    bound = "" if least == -math.inf else f" of at least {least:g}"
    raise InvalidExperienceError(f"{field} is {shown(value)}; it must be a finite number{bound}, or None if not known.")


def integer(value: object, field: str, least: int = LEAST) -> int:
    """An integer that a column holds.

    Raises:
        InvalidExperienceError: it is none, less than `least`, or beyond 64 bits.
    """
    if type(value) is int and least <= value <= _MOST:
        return value
    bound = "" if least == LEAST else f"at least {least} and "
    raise InvalidExperienceError(f"{field} is {shown(value)}; it must be an integer of {bound}at most 64 bits.")


def shown(value: object) -> str:
    """A value in a message, cut short."""
    try:
        written = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python prints, lists without end
        return f"a {type(value).__name__} too long to be shown"
    return written if len(written) <= _LONGEST_SHOWN else f"{written[:_LONGEST_SHOWN]}…"
