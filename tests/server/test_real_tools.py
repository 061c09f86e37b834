"""A real model that calls a tool, driven by the official client: the call arrives and is recorded as it was made.

The model makes no call by itself: its own chat template knows no tools, and it would rather talk. So it is served with
one that shows them, is nudged towards the first letter of a call, and is stopped at the end of it.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from server_rig import Served, run

from relive.llm import LocalServer

TEMPLATE = """{%- if tools %}<|im_start|>system
You call functions. Functions: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}Answer with <tool_call>
{"name": function name, "arguments": arguments object}
</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.tool_calls %}{% for call in message.tool_calls %}<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>{% endfor %}{% else %}{{ message.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOL: Any = {
    "type": "function",
    "function": {"name": "find_card", "description": "Finds a card.", "parameters": NUMBER},
}
ASKED: list[Any] = [{"role": "user", "content": "Find card 7."}]


@pytest.fixture(scope="module")
def tool_server() -> Iterator[LocalServer]:
    with LocalServer(threads=1, context=1024, chat_template=TEMPLATE) as server:
        yield server


async def token_of(served: Served, server: LocalServer, text: str) -> int:
    """The first token of a text, as the model's own server says."""
    url = f"{server.base_url.removesuffix('/v1')}/tokenize"
    async with served.client.post(url, json={"content": text}) as answer:
        return int((await answer.json())["tokens"][0])


def test_a_tool_is_called_and_answered(tool_server: LocalServer, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "model": tool_server.model,
        "tools": [TOOL],
        "temperature": 0,
        "max_tokens": 48,
        "stop": ["</tool_call>"],
    }

    async def body(served: Served) -> None:
        bias = asked["logit_bias"] = {str(await token_of(served, tool_server, "<")): 5}

        def last() -> Any:
            return served.parts.memory.query(newest_first=True, limit=1)[0].transition

        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            whole = await client.chat.completions.create(messages=ASKED, **asked)
            (call,) = whole.choices[0].message.tool_calls or []
            assert (whole.choices[0].finish_reason, call.function.name) == ("tool_calls", "find_card")
            assert json.loads(call.function.arguments) == {"number": 7}
            row = last()
            (recorded,) = row.action["tool_calls"]
            assert recorded["id"] == call.id
            assert recorded["function"] == {"name": "find_card", "arguments": call.function.arguments}
            assert row.state["tools"] == [TOOL]
            assert row.info["finish_reason"] == "tool_calls"
            assert row.info["parameters"]["logit_bias"] == bias
            assert (row.usage.input_tokens, row.usage.output_tokens) == (
                whole.usage.prompt_tokens,
                whole.usage.completion_tokens,
            )

            pieces: dict[str, str] = {"id": "", "name": "", "arguments": ""}
            async for chunk in await client.chat.completions.create(messages=ASKED, stream=True, **asked):
                for piece in chunk.choices[0].delta.tool_calls or []:
                    pieces["id"] += piece.id or ""
                    if piece.function is not None:
                        pieces["name"] += piece.function.name or ""
                        pieces["arguments"] += piece.function.arguments or ""
            (recorded,) = last().action["tool_calls"]
            assert pieces == {"id": recorded["id"], **recorded["function"]}
            assert json.loads(pieces["arguments"]) == {"number": 7}

            result = {"role": "tool", "tool_call_id": call.id, "content": "In Leeds."}
            said = whole.choices[0].message.model_dump(exclude_none=True)
            await client.chat.completions.create(
                model=tool_server.model, messages=[*ASKED, said, result], max_tokens=4, temperature=0
            )
            assert last().step == 1
            for _ in range(200):
                if (first := served.parts.memory.get([1])[0]) is not None and first.next_state is not None:
                    break
                await asyncio.sleep(0.01)
            assert first is not None
            assert first.next_state == {"messages": [result]}

    run(tmp_path, body, models=[{"name": "local", "upstream": tool_server.base_url}])
