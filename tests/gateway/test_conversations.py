"""Which step of which episode a call is: inferred where it is certain, never guessed."""

import json
from typing import Any

import msgspec
import pytest

from relive.gateway.conversations import Conversations, Said, Step
from relive.gateway.identity import Identity, IdentityError, read_identity

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Where is my card?"}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"n": 1.10}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "in Leeds"}
ANSWER = {"role": "assistant", "content": "In Leeds."}
TEXT = [{"type": "text", "text": "In Leeds."}]
UIDS = iter(number.to_bytes(16, "big") for number in range(1, 10_000))


def call(
    conversations: Conversations, messages: list[Any] | None, answer: Any, *, scope: str = "me", **said: Any
) -> tuple[Step, bytes]:
    """A whole call: where it belongs, and the uid of its row."""
    heard = Said(scope, messages) if messages is not None else None
    place, uid = conversations.place(scope, heard, **said), next(UIDS)
    conversations.ended(scope, place, uid, heard, answer)
    return place, uid


def test_a_conversation_that_extends_an_earlier_one_is_its_next_step() -> None:
    conversations = Conversations()
    first, uid = call(conversations, [SYSTEM, QUESTION], CALLS)
    second, _ = call(conversations, [SYSTEM, QUESTION, CALLS, RESULT], ANSWER)
    assert (first.step, first.previous, first.new_messages) == (0, None, 0)
    assert second == Step(first.episode_id, 1, uid, 1)
    thanks = [SYSTEM, QUESTION, CALLS, RESULT, ANSWER, {"role": "user", "content": "Thanks"}]
    third, _ = call(conversations, thanks, ANSWER)
    assert (third.episode_id, third.step, third.new_messages) == (first.episode_id, 2, 1)


def test_two_results_of_tools_are_both_new() -> None:
    conversations = Conversations()
    call(conversations, [QUESTION], CALLS)
    place, _ = call(conversations, [QUESTION, CALLS, RESULT, {**RESULT, "tool_call_id": "c2"}], ANSWER)
    assert place.new_messages == 2


@pytest.mark.parametrize(
    ("said", "repeated"),
    [
        ({**ANSWER, "refusal": None, "annotations": [], "reasoning_content": "hm"}, ANSWER),
        (ANSWER, {**ANSWER, "content": TEXT}),
        (msgspec.Raw(json.dumps(ANSWER).encode()), ANSWER),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, *TEXT]},
            {
                "role": "assistant",
                "content": [{**TEXT[0], "cache_control": {"type": "ephemeral"}}],
            },
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1, "b": 2}}]},
            {"role": "assistant", "content": [{"id": "t", "type": "tool_use", "input": {"b": 2, "a": 1}, "name": "f"}]},
        ),
        (
            {
                **ANSWER,
                "output": [
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "In Leeds."}]}
                ],
            },
            ANSWER,
        ),
    ],
    ids=["extras dropped", "parts", "raw", "thinking dropped and caching marked", "key order", "responses"],
)
def test_a_client_may_spell_the_answer_differently_when_it_repeats_it(said: Any, repeated: Any) -> None:
    conversations = Conversations()
    first, _ = call(conversations, [QUESTION], said)
    second, _ = call(conversations, [QUESTION, repeated, RESULT], ANSWER)
    assert (second.episode_id, second.step) == (first.episode_id, 1)


@pytest.mark.parametrize(
    "history",
    [
        [{**SYSTEM, "content": "Be long."}, QUESTION, CALLS, RESULT],
        [SYSTEM, {**QUESTION, "content": "Where is it?"}, CALLS, RESULT],
        [SYSTEM, QUESTION, {**CALLS, "tool_calls": [{"id": "c2"}]}, RESULT],
        [SYSTEM, QUESTION, ANSWER, RESULT],
        [QUESTION, CALLS, RESULT],
        [SYSTEM, QUESTION],
    ],
)
def test_histories_that_differ_in_what_was_said_are_different_conversations(history: list[Any]) -> None:
    conversations = Conversations()
    first, _ = call(conversations, [SYSTEM, QUESTION], CALLS)
    other, _ = call(conversations, history, ANSWER)
    assert other.episode_id != first.episode_id
    assert (other.step, other.previous) == (0, None)


def test_conversations_of_different_scopes_never_meet() -> None:
    conversations = Conversations()
    first, _ = call(conversations, [QUESTION], CALLS, scope="key a")
    other, _ = call(conversations, [QUESTION, CALLS, RESULT], ANSWER, scope="key b")
    assert other.episode_id != first.episode_id


def test_two_conversations_with_the_same_words_are_each_continued_once_and_a_third_is_a_fork() -> None:
    conversations = Conversations()
    (a, _), (b, _) = call(conversations, [QUESTION], CALLS), call(conversations, [QUESTION], CALLS)
    next_ones = [call(conversations, [QUESTION, CALLS, RESULT], ANSWER)[0] for _ in range(3)]
    assert [place.episode_id for place in next_ones[:2]] == [a.episode_id, b.episode_id]
    assert next_ones[2].episode_id not in {a.episode_id, b.episode_id}
    assert (next_ones[2].step, next_ones[2].previous) == (0, None)


def test_a_call_that_got_no_answer_is_not_continued() -> None:
    conversations = Conversations()
    first = conversations.place("me", Said("me", [QUESTION]))
    again = conversations.place("me", Said("me", [QUESTION]))
    assert first.episode_id != again.episode_id


def test_the_clients_own_words_come_first() -> None:
    conversations = Conversations()
    call(conversations, [QUESTION], CALLS)
    place, _ = call(conversations, [QUESTION, CALLS, RESULT], ANSWER, episode_id="mine", step=7)
    assert place == Step("mine", 7)
    assert call(conversations, [QUESTION], ANSWER, episode_id="mine")[0].step == 8
    assert call(conversations, None, ANSWER, episode_id="mine")[0].step == 9
    assert call(conversations, [QUESTION], ANSWER, episode_id="mine", scope="other")[0].step == 0


def test_a_named_episode_knows_its_own_earlier_step() -> None:
    conversations = Conversations()
    _, uid = call(conversations, [QUESTION], CALLS, episode_id="mine")
    place, _ = call(conversations, [QUESTION, CALLS, RESULT], ANSWER, episode_id="mine")
    assert place == Step("mine", 1, uid, 1)


def test_a_response_that_goes_on_from_another_is_its_next_step() -> None:
    conversations = Conversations()
    first = conversations.place("me", Said("me", [QUESTION]))
    conversations.ended("me", first, b"u" * 16, Said("me", [QUESTION]), ANSWER, "resp_1")
    place = conversations.place("me", Said("me", [RESULT]), previous_response="resp_1")
    assert (place.episode_id, place.step, place.previous) == (first.episode_id, 1, b"u" * 16)
    assert conversations.place("me", Said("me", [RESULT]), previous_response="unknown").step == 0


def test_an_episode_goes_on_where_the_store_says_after_a_restart() -> None:
    conversations = Conversations()
    assert conversations.next_step("me", "mine") is None
    conversations.goes_on("me", "mine", 4)
    assert conversations.place("me", Said("me", [QUESTION]), episode_id="mine").step == 4
    assert conversations.next_step("me", "mine") == 5


def test_memory_is_bounded_and_what_is_forgotten_begins_anew() -> None:
    conversations = Conversations(capacity=10)
    first, _ = call(conversations, [QUESTION], CALLS)
    for number in range(50):
        call(conversations, [{**QUESTION, "content": str(number)}], ANSWER)
    assert len(conversations) <= 30
    assert call(conversations, [QUESTION, CALLS, RESULT], ANSWER)[0].episode_id != first.episode_id


@pytest.mark.parametrize(
    "messages", [[], [None], ["text"], [{"role": "assistant"}], [{"role": 3, "content": {"a": 1}}]]
)
def test_no_shape_of_messages_makes_it_fail(messages: list[Any]) -> None:
    conversations = Conversations()
    for answer in (None, "text", {"role": "assistant", "content": [None, 3, {"type": 1}], "tool_calls": 3}):
        call(conversations, messages, answer)
        call(conversations, [*messages, answer, RESULT], answer)


# What the client says of itself


def test_headers_come_before_the_body() -> None:
    headers = {
        "x-relive-agent": "router",
        "x-relive-episode": "e1",
        "x-relive-step": "3",
        "x-relive-group": "g1",
        "x-relive-tags": "a, b,,a",
    }
    identity = read_identity(headers, metadata={"session_id": "s1"}, user="anna")
    assert identity == Identity(agent="router", episode_id="e1", step=3, group_id="g1", tags=("a", "b"))
    assert read_identity({}, metadata={"session_id": "s1"}, user="anna") == Identity(agent="anna", episode_id="s1")
    assert read_identity({}) == Identity()


def test_the_session_of_a_coding_agent_is_its_episode() -> None:
    metadata = {"user_id": "user_ab12_account__session_5d1c-99"}
    assert read_identity({}, metadata=metadata).episode_id == "5d1c-99"
    assert read_identity({}, metadata={"user_id": "user_ab12"}).episode_id is None


@pytest.mark.parametrize("value", [None, 3, [], {}, "", "  ", "a\nb"])
def test_what_is_no_name_in_a_body_is_left_alone(value: Any) -> None:
    assert read_identity({}, metadata={"session_id": value}, user=value) == Identity()
    assert read_identity({}, metadata=value) == Identity()


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-relive-agent", "x" * 201),
        ("x-relive-episode", "a\x00b"),
        ("x-relive-step", "-1"),
        ("x-relive-step", "1.5"),
        ("x-relive-step", "٣"),
        ("x-relive-tags", ",".join(str(n) for n in range(21))),
    ],
)
def test_a_header_that_cannot_be_used_is_named(header: str, value: str) -> None:
    with pytest.raises(IdentityError, match=header):
        read_identity({header: value})
