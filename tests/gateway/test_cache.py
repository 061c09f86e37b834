"""The cache of answers: off unless turned on, exact matches only, marked, and never learnt from."""

import asyncio
import contextlib
import json
from pathlib import Path

import aiohttp
import pytest
from loopback import Rig, reply, run, stream

import relive
from relive.experience import Transition
from relive.gateway.cache import AnswerCache, Mode, key_of
from relive.gateway.request import CallRequest
from relive.rewards import answer_quality
from relive.storage import SqliteStorage
from relive.storage.record import NEVER_LEARNT

PATH = "/v1/chat/completions"
ANSWER = {
    "id": "chatcmpl-1",
    "model": "m-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "In Leeds."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
}
QUESTION = {"model": "m-1", "messages": [{"role": "user", "content": "Where is my card?"}]}


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def cache(mode: Mode = "on", *, max_age: float = 60.0, max_bytes: int = 1 << 20) -> tuple[AnswerCache, Clock]:
    clock = Clock()
    return AnswerCache(mode, max_age=max_age, max_bytes=max_bytes, clock=clock), clock


def test_the_same_request_is_answered_again_marked_and_recorded_at_no_cost(tmp_path: Path) -> None:
    answers, _ = cache()

    async def body(made: Rig) -> None:
        made.upstream.answers(reply(ANSWER))
        first = await made.post(PATH, QUESTION)
        again = await made.post(PATH, {**QUESTION, "user": "somebody else", "metadata": {"n": "2"}})
        assert len(made.upstream.requests) == 1
        assert (again[0], again[2]) == (200, first[2])
        assert "x-relive-cache" not in first[1]
        assert again[1]["x-relive-cache"] == "hit"
        assert again[1]["x-relive-cost"] == "0"
        assert again[1]["content-type"] == first[1]["content-type"]
        original, hit = await made.until_recorded(2)
        assert NEVER_LEARNT not in original.tags
        assert NEVER_LEARNT in hit.tags
        assert hit.action == original.action
        assert (hit.cost, hit.usage, hit.tokens) == (0, None, None)
        assert hit.info["cached"] == first[1]["x-relive-experience-id"]
        assert answers.stats.hits == 1

    run(tmp_path, body, cache=answers)


def test_without_a_cache_every_request_goes_to_the_upstream(tmp_path: Path) -> None:
    async def body(made: Rig) -> None:
        made.upstream.answers(reply(ANSWER))
        for _ in range(2):
            answer = await made.post(PATH, QUESTION, {"x-relive-cache": "on"})
            assert "x-relive-cache" not in answer[1]
        assert len(made.upstream.requests) == 2

    run(tmp_path, body)


def test_what_differs_in_anything_that_matters_is_asked_anew(tmp_path: Path) -> None:
    answers, clock = cache()

    async def body(made: Rig) -> None:
        made.upstream.answers(reply(ANSWER))
        for changed in ({}, {"temperature": 0.5}, {"model": "m-2"}, {"messages": []}, {"stream": True}):
            await made.post(PATH, {**QUESTION, **changed})
        await made.post(PATH, QUESTION, {"authorization": "Bearer sk-somebody-else"})
        await made.post("/v1/completions", QUESTION)
        assert len(made.upstream.requests) == 7
        clock.now += 61.0
        await made.post(PATH, QUESTION)
        assert len(made.upstream.requests) == 8

    run(tmp_path, body, cache=answers)


def test_a_stream_is_given_again_byte_for_byte(tmp_path: Path) -> None:
    answers, _ = cache()
    pieces = [
        b'data: {"id":"c","model":"m-1","choices":[{"index":0,"delta":{"role":"assistant","content":"In "}}]}\n\n',
        b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Leeds."},"finish_reason":"stop"}]}\n\n',
        b"data: [DONE]\n\n",
    ]

    async def body(made: Rig) -> None:
        made.upstream.answers(stream(pieces))
        asked = {**QUESTION, "stream": True}
        first = await made.post(PATH, asked)
        again = await made.post(PATH, asked)
        assert first[2] == again[2] == b"".join(pieces)
        assert again[1]["content-type"] == "text/event-stream"
        assert len(made.upstream.requests) == 1
        _, hit = await made.until_recorded(2)
        assert hit.action["content"] == "In Leeds."
        assert hit.info["finish_reason"] == "stop"

    run(tmp_path, body, cache=answers)


def test_failures_and_answers_that_broke_off_are_not_given_again(tmp_path: Path) -> None:
    answers, _ = cache()

    async def body(made: Rig) -> None:
        broken = stream([b'data: {"choices":[{"index":0,"delta":{"content":"In"}}]}\n\n'], break_off=True)
        for script, asked in (
            (reply({"error": {"message": "no"}}, 400), QUESTION),
            (broken, {**QUESTION, "stream": True}),
        ):
            made.upstream.answers(script)
            for _ in range(2):
                with contextlib.suppress(aiohttp.ClientPayloadError):  # the broken stream
                    await made.post(PATH, asked)
        assert len(made.upstream.requests) == 4
        assert len(answers) == 0

    run(tmp_path, body, cache=answers)


def test_an_answer_that_was_packed_for_the_client_is_asked_for_unpacked(tmp_path: Path) -> None:
    answers, _ = cache()

    async def body(made: Rig) -> None:
        made.upstream.answers(reply(ANSWER))
        await made.post(PATH, QUESTION, {"accept-encoding": "gzip"})
        assert made.upstream.requests[0].headers["accept-encoding"] == "identity"
        again = await made.post(PATH, QUESTION, {"accept-encoding": "identity"})
        assert json.loads(again[2]) == ANSWER

    run(tmp_path, body, cache=answers)


def test_what_was_given_again_is_never_drawn_found_or_rewarded(tmp_path: Path) -> None:
    answers, _ = cache()

    async def body(made: Rig) -> None:
        made.upstream.answers(reply(ANSWER))
        for _ in range(3):
            await made.post(PATH, QUESTION)
        await made.until_recorded(3)
        for _ in range(100):
            if made.storage.feedback_of(1):
                break
            await asyncio.sleep(0.01)
        assert [len(made.storage.feedback_of(number)) for number in (1, 2, 3)] == [1, 0, 0]

    run(tmp_path, body, cache=answers, rewards={"quality": answer_quality})
    with relive.open(tmp_path / "store.db") as memory:
        assert memory.sample(8).ids.tolist() == [1]
        assert [number for number, _ in memory.search("Where is my card?")] == [1]


@pytest.mark.parametrize(
    ("mode", "asked", "allowed"),
    [
        ("on", None, (True, True)),
        ("on", "off", (False, False)),
        ("on", "Read ", (True, False)),
        ("on", "write", (False, True)),
        ("on", "nonsense", (True, True)),
        ("read", "on", (True, False)),
        ("read", "write", (False, False)),
        ("write", None, (False, True)),
    ],
)
def test_a_request_may_ask_for_less_and_never_for_more(
    mode: Mode, asked: str | None, allowed: tuple[bool, bool]
) -> None:
    assert cache(mode)[0].allowed(asked) == allowed


def test_the_cache_is_bounded_by_bytes_and_keeps_what_is_used() -> None:
    answers, _ = cache(max_bytes=4_000)
    for n in range(3):
        answers.put(bytes([n]), b"x" * 600, "text/plain", bytes(16))
    assert answers.get(b"\0") is not None
    answers.put(b"\3", b"x" * 600, "text/plain", bytes(16))
    assert [answers.get(bytes([n])) is not None for n in range(4)] == [True, False, True, True]
    answers.put(b"large", b"x" * 3_900, "text/plain", bytes(16))
    assert answers.get(b"large") is None
    assert len(answers) == 3


def test_keys_tell_fields_from_their_neighbours() -> None:
    def key(body: bytes, caller: str = "") -> bytes:
        return key_of(CallRequest(PATH, body), caller, None)

    assert key(b'{"a": 1, "b": 2}') == key(b'{"b": 2, "a": 1}')
    assert len({key(b'{"a": 12}'), key(b'{"a1": 2}'), key(b'{"a": 12}', "1"), key(b'{"a": "12"}')}) == 4


def test_a_record_that_repeats_another_is_stored_with_priority_0(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "agent.db") as store:
        store.append([Transition(state="s", action="a"), Transition(state="s", action="a", tags=(NEVER_LEARNT,))])
    with relive.open(tmp_path / "agent.db") as memory:
        assert memory.priorities([1, 2])[1] == 0.0
