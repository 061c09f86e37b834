"""Whole calls through the gateway, over real connections: what the client gets, and what is recorded."""

import asyncio
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_calls import CHAT, PRICES, delta, sse
from loopback import ANSWER, QUESTION, Request, Rig, model, one_dollar, raw, reply, run, silence, so_many, stream

from relive.experience import Transition
from relive.gateway.proxy import Limits
from relive.rewards import answer_quality

USAGE_CHUNK = {"id": "c1", "choices": [], "usage": ANSWER["usage"]}


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


def test_a_path_goes_on_as_it_was_written_and_never_upwards(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(ANSWER))
        for target in ("/v1/files/a%2Fb", "/v1/a%3Fb=1", "/v1/a%23b", "/v1/caf%C3%A9?x=%2F", "/v1/x%0d%0aX-Evil:%201"):
            assert b"200" in await raw(rig, "GET", target)
            assert rig.upstream.requests[-1].target == target
        count = len(rig.upstream.requests)
        for target in ("/v1/%2e%2e/admin%3Fa", "/v1/../admin", "/v1/a%2F..%2F..%2Fadmin", "/v1/..%5Cadmin", "/v1/.."):
            assert b"400" in await raw(rig, "GET", target)
        assert len(rig.upstream.requests) == count

    run(tmp_path, body, models=lambda rig: [model("m", rig.upstream, key="provider-key")])


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
        (row,) = await so_many(lambda: [r for r in rig.rows() if r.reward is not None], 1)
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
