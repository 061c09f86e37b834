"""What a call leaves behind, from the bytes that went by: streamed or not, whole or cut off."""

import gzip
import json
import zlib
from typing import Any

import msgspec
import pytest
import zstandard
from gateway_calls import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    PRICES,
    QUESTION,
    RESPONSES,
    capture,
    delta,
    pass_through,
    readable,
    record,
    sse,
    streamed,
    whole,
)
from hypothesis import given
from hypothesis import strategies as st

from relive.experience import Usage
from relive.gateway import capture as capture_module
from relive.gateway.capture import Capture

USAGE = {"prompt_tokens": 16111, "completion_tokens": 2, "total_tokens": 16113}
CACHED = {**USAGE, "prompt_tokens_details": {"cached_tokens": 15872}}
ANSWER = [delta("It", role="assistant"), delta(" is"), delta(" there.")]

# Usage (PRX-01)


@pytest.mark.parametrize(
    "chunks",
    [
        [*ANSWER, {**delta(finish="stop"), "usage": CACHED}],
        [*ANSWER, delta(finish="stop"), {"id": "c1", "choices": [], "usage": CACHED}],
        [
            *({**chunk, "usage": {**CACHED, "completion_tokens": n}} for n, chunk in enumerate(ANSWER)),
            {**delta(finish="stop"), "usage": CACHED},
        ],
        [*({**chunk, "usage": None} for chunk in ANSWER), delta(finish="stop"), {"choices": [], "usage": CACHED}],
    ],
    ids=["with a choice", "without choices", "running totals", "null before"],
)
def test_prx_01_the_last_reported_usage_is_the_calls(chunks: list[dict[str, Any]]) -> None:
    seen = capture()
    stream = sse(*chunks)
    assert pass_through(seen, [stream]) == stream
    transition = record(seen, prices=PRICES)
    assert transition.usage == Usage(input_tokens=16111, cached_tokens=15872, output_tokens=2)
    assert transition.cost == 1_830_200, "0.0018302 USD: 239 plain, 15872 cached, 2 out"
    assert "estimated_usage" not in transition.info


def test_prx_01_without_usage_it_is_estimated_and_marked_so() -> None:
    transition = streamed(sse(*ANSWER, delta(finish="stop")))
    assert transition.info["estimated_usage"] is True
    assert transition.usage is not None
    assert transition.usage.input_tokens
    assert transition.usage.output_tokens == 3, "12 characters at four each"


def test_prx_01_estimates_learn_from_what_the_provider_counts() -> None:
    first = capture()
    pass_through(first, [sse(delta("x" * 200), {**delta(finish="stop"), "usage": {**USAGE, "completion_tokens": 100}})])
    record(first)
    second = capture(estimates=first._estimates)
    pass_through(second, [sse(delta("x" * 50), delta(finish="stop"))])
    assert record(second).usage.output_tokens == 25


def test_prx_01_estimates_are_found_by_the_name_that_was_asked_for() -> None:
    seen = capture({**QUESTION, "messages": [{"role": "user", "content": "y" * 1_000}]})
    usage = {"prompt_tokens": 520, "completion_tokens": 100, "total_tokens": 620}
    pass_through(seen, [sse(delta("x" * 200), {**delta(finish="stop"), "usage": usage})])
    record(seen)
    for name in ("m", "m-1"):
        assert seen._estimates.tokens(name, "answer", 50) == 25, "asked for as m, it answers as m-1"


def test_prx_01_the_usage_chunk_that_the_client_did_not_ask_for_is_taken_out() -> None:
    kept, usage = (
        sse(*ANSWER, delta(finish="stop"), end=b""),
        sse({"id": "c1", "choices": [], "usage": CACHED}, end=b""),
    )
    stream = kept + usage + b"data: [DONE]\n\n"
    for cut in range(0, len(stream), 7):
        seen = capture(drop_usage=True)
        assert pass_through(seen, [stream[:cut], stream[cut:]]) == kept + b"data: [DONE]\n\n"
        assert record(seen).usage == Usage(input_tokens=16111, cached_tokens=15872, output_tokens=2)


def test_usage_on_a_chunk_with_a_choice_is_never_taken_out() -> None:
    stream = sse(*ANSWER, {**delta(finish="stop"), "usage": CACHED})
    assert pass_through(capture(drop_usage=True), [stream]) == stream


def test_a_last_event_without_its_empty_line_reaches_the_client() -> None:
    stream = sse(*ANSWER, end=b"data: [DONE]")
    assert pass_through(capture(drop_usage=True), [stream]) == stream


def test_whether_the_client_asked_for_usage_is_read_from_its_request() -> None:
    plain, asking = (
        {**QUESTION, "stream": True},
        {**QUESTION, "stream": True, "stream_options": {"include_usage": True}},
    )
    assert capture(plain).request.needs_usage_asked()
    assert not capture(asking).request.needs_usage_asked()
    assert not capture(QUESTION).request.needs_usage_asked()
    sent = json.loads(capture(plain).request.sent(ask_for_usage=True))
    assert sent == {**plain, "stream_options": {"include_usage": True}}


# Cut off (PRX-03)

TEN_TOKENS = "0123456789" * 4


@pytest.mark.parametrize(("pieces", "tokens"), [(6, 60), (0, 1)])
@pytest.mark.parametrize("status", ["client_disconnected", "interrupted"])
def test_prx_03_a_call_that_is_cut_off_leaves_what_was_received(pieces: int, tokens: int, status: Any) -> None:
    seen = capture()
    seen.begin(200, "text/event-stream")
    for number in range(pieces):
        seen.feed(sse(delta(TEN_TOKENS), end=b""), 5.0 + number)
    transition = record(seen, status)
    assert transition.info["status"] == status
    assert transition.info["estimated_usage"] is True
    assert transition.usage.input_tokens > 0
    assert transition.usage.output_tokens == tokens
    assert transition.outcome == "unknown"
    assert transition.error is not None
    assert transition.action == ({"role": "assistant", "content": TEN_TOKENS * 6} if pieces else None)


def test_prx_03_an_upstream_that_was_read_to_its_end_is_charged_in_full() -> None:
    seen = capture()
    usage = {"prompt_tokens": 50, "completion_tokens": 200, "total_tokens": 250}
    pass_through(seen, [sse(*[delta(TEN_TOKENS)] * 20, {"choices": [], "usage": usage})])
    transition = record(seen, "client_disconnected")
    assert (transition.usage.input_tokens, transition.usage.output_tokens) == (50, 200)


def test_prx_03_a_client_that_left_before_the_upstream_answered_leaves_a_record_too() -> None:
    transition = record(capture(), "client_disconnected")
    assert transition.usage.input_tokens > 0
    assert transition.usage.output_tokens > 0
    assert transition.action is None


# Tool calls (PRX-08)


def piece(index: int | None = None, identity: str | None = None, name: str | None = None, arguments: Any = None) -> Any:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {
        key: value for key, value in (("index", index), ("id", identity), ("function", function)) if value is not None
    }


def calls_of(*groups: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    transition = streamed(sse(*(delta(tool_calls=group) for group in groups), delta(finish="tool_calls")))
    return [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in transition.action["tool_calls"]]


TWO = [("c1", "f", '{"a":1}'), ("c2", "g", '{"b":2}')]


@pytest.mark.parametrize(
    ("groups", "calls"),
    [
        (
            [
                [piece(0, "c1", "f", '{"a":')],
                [piece(1, "c2", "g", '{"b"')],
                [piece(0, arguments="1}")],
                [piece(1, arguments=":2}")],
            ],
            TWO,
        ),
        (
            [[piece(0, "c1", "f"), piece(0, arguments='{"a"')], [piece(0, arguments=":")], [piece(0, arguments="1}")]],
            TWO[:1],
        ),
        (
            [
                [piece(None, "c1", "f", '{"a":')],
                [piece(None, "c2", "g", '{"b"')],
                [piece(None, "c1", arguments="1}")],
                [piece(None, "c2", arguments=":2}")],
            ],
            TWO,
        ),
        ([[piece(0, "c1", "f", '{"a":1}')], [piece(0, "c2", "g", '{"b":2}')]], TWO),
        ([[piece(1, "c2", "g", '{"b":2}')], [piece(0, "c1", "f", '{"a":1}')]], TWO),
        ([[piece(0, "c1", "f", '{"a"')], [piece(0, "c1", "f", ":1}")]], TWO[:1]),
        ([[piece(0, "c1", "f", '{"a"')], [piece(0, "other", arguments=":1}")]], TWO[:1]),
        ([[piece(None, "c1", "f", '{"a"')], [piece(None, None, None, ":1}")]], TWO[:1]),
        ([[piece(0, "c1", "f", {"a": 1})]], TWO[:1]),
        ([[piece(0, "c1", "f", "")], [piece(0, "", "", '{"a":1}')]], TWO[:1]),
    ],
    ids=[
        "interleaved",
        "twice in one chunk",
        "no index",
        "all under index 0",
        "the second index first",
        "name and id repeated",
        "a new id with every piece",
        "neither index nor id",
        "an object for its text",
        "empty texts",
    ],
)
def test_prx_08_pieces_of_tool_calls_find_their_call(groups: Any, calls: Any) -> None:
    assert calls_of(*groups) == calls


def test_tool_arguments_are_the_models_own_text_even_where_it_is_broken() -> None:
    text = '{"n": 123456789012345678901234567890, "x": 1.10, "cut": "'
    ((_, _, arguments),) = calls_of([piece(0, "c1", "f", text)])
    assert arguments == text


def test_a_function_call_of_the_old_kind_is_put_together() -> None:
    chunks = [delta(function_call={"name": "f", "arguments": '{"a"'}), delta(function_call={"arguments": ":1}"})]
    assert streamed(sse(*chunks)).action["function_call"] == {"name": "f", "arguments": '{"a":1}'}


# Chat


@given(st.lists(st.integers(min_value=0, max_value=2_000), max_size=6))
def test_the_record_is_the_same_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    call = delta(tool_calls=[piece(0, "c1", "f", '{"x": "für 🚀"}')])
    stream = sse(*ANSWER, delta("für 🚀"), call, delta(finish="stop"), {"choices": [], "usage": CACHED})
    transition = streamed(stream, [cut % len(stream) for cut in cuts])
    assert transition.action == {
        "role": "assistant",
        "content": "It is there.für 🚀",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": "für 🚀"}'}}],
    }
    assert transition.usage.output_tokens == 2


def test_a_chat_completion_becomes_a_transition() -> None:
    request = {**QUESTION, "tools": [{"type": "function"}], "temperature": 0.5, "user": "anna", "stream": False}
    answer = {
        "id": "c1",
        "model": "m-1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Here."}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    transition = whole(answer, request=request)
    assert transition.state == {"messages": QUESTION["messages"], "tools": [{"type": "function"}]}
    assert transition.action == {"role": "assistant", "content": "Here."}
    assert (transition.agent, transition.episode_id, transition.step) == ("tester", "episode", 0)
    assert transition.policy == "m-1"
    assert transition.reward is None
    assert transition.outcome == "unknown"
    assert transition.latency_ms == 50.0
    assert transition.error is None
    assert transition.info == {
        "api": "chat",
        "route": "route",
        "requested_model": "m",
        "parameters": {"temperature": 0.5},
        "status": "complete",
        "http_status": 200,
        "finish_reason": "stop",
        "response_id": "c1",
        "first_piece_ms": 10.0,
    }


def test_numbers_and_texts_reach_record_and_upstream_byte_for_byte() -> None:
    number = b'{"n":123456789012345678901234567890,"x":1.10,"e":1e400}'
    body = b'{"model":"m","messages":[{"role":"user","content":"x","extra":%s}],"seed":1.0}' % number
    seen = capture(body)
    assert number in seen.request.sent(model="other", ask_for_usage=True)
    assert b'"seed":1.0' in seen.request.sent(model="other")
    assert seen.request.sent(model="m") is body
    answer = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"a","extra":%s}}]}' % number
    pass_through(seen, [answer], content_type="application/json")
    transition = seen.transition("complete", latency_ms=1.0, prices=PRICES)
    assert number in bytes(transition.state)
    assert number in bytes(transition.action)


def test_a_pretty_printed_request_is_recorded_on_one_line() -> None:
    transition = capture(json.dumps(QUESTION, indent=2).encode()).transition("failed", latency_ms=1.0, prices=PRICES)
    assert b"\n" not in bytes(transition.state)


def test_several_choices_stand_beside_the_first() -> None:
    message = {"role": "assistant", "content": "a"}
    answer = {"choices": [{"index": 0, "message": message}, {"index": 1, "message": {**message, "content": "b"}}]}
    assert whole(answer).action == {**message, "other_choices": [{**message, "content": "b"}]}
    chunks = [delta("a"), delta("b", index=1), delta("a"), delta(finish="stop"), delta(finish="stop", index=1)]
    action = streamed(sse(*chunks)).action
    assert action == {**message, "content": "aa", "other_choices": [{**message, "content": "b"}]}


def test_reasoning_and_other_texts_of_a_message_are_joined_too() -> None:
    chunks = [delta(role="assistant", content=""), delta(reasoning_content="I "), delta(reasoning_content="think")]
    action = streamed(sse(*chunks, delta("Yes", refusal=None), delta(annotations=[1]), delta(annotations=[2]))).action
    assert action["reasoning_content"] == "I think"
    assert action["content"] == "Yes"
    assert action["annotations"] == [1, 2]


def test_halves_of_a_surrogate_pair_in_two_chunks_become_one_character() -> None:
    first = b'{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}'
    second = b'{"choices":[{"index":0,"delta":{"content":"\\ude80"}}]}'
    seen = capture()
    pass_through(seen, [sse(first, second)])
    transition = seen.transition("complete", latency_ms=1.0, prices=PRICES)
    assert transition.action["content"].encode("utf-16", "surrogatepass").decode("utf-16") == "🚀"


@pytest.mark.parametrize(
    "error",
    [
        sse({"error": {"message": "The server is overloaded", "code": 503}}, end=b""),
        sse(("error", {"message": "overloaded"}), end=b""),
        sse({"error": "overloaded"}, end=b""),
    ],
)
def test_an_error_inside_a_stream_that_began_with_200_is_an_error(error: bytes) -> None:
    transition = streamed(sse(*ANSWER, end=b"") + error)
    assert transition.action["content"] == "It is there."
    assert transition.error is not None
    assert "overloaded" in transition.error
    assert transition.info["error_kind"] == "overloaded"


def test_an_error_in_place_of_an_answer_is_an_error_whatever_the_status() -> None:
    transition = whole({"error": {"message": "no", "code": "context_length_exceeded"}})
    assert transition.info["error_kind"] == "context_overflow"
    assert transition.action is None


def test_a_refused_call_is_recorded_with_the_providers_words_but_not_its_key() -> None:
    seen = capture(key="sk-secret-key-1")
    seen.begin(401, "application/json")
    seen.feed(b'{"error":{"message":"Incorrect API key provided: sk-secret-key-1"}}', 5.0)
    seen.end()
    transition = record(seen, "failed")
    assert transition.error.startswith("http://up/v1 refused the API key")
    assert transition.info["error_kind"] == "authentication"
    assert (transition.action, transition.usage, transition.cost) == (None, None, None)
    assert b"sk-secret" not in msgspec.json.encode(readable(transition.to_dict()))


@pytest.mark.parametrize(
    "stream",
    [
        b"data: not json\n\ndata: [1]\n\ndata: 7\n\n: comment\n\ndata\n\n",
        sse({"choices": [None, 1, {"index": "x"}, {"delta": 3}]}, {"choices": {}, "usage": 3}, {"usage": {}}),
        sse(delta(tool_calls=[None, {"function": 3}, {"index": "a"}]), {"choices": [{"logprobs": {"content": [1]}}]}),
        b"\xff\xfe\n\n",
    ],
)
def test_a_stream_of_nonsense_is_forwarded_and_recorded_without_failing(stream: bytes) -> None:
    streamed(stream)


@given(st.binary(max_size=120))
def test_whatever_an_upstream_sends_reaches_the_client(body: bytes) -> None:
    for path in (CHAT, MESSAGES, RESPONSES, COMPLETIONS, EMBEDDINGS, "/v1/other"):
        for content_type in ("application/json", "text/event-stream"):
            seen = capture(path=path)
            assert pass_through(seen, [body[:50], body[50:]], content_type=content_type) == body
            record(seen)


NAMES = [
    *("choices", "delta", "message", "tool_calls", "function", "usage", "index", "id", "content", "type", "response"),
    *("output", "item", "content_block", "error", "logprobs", "name", "arguments", "role"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.sampled_from(["message_start", "content_block_delta", "response.completed", "message_delta", "error"]))
def test_no_shape_of_answer_makes_a_reader_fail(value: Any, kind: str) -> None:
    for path in (CHAT, MESSAGES, RESPONSES, COMPLETIONS, EMBEDDINGS):
        typed = {**value, "type": kind} if isinstance(value, dict) else value
        seen = capture(path=path)
        pass_through(seen, [sse(value, typed)])
        record(seen)
        seen = capture(path=path)
        pass_through(seen, [json.dumps(value).encode()], content_type="application/json")
        record(seen)


# Whatever else


def test_what_is_not_understood_is_recorded_raw() -> None:
    transition = whole(b'{"score": 1.10}', request=b'{"documents": ["a"]}', path="/v1/rerank")
    assert transition.state == {"path": "/v1/rerank", "request": {"documents": ["a"]}}
    assert transition.action == {"score": 1.1}
    assert transition.info["api"] == "raw"
    binary = whole(b"\x00\xff\x00", request=b"not json", path="/v1/audio")
    assert binary.state["request"] == "not json"
    assert binary.action["bytes"] == 3


def test_a_known_path_with_a_body_that_is_no_json_object_is_not_understood() -> None:
    for body in (b"", b"[]", b"{", b'{"model": "\xff"}'):
        assert not capture(body).request.understood


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data)[2:-4]),
        ("zstd", zstandard.ZstdCompressor().compress),
    ],
    ids=["gzip", "deflate", "raw deflate", "zstd"],
)
def test_prx_13_a_compressed_answer_is_forwarded_as_it_is_and_recorded_as_text(encoding: str, pack: Any) -> None:
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "long " * 8000}}]}
    packed = pack(json.dumps(answer).encode())
    seen = capture()
    seen.begin(200, "application/json", encoding)
    pieces = [packed[at : at + 100] for at in range(0, len(packed), 100)]
    assert b"".join(seen.feed(part, 1.0) for part in pieces) + seen.end() == packed
    assert record(seen).action["content"] == "long " * 8000


def test_prx_13_an_encoding_that_cannot_be_read_is_forwarded_and_said_so() -> None:
    seen = capture()
    seen.begin(200, "application/json", "x-unknown")
    assert seen.feed(b"\x01\x02", 1.0) + seen.end() == b"\x01\x02"
    transition = record(seen)
    assert transition.action is None
    assert "unreadable" in transition.info


def test_an_answer_longer_than_the_limit_is_forwarded_and_recorded_up_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "LARGEST_ANSWER", 300)
    for drop in (False, True):
        seen: Capture = capture(drop_usage=drop)
        stream = sse(*[delta("word ")] * 20)
        pieces = [stream[at : at + 37] for at in range(0, len(stream), 37)]
        assert pass_through(seen, pieces) == stream
        transition = record(seen)
        assert transition.action["content"].startswith("word ")
        assert transition.info["recorded_bytes"] == 300


def test_what_an_earlier_upstream_answered_is_forgotten_by_the_next_attempt() -> None:
    seen = capture()
    seen.begin(503, "application/json")
    seen.feed(b'{"error": "overloaded"}', 1.0)
    seen.end()
    seen.fail("overloaded", "overloaded")
    assert seen.upstream is not None
    seen.forwarded(seen.upstream)
    pass_through(seen, [sse(*ANSWER, delta(finish="stop"))])
    transition = record(seen)
    assert transition.error is None
    assert transition.action["content"] == "It is there."
