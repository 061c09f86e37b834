"""One call to an endpoint: its tries, its time limit, and its one way to fail.

Every way out of `Call.send` leaves the tries behind: in `Call.attempts` when it succeeds, in the raised error when not.
"""

import asyncio
import json
import os
import random
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import aiohttp
import msgspec

from relive.llm.endpoint import Endpoint
from relive.llm.errors import (
    BadAnswerError,
    UnreachableError,
    UpstreamError,
    UpstreamTimeoutError,
    classify,
    describe,
    shown_url,
)
from relive.llm.records import Attempt
from relive.llm.retry import RetryPolicy, may_retry, retry_hint

CONNECT_LIMIT = 10.0
"""Seconds to wait for a connection, so that a dead host is told from a slow model."""
LARGEST_ANSWER = 64 * 2**20
"""Bytes of an answer that are read at most."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How time passes: `clock` in monotonic seconds, `wall_clock` in seconds since 1970, `sleep` to wait."""

    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]]


class _Answer(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id") or self.headers.get("request-id")


class Call:
    """A call under way.

    Args:
        endpoint: Whom to call.
        model: The model asked for, for messages.
        timeout: Time limit of the whole call in seconds.
        policy: How often to try, and how long to wait between.
        rng: For the jitter.
        timing: The clocks.
    """

    def __init__(
        self, endpoint: Endpoint, model: str, *, timeout: float, policy: RetryPolicy, rng: random.Random, timing: Timing
    ) -> None:
        self.attempts: list[Attempt] = []
        self._endpoint = endpoint
        self._model = model
        self._timeout = timeout
        self._policy = policy
        self._rng = rng
        self._timing = timing
        self._start = timing.clock()

    def elapsed(self) -> float:
        """Seconds since the call began."""
        return self._timing.clock() - self._start

    async def send(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        body: bytes | None,
        read: Callable[[Any], dict[str, Any] | None],
    ) -> dict[str, Any]:
        """Sends until there is an answer or another try makes no sense.

        Args:
            session: The connections to use.
            method: The HTTP method.
            path: The path under the endpoint's address.
            body: The JSON body; ``None``: none.
            read: Gives the parsed answer back if it is of the right shape, else ``None``.

        Raises:
            UpstreamError: the call failed.
        """
        while True:
            began = self.elapsed()
            try:
                answer = await self._exchange(session, method, path, body)
                data = self._data(answer, read)
            except UpstreamError as error:
                wait = self._wait_after(error)
                self.attempts.append(_failed(error, self.elapsed() - began, wait))
                if wait is None:
                    error.attempts, error.latency_ms = tuple(self.attempts), self.elapsed() * 1000
                    raise
                await self._timing.sleep(wait)
            else:
                latency_ms = (self.elapsed() - began) * 1000
                self.attempts.append(Attempt(status=answer.status, latency_ms=latency_ms, request_id=answer.request_id))
                return data

    def _wait_after(self, error: UpstreamError) -> float | None:
        """Seconds to wait before the next try; ``None``: there is none."""
        tries = len(self.attempts) + 1
        if tries >= self._policy.max_attempts or not may_retry(error):
            return None
        wait = error.retry_after or self._policy.backoff(tries, self._rng)
        waited = sum(attempt.waited_ms for attempt in self.attempts) / 1000
        fits = waited + wait <= self._policy.wait_limit and self.elapsed() + wait < self._timeout
        return wait if fits else None

    async def _exchange(self, session: aiohttp.ClientSession, method: str, path: str, body: bytes | None) -> _Answer:
        request = session.request(
            method,
            self._endpoint.at(path),
            data=body,
            headers=self._endpoint.headers,
            proxy=self._endpoint.proxy,
            allow_redirects=False,
        )
        try:
            async with asyncio.timeout(self._timeout - self.elapsed()), request as response:
                return _Answer(response.status, response.headers, await self._content(response))
        except aiohttp.ServerTimeoutError as cause:
            raise self._error(UnreachableError, f"no connection within {CONNECT_LIMIT:.0f} s") from cause
        except TimeoutError:
            error = self._error(UpstreamTimeoutError, f"time limit of {self._timeout:g} s")
            error.permanent = True  # the limit is the whole call's
            raise error from None
        except (aiohttp.ClientError, OSError, ValueError) as cause:
            error = self._error(UnreachableError, _reason(cause))
            error.permanent = isinstance(cause, aiohttp.ClientSSLError | ssl.SSLError | ValueError)
            raise error from cause

    async def _content(self, response: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > LARGEST_ANSWER:
                raise self._error(BadAnswerError, f"more than {LARGEST_ANSWER // 2**20} MiB")
        return bytes(content)

    def _data(self, answer: _Answer, read: Callable[[Any], dict[str, Any] | None]) -> dict[str, Any]:
        """The answer as JSON, or the error that it is."""
        if answer.status >= 400:
            self._refuse(answer, answer.status)
        if answer.status >= 300:
            target = shown_url(answer.headers.get("location", "")).removesuffix("/chat/completions")
            raise self._error(BadAnswerError, f"it redirects to {target or 'elsewhere'}", answer)
        try:
            data = json.loads(answer.body)
        except (ValueError, RecursionError):
            raise self._error(BadAnswerError, "the answer is not JSON", answer) from None
        wanted = read(data)
        if wanted is not None:
            return wanted
        failure = data.get("error") if isinstance(data, dict) else None
        code = failure.get("code") if isinstance(failure, dict) else None
        if isinstance(code, int) and 400 <= code < 600:  # routers report an upstream's failure under status 200
            self._refuse(answer, code)
        _, words = classify(answer.status, answer.body)
        raise self._error(BadAnswerError, words or "the answer holds no message", answer)

    def _refuse(self, answer: _Answer, status: int) -> NoReturn:
        kind, words = classify(status, answer.body)
        raise self._error(kind, words, msgspec.structs.replace(answer, status=status))

    def _error(self, kind: type[UpstreamError], words: str, answer: _Answer | None = None) -> UpstreamError:
        hint = None if answer is None else retry_hint(answer.headers, self._timing.wall_clock())
        if hint is not None:
            words = "; ".join(filter(None, [words.rstrip("."), f"it asks to wait {hint:g} s"]))
        status = None if answer is None else answer.status
        endpoint = self._endpoint
        message = describe(kind, endpoint.shown, self._model, status=status, words=words, key=endpoint.key)
        if answer is None:
            return kind(message)
        return kind(
            message,
            status=status,
            body=answer.body,
            content_type=answer.headers.get("content-type"),
            retry_after=hint,
            request_id=answer.request_id,
        )


def _failed(error: UpstreamError, seconds: float, wait: float | None) -> Attempt:
    return Attempt(
        status=error.status,
        kind=error.kind,
        error=str(error),
        latency_ms=seconds * 1000,
        waited_ms=(wait or 0.0) * 1000,
        wait_reason=None if wait is None else "backoff" if error.retry_after is None else "hint",
        retry_after=error.retry_after,
        request_id=error.request_id,
    )


def _reason(cause: BaseException) -> str:
    """Why a connection failed, in the operating system's words where it has some."""
    if isinstance(cause, aiohttp.ClientConnectorDNSError):
        return "the host's name is not known"
    source = cause.os_error if isinstance(cause, aiohttp.ClientConnectorError) else cause
    if isinstance(source, ssl.SSLError):
        return f"TLS failed: {getattr(source, 'verify_message', None) or source.reason or source}"
    number = getattr(cause, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number)
    if isinstance(cause, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return "the connection broke off"
    return str(cause) or type(cause).__name__
