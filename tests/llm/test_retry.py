"""When a call is tried again and how long is waited: against a provider on the loopback interface."""

import random
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.llm import UnreachableError, UpstreamError, UpstreamTimeoutError
from relive.llm.retry import RetryPolicy, retry_hint

BUSY = {"error": {"message": "slow down", "type": "requests"}}
NOW = 1_790_000_000.0


def http_date(seconds: float) -> str:
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)


@pytest.mark.parametrize(
    ("headers", "waits"),
    [
        ({"Retry-After": "2"}, 2.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": http_date(NOW + 3)}, 3.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5),
        ({"retry-after-ms": "soon", "Retry-After": "9"}, 9.0),
    ],
)
def test_prx_04_a_hint_is_waited_for_in_every_form(
    provider: Any, clock: Any, say: Any, answer_of: Any, headers: dict[str, str], waits: float
) -> None:
    provider.answers = [(429, BUSY, headers), (200, answer_of(), {})]
    with provider.upstream(**clock.options, wait_limit=60) as upstream:
        answer = upstream.chat_sync(say)
    assert clock.slept == [pytest.approx(waits, abs=1 if "GMT" in str(headers) else 1e-9)]
    first, second = answer.attempts
    assert (first.status, first.kind, first.wait_reason) == (429, "rate_limited", "hint")
    assert first.waited_ms == answer.waited_ms == clock.slept[0] * 1000
    assert (second.status, second.error, second.waited_ms) == (200, None, 0.0)


@pytest.mark.parametrize("value", [http_date(NOW - 3600), "-1", "nan", "inf", "abc", "", "0", "1e3", "1_0", "9" * 400])
def test_prx_04_a_useless_hint_gives_way_to_the_own_backoff(
    provider: Any, clock: Any, say: Any, answer_of: Any, value: str
) -> None:
    provider.answers = [(429, BUSY, {"Retry-After": value}), (200, answer_of(), {})]
    with provider.upstream(**clock.options) as upstream:
        answer = upstream.chat_sync(say)
    assert answer.attempts[0].wait_reason == "backoff"
    assert answer.attempts[0].retry_after is None
    assert len(clock.slept) == 1
    assert 2.0 <= clock.slept[0] <= 2.5


def test_prx_04_a_day_long_hint_ends_the_call_at_once_and_is_passed_on(provider: Any, clock: Any, say: Any) -> None:
    provider.answers = [(429, BUSY, {"Retry-After": "86400"})]
    with provider.upstream(**clock.options, wait_limit=60) as upstream, pytest.raises(UpstreamError) as caught:
        upstream.chat_sync(say)
    assert clock.slept == []
    assert len(provider.requests) == 1
    assert (caught.value.status, caught.value.retry_after) == (429, 86400.0)
    assert "asks to wait 86400 s" in str(caught.value)


def test_prx_04_the_total_wait_is_capped_and_visible_in_the_record(provider: Any, clock: Any, say: Any) -> None:
    provider.answers = [(429, BUSY, {"Retry-After": "25"})]
    with (
        provider.upstream(**clock.options, wait_limit=60, timeout=1000, max_attempts=10) as upstream,
        pytest.raises(UpstreamError) as caught,
    ):
        upstream.chat_sync(say)
    assert clock.slept == [25.0, 25.0]  # a third one would make 75
    assert caught.value.waited_ms == 50_000.0
    assert [attempt.waited_ms for attempt in caught.value.attempts] == [25_000.0, 25_000.0, 0.0]
    assert caught.value.latency_ms == 50_000.0


def test_a_wait_that_would_outlast_the_calls_time_limit_is_not_begun(provider: Any, clock: Any, say: Any) -> None:
    provider.answers = [(503, BUSY, {"Retry-After": "20"})]
    with provider.upstream(**clock.options, timeout=50) as upstream, pytest.raises(UpstreamError) as caught:
        upstream.chat_sync(say, timeout=15)
    assert clock.slept == []
    assert caught.value.retry_after == 20.0


@pytest.mark.parametrize(
    ("status", "calls"),
    [(400, 1), (401, 1), (403, 1), (404, 1), (413, 1), (422, 1), (408, 4), (409, 4), (429, 4), (500, 4), (503, 4)],
)
def test_prx_05_only_what_can_succeed_is_tried_again(
    provider: Any, clock: Any, say: Any, status: int, calls: int
) -> None:
    body = b'{"error": {"message": "no",   "type": "t"}}'
    provider.answers = [(status, body, {})]
    with provider.upstream(**clock.options, max_attempts=4) as upstream, pytest.raises(UpstreamError) as caught:
        upstream.chat_sync(say)
    assert len(provider.requests) == calls
    assert (caught.value.status, caught.value.body) == (status, body)  # byte for byte
    assert [attempt.status for attempt in caught.value.attempts] == [status] * calls
    assert all(attempt.error and attempt.kind == caught.value.kind for attempt in caught.value.attempts)


def test_prx_05_a_reset_connection_is_tried_again(provider: Any, clock: Any, say: Any) -> None:
    provider.answers = ["reset"]
    with provider.upstream(**clock.options, max_attempts=4) as upstream, pytest.raises(UnreachableError) as caught:
        upstream.chat_sync(say)
    assert len(provider.requests) == 4
    assert [attempt.status for attempt in caught.value.attempts] == [None] * 4
    assert len(clock.slept) == 3


def test_prx_05_what_cannot_succeed_is_not_retried_though_its_status_could(provider: Any, clock: Any, say: Any) -> None:
    provider.answers = [(429, {"error": {"code": "insufficient_quota", "message": "no credit"}}, {})]
    with provider.upstream(**clock.options) as upstream, pytest.raises(UpstreamError) as caught:
        upstream.chat_sync(say)
    assert len(provider.requests) == 1
    assert caught.value.kind == "quota_exceeded"


def test_a_call_recovers_from_a_failing_start(provider: Any, clock: Any, say: Any, answer_of: Any) -> None:
    provider.answers = ["reset", (503, b"<html>busy</html>", {}), (200, answer_of("at last"), {})]
    with provider.upstream(**clock.options) as upstream:
        answer = upstream.chat_sync(say)
    assert answer.text == "at last"
    assert [attempt.kind for attempt in answer.attempts] == ["unreachable", "overloaded", None]
    assert 2.0 <= clock.slept[0] <= 2.5
    assert 4.0 <= clock.slept[1] <= 5.0


def test_by_default_a_call_is_tried_three_times(provider: Any, clock: Any, say: Any) -> None:
    provider.answers = [(500, BUSY, {})]
    with provider.upstream(**clock.options) as upstream, pytest.raises(UpstreamError):
        upstream.chat_sync(say)
    assert len(provider.requests) == 3


def test_the_whole_call_ends_within_its_time_limit_and_is_not_tried_again(provider: Any, say: Any, clock: Any) -> None:
    provider.answers = ["hang"]
    with (
        provider.upstream(**clock.options) as upstream,
        pytest.raises(UpstreamTimeoutError, match=r"time limit of 0\.05 s") as caught,
    ):
        upstream.chat_sync(say, timeout=0.05)
    assert len(caught.value.attempts) == len(provider.requests) == 1


def test_a_port_nobody_listens_on_is_unreachable_and_tried_again(clock: Any, say: Any, provider: Any) -> None:
    provider.close()
    with provider.upstream(**clock.options) as upstream, pytest.raises(UnreachableError, match="Connection refused"):
        upstream.chat_sync(say)
    assert len(clock.slept) == 2


def test_the_articles_defaults_are_the_defaults() -> None:
    policy = RetryPolicy()
    assert (policy.max_attempts, policy.min_wait, policy.max_wait) == (3, 2.0, 10.0)
    plain = RetryPolicy(jitter=0)
    assert [plain.backoff(tries, random.Random(0)) for tries in range(1, 6)] == [2.0, 4.0, 8.0, 10.0, 10.0]


@given(tries=st.integers(1, 10_000), seed=st.integers(), jitter=st.floats(0, 1))
def test_an_own_wait_stays_between_its_bounds(tries: int, seed: int, jitter: float) -> None:
    wait = RetryPolicy(jitter=jitter).backoff(tries, random.Random(seed))
    assert 2.0 <= wait <= 10.0


@given(value=st.text(max_size=40), key=st.sampled_from(["retry-after", "retry-after-ms"]))
def test_any_header_is_read_without_fault(value: str, key: str) -> None:
    hint = retry_hint({key: value}, NOW)
    assert hint is None or 0 < hint < float("inf")


def test_a_seed_gives_the_same_waits_and_the_global_random_state_is_left_alone(
    provider: Any, say: Any, clock: Any
) -> None:
    provider.answers = [(500, BUSY, {})]
    before = random.getstate()
    for _ in range(2):
        with provider.upstream(**clock.options, seed=7) as upstream, pytest.raises(UpstreamError):
            upstream.chat_sync(say)
    assert clock.slept[:2] == clock.slept[2:]
    assert random.getstate() == before


@pytest.mark.parametrize(
    "settings",
    [
        {"max_attempts": 0},
        {"min_wait": -1},
        {"min_wait": 3, "max_wait": 2},
        {"jitter": 2},
        {"wait_limit": -0.5},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        RetryPolicy(**settings)
