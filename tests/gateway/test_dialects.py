"""Answers of each API, streamed and whole, as one kind of record, with its token ids."""

from typing import Any

import msgspec
import numpy as np
import pytest
from gateway_calls import (
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    PRICES,
    QUESTION,
    RESPONSES,
    capture,
    delta,
    pass_through,
    record,
    sse,
    streamed,
    whole,
)

from relive.experience import Usage
from relive.llm.pricing import PriceTable

# Token ids


def test_a_trace_from_llama_cpp() -> None:
    def chunk(identity: int, logprob: float) -> dict[str, Any]:
        value = delta("x")
        value["choices"][0]["logprobs"] = {"content": [{"id": identity, "token": "x", "logprob": logprob}]}
        return value

    seen = capture({**QUESTION, "temperature": 0.7, "top_p": 0.9})
    pass_through(seen, [sse(chunk(57, -0.5), chunk(58, -1.25), delta(finish="stop"))])
    trace = record(seen).tokens
    assert trace is not None
    assert trace.token_ids.tolist() == [57, 58]
    assert trace.mask.tolist() == [1, 1]
    assert trace.logprobs is not None
    assert trace.logprobs.tolist() == [-0.5, -1.25]
    assert (trace.temperature, trace.top_p) == pytest.approx((0.7, 0.9))


def test_a_trace_from_vllm_with_its_prompt() -> None:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "xy"},
        "token_ids": [7, 8],
        "logprobs": {"content": [{"token": "x", "logprob": -0.5}, {"token": "y", "logprob": -1.0}]},
    }
    trace = whole({"prompt_token_ids": [1, 2, 3], "choices": [choice]}).tokens
    assert trace is not None
    assert trace.token_ids.tolist() == [1, 2, 3, 7, 8]
    assert trace.mask.tolist() == [0, 0, 0, 1, 1]
    assert trace.logprobs is not None
    assert np.array_equal(trace.logprobs[trace.mask == 1], np.array([-0.5, -1.0], np.float32))


def test_a_missing_log_probability_is_absent_and_never_zero() -> None:
    content = [{"token": "token_id:5", "logprob": -1.0}, {"token": "token_id:6", "logprob": None}]
    trace = whole({"choices": [{"index": 0, "message": {"content": "x"}, "logprobs": {"content": content}}]}).tokens
    assert trace is not None
    assert trace.token_ids.tolist() == [5, 6]
    assert trace.logprobs is None


def test_log_probabilities_without_ids_are_no_trace() -> None:
    content = [{"token": "x", "logprob": -1.0}]
    assert whole({"choices": [{"index": 0, "message": {}, "logprobs": {"content": content}}]}).tokens is None


def test_token_ids_are_left_out_when_not_wanted() -> None:
    seen = capture()
    seen._with_tokens = False
    pass_through(seen, [b'{"choices":[{"message":{},"token_ids":[1]}]}'], content_type="application/json")
    assert record(seen).tokens is None


# Completions and embeddings


def test_a_text_completion_streamed_and_whole() -> None:
    request = {"model": "m", "prompt": "Once", "max_tokens": 9}
    chunks = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in (" upon", " a", "")]
    chunks[-1]["choices"][0]["finish_reason"] = "length"
    transition = streamed(sse(*chunks), request=request, path=COMPLETIONS)
    assert transition.state == {"prompt": "Once"}
    assert transition.action == " upon a"
    assert transition.info["finish_reason"] == "length"
    several = {"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]}
    assert whole(several, request=request, path=COMPLETIONS).action == ["a", "b"]


def test_embeddings_are_counted_and_their_vectors_not_kept() -> None:
    answer = {
        "object": "list",
        "data": [{"embedding": [0.1, 0.2, 0.3]}, {"embedding": [1, 2, 3]}],
        "model": "e",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    transition = whole(answer, request={"model": "e", "input": ["a", "b"]}, path=EMBEDDINGS)
    assert transition.state == {"input": ["a", "b"]}
    assert transition.action == {"embeddings": 2, "dimensions": 3}
    assert transition.usage == Usage(input_tokens=5, output_tokens=0)


# Anthropic's messages

ASKED = {"model": "c", "system": "Be brief.", "messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 50}


def test_messages_streamed() -> None:
    def block(index: int, kind: str, **content: Any) -> dict[str, Any]:
        return {"type": f"content_block_{kind}", "index": index, **content}

    counts = {"input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 5, "output_tokens": 1}
    events = [
        {"type": "message_start", "message": {"id": "msg_1", "model": "c-1", "usage": counts}},
        block(0, "start", content_block={"type": "text", "text": ""}),
        {"type": "ping"},
        block(0, "delta", delta={"type": "text_delta", "text": "Let me "}),
        block(0, "delta", delta={"type": "text_delta", "text": "look."}),
        block(0, "stop"),
        block(1, "start", content_block={"type": "tool_use", "id": "t1", "name": "weather", "input": {}}),
        block(1, "delta", delta={"type": "input_json_delta", "partial_json": '{"zip": 1234567890123456'}),
        block(1, "delta", delta={"type": "input_json_delta", "partial_json": '7890123, "x": 1.10}'}),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 42}},
        {"type": "message_stop"},
    ]
    stream = sse(*((event["type"], event) for event in events), end=b"")
    seen = capture(ASKED, path=MESSAGES)
    assert pass_through(seen, [stream]) == stream
    assert seen.whole
    transition = seen.transition("complete", latency_ms=1.0, prices=PRICES)
    assert b'"input":{"zip": 12345678901234567890123, "x": 1.10}' in msgspec.json.encode(transition.action)
    transition = record(seen)
    assert transition.state == {"messages": [{"role": "system", "content": "Be brief."}, *ASKED["messages"]]}  # type: ignore[misc]
    assert transition.action["content"][0] == {"type": "text", "text": "Let me look."}
    assert transition.usage == Usage(input_tokens=115, cached_tokens=100, cache_write_tokens=5, output_tokens=42)
    assert transition.info["finish_reason"] == "tool_use"
    assert transition.policy == "c-1"


@pytest.mark.parametrize(("hour", "cost"), [(0, 100 * 1_000 + 42 * 2_000), (5, None)])
def test_what_has_a_price_of_its_own_leaves_a_streams_cost_unknown(hour: int, cost: int | None) -> None:
    created = {"ephemeral_5m_input_tokens": 90 - hour, "ephemeral_1h_input_tokens": hour}
    counts = {"input_tokens": 10, "cache_creation_input_tokens": 90, "cache_creation": created, "output_tokens": 1}
    events = [
        {"type": "message_start", "message": {"id": "msg_1", "model": "c-1", "usage": counts}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 42}},
        {"type": "message_stop"},
    ]
    seen = capture(ASKED, path=MESSAGES)
    pass_through(seen, [sse(*((event["type"], event) for event in events), end=b"")])
    prices = PriceTable({"c-1": {"input": 1, "output": 2}}, known=False)
    assert record(seen, prices=prices).cost == cost


def test_messages_cut_off_inside_a_tools_input_keep_its_text() -> None:
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "f"}}
    half = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "input_json_delta", "partial_json": '{"a": "x'},
    }
    seen = capture(ASKED, path=MESSAGES)
    seen.begin(200, "text/event-stream")
    seen.feed(sse(start, half, end=b""), 1.0)
    assert record(seen, "interrupted").action["content"][0]["input"] == '{"a": "x'


def test_messages_whole_and_thinking() -> None:
    answer = {
        "type": "message",
        "model": "c-1",
        "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Sunny."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
    transition = whole(answer, request=ASKED, path=MESSAGES)
    assert transition.action == {"role": "assistant", "content": answer["content"]}
    assert transition.usage == Usage(input_tokens=3, output_tokens=4)


def test_messages_error_inside_the_stream() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    seen = capture(ASKED, path=MESSAGES)
    pass_through(seen, [sse(("error", error), end=b"")])
    assert record(seen, "failed").info["error_kind"] == "overloaded"


# Responses


def test_responses_streamed_to_its_end_and_cut_off() -> None:
    request = {"model": "m", "instructions": "Be brief.", "input": "Weather?"}
    item = {
        "type": "message",
        "id": "i1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me look."}],
    }
    call = {"type": "function_call", "id": "i2", "call_id": "c1", "name": "weather", "arguments": '{"zip":"1.10"}'}
    done = {"id": "r1", "object": "response", "status": "completed", "model": "m-1", "output": [item, call],
            "usage": {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 8}}}  # fmt: skip
    events = [
        {"type": "response.created", "response": {"id": "r1", "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "i1", "delta": "Let me "},
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "i1", "delta": "look."},
        {"type": "response.output_item.added", "output_index": 1, "item": {**call, "arguments": ""}},
        {
            "type": "response.function_call_arguments.delta",
            "output_index": 1,
            "item_id": "i2",
            "delta": '{"zip":"1.10"}',
        },
        {"type": "response.completed", "response": done},
    ]
    named = [(event["type"], event) for event in events]
    transition = streamed(sse(*named, end=b""), request=request, path=RESPONSES)
    assert transition.state["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
    ]
    said = {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"zip":"1.10"}'}}
        ],
    }
    assert transition.action == {**said, "output": [item, call]}
    assert transition.usage == Usage(input_tokens=9, cached_tokens=8, output_tokens=4)
    assert transition.info["response_id"] == "r1"
    seen = capture(request, path=RESPONSES)
    seen.begin(200, "text/event-stream")
    seen.feed(sse(*named[:-1], end=b""), 1.0)
    cut_off = record(seen, "client_disconnected").action
    assert {key: cut_off[key] for key in said} == said
    assert not seen.whole


def test_responses_that_failed_inside_the_stream() -> None:
    failed = {"type": "response.failed", "response": {"status": "failed", "error": {"code": "rate_limit_exceeded"}}}
    seen = capture({"model": "m", "input": "x"}, path=RESPONSES)
    pass_through(seen, [sse(("response.failed", failed), end=b"")])
    assert record(seen, "failed").info["error_kind"] == "rate_limited"


def test_the_input_of_responses_becomes_chat_messages_where_it_can() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "encrypted_content": "…"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    state = record(capture({"model": "m", "input": items}, path=RESPONSES)).state
    assert state["messages"] == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    foreign = [{"type": "item_reference", "id": "x"}]
    assert record(capture({"model": "m", "input": foreign}, path=RESPONSES)).state == {"input": foreign}
