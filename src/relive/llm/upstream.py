"""`Upstream`: calls to a model behind any OpenAI-compatible endpoint, limited in time, retried, and recorded.

A call ends within its time limit, tries included. What it took to get the answer (tokens, money, time, failed tries) is
in the returned `Completion`; the error of a call that failed carries the same, so that it too can be stored as an
experience.
"""

import asyncio
import concurrent.futures
import os
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import aiohttp
import msgspec
import numpy as np
import numpy.typing as npt

from relive.experience import Usage
from relive.llm.background import LoopThread
from relive.llm.call import CONNECT_LIMIT, Call, Timing
from relive.llm.endpoint import Endpoint
from relive.llm.errors import UpstreamError
from relive.llm.pricing import PriceTable
from relive.llm.records import Completion
from relive.llm.request import encode_chat
from relive.llm.retry import RetryPolicy
from relive.llm.usage import priced_apart, read_usage

T = TypeVar("T")

_abandoned: list[object] = []  # what a fork inherited and must not close: it is the parent's


class Upstream:
    """An endpoint and a model to call.

    Inside ``async with upstream:`` calls run on that event loop. Otherwise they run on a thread that the object keeps,
    so that `chat` and `chat_sync` work from anywhere, from any loop and after a fork; `close` ends it.

    Args:
        base_url: The API's address as the `openai` client takes it, for example ``http://127.0.0.1:8080/v1``.
        model: The model's name.
        api_key: The key; ``None``: the endpoint needs none. It is sent as a bearer token and never shown.
        timeout: Time limit of a whole call in seconds, all tries and waits included. Default 60.
        max_attempts: Tries in all, default 3. Only network errors and statuses 408, 409, 429 and 5xx are tried again.
        min_wait: Seconds before the second try, default 2; doubles with each further one.
        max_wait: The longest own wait in seconds, default 10. A provider's hint (``retry-after-ms``, ``retry-after``)
            comes first.
        jitter: Each own wait is made longer by up to this share, default a quarter.
        wait_limit: Seconds that a call may wait in all, default 60. A longer wait is not begun: the call fails at once.
        headers: Further headers for each request.
        prices: Prices that come before the known ones.
        seed: Seed of the jitter; ``None``: from the operating system.
        clock: Monotonic seconds; for tests.
        wall_clock: Seconds since 1970, to which a hint's date is compared; for tests.
        sleep: How to wait; for tests.

    Attributes:
        base_url: The API's address without what may be secret in it.
        model: As given.
        timeout: As given.
        policy: How often a call is tried, and how long is waited.

    Raises:
        BadRequestError: the address cannot be one.
        ReliveError: the key cannot be one.
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        max_attempts: int = 3,
        min_wait: float = 2.0,
        max_wait: float = 10.0,
        jitter: float = 0.25,
        wait_limit: float = 60.0,
        headers: Mapping[str, str] | None = None,
        prices: PriceTable | None = None,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout}; it must be above 0 seconds.")
        self.model = model
        self.timeout = timeout
        self.policy = RetryPolicy(
            max_attempts=max_attempts, min_wait=min_wait, max_wait=max_wait, jitter=jitter, wait_limit=wait_limit
        )
        self._endpoint = Endpoint.of(base_url, api_key, headers)
        self._prices = prices or PriceTable()
        self._rng = random.SystemRandom() if seed is None else random.Random(seed)
        self._timing = Timing(clock=clock, wall_clock=wall_clock, sleep=sleep)
        self._home: tuple[asyncio.AbstractEventLoop, aiohttp.ClientSession] | None = None
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._thread: LoopThread | None = None

    @property
    def base_url(self) -> str:
        """The API's address without what may be secret in it."""
        return self._endpoint.shown

    def __repr__(self) -> str:
        return f"Upstream({self.base_url!r}, {self.model!r})"

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        response_format: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        **params: Any,
    ) -> Completion:
        """Asks the model for the next message.

        Args:
            messages: The conversation as the API takes it.
            tools: Tool definitions; ``None``: none.
            response_format: The answer's form, for example a JSON schema; ``None``: free text.
            timeout: Another time limit for this call in seconds; ``None``: the object's.
            params: Any further fields of the request: ``temperature``, ``max_tokens``, ``tool_choice``, ``model`` ...

        Raises:
            BadRequestError: with empty `attempts`: the request is wrong, and nothing was sent.
            UpstreamError: the call failed; the subclass names the kind, `attempts` what was tried.
        """
        body = encode_chat(messages, model=self.model, tools=tools, response_format=response_format, params=params)
        model = params.get("model", self.model)
        return await self._run(lambda session: self._chat(session, body, model, timeout))

    def chat_sync(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        response_format: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        **params: Any,
    ) -> Completion:
        """The same as `chat`, without awaiting. It works inside a running event loop too, which it then blocks."""
        body = encode_chat(messages, model=self.model, tools=tools, response_format=response_format, params=params)
        model = params.get("model", self.model)
        return self._run_sync(lambda session: self._chat(session, body, model, timeout))

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Vectors of texts (``POST /embeddings``), float32 ``[texts, dimensions]``, without awaiting.

        Raises:
            UpstreamError: as for `chat`.
        """
        body = msgspec.json.encode({"model": self.model, "input": list(texts), "encoding_format": "float"})

        def read(data: Any) -> dict[str, Any] | None:
            try:
                rows = {int(one["index"]): one["embedding"] for one in data["data"]}
                vectors = np.array([rows[at] for at in range(len(texts))], np.float32)
            except (KeyError, TypeError, ValueError, OverflowError):
                return None
            return {"vectors": vectors} if vectors.ndim == 2 and np.isfinite(vectors).all() else None

        async def send(session: aiohttp.ClientSession) -> dict[str, Any]:
            return await self._call(self.model, None).send(session, "POST", "/embeddings", body, read)

        vectors: npt.NDArray[np.float32] = self._run_sync(send)["vectors"]
        return vectors

    async def models(self) -> list[str]:
        """The names of the models that the endpoint offers (``GET /models``).

        Raises:
            UpstreamError: as for `chat`.
        """
        return await self._run(self._models)

    def models_sync(self) -> list[str]:
        """The same as `models`, without awaiting."""
        return self._run_sync(self._models)

    def price(self, usage: Usage) -> int | None:
        """What so many tokens cost here with this model, in nano-USD; ``None``: not known."""
        return self._prices.cost(usage, self.model, base_url=self._endpoint.shown)

    async def aclose(self) -> None:
        """Closes all connections. A later call opens new ones."""
        home, self._home = self._home, None
        if home is not None:
            await home[1].close()
            await asyncio.sleep(0)  # transports close in the loop's next round
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Ends the thread and its connections, cancelling calls under way. A later call starts them again."""
        if self._pid == os.getpid() and self._thread is not None:
            self._thread.close()

    async def __aenter__(self) -> Self:
        self._home = asyncio.get_running_loop(), _new_session()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def _chat(self, session: aiohttp.ClientSession, body: bytes, model: str, timeout: float | None) -> Completion:
        call = self._call(model, timeout)
        answer = await call.send(session, "POST", "/chat/completions", body, _read_completion)
        latency_ms = call.elapsed() * 1000
        choice, named, tier = answer["choices"][0], answer.get("model"), answer.get("service_tier")
        answered_by = named if isinstance(named, str) and named else model
        usage, reason = read_usage(answer), choice.get("finish_reason")
        return Completion(
            message=choice["message"],
            finish_reason=reason if isinstance(reason, str) else None,
            usage=usage,
            cost=self._prices.cost(
                usage,
                answered_by,
                model,
                base_url=self._endpoint.shown,
                service_tier=tier if isinstance(tier, str) else None,
                priced_apart=priced_apart(answer),
            ),
            latency_ms=latency_ms,
            attempts=tuple(call.attempts),
            model=answered_by,
            raw=answer,
        )

    async def _models(self, session: aiohttp.ClientSession) -> list[str]:
        answer = await self._call(self.model, None).send(session, "GET", "/models", None, _read_models)
        return [entry["id"] for entry in answer["data"] if isinstance(entry, dict) and isinstance(entry.get("id"), str)]

    def _call(self, model: str, timeout: float | None) -> Call:
        return Call(
            self._endpoint,
            model,
            timeout=self.timeout if timeout is None else timeout,
            policy=self.policy,
            rng=self._rng,
            timing=self._timing,
        )

    # Where a call runs: on the loop of `async with`, else on the thread's.

    async def _run(self, work: Callable[[aiohttp.ClientSession], Awaitable[T]]) -> T:
        if self._home is not None and self._home[0] is asyncio.get_running_loop():
            return await work(self._home[1])
        try:
            return await asyncio.wrap_future(self._loop_thread().submit(work))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise UpstreamError(_CLOSED) from None

    def _run_sync(self, work: Callable[[aiohttp.ClientSession], Awaitable[T]]) -> T:
        future = self._loop_thread().submit(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise UpstreamError(_CLOSED) from None
        except BaseException:
            future.cancel()  # an interrupt must not leave the call running
            raise

    def _loop_thread(self) -> LoopThread:
        if self._pid != os.getpid():
            _abandoned.append(self._thread)
            self._pid, self._lock, self._thread = os.getpid(), threading.Lock(), None
        with self._lock:
            if self._thread is None or not self._thread.alive:
                self._thread = LoopThread("relive-upstream", _new_session)
                weakref.finalize(self, self._thread.close)
            return self._thread


_CLOSED = "The call was given up because its Upstream was closed. Close it only after the last answer."


def _new_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT),
    )


def _read_completion(data: Any) -> dict[str, Any] | None:
    choices = data.get("choices") if isinstance(data, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return data if isinstance(first, dict) and isinstance(first.get("message"), dict) else None


def _read_models(data: Any) -> dict[str, Any] | None:
    return data if isinstance(data, dict) and isinstance(data.get("data"), list) else None
