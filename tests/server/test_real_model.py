"""A real model behind the gateway, driven by the official client: all of it works, all of it is recorded."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from server_rig import Served, run

from relive.llm import LocalServer

ASKED: list[Any] = [{"role": "user", "content": "Say one word."}]
SHORT: dict[str, Any] = {"max_tokens": 6, "temperature": 0}


def with_model(local_server: LocalServer, folder: Path, body: Any) -> None:
    """Runs a test's body with the client in front of the gateway in front of the model."""

    async def inside(served: Served) -> None:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            await body(served, client, local_server.model)

    models = [{"name": "local", "upstream": local_server.base_url, "price": {"input": 1, "output": 2}}]
    run(folder, inside, models=models)


def last(served: Served) -> Any:
    """The newest record."""
    return served.parts.memory.query(newest_first=True, limit=1)[0].transition


def agrees(transition: Any, usage: Any) -> bool:
    """Whether a record holds the usage that the server itself reported, and its exact price."""
    known = transition.usage
    counts = (known.input_tokens, known.output_tokens) == (usage.prompt_tokens, usage.completion_tokens)
    return counts and transition.cost == (usage.prompt_tokens + 2 * usage.completion_tokens) * 1_000


def test_chat_whole_and_streamed_and_the_usage_of_the_server_itself(local_server: LocalServer, tmp_path: Path) -> None:
    async def body(served: Served, client: openai.AsyncOpenAI, model: str) -> None:
        whole = await client.chat.completions.create(model=model, messages=ASKED, **SHORT)
        assert agrees(last(served), whole.usage)
        assert last(served).action["content"] == whole.choices[0].message.content
        text, usage = "", None
        stream = await client.chat.completions.create(
            model=model, messages=ASKED, stream=True, stream_options={"include_usage": True}, **SHORT
        )
        async for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage or usage
        assert text == whole.choices[0].message.content
        assert agrees(last(served), usage)
        assert last(served).action["content"] == text
        stream = await client.chat.completions.create(model=model, messages=ASKED, stream=True, **SHORT)
        chunks = [chunk async for chunk in stream]
        assert all(chunk.choices for chunk in chunks), "no chunk that was not asked for"
        assert agrees(last(served), usage)
        assert last(served).info["finish_reason"] == chunks[-1].choices[0].finish_reason
        assert len(served.parts.memory.storage) == 3

    with_model(local_server, tmp_path, body)


def test_the_synchronous_client_too(local_server: LocalServer, tmp_path: Path) -> None:
    async def body(served: Served, client: openai.AsyncOpenAI, model: str) -> None:
        def call() -> Any:
            with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as sync:
                assert [entry.id for entry in sync.models.list()] == [model]
                list(sync.chat.completions.create(model=model, messages=ASKED, stream=True, **SHORT))
                return sync.chat.completions.with_raw_response.create(
                    model=model, messages=ASKED, extra_headers={"x-relive-agent": "sync"}, **SHORT
                )

        raw = await asyncio.to_thread(call)
        assert agrees(last(served), raw.parse().usage)
        uid = bytes.fromhex(raw.headers["x-relive-experience-id"])
        assert served.parts.memory.storage.ids_of([uid]) == [2]
        assert last(served).agent == "sync"

    with_model(local_server, tmp_path, body)


def test_log_probabilities_become_a_token_trace(local_server: LocalServer, tmp_path: Path) -> None:
    async def body(served: Served, client: openai.AsyncOpenAI, model: str) -> None:
        asked: dict[str, Any] = {"model": model, "messages": ASKED, "logprobs": True, "top_logprobs": 1, **SHORT}
        whole = await client.chat.completions.create(**asked)
        assert whole.choices[0].logprobs is not None
        expected = [entry.logprob for entry in whole.choices[0].logprobs.content or []]
        trace = last(served).tokens
        assert trace.logprobs.tolist() == pytest.approx(expected)
        assert len(trace.token_ids) == whole.usage.completion_tokens  # type: ignore[union-attr]
        assert trace.temperature == 0
        async for _ in await client.chat.completions.create(**asked, stream=True):
            pass
        streamed = last(served).tokens.token_ids  # llama.cpp does not stream the token that ends the answer
        assert len(streamed) >= len(trace.token_ids) - 1
        assert np.array_equal(streamed, trace.token_ids[: len(streamed)])

    with_model(local_server, tmp_path, body)


def test_an_answer_in_a_json_schema(local_server: LocalServer, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "colour", "schema": schema, "strict": True}}

    async def body(served: Served, client: openai.AsyncOpenAI, model: str) -> None:
        await client.chat.completions.create(
            model=model, messages=ASKED, response_format=form, max_tokens=40, temperature=0
        )
        assert json.loads(last(served).action["content"])["colour"] in ("red", "blue")
        assert last(served).info["parameters"]["response_format"] == form

    with_model(local_server, tmp_path, body)


def test_responses_whole_and_streamed(local_server: LocalServer, tmp_path: Path) -> None:
    async def body(served: Served, client: openai.AsyncOpenAI, model: str) -> None:
        asked: dict[str, Any] = {"model": model, "instructions": "Be brief.", "input": "Hi", "max_output_tokens": 6}
        whole = await client.responses.create(**asked, temperature=0)
        assert last(served).action["content"] == whole.output_text
        assert last(served).state["messages"][0] == {"role": "system", "content": "Be brief."}
        text = ""
        async for event in await client.responses.create(**asked, temperature=0, stream=True):
            text += event.delta if event.type == "response.output_text.delta" else ""
        assert last(served).action["content"] == text
        assert last(served).usage.output_tokens == 6
        assert last(served).info["api"] == "responses"

    with_model(local_server, tmp_path, body)


def test_completions_and_an_error_of_the_model_itself(local_server: LocalServer, tmp_path: Path) -> None:
    async def body(served: Served, client: openai.AsyncOpenAI, model: str) -> None:
        done = await client.completions.create(model=model, prompt="Once upon a", max_tokens=4, temperature=0)
        assert last(served).action == done.choices[0].text
        with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
            await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "word " * 5_000}], max_tokens=1
            )
        assert last(served).info["error_kind"] == "context_overflow"
        assert last(served).outcome == "unknown"

    with_model(local_server, tmp_path, body)


def test_a_conversation_is_an_episode(local_server: LocalServer, tmp_path: Path) -> None:
    async def body(served: Served, client: openai.AsyncOpenAI, model: str) -> None:
        messages = list(ASKED)
        for _ in range(2):
            answer = await client.chat.completions.create(model=model, messages=messages, **SHORT)
            messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "More."}]
        rows = [row.transition for row in served.parts.memory.query()]
        assert [row.step for row in rows] == [0, 1]
        assert rows[0].episode_id == rows[1].episode_id
        for _ in range(200):
            if (first := served.parts.memory.get([1])[0]) is not None and first.next_state is not None:
                break
            await asyncio.sleep(0.01)
        assert first is not None
        assert first.next_state == {"messages": [{"role": "user", "content": "More."}]}

    with_model(local_server, tmp_path, body)
