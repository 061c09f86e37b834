"""Where a call goes and what takes over: each model once, own faults nowhere else, upstream faults cool a route."""

import random
from collections import Counter
from typing import Any

import pytest

from relive.gateway.routes import Cooldowns, Model, Plan, RouteError, Routes, prompt_tokens_in
from relive.llm.endpoint import Endpoint
from relive.llm.errors import (
    AuthenticationError,
    BadRequestError,
    ContextOverflowError,
    ModelUnavailableError,
    OverloadedError,
    PolicyError,
    QuotaExceededError,
    RateLimitedError,
    UnreachableError,
    UpstreamError,
    UpstreamTimeoutError,
)
from relive.llm.retry import RetryPolicy


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def model(name: str, *fallbacks: str, **fields: Any) -> Model:
    endpoint = Endpoint.of(f"http://{name}.test/v1")
    return Model(**{"name": name, "endpoint": endpoint, "model": f"{name}-1", "fallbacks": fallbacks, **fields})


def error(kind: type[UpstreamError] = OverloadedError, status: int | None = 503, **fields: Any) -> UpstreamError:
    return kind("It failed.", status=status, **fields)


def walk(routes: Routes, requested: str, failure: UpstreamError, *, retries: int = 2) -> tuple[list[str], list[float]]:
    """The models called, in order, when each call fails in the same way; and the waits before them."""
    clock = Clock()
    policy = RetryPolicy(max_attempts=retries + 1, min_wait=1.0, max_wait=4.0)
    plan = Plan(routes.candidates(requested), Cooldowns(clock), policy, rng=random.Random(1))
    called, waits = [plan.model.name], []
    while (following := plan.after(failure, 600.0)) is not None:
        called.append(following.model.name)
        waits.append(following.wait)
        assert len(called) < 100
    return called, waits


@pytest.mark.parametrize("failure", [error(), error(UnreachableError, None)], ids=["503", "refused at once"])
def test_prx_06_models_that_name_each_other_are_each_tried_their_three_times(failure: UpstreamError) -> None:
    routes = Routes([model("a", "b"), model("b", "a")], fallbacks=["a"])
    called, waits = walk(routes, "a", failure)
    assert Counter(called) == {"a": 3, "b": 3}
    assert [wait > 0 for wait in waits] == [True, True, False, True, True], (
        "there is a wait between instant failures too"
    )
    assert sum(waits) <= 60.0


def test_prx_06_loading_a_circle_warns_and_a_model_may_not_be_its_own_fallback() -> None:
    warnings = Routes([model("a", "b"), model("b", "a"), model("c", "a")]).warnings
    assert len(warnings) == 2
    assert "'a'" in warnings[0]
    with pytest.raises(RouteError, match="its own fallback"):
        Routes([model("a", "a")])


def test_a_longer_circle_is_found_and_depth_is_bounded() -> None:
    routes = Routes([model(f"m{n}", f"m{(n + 1) % 20}") for n in range(20)])
    assert len(routes.warnings) == 20
    assert [m.name for m in routes.candidates("m0")] == ["m0", "m1", "m2", "m3", "m4", "m5"]


@pytest.mark.parametrize(
    ("kind", "status", "calls"),
    [
        (BadRequestError, 400, "a"),
        (PolicyError, 400, "a"),
        (ModelUnavailableError, 400, "ab"),
        (ModelUnavailableError, 403, "ab"),
        (ModelUnavailableError, 404, "ab"),
        (AuthenticationError, 401, "ab"),
        (QuotaExceededError, 429, "aaabbb"),
        (OverloadedError, 503, "aaabbb"),
        (RateLimitedError, 429, "aaabbb"),
        (UpstreamTimeoutError, 504, "aaabbb"),
        (UnreachableError, None, "aaabbb"),
    ],
)
def test_what_each_kind_of_failure_leads_to(kind: type[UpstreamError], status: int | None, calls: str) -> None:
    failure = error(kind, status)
    expected = "ab" if failure.permanent and len(calls) > 1 else calls
    assert "".join(walk(Routes([model("a", "b"), model("b")]), "a", failure)[0]) == expected


def test_a_hint_that_is_longer_than_any_wait_leads_to_the_next_model_at_once() -> None:
    called, waits = walk(Routes([model("a", "b"), model("b")]), "a", error(RateLimitedError, 429, retry_after=86_400.0))
    assert (called, waits) == (["a", "b"], [0.0])


def test_a_hint_is_followed_where_it_is_short() -> None:
    assert walk(Routes([model("a")]), "a", error(RateLimitedError, 429, retry_after=1.5))[1] == [1.5, 1.5]


def test_no_wait_goes_beyond_the_time_that_a_call_has() -> None:
    plan = Plan([model("a")], Cooldowns(Clock()), RetryPolicy(min_wait=5.0), rng=random.Random(1))
    assert plan.after(error(), 3.0) is None


@pytest.mark.parametrize(
    ("body", "estimate", "taken"),
    [
        (b'{"error":{"message":"the prompt has 9,000 tokens, the maximum context length is 4096"}}', None, "large"),
        (b'{"error":{"message":"the prompt has 5000 tokens"}}', None, "middle"),
        (b"", 9_000, "large"),
        (b"", None, "middle"),
        (b'{"error":{"message":"500000 tokens"}}', None, None),
    ],
)
def test_a_prompt_that_was_too_long_goes_only_where_it_is_known_to_fit(
    body: bytes, estimate: int | None, taken: str | None
) -> None:
    models = [
        model("small", "same", "unknown", "middle", "large", window=4096),
        model("same", window=4096),
        model("unknown"),
        model("middle", window=8192),
        model("large", window=100_000),
    ]
    plan = Plan(Routes(models).candidates("small"), Cooldowns(Clock()), RetryPolicy(), tokens=estimate)
    following = plan.after(error(ContextOverflowError, 400, body=body), 600.0)
    assert (following.model.name if following else None) == taken


def test_an_upstreams_fault_cools_its_route_for_a_while_and_a_requests_own_does_not() -> None:
    clock = Clock()
    cooldowns = Cooldowns(clock)
    a, b = model("a"), model("b")
    for own in (error(BadRequestError, 400), error(PolicyError, 400), error(ContextOverflowError, 400)):
        cooldowns.failed("a", own)
    assert Plan([a, b], cooldowns, RetryPolicy()).model is a
    cooldowns.failed("a", error())
    assert Plan([a, b], cooldowns, RetryPolicy()).model is b
    assert Plan([a], cooldowns, RetryPolicy()).model is a, "the only route is called all the same"
    clock.now += 15.0
    assert Plan([a, b], cooldowns, RetryPolicy()).model is a
    cooldowns.failed("a", error(RateLimitedError, 429, retry_after=100.0))
    clock.now += 99.0
    assert cooldowns.cooling("a")
    plan = Plan([a], cooldowns, RetryPolicy())
    plan.succeeded()
    assert not cooldowns.cooling("a")


def test_a_tier_is_an_ordered_list_that_a_client_may_name() -> None:
    routes = Routes([model("cheap"), model("good", "cheap"), model("best")], tiers={"high_quality": ["best", "good"]})
    assert [m.name for m in routes.candidates("high_quality")] == ["best", "good", "cheap"]
    assert [m.name for m in routes.candidates(None)] == ["cheap"]


def test_a_model_without_a_name_of_its_own_takes_the_clients() -> None:
    routes = Routes([model("any", model=None), model("named")])
    assert [(m.name, m.model) for m in routes.candidates("gpt-x")] == [("any", "gpt-x")]
    assert routes.candidates("any")[0].model == "any"
    assert routes.candidates("named")[0].model == "named-1"
    assert [m.model for m in routes.candidates("tensorzero::model_name::named")] == ["named-1"]


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    routes = Routes([model("a")], tiers={"balanced": ["a"]})
    with pytest.raises(RouteError, match="there are a, balanced"):
        routes.candidates("gpt-x")


@pytest.mark.parametrize(
    ("models", "options", "words"),
    [
        ([], {}, "no model"),
        ([model("a"), model("a")], {}, "Two models"),
        ([model("a", "b")], {}, "'b', which is not there"),
        ([model("a")], {"fallbacks": ["b"]}, "'b', which is not there"),
        ([model("a")], {"tiers": {"t": ["b"]}}, "'b', which is not there"),
        ([model("a")], {"tiers": {"a": ["a"]}}, "not be called as one"),
        ([model("a")], {"tiers": {"t": []}}, "at least one"),
    ],
)
def test_a_wrong_set_up_is_refused(models: Any, options: Any, words: str) -> None:
    with pytest.raises(RouteError, match=words):
        Routes(models, **options)


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (
            "This model's maximum context length is 4097 tokens, however you requested 4250 (4000 in messages)",
            4250,
        ),
        ("prompt is too long: 210000 tokens > 200000 maximum", 210_000),
        ("The input token count (1,200,000) exceeds the maximum number of tokens allowed (1,048,576).", 1_200_000),
        ("request (18031 tokens) exceeds the available context size (4096 tokens)", 18_031),
        ("the request is too long", None),
    ],
)
def test_prx_12_the_length_of_a_prompt_is_read_from_the_providers_words(words: str, tokens: int | None) -> None:
    assert prompt_tokens_in(words) == tokens
