"""OpenTelemetry spans as experiences, by the conventions' own examples of messages."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from relive.storage.formats import Found, Ignored, Item, Problem, Source, read

TRACE = "5b8efff798038103d269b633813fc60c"
SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND

# The messages of the conventions' page "Semantic conventions for generative client AI spans".
ASK = {"role": "user", "parts": [{"type": "text", "content": "Weather in Paris?"}]}
CALL = {
    "role": "assistant",
    "parts": [{"type": "tool_call", "id": "call_V", "name": "get_weather", "arguments": {"location": "Paris"}}],
}
RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_V", "response": "rainy, 57°F"}]}
ANSWER = {
    "role": "assistant",
    "parts": [{"type": "text", "content": "The weather in Paris is currently rainy with a temperature of 57°F."}],
    "finish_reason": "stop",
}


def attribute(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": any_value(value)}


def any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [attribute(key, item) for key, item in value.items()]}}
    return {"stringValue": value} if value is not None else {}


def span(number: int, inputs: Any, outputs: Any, **more: Any) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.model": "gpt-4o-2024-08-06",
        "gen_ai.conversation.id": "conv-1",
        "gen_ai.input.messages": inputs if isinstance(inputs, str) else json.dumps(inputs, ensure_ascii=False),
        "gen_ai.output.messages": outputs if isinstance(outputs, str) else json.dumps(outputs, ensure_ascii=False),
        **more.pop("attributes", {}),
    }
    return {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "name": "chat gpt-4o",
        "startTimeUnixNano": str(START + number * SECOND),
        "endTimeUnixNano": str(START + number * SECOND + 250_000_000),
        "attributes": [attribute(key, value) for key, value in attributes.items()],
        **more,
    }


def batch(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": [attribute("service.name", "weather-bot")]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def items(batches: list[Any], folder: Path) -> list[Item]:
    path = folder / "spans.jsonl"
    path.write_text("\n".join(json.dumps(b, ensure_ascii=False) for b in batches))
    with Source(path) as source:
        name, stream = read(source)
        assert name == "otel"
        return list(stream)


def found(batches: list[Any], folder: Path) -> list[Found]:
    return sorted((i for i in items(batches, folder) if isinstance(i, Found)), key=lambda i: i.transition.step)


def value(raw: Any) -> Any:
    return None if raw is None else json.loads(bytes(raw))


def test_calls_of_one_conversation_are_an_episode_of_chat_messages(tmp_path: Path) -> None:
    usage = {
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.cache_read.input_tokens": 50,
        "gen_ai.usage.cache_creation.input_tokens": 25,
        "gen_ai.usage.output_tokens": 180,
        "gen_ai.usage.reasoning.output_tokens": 40,
    }
    first, last = (
        i.transition
        for i in found(
            [batch(span(1, [ASK], [CALL], attributes=usage)), batch(span(2, [ASK, CALL, RESULT], [ANSWER]))], tmp_path
        )
    )
    call = {
        "id": "call_V",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"location": "Paris"}'},
    }
    result = {"role": "tool", "tool_call_id": "call_V", "content": "rainy, 57°F"}
    assert value(first.state) == {"messages": [{"role": "user", "content": "Weather in Paris?"}]}
    assert value(first.action) == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert value(first.next_state) == {"messages": [result]}
    assert value(last.state)["messages"][2] == result
    assert value(last.action)["content"] == ANSWER["parts"][0]["content"]
    assert last.next_state is None
    assert (first.episode_id, first.step, last.step) == ("conv-1", 0, 1)
    assert (first.policy, first.agent, first.latency_ms) == ("gpt-4o-2024-08-06", "weather-bot", 250.0)
    assert first.created_at.timestamp() == START / SECOND + 1
    assert first.usage is not None
    assert first.usage.to_dict() == {
        "input_tokens": 100,
        "cached_tokens": 50,
        "cache_write_tokens": 25,
        "output_tokens": 180,
        "reasoning_tokens": 40,
    }
    assert last.usage is None


def test_the_order_in_the_file_does_not_matter(tmp_path: Path) -> None:
    messages: list[Any] = [ASK]
    spans = []
    for number in range(12):
        answer = {"role": "assistant", "parts": [{"type": "text", "content": f"answer {number}"}]}
        spans.append(span(number, list(messages), [answer]))
        messages += [answer, {"role": "user", "parts": [{"type": "text", "content": f"question {number}"}]}]
    expected = found([batch(s) for s in spans], tmp_path)
    assert [i.transition.step for i in expected] == list(range(12))
    assert [value(i.transition.next_state) for i in expected[:-1]] == [
        {"messages": [{"role": "user", "content": f"question {number}"}]} for number in range(11)
    ]
    for seed in range(5):
        random.Random(seed).shuffle(spans)
        assert [
            (i.uid, i.transition.step, value(i.transition.next_state))
            for i in found([batch(*spans[:5]), batch(*spans[5:])], tmp_path)
        ] == [(i.uid, i.transition.step, value(i.transition.next_state)) for i in expected]


def test_messages_in_structured_form_read_like_those_in_text(tmp_path: Path) -> None:
    structured = span(1, "", "")
    structured["attributes"] = [
        a if a["key"] not in ("gen_ai.input.messages", "gen_ai.output.messages") else attribute(a["key"], content)
        for a, content in zip(structured["attributes"], [*[None] * 5, [ASK], [CALL]], strict=True)
    ]
    [by_text] = found([batch(span(1, [ASK], [CALL]))], tmp_path)
    [by_structure] = found([batch(structured)], tmp_path)
    assert value(by_structure.transition.state) == value(by_text.transition.state)
    arguments = value(by_structure.transition.action)["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"location": "Paris"}
    assert by_structure.uid == by_text.uid


def test_dsh_03_arguments_keep_their_digits(tmp_path: Path) -> None:
    numbers = '{"price": 1.10, "most": 1e400, "id": 2512292042121000001, "n": ' + "7" * 400 + "}"
    call = f'{{"type": "tool_call", "id": "c", "name": "buy", "arguments": {numbers}}}'
    output = f'[{{"role": "assistant", "parts": [{call}]}}]'
    [one] = found([batch(span(1, [ASK], output))], tmp_path)
    assert value(one.transition.action)["tool_calls"][0]["function"]["arguments"] == numbers
    [as_text] = found([batch(span(1, [ASK], output.replace(numbers, json.dumps(numbers))))], tmp_path)
    assert value(as_text.transition.action)["tool_calls"][0]["function"]["arguments"] == numbers


def test_instructions_and_tools_are_part_of_what_the_agent_saw(tmp_path: Path) -> None:
    parameters = {"type": "object", "properties": {"location": {"type": "string"}}}
    more = {
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
        "gen_ai.tool.definitions": json.dumps(
            [{"type": "function", "name": "get_weather", "description": "Weather", "parameters": parameters}]
        ),
    }
    [one] = found([batch(span(1, [ASK], [CALL], attributes=more))], tmp_path)
    assert value(one.transition.state) == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather in Paris?"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "get_weather", "description": "Weather", "parameters": parameters},
            }
        ],
    }


def test_several_choices_of_one_call_are_one_group(tmp_path: Path) -> None:
    one, two = found([batch(span(1, [ASK], [ANSWER, CALL]))], tmp_path)
    assert one.transition.group_id == two.transition.group_id is not None
    assert one.uid != two.uid
    assert value(one.transition.state) == value(two.transition.state)


def test_an_evaluation_on_the_span_is_its_reward_and_an_error_is_kept(tmp_path: Path) -> None:
    event = {
        "name": "gen_ai.evaluation.result",
        "attributes": [
            attribute("gen_ai.evaluation.name", "Relevance"),
            attribute("gen_ai.evaluation.score.value", 0.25),
            attribute("gen_ai.evaluation.score.label", "fail"),
        ],
    }
    judged = span(1, [ASK], [ANSWER], events=[event], status={"code": 2, "message": "length"})
    [one] = found([batch(judged)], tmp_path)
    assert (one.transition.reward, one.transition.outcome, one.transition.error) == (0.25, "failure", "length")


def test_reasoning_pictures_and_several_texts_are_kept(tmp_path: Path) -> None:
    picture = {"type": "uri", "modality": "image", "uri": "https://example.org/x.png"}
    asked = {"role": "user", "parts": [{"type": "text", "content": "What is this?"}, picture]}
    answered = {
        "role": "assistant",
        "parts": [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "A cat."}],
    }
    [one] = found([batch(span(1, [asked], [answered]))], tmp_path)
    assert value(one.transition.state)["messages"][0]["content"] == [
        {"type": "text", "text": "What is this?"},
        picture,
    ]
    assert value(one.transition.action) == {"role": "assistant", "content": "A cat.", "reasoning_content": "hm"}


def test_other_spans_are_counted_and_bad_ones_named_while_the_rest_is_read(tmp_path: Path) -> None:
    tool = span(5, [ASK], [CALL])
    tool["attributes"][0] = attribute("gen_ai.operation.name", "execute_tool")
    without_content = span(6, [ASK], [CALL])
    without_content["attributes"] = without_content["attributes"][:5]
    no_id = {**span(7, [ASK], [CALL]), "spanId": "xyz"}
    bad_time = {**span(8, [ASK], [CALL]), "startTimeUnixNano": "soon"}
    not_messages = span(9, "plain text", [CALL])
    given = [batch(span(1, [ASK], [CALL]), tool, without_content, no_id, bad_time, not_messages), {"resourceSpans": 3}]
    read_items = items([*given, batch(span(2, [ASK, CALL, RESULT], [ANSWER]), span(1, [ASK], [CALL]))], tmp_path)
    assert sum(isinstance(i, Found) for i in read_items) == 2
    assert sorted(i.what for i in read_items if isinstance(i, Ignored)) == [
        "spans that are no model call",
        "spans that the file repeats",
    ]
    problems = [(i.line, i.reason) for i in read_items if isinstance(i, Problem)]
    assert [line for line, _ in problems] == [1, 1, 1, 1, 2]
    for (_, reason), part in zip(
        problems,
        (
            "holds no gen_ai.output.messages; switch the capture of message content on",
            "non-hexadecimal",
            "invalid literal for int",
            "its gen_ai.input.messages is no list of messages",
            "it is no batch of spans",
        ),
        strict=True,
    ):
        assert part in reason


@pytest.mark.parametrize("indent", [None, 2])
def test_a_whole_export_may_be_one_document(indent: int | None, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(batch(span(1, [ASK], [CALL]), span(2, [ASK, CALL, RESULT], [ANSWER])), indent=indent))
    with Source(path) as source:
        assert sum(isinstance(i, Found) for i in read(source)[1]) == 2
