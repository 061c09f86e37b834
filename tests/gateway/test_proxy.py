"""Whole calls through the gateway, over real connections: what the client gets, and what is recorded."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_calls import delta, sse
from loopback import Request, Rig, model, reply, reset, rig, silence, stream

from relive.experience import Transition
from relive.gateway.budget import Budget, Budgets
from relive.gateway.proxy import Limits
from relive.gateway.routes import Model
from relive.llm.endpoint import Endpoint
from relive.llm.pricing import Price, PriceTable
from relive.llm.retry import RetryPolicy
from relive.rewards import answer_quality
from relive.storage.redaction import Redactor

CHAT = "/v1/chat/completions"
QUESTION: dict[str, Any] = {"model": "m-1", "messages": [{"role": "user", "content": "Where is my card?"}]}
ANSWER = {
    "id": "c1",
    "object": "chat.completion",
    "model": "m-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "In Leeds."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 50, "completion_tokens": 200, "total_tokens": 250},
}
PRICES = PriceTable({"m-1": Price.of(1, 2)}, known=False)
USAGE_CHUNK = {"id": "c1", "choices": [], "usage": ANSWER["usage"]}


def run(folder: Path, body: Callable[[Rig], Awaitable[None]], **options: Any) -> None:
    async def all_of_it() -> None:
        async with rig(folder, **options) as made:
            await asyncio.wait_for(body(made), 30)

    asyncio.run(all_of_it())


def test_a_call_is_answered_with_the_upstreams_bytes_and_recorded_before_that(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        data = json.dumps(ANSWER, indent=1).encode()
        rig.upstream.answers(
            reply(data, headers={"x-request-id": "r1", "connection": "keep-alive, x-hop", "x-hop": "1"})
        )
        status, headers, got = await rig.post(CHAT, QUESTION)
        (transition,) = rig.rows()
        assert (status, got) == (200, data)
        assert headers["x-request-id"] == "r1"
        assert "x-hop" not in headers
        assert len(headers["x-relive-experience-id"]) == 32
        assert rig.storage.ids_of([bytes.fromhex(headers["x-relive-experience-id"])]) == [1]
        assert headers["x-relive-cost"] == "0.00045", "50 at 1 and 200 at 2 USD a million"
        assert float(headers["x-relive-overhead-ms"]) >= 0
        assert "x-relive-recorded" not in headers
        assert transition.action == {"role": "assistant", "content": "In Leeds."}
        assert transition.cost == 450_000
        assert transition.latency_ms is not None
        assert transition.info["status"] == "complete"
        assert rig.upstream.requests[0].json() == QUESTION
        assert rig.gateway.stats.calls == {"complete": 1}

    run(tmp_path, body, prices=PRICES)


def test_a_stream_reaches_the_client_piece_by_piece(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        pieces = [sse(delta(word), end=b"") for word in ("In ", "Leeds", ".")] + [sse(USAGE_CHUNK)]
        go_on = asyncio.Event()

        async def script(request: Request, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for piece in pieces:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await go_on.wait()
                go_on.clear()
            writer.write(b"0\r\n\r\n")

        rig.upstream.answers(script)
        asked = {**QUESTION, "stream": True, "stream_options": {"include_usage": True}}
        async with rig.client.post(rig.url + CHAT, json=asked) as answer:
            got = b""
            for piece in pieces:
                while not got.endswith(piece):
                    assert not answer.content.at_eof()
                    got += await answer.content.readany()
                go_on.set()
            assert await answer.read() == b""
            assert answer.headers["x-relive-cost"] == "pending"
        assert got == b"".join(pieces)
        (transition,) = rig.rows()
        assert transition.action["content"] == "In Leeds."
        assert transition.cost == 450_000

    run(tmp_path, body, prices=PRICES)


def test_prx_01_usage_is_asked_for_and_taken_out_again(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(stream([sse(delta("Hi"), end=b""), sse(USAGE_CHUNK)]))
        _, _, got = await rig.post(CHAT, {**QUESTION, "stream": True})
        assert got == sse(delta("Hi"))
        assert rig.upstream.requests[0].json()["stream_options"] == {"include_usage": True}
        assert rig.upstream.requests[0].headers["accept-encoding"] == "identity"
        assert rig.rows()[0].usage.output_tokens == 200  # type: ignore[union-attr]

    run(tmp_path, body)


# The client leaves (PRX-03)

TEN = "0123456789" * 6  # longer than ten tokens are taken to be, so that an estimate differs from what is reported
TWENTY = [sse(delta(TEN), end=b"")] * 20


@pytest.mark.parametrize("drain", [False, True], ids=["cancelled", "drained"])
@pytest.mark.parametrize("chunks", [6, 0])
def test_prx_03_a_client_that_leaves_is_recorded_once_and_charged(tmp_path: Path, drain: bool, chunks: int) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(stream([*TWENTY, sse(USAGE_CHUNK)], pause=0.01))
        async with rig.client.post(rig.url + CHAT, json={**QUESTION, "stream": True}) as answer:
            got = b""
            while got.count(b"data: ") < chunks:
                assert not answer.content.at_eof()
                got += await answer.content.readany()
            answer.close()
        (transition,) = await rig.until_recorded()
        assert transition.info["status"] == "client_disconnected"
        assert transition.error == "The client left before the answer was whole."
        assert transition.outcome == "unknown"
        assert transition.usage is not None
        if drain:
            assert (transition.usage.input_tokens, transition.usage.output_tokens) == (50, 200)
            assert transition.action["content"] == TEN * 20
        else:
            assert transition.usage.input_tokens
            received = len((transition.action or {"content": ""})["content"]) // 4
            assert transition.usage.output_tokens == max(1, received)
            assert received < 200
        await asyncio.sleep(0.1)
        assert len(rig.rows()) == 1
        budgets = rig.gateway.budgets
        assert budgets is not None
        assert budgets.spent("all", "day") == transition.cost

    run(tmp_path, body, limits=Limits(drain=drain), prices=PRICES, budgets=one_dollar)


def test_prx_03_a_client_that_leaves_before_the_upstream_answers(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(silence)
        with pytest.raises(TimeoutError):
            await rig.client.post(rig.url + CHAT, json=QUESTION, timeout=aiohttp.ClientTimeout(total=0.2))
        (transition,) = await rig.until_recorded()
        assert transition.info["status"] == "client_disconnected"
        assert transition.usage is not None
        assert transition.usage.input_tokens
        for _ in range(100):
            if not rig.gateway.stats.in_flight:
                break
            await asyncio.sleep(0.01)
        assert rig.gateway.stats.in_flight == 0

    run(tmp_path, body)


def test_prx_03_a_time_limit_in_mid_stream_breaks_off_and_is_recorded(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(stream(TWENTY, pause=0.1))
        with pytest.raises(aiohttp.ClientPayloadError):
            await rig.post(CHAT, {**QUESTION, "stream": True})
        (transition,) = await rig.until_recorded()
        assert transition.info["status"] == "interrupted"
        assert transition.info["error_kind"] == "timeout"
        assert transition.usage is not None
        assert transition.usage.input_tokens
        assert transition.usage.output_tokens
        assert 0 < len(transition.action["content"]) < 800

    run(tmp_path, body, models=lambda rig: [model("m", rig.upstream, timeout=0.35)])


def test_a_client_that_closes_after_the_end_mark_got_all_of_it(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        async def script(request: Request, writer: asyncio.StreamWriter) -> None:
            await stream([sse(delta("Hi"))], pause=0.3)(request, writer)

        rig.upstream.answers(script)
        async with rig.client.post(rig.url + CHAT, json={**QUESTION, "stream": True}) as answer:
            while b"[DONE]" not in await answer.content.readany():
                assert not answer.content.at_eof()
            answer.close()
        (transition,) = await rig.until_recorded()
        assert transition.info["status"] == "complete"
        assert transition.error is None

    run(tmp_path, body)


# Failures, retries, fallbacks


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
        children = await until(lambda: rig.storage.query(parent=1), 4)
        assert [child.transition.tags for child in children] == [("attempt",)] * 4

    run(tmp_path, body, policy=RetryPolicy(max_attempts=4, min_wait=0.001, max_wait=0.002))


async def until(read: Callable[[], list[Any]], count: int) -> list[Any]:
    for _ in range(300):
        if len(found := read()) >= count:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"{len(read())} instead of {count}")


def test_a_second_try_that_succeeds_is_one_record_with_its_failed_try_beneath(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(b"busy", 503, {"retry-after-ms": "5"}), reply(ANSWER))
        status, _, _ = await rig.post(CHAT, QUESTION)
        assert status == 200
        (transition,) = rig.rows()
        assert transition.error is None
        (attempt,) = transition.info["attempts"]
        assert (attempt["model"], attempt["kind"], attempt["wait_reason"]) == ("m", "overloaded", "hint")
        (child,) = await until(lambda: rig.storage.query(parent=1), 1)
        assert child.transition.error is not None
        assert child.priority == 0.0

    run(tmp_path, body)


def two_models(rig: Rig) -> list[Model]:
    return [model("a", rig.upstream, "b", model="a-1"), model("b", rig.second, "a", model="b-1")]


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


# Bodies and headers (PRX-13)

LONG = {**ANSWER, "padding": "x" * 40_000}


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", gzip.compress(json.dumps(LONG).encode())),
        ("deflate", zlib.compress(json.dumps(LONG).encode())),
        ("", json.dumps(LONG).encode()),
    ],
    ids=["gzip", "deflate", "plain"],
)
def test_prx_13_a_standard_client_reads_a_packed_answer(tmp_path: Path, encoding: str, data: bytes) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(data, headers={"content-encoding": encoding}))
        status, headers, got = await rig.post(CHAT, QUESTION)
        assert (status, json.loads(got)) == (200, LONG)
        assert headers["content-length"] == str(len(data))
        assert rig.rows()[0].action["content"] == "In Leeds."
        packed = sse(delta("Hi" * 20_000))
        squeezed = {"gzip": gzip.compress, "deflate": zlib.compress, "": bytes}[encoding](packed)
        sent = {"content-encoding": encoding} if encoding else {}
        rig.upstream.answers(stream([squeezed[:50], squeezed[50:]], headers=sent))
        asked = {**QUESTION, "stream": True, "stream_options": {"include_usage": True}}
        assert (await rig.post(CHAT, asked))[2] == packed
        assert rig.rows()[1].action["content"] == "Hi" * 20_000

    run(tmp_path, body)


def test_prx_13_a_length_that_promises_too_much_does_no_harm(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        data = json.dumps(LONG).encode()

        async def script(request: Request, writer: asyncio.StreamWriter) -> None:
            await reply(data, headers={"content-length": str(len(data) + 500)})(request, writer)
            writer.close()

        rig.upstream.answers(script)
        status, _, got = await rig.post(CHAT, QUESTION)
        assert (status, got) == (200, data)
        assert len(rig.upstream.requests) == 1

    run(tmp_path, body)


def test_prx_13_head_and_204_have_no_body(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(b"", 204, {"content-length": ""}))
        status, headers, got = await rig.post("/v1/files/delete", {})
        assert (status, got) == (204, b"")
        assert "content-length" not in headers
        rig.upstream.answers(reply(b"x" * 100))
        async with rig.client.head(rig.url + "/v1/files") as answer:
            assert (answer.status, answer.headers["content-length"]) == (200, "100")
        assert rig.upstream.requests[-1].method == "HEAD"

    run(tmp_path, body)


def test_what_is_not_understood_passes_through_with_its_query_and_is_recorded_raw(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(b"\x00\xff", content_type="audio/mpeg"))
        status, headers, got = await rig.post("/v1/audio/speech?voice=a%20b", {"input": "Hi"})
        assert (status, got, headers["content-type"]) == (200, b"\x00\xff", "audio/mpeg")
        assert headers["content-length"] == "2"
        assert rig.upstream.requests[0].target == "/v1/audio/speech?voice=a%20b"
        (transition,) = rig.rows()
        assert transition.state == {"path": "/v1/audio/speech", "request": {"input": "Hi"}}
        assert transition.action["bytes"] == 2
        async with rig.client.get(rig.url + "/v1/files") as answer:
            assert await answer.read() == b"\x00\xff"
        assert len(rig.rows()) == 1, "looking something up is no call to a model"

    run(tmp_path, body)


# Secrets (PRX-14)

KEY, COOKIE, QUERY = "sk-test-AAAABBBBCCCCDDDD", "session=zzz-cookie-zzz", "AIzaTESTTESTTEST"


def contents(folder: Path) -> list[bytes]:
    """What is in the files of a folder and its folders."""
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def test_prx_14_no_secret_reaches_the_disk_and_the_upstream_gets_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")

    async def body(rig: Rig) -> None:
        error = {"error": {"message": f"Incorrect API key provided: {KEY}. See https://x.test/?key={QUERY}"}}
        rig.upstream.answers(reply(error, 401), reply(ANSWER))
        headers = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "cookie": COOKIE}
        for _ in range(2):
            await rig.post(f"{CHAT}?key={QUERY}", QUESTION, headers)
        for request in rig.upstream.requests:
            assert request.headers["authorization"] == f"Bearer {KEY}"
            assert request.headers["x-api-key"] == KEY
            assert request.headers["cookie"] == COOKIE
            assert QUERY in request.target
        rig.storage.flush()
        files = contents(tmp_path)
        assert len(files) > 3
        for secret in (KEY, COOKIE.partition("=")[2], QUERY):
            assert not any(secret.encode() in data for data in files), secret
            assert secret not in caplog.text

    run(tmp_path, body, redact=Redactor())


def test_a_route_with_a_key_of_its_own_gets_that_and_not_the_clients(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(ANSWER))
        rig.second.answers(reply(ANSWER))
        await rig.post(CHAT, {**QUESTION, "model": "a"}, {"authorization": f"Bearer {KEY}", "x-relive-agent": "me"})
        await rig.post(CHAT, {**QUESTION, "model": "b"}, {"x-api-key": KEY})
        assert rig.upstream.requests[0].headers["authorization"] == "Bearer provider-key"
        assert not any(name.startswith("x-relive-") for name in rig.upstream.requests[0].headers)
        assert rig.second.requests[0].headers["x-api-key"] == "other-key"
        assert "authorization" not in rig.second.requests[0].headers

    run(
        tmp_path,
        body,
        models=lambda rig: [
            model("a", rig.upstream, key="provider-key"),
            model("b", rig.second, key="other-key", api="anthropic"),
        ],
    )


def test_the_headers_of_a_route_win_and_a_key_among_them_or_in_the_address_is_its_own(tmp_path: Path) -> None:
    def models(rig: Rig) -> list[Model]:
        named = Endpoint.of(rig.upstream.base_url, headers={"Api-Key": "the-routes", "x-org": "the-routes"})
        address = Endpoint.of(rig.second.base_url.replace("://", "://user:password@"))
        return [Model(name="a", endpoint=named), Model(name="b", endpoint=address)]

    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(ANSWER))
        rig.second.answers(reply(ANSWER))
        sent = {"authorization": f"Bearer {KEY}", "x-org": "the-clients", "cookie": COOKIE}
        await rig.post(CHAT, {**QUESTION, "model": "a"}, sent)
        await rig.post(CHAT, {**QUESTION, "model": "b"}, sent)
        got = rig.upstream.requests[0].headers
        assert (got["api-key"], got["x-org"]) == ("the-routes", "the-routes")
        assert not {"authorization", "cookie"} & got.keys()
        assert rig.second.requests[0].headers["authorization"] == "Basic dXNlcjpwYXNzd29yZA=="

    run(tmp_path, body, models=models)


def test_the_clients_credentials_go_to_no_other_host(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(b"{}", 500), reply(b"{}", 500), reply(b"{}", 500), reply(ANSWER))
        rig.second.answers(reply(b"{}", 500))
        secrets = dict.fromkeys(("authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"), KEY)
        status, _, _ = await rig.post(CHAT + f"?key={KEY}&beta=true", {**QUESTION, "model": "a"}, secrets)
        assert status == 200, "answered by c"
        for request in rig.upstream.requests:
            assert {name: request.headers[name] for name in secrets} == secrets
            assert request.target == CHAT + f"?key={KEY}&beta=true"
        for request in rig.second.requests:
            assert not secrets.keys() & request.headers.keys()
            assert request.target == CHAT + "?beta=true"

    run(
        tmp_path,
        body,
        models=lambda rig: [
            model("a", rig.upstream, "b", "c", model="a-1"),
            model("b", rig.second, model="b-1"),
            model("c", rig.upstream, model="c-1"),
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


async def raw_get(rig: Rig, target: str) -> bytes:
    """The first line of the answer to a request whose target is sent as it is."""
    host, port = rig.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n")[0]


def test_a_path_goes_on_as_it_was_written_and_never_upwards(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(ANSWER))
        for target in ("/v1/files/a%2Fb", "/v1/a%3Fb=1", "/v1/a%23b", "/v1/caf%C3%A9?x=%2F", "/v1/x%0d%0aX-Evil:%201"):
            assert b"200" in await raw_get(rig, target)
            assert rig.upstream.requests[-1].target == target
        count = len(rig.upstream.requests)
        for target in ("/v1/%2e%2e/admin%3Fa", "/v1/../admin", "/v1/a%2F..%2F..%2Fadmin", "/v1/..%5Cadmin", "/v1/.."):
            assert b"400" in await raw_get(rig, target)
        assert len(rig.upstream.requests) == count

    run(tmp_path, body, models=lambda rig: [model("m", rig.upstream, key="provider-key")])


def test_with_keys_required_only_their_owners_get_in_and_no_key_goes_on(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(ANSWER))
        text, key = rig.keys.create("laptop", ["call"], agent="router")
        readonly, _ = rig.keys.create("viewer", ["read"])
        for headers in (
            {},
            {"authorization": f"Bearer {KEY}"},
            {"authorization": f"Bearer {text}x"},
            {"x-api-key": "rlv_"},
        ):
            status, _, got = await rig.post(CHAT, QUESTION, headers)
            assert (status, json.loads(got)["error"]["code"]) == (401, "invalid_api_key")
        status, _, got = await rig.post(CHAT, QUESTION, {"authorization": f"Bearer {readonly}"})
        assert (status, json.loads(got)["error"]["code"]) == (403, "scope")
        assert rig.upstream.requests == []
        assert (await rig.post(CHAT, QUESTION, {"authorization": f"Bearer {text}"}))[0] == 200
        assert "authorization" not in rig.upstream.requests[0].headers
        (transition,) = rig.rows()
        assert transition.agent == "router"
        rig.keys.revoke(key.id)
        assert (await rig.post(CHAT, QUESTION, {"x-api-key": text}))[0] == 401

    run(tmp_path, body, keys_required=True)


# Limits and budgets


def one_dollar(ledger: Any) -> Budgets:
    return Budgets(ledger, [Budget(day=10**9)], zone=UTC, now=lambda: datetime.now(UTC))


def test_prx_10_a_budget_admits_what_fits_and_refuses_the_rest_without_calling(tmp_path: Path) -> None:
    prices = PriceTable({"m-1": Price.of(0, 20_000)}, known=False)  # 0.02 USD a token of the answer

    async def body(rig: Rig) -> None:
        budgets = rig.gateway.budgets
        assert budgets is not None
        budgets.start_from("all", "day", 950_000_000)
        cheap = {**ANSWER, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}  # 0.02; two tokens are reserved: 0.04
        rig.upstream.answers(reply(cheap))
        answers = await asyncio.gather(*(rig.post(CHAT, {**QUESTION, "max_tokens": 2}) for _ in range(10)))
        statuses = sorted(status for status, _, _ in answers)
        assert statuses == [200] + [429] * 9
        assert len(rig.upstream.requests) == 1
        assert budgets.spent("all", "day") == 970_000_000
        refused = next(headers for status, headers, _ in answers if status == 429)
        assert refused["x-should-retry"] == "false"
        kinds = [transition.info.get("error_kind") for transition in rig.rows()]
        assert kinds.count("budget_exceeded") == 9

    run(tmp_path, body, prices=prices, budgets=one_dollar)


def test_prx_10_a_failed_call_gives_its_reservation_back(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(b"no", 500))
        for _ in range(3):
            await rig.post(CHAT, {**QUESTION, "max_tokens": 400_000})  # 0.80
        assert len(rig.upstream.requests) == 9
        rig.upstream.answers(reply(ANSWER))
        assert (await rig.post(CHAT, {**QUESTION, "max_tokens": 400_000}))[0] == 200

    run(tmp_path, body, prices=PRICES, budgets=one_dollar)


def test_a_request_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        status, _, got = await rig.post(CHAT, b"x" * 2_000)
        assert (status, json.loads(got)["error"]["code"]) == (413, "request_too_large")

        async def endless() -> Any:
            while True:
                yield b"x" * 500

        async with rig.client.post(rig.url + CHAT, data=endless()) as answer:
            assert answer.status == 413

    run(tmp_path, body, limits=Limits(request_bytes=1_000))


def test_more_calls_at_a_time_than_allowed_are_refused_for_the_moment(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.2)
            await reply(ANSWER)(request, writer)

        rig.upstream.answers(slow)
        answers = await asyncio.gather(*(rig.post(CHAT, QUESTION) for _ in range(5)))
        assert sorted(status for status, _, _ in answers) == [200, 200, 503, 503, 503]
        refused = next(headers for status, headers, _ in answers if status == 503)
        assert refused["retry-after"] == "1"

    run(tmp_path, body, limits=Limits(concurrent=2))


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "code"),
    [
        (CHAT, b"{", {}, 400, "invalid_json"),
        (CHAT, b"[]", {}, 400, "invalid_json"),
        (CHAT, QUESTION, {"x-relive-step": "x"}, 400, "identity"),
        (CHAT, {**QUESTION, "model": "nobody"}, {}, 404, "model_not_found"),
        ("/v1/messages", {**QUESTION, "model": "nobody"}, {}, 404, "model_not_found"),
    ],
)
def test_what_is_wrong_before_any_upstream_is_said_in_the_clients_own_form(
    tmp_path: Path, path: str, body: Any, headers: dict[str, str], status: int, code: str
) -> None:
    async def check(rig: Rig) -> None:
        answered, _, got = await rig.post(path, body, headers)
        value = json.loads(got)
        assert (answered, value["error"]["code"]) == (status, code)
        assert value.get("type") == ("error" if path == "/v1/messages" else None)
        assert rig.upstream.requests == []

    run(tmp_path, check, models=lambda rig: [model("a", rig.upstream, model="a-1")])


def test_models_and_tiers_are_listed(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        async with rig.client.get(rig.url + "/v1/models") as answer:
            listed = await answer.json()
        assert [entry["id"] for entry in listed["data"]] == ["a", "b", "balanced"]

    run(tmp_path, body, models=two_models, tiers={"balanced": ["a"]})


# Episodes


def test_the_steps_of_a_conversation_are_one_episode_and_know_what_came_next(tmp_path: Path) -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "find", "arguments": '{"n": 1.10}'}}
    asks = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "t1", "content": "Leeds"}

    async def body(rig: Rig) -> None:
        first = {**ANSWER, "choices": [{"index": 0, "message": asks, "finish_reason": "tool_calls"}]}
        rig.upstream.answers(reply(first), reply(ANSWER))
        await rig.post(CHAT, QUESTION, {"x-relive-agent": "cards", "x-relive-tags": "a,b", "x-relive-group": "g"})
        await rig.post(
            CHAT, {**QUESTION, "messages": [*QUESTION["messages"], asks, result]}, {"x-relive-agent": "cards"}
        )
        one, two = rig.rows()
        assert (one.episode_id, one.step, two.step) == (two.episode_id, 0, 1)
        assert (one.agent, one.tags, one.group_id) == ("cards", ("a", "b"), "g")
        for _ in range(100):
            if (one := rig.rows()[0]).next_state is not None:
                break
            await asyncio.sleep(0.01)
        assert one.next_state == {"messages": [result]}
        await rig.post(CHAT, QUESTION, {"x-relive-episode": one.episode_id, "x-relive-agent": "cards"})
        assert rig.rows()[2].step == 2

    run(tmp_path, body)


def test_an_episode_from_before_a_restart_goes_on(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.storage.append([Transition(state=1, action=1, episode_id="old", step=4)])
        rig.upstream.answers(reply(ANSWER))
        await rig.post(CHAT, QUESTION, {"x-relive-episode": "old"})
        assert rig.rows()[1].step == 5

    def last_step(episode_id: str) -> int | None:
        return 4 if episode_id == "old" else None

    run(tmp_path, body, last_step=last_step)


def test_rewards_are_given_on_capture(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(ANSWER))
        await rig.post(CHAT, QUESTION)
        (row,) = await until(lambda: [r for r in rig.rows() if r.reward is not None], 1)
        assert row.reward == pytest.approx(9 / 500 * 0.3 + 0.1 + 0.2)
        (feedback,) = rig.storage.feedback_of(1)
        assert (feedback.source, feedback.key) == ("relive:form", "form")

    run(tmp_path, body, rewards={"form": answer_quality})


def test_a_hook_may_change_the_request_and_says_what_it_did(tmp_path: Path) -> None:
    async def prepare(request: Any, agent: str, episode: str, headers: Any) -> Any:
        fields = {**json.loads(request.body), "temperature": 0}
        fields["messages"] = [{"role": "system", "content": "Be brief."}, *fields["messages"]]
        return type(request)(request.path, json.dumps(fields).encode()), {"told": [agent, episode, headers["x-mine"]]}

    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(ANSWER), reply(ANSWER))
        await rig.post(CHAT, QUESTION, headers={"x-mine": "7"})
        assert rig.upstream.requests[0].json()["temperature"] == 0
        first = rig.rows()[0]
        assert first.info["told"] == ["default", first.episode_id, "7"]
        longer = [*QUESTION["messages"], ANSWER["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        await rig.post(CHAT, {**QUESTION, "messages": longer}, headers={"x-mine": "7"})
        second = rig.rows()[1]
        assert (second.episode_id, second.step) == (first.episode_id, 1), "told by what the client sent"

    run(tmp_path, body, prepare=prepare)


def test_a_fault_of_recording_is_not_the_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    async def body(rig: Rig) -> None:
        monkeypatch.setattr("relive.gateway.capture.Capture.transition", broken)
        rig.upstream.answers(reply(ANSWER))
        status, _, got = await rig.post(CHAT, QUESTION)
        assert (status, json.loads(got)) == (200, ANSWER)
        assert rig.gateway.stats.calls == {"complete": 1, "unrecorded": 1}

    run(tmp_path, body)
