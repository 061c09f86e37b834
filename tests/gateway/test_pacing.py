"""Pacing: never more in a minute than allowed, and fair to those that wait."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from relive.gateway import pacing
from relive.gateway.pacing import Pacer
from relive.llm.errors import RateLimitedError


class Time:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now += seconds


def run(body: Callable[[Time], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body(Time()))


async def enter_all(pacer: Pacer, time: Time, requests: list[tuple[str, int]]) -> list[tuple[float, str]]:
    """When each request was let through, in that order."""
    order: list[tuple[float, str]] = []

    async def one(client: str, tokens: int) -> None:
        await pacer.enter(client, tokens)
        order.append((time.now, client))

    await asyncio.gather(*(one(client, tokens) for client, tokens in requests))
    return order


def most_in_a_minute(times: list[float]) -> int:
    return max(sum(start <= t < start + 60 for t in times) for start in times)


def test_no_minute_holds_more_requests_than_allowed() -> None:
    async def body(time: Time) -> None:
        pacer = Pacer(5, None, clock=time, sleep=time.sleep)
        times = []
        for pause in [0, 0, 0, 59, 0, 0, 0, 30, 0, 0, 0, 0, 0, 0, 61, 0, 0]:
            time.now += pause
            await pacer.enter("a", 1)
            times.append(time.now)
        assert most_in_a_minute(times) == 5

    run(body)


def test_no_minute_holds_more_tokens_than_allowed() -> None:
    async def body(time: Time) -> None:
        pacer = Pacer(None, 100, clock=time, sleep=time.sleep)
        times = [when for when, _ in await enter_all(pacer, time, [("a", 40)] * 5)]
        assert times == [0.0, 0.0, 60.0, 60.0, 120.0]

    run(body)


def test_what_was_really_used_takes_the_place_of_the_estimate() -> None:
    async def body(time: Time) -> None:
        pacer = Pacer(None, 100, clock=time, sleep=time.sleep)
        (await pacer.enter("a", 90)).tokens = 10
        await pacer.enter("a", 90)
        assert time.now == 0.0
        await pacer.enter("a", 90)
        assert time.now == 60.0

    run(body)


def test_a_request_larger_than_the_limit_passes_when_nothing_else_did() -> None:
    async def body(time: Time) -> None:
        pacer = Pacer(None, 100, clock=time, sleep=time.sleep)
        await pacer.enter("a", 500)
        await pacer.enter("a", 10)
        assert time.now == 60.0

    run(body)


def test_clients_that_wait_take_turns() -> None:
    async def body(time: Time) -> None:
        pacer = Pacer(2, None, clock=time, sleep=time.sleep)
        order = await enter_all(pacer, time, [*[("greedy", 1)] * 6, *[("modest", 1)] * 2])
        assert [client for _, client in order] == ["greedy"] * 3 + ["modest", "greedy", "modest", "greedy", "greedy"]

    run(body)


def test_one_that_gives_up_waiting_takes_no_place() -> None:
    async def body(time: Time) -> None:
        pacer = Pacer(1, None, clock=time, sleep=time.sleep)
        await pacer.enter("a", 1)
        impatient = asyncio.create_task(pacer.enter("b", 1))
        patient = asyncio.create_task(pacer.enter("c", 1))
        await asyncio.sleep(0)
        impatient.cancel()
        await patient
        assert time.now == 60.0
        assert pacer.waiting == 0

    run(body)


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "MOST_WAITING", 3)

    async def body(time: Time) -> None:
        pacer = Pacer(1, None, clock=time, sleep=asyncio.sleep)
        waiting = [asyncio.create_task(pacer.enter("a", 1)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(RateLimitedError):
            await pacer.enter("b", 1)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        if pacer._task is not None:
            pacer._task.cancel()

    run(body)


def test_without_limits_nobody_waits() -> None:
    async def body(time: Time) -> None:
        pacer = Pacer(None, None, clock=time, sleep=time.sleep)
        assert {when for when, _ in await enter_all(pacer, time, [("a", 10**9)] * 50)} == {0.0}

    run(body)
