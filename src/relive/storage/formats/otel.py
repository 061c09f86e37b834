"""OpenTelemetry spans of model calls: OTLP JSON with the present names of the GenAI conventions, one batch a line.

A span whose ``gen_ai.operation.name`` is ``chat``, ``generate_content`` or ``text_completion`` is an experience; other
spans are passed over and counted. Calls of one conversation (``gen_ai.conversation.id``, else of one trace) are an
episode, in the order in which they began; what the following call was told after its last assistant message (the
results of tools, the user's answer) is what an experience saw next.

Messages become chat messages, so that all experiences of a store look alike: parts of text the content, ``tool_call``
parts tool calls whose arguments keep their digits, each ``tool_call_response`` part a message of the tool. Several
choices of one call are experiences of one group. A ``gen_ai.evaluation.result`` event on the span is its reward.

The file is read twice: first for the order of the calls, then for what they hold; a call waits in memory only until the
one that follows it has been read.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from relive.experience import Transition
from relive.storage.formats import otel_messages
from relive.storage.formats.found import Found, Ignored, Item, Problem, each, part_of, transition, with_payload
from relive.storage.formats.jsontext import BadRecordError, Json
from relive.storage.formats.otel_messages import KeyValue, attributes
from relive.storage.formats.source import Source

NAME = "otel"
EXAMPLE = '{"resourceSpans": [...]}'

_CALLS = ("chat", "generate_content", "text_completion")
_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
_ERROR = (2, "STATUS_CODE_ERROR")
_OUTCOMES = {"pass": "success", "passed": "success", "fail": "failure", "failed": "failure"}


class _Place(NamedTuple):
    """Where a call stands in its episode."""

    step: int
    before: bytes | None
    after: bytes | None


class _Call(NamedTuple):
    """One call as it was read, the messages as JSON text."""

    uid: bytes
    told: list[bytes]  # what it was told since the assistant's last message
    experiences: list[Transition]  # one a choice


class _Status(msgspec.Struct):
    code: int | str = 0
    message: str = ""


class _Event(msgspec.Struct):
    name: str = ""
    attributes: list[KeyValue] = []


class _Span(msgspec.Struct, rename="camel"):
    trace_id: str
    span_id: str
    start_time_unix_nano: int | str
    end_time_unix_nano: int | str = 0
    attributes: list[KeyValue] = []
    events: list[_Event] = []
    status: _Status = msgspec.field(default_factory=_Status)


class _ScopeSpans(msgspec.Struct):
    spans: list[msgspec.Raw] = []


class _Resource(msgspec.Struct):
    attributes: list[KeyValue] = []


class _ResourceSpans(msgspec.Struct, rename="camel"):
    resource: _Resource = msgspec.field(default_factory=_Resource)
    scope_spans: list[_ScopeSpans] = []


class _Batch(msgspec.Struct, rename="camel"):
    resource_spans: list[_ResourceSpans]


class _ModelCall(NamedTuple):
    """A span that is a model call."""

    uid: bytes
    span: _Span
    attributes: dict[str, Any]
    service: str | None
    start: int  # nanoseconds since 1970 UTC

    @property
    def episode(self) -> str:
        return str(self.attributes.get("gen_ai.conversation.id") or self.span.trace_id)


def matches(record: dict[str, Any]) -> bool:
    """Whether a record looks like one of this format."""
    return isinstance(record.get("resourceSpans"), list)


def read(source: Source) -> Iterator[Item]:
    """The experiences of a file."""
    places = _places(source)
    waiting: dict[bytes, tuple[int, _Call]] = {}
    told: dict[bytes, list[bytes]] = {}
    done: set[bytes] = set()

    def convert(line: int, record: Json) -> Iterator[Item]:
        for item in _model_calls(line, record):
            if not isinstance(item, _ModelCall):
                yield item
                continue
            if item.uid in done:
                yield Ignored("spans that the file repeats")
                continue
            done.add(item.uid)
            place = places[item.uid]
            try:
                call = _call(item, place.step, source)
            except (ValueError, OverflowError) as error:
                yield Problem(line, f"span {item.span.span_id}: {error}")
                continue
            if place.before in waiting:
                yield from _finished(*waiting.pop(place.before), call.told)
            elif place.before is not None:
                told[item.uid] = call.told
            if place.after is None:
                yield from _finished(line, call, None)
            elif place.after in told:
                yield from _finished(line, call, told.pop(place.after))
            else:
                waiting[item.uid] = (line, call)

    yield from each(source, convert)
    for line, call in waiting.values():  # the call after it was a bad one
        yield from _finished(line, call, None)


def _places(source: Source) -> dict[bytes, _Place]:
    """The place of each call in its episode, by its identity; what is wrong with a call the second reading says."""
    episodes: dict[str, dict[bytes, int]] = {}

    def convert(line: int, record: Json) -> Iterator[Item]:
        for item in _model_calls(line, record):
            if isinstance(item, _ModelCall):
                episodes.setdefault(item.episode, {}).setdefault(item.uid, item.start)
        return iter(())

    for _ in each(source, convert):
        pass
    places: dict[bytes, _Place] = {}
    for starts in episodes.values():
        uids = sorted(starts, key=lambda uid: (starts[uid], uid))
        for step, (before, uid, after) in enumerate(zip([None, *uids], uids, [*uids[1:], None], strict=False)):
            places[uid] = _Place(step, before, after)
    return places


def _model_calls(line: int, record: Json) -> Iterator[_ModelCall | Problem | Ignored]:
    """The spans of a batch that are model calls, and what is to be said of the others."""
    try:
        batch = msgspec.json.decode(record.text, type=_Batch)
    except msgspec.ValidationError as error:
        raise BadRecordError(f"it is no batch of spans: {error}") from error
    for resource_spans in batch.resource_spans:
        service = attributes(resource_spans.resource.attributes).get("service.name")
        for raw in (raw for scope in resource_spans.scope_spans for raw in scope.spans):
            try:
                span = msgspec.json.decode(raw, type=_Span)
                values = attributes(span.attributes)
                if values.get("gen_ai.operation.name") not in _CALLS:
                    yield Ignored("spans that are no model call")
                    continue
                yield _ModelCall(_uid(span), span, values, service, int(span.start_time_unix_nano))
            except (msgspec.ValidationError, ValueError) as error:
                yield Problem(line, f"it holds a span that is none: {error}")


def _finished(line: int, call: _Call, told: list[bytes] | None) -> Iterator[Found]:
    """The experiences of a call whose following call is known."""
    next_state = b'{"messages":[%s]}' % b",".join(told) if told else None
    for choice, experience in enumerate(call.experiences):
        uid = part_of(call.uid, choice, b"choice") if choice else call.uid
        raw = None if next_state is None else msgspec.Raw(next_state)
        yield Found(line, uid, msgspec.structs.replace(experience, next_state=raw))


def _call(model_call: _ModelCall, step: int, source: Source) -> _Call:
    values = model_call.attributes
    answers = otel_messages.chat(values.get("gen_ai.output.messages"), "gen_ai.output.messages")
    if not answers:
        raise BadRecordError(
            "it holds no gen_ai.output.messages; switch the capture of message content on where it was recorded"
        )
    prompt = otel_messages.chat(values.get("gen_ai.input.messages"), "gen_ai.input.messages")
    system = otel_messages.system(values.get("gen_ai.system_instructions"))
    roles = [message.role for message in prompt]
    since = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
    tools = otel_messages.tools(values.get("gen_ai.tool.definitions"))
    state = b'{"messages":[%s]%s}' % (
        b",".join([*system, *(message.text for message in prompt)]),
        b"" if tools is None else b',"tools":' + tools,
    )
    base = transition(_fields(model_call, step), source)
    if len(answers) > 1:
        base = msgspec.structs.replace(base, group_id=model_call.uid.hex())
    return _Call(
        model_call.uid,
        [message.text for message in prompt[since:]],
        [with_payload(base, state=state, action=answer.text, next_state=None) for answer in answers],
    )


def _fields(call: _ModelCall, step: int) -> dict[str, Any]:
    """The fields of the experience, all but its payload."""
    values = call.attributes
    start, end = call.start, int(call.span.end_time_unix_nano)
    fields: dict[str, Any] = {
        "episode_id": call.episode,
        "step": step,
        "created_at": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=start // 1000),
        "policy": values.get("gen_ai.response.model") or values.get("gen_ai.request.model"),
        "latency_ms": (end - start) / 1e6 if end >= start else None,
        "error": _error(call.span.status, values),
        "usage": {ours: values[theirs] for ours, theirs in _USAGE.items() if theirs in values} or None,
        **_evaluation(call.span.events),
    }
    agent = values.get("gen_ai.agent.name") or call.service
    return {**fields, "agent": agent} if agent else fields


def _error(status: _Status, values: dict[str, Any]) -> str | None:
    if status.code not in _ERROR and "error.type" not in values:
        return None
    return str(status.message or values.get("error.type") or "error")


def _evaluation(events: list[_Event]) -> dict[str, Any]:
    """Reward and outcome by the last evaluation event of the span that gives them."""
    fields: dict[str, Any] = {}
    for event in events:
        if event.name == "gen_ai.evaluation.result":
            values = attributes(event.attributes)
            if "gen_ai.evaluation.score.value" in values:
                fields["reward"] = values["gen_ai.evaluation.score.value"]
            outcome = _OUTCOMES.get(str(values.get("gen_ai.evaluation.score.label")).lower())
            if outcome is not None:
                fields["outcome"] = outcome
    return fields


def _uid(span: _Span) -> bytes:
    """A call's identity: the span's own, which no other span in the world has."""
    trace, number = bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id)
    if len(trace) != 16 or len(number) != 8:
        raise ValueError("its traceId and spanId are not 32 and 16 hexadecimal digits")
    return part_of(trace, int.from_bytes(number, "big"), b"span")
