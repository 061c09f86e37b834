"""Calls as bytes, for tests of the gateway: requests, streams, and a capture that has seen them go by."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from relive.experience import Transition
from relive.gateway.capture import Capture, Status, Upstream
from relive.gateway.conversations import Step
from relive.gateway.estimates import TokenEstimates
from relive.gateway.identity import Identity
from relive.gateway.request import CallRequest
from relive.llm.pricing import Price, PriceTable

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
RESPONSES, COMPLETIONS, EMBEDDINGS = "/v1/responses", "/v1/completions", "/v1/embeddings"
WHEN = datetime(2026, 5, 4, 12, tzinfo=UTC)
PRICES = PriceTable({"m-1": Price.of(1, 2, cached="0.1")}, known=False)
KEY = "sk-test-AAAABBBBCCCCDDDD"
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "Where is my card?"}]}


def sse(*values: Any, end: bytes = b"data: [DONE]\n\n") -> bytes:
    """A stream of events: values as JSON, texts and bytes as they are, (name, value) with an event's name."""
    events = []
    for value in values:
        name, body = value if isinstance(value, tuple) else (None, value)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        events.append((f"event: {name}\n".encode() if name else b"") + b"data: " + data + b"\n\n")
    return b"".join(events) + end


def delta(content: Any = None, *, finish: str | None = None, index: int = 0, **fields: Any) -> dict[str, Any]:
    """A chunk of a chat completion."""
    piece = {"content": content, **fields} if content is not None else fields
    return {"id": "c1", "model": "m-1", "choices": [{"index": index, "delta": piece, "finish_reason": finish}]}


def capture(
    request: dict[str, Any] | bytes = QUESTION,
    *,
    path: str = CHAT,
    drop_usage: bool = False,
    estimates: TokenEstimates | None = None,
    key: str | None = None,
) -> Capture:
    """A capture whose request is on its way to an upstream."""
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    seen = Capture(
        CallRequest(path, body),
        Identity(),
        Step("episode", 0),
        agent="tester",
        created_at=WHEN,
        estimates=estimates or TokenEstimates(),
    )
    upstream = Upstream(name="route", model="m", base_url="http://up/v1", shown="http://up/v1", key=key)
    seen.forwarded(upstream, drop_usage=drop_usage)
    return seen


def pass_through(seen: Capture, pieces: Iterable[bytes], *, content_type: str = "text/event-stream") -> bytes:
    """What the client gets of an answer that comes in these pieces."""
    seen.begin(200, content_type)
    forwarded = b"".join(seen.feed(piece, 10.0 * number) for number, piece in enumerate(pieces, 1))
    return forwarded + seen.end()


def record(seen: Capture, status: Status = "complete", prices: PriceTable | None = None) -> Transition:
    """The record, with its raw parts read."""
    transition = seen.transition(status, latency_ms=50.0, prices=prices or PriceTable(known=False))
    parts = {name: readable(getattr(transition, name)) for name in ("state", "action", "info")}
    return msgspec.structs.replace(transition, **parts)


def streamed(stream: bytes, cuts: Sequence[int] = (), **options: Any) -> Transition:
    """The record of a streamed answer cut at these places."""
    seen = capture(**options)
    places = sorted({0, len(stream), *cuts})
    pieces = [stream[start:end] for start, end in zip(places, places[1:], strict=False)]  # noqa: RUF007
    assert pass_through(seen, pieces) == stream
    return record(seen)


def whole(answer: dict[str, Any] | bytes, **options: Any) -> Transition:
    """The record of an answer that comes in one body."""
    seen = capture(**options)
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    assert pass_through(seen, [body], content_type="application/json") == body
    return record(seen)


def readable(value: Any) -> Any:
    """A value with its raw parts parsed."""
    return json.loads(msgspec.json.encode(value))


def uid(number: int) -> bytes:
    """A call's id."""
    return number.to_bytes(16, "big")


def transition(number: int = 0, **fields: Any) -> Transition:
    """A record of the shortest kind."""
    return Transition(state={"n": number}, action="done", episode_id=f"e{number}", **fields)
