"""What follows when a model fails, over real connections: another try, another model, or the failure itself."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_calls import CHAT, KEY, delta, sse
from loopback import ANSWER, QUESTION, Rig, model, reply, reset, run, silence, so_many, stream, two_models

from relive.llm.retry import RetryPolicy


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_prx_05_what_can_never_succeed_is_tried_once_and_passed_on_unchanged(tmp_path: Path, status: int) -> None:
    async def body(rig: Rig) -> None:
        error = b'{"error": {"message": "no", "extra": 1.10}}'
        rig.upstream.answers(reply(error, status))
        answered, headers, got = await rig.post(CHAT, QUESTION)
        assert (answered, got) == (status, error)
        assert len(rig.upstream.requests) == 1
        (transition,) = rig.rows()
        assert transition.info["status"] == "failed"
        assert transition.info["http_status"] == status
        assert len(transition.info["attempts"]) == 1
        assert transition.error is not None
        assert headers["x-relive-cost"] == "unknown"

    run(tmp_path, body, policy=RetryPolicy(max_attempts=4, min_wait=0.001, max_wait=0.002))


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, None])
def test_prx_05_what_may_succeed_is_tried_again(tmp_path: Path, status: int | None) -> None:
    async def body(rig: Rig) -> None:
        error = b'{"error": {"message": "later"}}'
        failing = reset if status is None else reply(error, status)
        rig.upstream.answers(failing)
        answered, _, got = await rig.post(CHAT, QUESTION)
        assert len(rig.upstream.requests) == 4
        assert (answered, got) == (status, error) if status else answered == 502
        (transition,) = rig.rows()
        assert len(transition.info["attempts"]) == 4
        children = await so_many(lambda: rig.storage.query(parent=1), 4)
        assert [child.transition.tags for child in children] == [("attempt",)] * 4

    run(tmp_path, body, policy=RetryPolicy(max_attempts=4, min_wait=0.001, max_wait=0.002))


def test_a_second_try_that_succeeds_is_one_record_with_its_failed_try_beneath(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(b"busy", 503, {"retry-after-ms": "5"}), reply(ANSWER))
        status, _, _ = await rig.post(CHAT, QUESTION)
        assert status == 200
        (transition,) = rig.rows()
        assert transition.error is None
        (attempt,) = transition.info["attempts"]
        assert (attempt["model"], attempt["kind"], attempt["wait_reason"]) == ("m", "overloaded", "hint")
        (child,) = await so_many(lambda: rig.storage.query(parent=1), 1)
        assert child.transition.error is not None
        assert child.priority == 0.0

    run(tmp_path, body)


@pytest.mark.parametrize("failing", [reply(b'{"error":"overloaded"}', 503), reset], ids=["503", "reset"])
def test_prx_06_a_circle_of_fallbacks_ends_with_one_error_that_lists_all(tmp_path: Path, failing: Any) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(failing)
        rig.second.answers(failing)
        status, _, _ = await rig.post(CHAT, {**QUESTION, "model": "a"})
        assert status in (502, 503)
        assert len(rig.upstream.requests) == len(rig.second.requests) == 3
        (transition,) = rig.rows()
        assert [attempt["model"] for attempt in transition.info["attempts"]] == ["a"] * 3 + ["b"] * 3
        assert sum(attempt["waited_ms"] > 0 for attempt in transition.info["attempts"]) == 4

    run(tmp_path, body, models=two_models)


@pytest.mark.parametrize(
    ("failing", "kind"),
    [
        (
            reply({"error": {"message": "The model `a-1` does not exist", "code": "model_not_found"}}, 400),
            "model_unavailable",
        ),
        (reply({"error": {"message": "model a-1 is not available"}}, 403), "model_unavailable"),
        (reply({"error": {"message": "overloaded"}}, 503), "overloaded"),
        (reply({"error": {"message": "quota", "code": "insufficient_quota"}}, 429), "quota_exceeded"),
        (stream([sse({"error": {"message": "overloaded", "code": 503}}, end=b"")]), "overloaded"),
        (reply({"error": {"message": "overloaded", "code": 503}}), "overloaded"),
        (stream([], break_off=True), "unreachable"),
    ],
)
def test_another_model_takes_over_before_the_first_byte(tmp_path: Path, failing: Any, kind: str) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(failing)
        rig.second.answers(reply(ANSWER))
        status, _, got = await rig.post(CHAT, {**QUESTION, "model": "a"})
        assert (status, json.loads(got)) == (200, ANSWER)
        assert rig.second.requests[0].json()["model"] == "b-1"
        (transition,) = rig.rows()
        assert transition.info["route"] == "b"
        assert transition.info["attempts"][0]["kind"] == kind
        assert rig.gateway.cooldowns.cooling("a")

    run(tmp_path, body, models=two_models, policy=RetryPolicy(max_attempts=1))


def test_a_time_limit_leads_to_the_next_model(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(silence)
        rig.second.answers(reply(ANSWER))
        status, _, _ = await rig.post(CHAT, {**QUESTION, "model": "a"})
        assert status == 200
        assert rig.rows()[0].info["attempts"][0]["kind"] == "timeout"

    run(tmp_path, body, models=lambda rig: [model("a", rig.upstream, "b", timeout=0.2), model("b", rig.second)])


def test_a_time_limit_without_another_model_is_a_504(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(silence)
        status, _, got = await rig.post(CHAT, QUESTION)
        assert status == 504
        assert json.loads(got)["error"]["code"] == "timeout"

    run(tmp_path, body, models=lambda rig: [model("a", rig.upstream, timeout=0.2)])


def test_after_the_first_byte_nothing_takes_over(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(stream([sse(delta("Hi"), end=b"")], break_off=True))
        rig.second.answers(reply(ANSWER))
        with pytest.raises(aiohttp.ClientPayloadError):
            await rig.post(CHAT, {**QUESTION, "model": "a", "stream": True})
        assert rig.second.requests == []
        (transition,) = await rig.until_recorded()
        assert transition.info["status"] == "interrupted"
        assert transition.action["content"] == "Hi"

    run(tmp_path, body, models=two_models)


def test_an_error_inside_a_stream_reaches_the_client_and_is_recorded_as_one(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        pieces = [sse(delta("Hi"), end=b""), sse({"error": {"message": "overloaded", "code": 503}}, end=b"")]
        rig.upstream.answers(stream(pieces, pause=0.01))
        _, _, got = await rig.post(CHAT, {**QUESTION, "stream": True})
        assert got == b"".join(pieces)
        (transition,) = rig.rows()
        assert (transition.info["status"], transition.info["error_kind"]) == ("failed", "overloaded")

    run(tmp_path, body)


def test_prx_12_a_prompt_that_is_too_long_goes_only_to_a_model_it_fits(tmp_path: Path) -> None:
    error = {"error": {"message": "This model's maximum context length is 4096 tokens, you requested 9000"}}

    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(error, 400))
        rig.second.answers(reply(ANSWER))
        assert (await rig.post(CHAT, {**QUESTION, "model": "large"}))[0] == 200
        status, _, got = await rig.post(CHAT, {**QUESTION, "model": "small"})
        assert (status, json.loads(got)) == (400, error)

    run(
        tmp_path,
        body,
        models=lambda rig: [
            model("large", rig.upstream, "big", window=4096, model="x"),
            model("small", rig.upstream, "tiny", window=4096, model="x"),
            model("big", rig.second, window=32_000),
            model("tiny", rig.second, window=8_000),
        ],
    )


@pytest.mark.parametrize(
    ("failing", "path", "asked", "served"),
    [
        (reply(b'{"error":{"message":"Incorrect API key"}}', 401), CHAT, "a", 401),
        (reply(b'{"error":{"message":"Insufficient credit"}}', 402), CHAT, "a", 200),
        (reply(b'{"error":{"message":"none","code":"model_not_found"}}', 404), CHAT, "made-up", 200),
        (reply(b'{"detail":"Not Found"}', 404), "/v1/nothing-here", "a", 200),
        (reply(b"{}", 500), "/v1/nothing-here", "a", 200),
    ],
    ids=["key", "quota", "name", "path", "raw"],
)
def test_what_a_client_itself_brought_about_cools_no_route(
    tmp_path: Path, failing: Any, path: str, asked: str, served: int
) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(failing)
        rig.second.answers(reply(ANSWER))
        got = await rig.post(path, {**QUESTION, "model": asked}, {"authorization": f"Bearer {KEY}"})
        assert got[0] == served
        assert len(rig.second.requests) == (served == 200), "a wrong key is not served with another one's"
        assert not rig.gateway.cooldowns.cooling("a")

    run(
        tmp_path,
        body,
        models=lambda rig: [model("a", rig.upstream, "b"), model("b", rig.second, model="b-1", key="other")],
    )


def test_a_routes_own_key_that_is_refused_cools_it(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(b'{"error":{"message":"Incorrect API key"}}', 401))
        rig.second.answers(reply(ANSWER))
        assert (await rig.post(CHAT, {**QUESTION, "model": "a"}, {"authorization": f"Bearer {KEY}"}))[0] == 200
        assert rig.gateway.cooldowns.cooling("a")

    run(
        tmp_path,
        body,
        models=lambda rig: [model("a", rig.upstream, "b", key="wrong"), model("b", rig.second, model="b-1")],
    )
