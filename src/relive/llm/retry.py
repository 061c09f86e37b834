"""When a call is tried again, and how long is waited before it.

A provider's hint is honoured in every form it comes in, but never blindly: one that is absent, past, negative or not a
number gives way to the client's own back-off, and one that is longer than the wait limit ends the call at once, without
sleeping.
"""

import random
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

import msgspec

from relive.llm.errors import UpstreamError

RETRIED_STATUSES = frozenset({408, 409, 429, *range(500, 600)})
"""Statuses after which the same request may succeed."""

_NUMBER = re.compile(r"\d{1,12}(\.\d{0,12})?|\.\d{1,12}")


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often a call is tried and how long is waited between the tries.

    Attributes:
        max_attempts: Tries in all, the first included.
        min_wait: Seconds before the second try.
        max_wait: The longest own wait in seconds; waits double from `min_wait` up to it.
        jitter: Each own wait is made longer by up to this share of it, so that many clients do not come back at once.
        wait_limit: Seconds that one call may wait in all. A wait beyond it is not begun: the call fails at once.
    """

    max_attempts: int = 3
    min_wait: float = 2.0
    max_wait: float = 10.0
    jitter: float = 0.25
    wait_limit: float = 60.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}; at least one try is needed.")
        if not 0 <= self.min_wait <= self.max_wait < float("inf"):
            raise ValueError(f"Waits must satisfy 0 <= min_wait <= max_wait; got {self.min_wait} and {self.max_wait}.")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is {self.jitter}; it must be between 0 and 1.")
        if not self.wait_limit >= 0:
            raise ValueError(f"wait_limit is {self.wait_limit}; it must not be negative.")

    def backoff(self, tries: int, rng: random.Random) -> float:
        """The own wait in seconds after so many failed tries, between `min_wait` and `max_wait`."""
        doubled = self.min_wait * 2.0 ** min(tries - 1, 60)
        return min(self.max_wait, doubled * (1 + self.jitter * rng.random()))


def may_retry(error: UpstreamError) -> bool:
    """Whether the same request may succeed another time: only after network errors and `RETRIED_STATUSES`."""
    return not error.permanent and (error.status is None or error.status in RETRIED_STATUSES)


def retry_hint(headers: Mapping[str, str], now: float) -> float | None:
    """The provider's hint in seconds, from ``retry-after-ms`` or else ``retry-after`` (seconds or an HTTP date).

    Args:
        headers: The answer's headers; looked up as they are, so pass a mapping that ignores case.
        now: The present time in seconds since 1970, to which a date is compared.

    Returns:
        A finite number of seconds above 0, or ``None`` where there is no usable hint.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after", "")
    return _number(text) or _seconds_until(text, now)


def _number(text: str) -> float | None:
    """A plain positive decimal number; `float` would also take ``nan``, ``inf`` and ``1_0``."""
    return (float(text) or None) if _NUMBER.fullmatch(text := text.strip()) else None


def _seconds_until(text: str, now: float) -> float | None:
    try:
        date = parsedate_to_datetime(text)
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        return None
    return seconds if seconds > 0 else None
