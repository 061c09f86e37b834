"""No more requests and tokens a minute than a provider allows, and those that wait are served fairly.

In any 60 seconds at most so many requests and tokens are let through: an exact sliding window, not a bucket that allows
twice as much at a window's edge. Clients that wait take turns, so that one with a thousand calls does not hold up one
with a single call; the calls of one client stay in order.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any

from relive.llm.errors import RateLimitedError

WINDOW = 60.0
"""Seconds over which limits count."""

MOST_WAITING = 1_000


class Passage:
    """One request that was let through; its `tokens` may be corrected once they are known."""

    __slots__ = ("at", "tokens")

    def __init__(self, at: float, tokens: int) -> None:
        self.at = at
        self.tokens = tokens


class _Waiting:
    __slots__ = ("future", "tokens")

    def __init__(self, tokens: int, future: "asyncio.Future[Passage]") -> None:
        self.tokens = tokens
        self.future = future


class Pacer:
    """Lets requests to one model through.

    Args:
        rpm: Requests in any minute; ``None``: no limit.
        tpm: Tokens in any minute; ``None``: no limit. A request of more tokens than that passes when nothing else did.
        clock: Monotonic seconds.
        sleep: Waits.
    """

    def __init__(
        self,
        rpm: int | None,
        tpm: int | None,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        self._rpm, self._tpm = rpm, tpm
        self._clock, self._sleep = clock, sleep
        self._passed: deque[Passage] = deque()
        self._queues: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._waiting

    async def enter(self, client: str, tokens: int) -> Passage:
        """Waits until a request of so many tokens may go.

        Args:
            client: Whose turn it is counted as.
            tokens: An estimate, to be corrected in the passage once they are known.

        Raises:
            RateLimitedError: too many wait already.
        """
        if self._rpm is None and self._tpm is None:
            return Passage(self._clock(), tokens)
        if not self._waiting and self._delay(tokens) <= 0:
            return self._pass(tokens)
        if self._waiting >= MOST_WAITING:
            raise RateLimitedError("Too many calls wait for their turn at this model. Send fewer at once.", status=429)
        waiting = _Waiting(tokens, asyncio.get_running_loop().create_future())
        self._queues.setdefault(client, deque()).append(waiting)
        self._waiting += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve())
        return await waiting.future

    def _pass(self, tokens: int) -> Passage:
        passage = Passage(self._clock(), tokens)
        self._passed.append(passage)
        return passage

    def _delay(self, tokens: int) -> float:
        """Seconds until a request of so many tokens fits into the window."""
        now = self._clock()
        while self._passed and self._passed[0].at <= now - WINDOW:
            self._passed.popleft()
        count, delay = len(self._passed), 0.0
        spent = 0 if self._tpm is None else sum(passage.tokens for passage in self._passed)
        for passage in self._passed:
            fits = (self._rpm is None or count < self._rpm) and (self._tpm is None or spent + tokens <= self._tpm)
            if fits:
                return delay
            delay = passage.at + WINDOW - now
            count, spent = count - 1, spent - passage.tokens
        return delay

    async def _serve(self) -> None:
        """Lets those that wait through, client by client."""
        while self._waiting:
            client, queue = next(iter(self._queues.items()))
            if queue[0].future.done():  # it gave up
                self._take(client)
                continue
            delay = self._delay(queue[0].tokens)
            if delay > 0:
                await self._sleep(delay)
                continue
            waiting = self._take(client)
            waiting.future.set_result(self._pass(waiting.tokens))

    def _take(self, client: str) -> _Waiting:
        """Takes a client's first out of the queue and sends the client to the end of the line."""
        queue = self._queues.pop(client)
        waiting = queue.popleft()
        self._waiting -= 1
        if queue:
            self._queues[client] = queue
        return waiting
