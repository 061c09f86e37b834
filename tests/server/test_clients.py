"""Anthropic's own client in front of the gateway: messages, streams and tools are recorded as they were."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest
from gateway_calls import sse
from loopback import reply, stream
from server_rig import Served, run

ASKED: list[Any] = [{"role": "user", "content": "Where is my card?"}]
TOOL: Any = {
    "name": "find_card",
    "description": "Finds a card.",
    "input_schema": {"type": "object", "properties": {"number": {"type": "integer"}}},
}
USAGE = {"input_tokens": 12, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 0, "output_tokens": 7}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "In Leeds."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": USAGE,
}
CALL = {"type": "tool_use", "id": "tu_1", "name": "find_card", "input": {}}


def event(kind: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """An event of a stream of messages."""
    return kind, {"type": kind, **fields}


def piece(index: int, kind: str, text: str) -> tuple[str, dict[str, Any]]:
    """A piece of a block."""
    name = {"text_delta": "text", "input_json_delta": "partial_json"}[kind]
    return event("content_block_delta", index=index, delta={"type": kind, name: text})


STREAM = [
    event("message_start", message={**MESSAGE, "content": [], "usage": {**USAGE, "output_tokens": 1}}),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    piece(0, "text_delta", "I look."),
    event("content_block_stop", index=0),
    event("content_block_start", index=1, content_block=CALL),
    piece(1, "input_json_delta", '{"num'),
    event("ping"),
    piece(1, "input_json_delta", 'ber": 7}'),
    event("content_block_stop", index=1),
    event("message_delta", delta={"stop_reason": "tool_use", "stop_sequence": None}, usage={"output_tokens": 7}),
    event("message_stop"),
]


def with_client(folder: Path, body: Any) -> None:
    async def inside(served: Served) -> None:
        async with anthropic.AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0) as client:
            await body(served, client)

    def models(base_url: str) -> list[dict[str, Any]]:
        return [
            {
                "name": "claude",
                "upstream": base_url,
                "api": "anthropic",
                "price": {"input": 3, "output": 15, "cached": "0.3"},
            }
        ]

    run(folder, inside, models=models)


def last(served: Served) -> Any:
    return served.parts.memory.query(newest_first=True, limit=1)[0].transition


def test_messages_whole_and_from_the_synchronous_client(tmp_path: Path) -> None:
    async def body(served: Served, client: anthropic.AsyncAnthropic) -> None:
        served.upstream.answers(reply(MESSAGE))
        got = await client.messages.create(model="claude-x", max_tokens=50, messages=ASKED, system="Be brief.")
        assert got.content[0].text == "In Leeds."  # type: ignore[union-attr]
        row = last(served)
        assert row.action["content"] in ("In Leeds.", MESSAGE["content"])
        assert (row.usage.input_tokens, row.usage.cached_tokens, row.usage.output_tokens) == (112, 100, 7)
        assert row.cost == 12 * 3_000 + 100 * 300 + 7 * 15_000
        assert row.info["api"] == "messages"
        assert served.upstream.requests[0].target == "/v1/messages"

        def sync() -> Any:
            with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as other:
                return other.messages.with_raw_response.create(model="claude-x", max_tokens=50, messages=ASKED)

        raw = await asyncio.to_thread(sync)
        assert len(raw.headers["x-relive-experience-id"]) == 32

    with_client(tmp_path, body)


def test_a_streamed_call_of_a_tool(tmp_path: Path) -> None:
    async def body(served: Served, client: anthropic.AsyncAnthropic) -> None:
        served.upstream.answers(stream([sse(*STREAM, end=b"")], pause=0.01))
        async with client.messages.stream(model="claude-x", max_tokens=50, messages=ASKED, tools=[TOOL]) as streaming:
            got = await streaming.get_final_message()
        assert got.stop_reason == "tool_use"
        assert got.content[1].input == {"number": 7}  # type: ignore[union-attr]
        row = last(served)
        assert row.info["finish_reason"] == "tool_use"
        assert "find_card" in str(row.action)
        assert "7" in str(row.action)
        assert row.usage.output_tokens == 7
        assert row.state["tools"][0]["name"] == "find_card"

    with_client(tmp_path, body)


def test_a_refusal_is_the_clients_own_exception_and_a_record(tmp_path: Path) -> None:
    async def body(served: Served, client: anthropic.AsyncAnthropic) -> None:
        error = {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"}
        served.upstream.answers(reply({"type": "error", "error": error}, 400))
        with pytest.raises(anthropic.BadRequestError, match="210000"):
            await client.messages.create(model="claude-x", max_tokens=50, messages=ASKED)
        assert last(served).info["error_kind"] == "context_overflow"

    with_client(tmp_path, body)
