"""Answers given again to the same request: exact matches only, off unless it is turned on.

What is the same: path, model, messages and every other field but those that only name the caller; and whoever asks, so
that no one is given what was answered to another. The answers are kept in memory alone, bounded by bytes and age: what
is taken out of records before they reach the disk would otherwise lie there all the same.

An answer from here is marked (`HEADER`, and in the record, which costs 0, names the record that it repeats, and is
never drawn, found or rewarded: it taught nothing new). Only whole answers without an error are kept.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, get_args

import msgspec

from relive.gateway.request import CallRequest

Mode = Literal["off", "read", "write", "on"]
"""``read``: answers are taken from it; ``write``: answers are put into it; ``on``: both."""

HEADER = "x-relive-cache"
"""On an answer: ``hit``. On a request: a mode for this one, as far as the gateway's own allows."""

LARGEST_ANSWER = 4 << 20
_NAMES_THE_CALLER = frozenset({"metadata", "user", "safety_identifier", "prompt_cache_key"})
_OVERHEAD = 500  # bytes beside an answer's own, about


class CachedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as a client got it.

    Attributes:
        body: Its bytes; of a stream all of them.
        content_type: What they are.
        uid: The record of the call that they answered first.
        at: When that was, by the cache's clock.
    """

    body: bytes
    content_type: str
    uid: bytes
    at: float


class CacheStats(msgspec.Struct):
    """Counts since the start.

    Attributes:
        hits: Answers given again.
        misses: Requests that could have been answered and were not.
        stored: Answers taken in.
    """

    hits: int = 0
    misses: int = 0
    stored: int = 0


class AnswerCache:
    """Answers by request.

    Args:
        mode: What it does for a request that does not say.
        max_age: Seconds after which an answer is not given again.
        max_bytes: Most bytes kept; those used longest ago leave.
        clock: Monotonic seconds.

    Attributes:
        stats: What came of it so far.
    """

    def __init__(self, mode: Mode, *, max_age: float, max_bytes: int, clock: Callable[[], float]) -> None:
        self.stats = CacheStats()
        self._mode: Mode = mode
        self._max_age = max_age
        self._max_bytes = max_bytes
        self._clock = clock
        self._bytes = 0
        self._answers: OrderedDict[bytes, CachedAnswer] = OrderedDict()

    def allowed(self, asked: str | None) -> tuple[bool, bool]:
        """Whether a request may be answered from it, and its answer be put into it.

        Args:
            asked: What the request's header says; anything that is no mode counts for nothing.
        """
        wanted = asked.strip().lower() if asked is not None else self._mode
        if wanted not in get_args(Mode):
            wanted = self._mode
        reads = wanted in ("read", "on") and self._mode in ("read", "on")
        writes = wanted in ("write", "on") and self._mode in ("write", "on")
        return reads, writes

    def get(self, key: bytes) -> CachedAnswer | None:
        """The answer to a request; ``None``: there is none that is young enough."""
        answer = self._answers.get(key)
        if answer is not None and self._clock() - answer.at > self._max_age:
            self._drop(key)
            answer = None
        if answer is None:
            self.stats.misses += 1
            return None
        self._answers.move_to_end(key)
        self.stats.hits += 1
        return answer

    def put(self, key: bytes, body: bytes, content_type: str, uid: bytes) -> None:
        """Keeps an answer, if it is not too long."""
        if len(body) > min(LARGEST_ANSWER, self._max_bytes - _OVERHEAD):
            return
        self._drop(key)
        self._answers[key] = CachedAnswer(body=body, content_type=content_type, uid=uid, at=self._clock())
        self._bytes += len(body) + _OVERHEAD
        self.stats.stored += 1
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._answers)))

    def __len__(self) -> int:
        return len(self._answers)

    def _drop(self, key: bytes) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._bytes -= len(answer.body) + _OVERHEAD


def key_of(request: CallRequest, caller: str, credentials: str | None) -> bytes:
    """What tells a request apart from all that must not have the same answer.

    Args:
        request: What is asked.
        caller: Who asks, by the gateway's keys.
        credentials: The provider's key that the client shows; ``None``: none.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (request.path, caller, credentials or ""):
        text = part.encode(errors="surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    for name in sorted(request.fields.keys() - _NAMES_THE_CALLER):
        for text in (name.encode(errors="surrogatepass"), bytes(request.fields[name])):
            digest.update(len(text).to_bytes(8, "little") + text)
    return digest.digest()
