"""The agent asks, records and recalls in one, and never stops for its memory."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import msgspec
import pytest
from learner_calls import PARAMS, QUESTION, Parrot, last

from relive import Feedback, Memory
from relive.errors import InvalidExperienceError
from relive.learner import Agent, ContinualLearner
from relive.llm import Attempt, Completion, LocalServer, UnreachableError, Upstream


def test_a_call_is_answered_recorded_and_rewarded(memory: Memory, model: Upstream) -> None:
    agent = Agent(model, memory=memory, **PARAMS)
    answer = agent.ask(QUESTION)
    assert answer.text
    assert str(answer) == answer.text
    assert answer.id is not None
    assert answer.latency_ms > 0
    assert answer.usage is not None
    assert answer.cost is None  # a local model has no price, which is not a price of 0
    stored = last(memory)
    assert stored.state == {"messages": QUESTION}
    assert stored.action == answer.message
    assert (stored.reward, stored.outcome, stored.policy) == (None, "unknown", model.model)
    assert stored.usage == answer.usage
    assert answer.feedback(0.8) == 1
    assert (last(memory).reward, last(memory).outcome) == (0.8, "success")
    assert answer.feedback(0.1) == 1
    assert (last(memory).reward, last(memory).outcome) == (0.1, "failure")


@pytest.mark.parametrize("messages", [{"role": "user", "content": "hello"}, [["user", "hello"]]])
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(InvalidExperienceError, match="give text, or a list of messages"):
        Agent(Parrot()).ask(messages)


def test_text_alone_is_what_the_user_says(memory: Memory) -> None:
    parrot = Parrot()
    Agent(parrot, memory=memory).ask("Is the sky blue?")
    assert parrot.seen == [[{"role": "user", "content": "Is the sky blue?"}]]
    assert last(memory).state == {"messages": parrot.seen[0]}


def test_a_reward_that_is_no_number_is_the_callers_mistake(memory: Memory) -> None:
    answer = Agent(Parrot(), memory=memory).ask(QUESTION)
    with pytest.raises(InvalidExperienceError, match="'good'; it must be a number"):
        answer.feedback("good")  # type: ignore[arg-type]


def test_an_environment_of_gymnasium_must_be_wrapped(memory: Memory) -> None:
    env: Any = gymnasium.make("FrozenLake-v1")
    with pytest.raises(ValueError, match=r"relive\.envs\.GymnasiumEnvironment"):
        ContinualLearner(env, Agent(Parrot(), memory=memory))


def test_a_rewarded_answer_is_put_before_the_next_question_and_only_then(memory: Memory) -> None:
    parrot = Parrot("I blocked it.")
    agent = Agent(parrot, memory=memory)
    first = agent.ask(QUESTION)
    second = agent.ask(QUESTION)
    assert parrot.seen[1] == QUESTION
    first.feedback(1.0)
    third = agent.ask(QUESTION)
    assert parrot.seen[2] == [
        QUESTION[0],
        {"role": "user", "content": "I lost my card"},
        {"role": "assistant", "content": "I blocked it."},
        QUESTION[1],
    ]
    assert [one.id for one in third.demonstrations] == [first.id]
    assert last(memory).state == {"messages": QUESTION}  # demonstrations are no part of what was asked
    assert last(memory).info["recalled"][0][0] == first.id
    assert second.demonstrations == ()


def test_the_same_in_an_event_loop(memory: Memory, model: Upstream) -> None:
    async def main() -> None:
        agent = Agent(model, memory=memory, **PARAMS)
        one, two = await asyncio.gather(agent.aask(QUESTION), agent.aask(QUESTION))
        assert one.text
        assert one.id != two.id
        assert await one.afeedback(1.0) == 1
        assert (await agent.aask(QUESTION)).demonstrations[0].id == one.id

    asyncio.run(main())


def test_a_call_that_failed_is_recorded_too(memory: Memory) -> None:
    with Upstream("http://127.0.0.1:9/v1", "nobody", max_attempts=1) as nobody:
        agent = Agent(nobody, memory=memory)
        with pytest.raises(UnreachableError):
            agent.ask(QUESTION)
        with pytest.raises(UnreachableError):
            asyncio.run(agent.aask(QUESTION))
    assert len(memory) == 2
    stored = last(memory)
    assert stored.error is not None
    assert "127.0.0.1:9" in stored.error
    assert (stored.action, stored.reward, stored.outcome) == (None, None, "unknown")
    assert stored.latency_ms is not None


def test_prx_04_the_record_shows_how_long_was_waited_and_prx_05_each_try(memory: Memory) -> None:
    class Twice(Parrot):
        def chat_sync(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> Completion:
            tries = (
                Attempt(status=429, kind="rate_limited", error="slow down", waited_ms=2_000.0, wait_reason="hint"),
                Attempt(status=200, latency_ms=7.0),
            )
            return msgspec.structs.replace(super().chat_sync(messages, **request), attempts=tries)

    Agent(Twice("fine"), memory=memory).ask(QUESTION)
    kept = last(memory).info
    assert kept is not None
    assert kept["waited_ms"] == 2_000.0
    assert [(one["status"], one["error"], one["waited_ms"]) for one in kept["attempts"]] == [
        (429, "slow down", 2_000.0),
        (200, None, 0.0),
    ]
    nobody = Upstream("http://127.0.0.1:9/v1", "nobody", min_wait=0.001, max_wait=0.001)
    with nobody, pytest.raises(UnreachableError) as caught:
        Agent(nobody, memory=memory).ask(QUESTION)
    failed = last(memory).info
    assert failed is not None
    assert len(failed["attempts"]) == 3
    assert failed["waited_ms"] == pytest.approx(caught.value.waited_ms)
    assert failed["error_kind"] == "unreachable"


def test_a_broken_memory_does_not_stop_the_answer_and_shows(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(Parrot("fine"), memory=memory)
    early = agent.ask(QUESTION)
    memory.close()
    with caplog.at_level(logging.WARNING, "relive.learner"):
        answer = agent.ask(QUESTION)
    assert answer.text == "fine"
    assert answer.id is None
    assert answer.not_recorded is not None
    assert "closed" in answer.not_recorded
    assert agent.failures == 2  # neither recalled nor recorded
    assert len(caplog.records) == 2
    assert answer.feedback(1.0) == 0
    assert early.feedback(1.0) == 0
    assert agent.failures == 3


def test_an_agent_without_a_memory_only_asks() -> None:
    answer = Agent(Parrot("fine")).ask(QUESTION)
    assert (answer.text, answer.id, answer.not_recorded, answer.feedback(1.0)) == ("fine", None, None, 0)


def test_a_model_is_an_upstream_or_a_name_with_its_address(memory: Memory, local_server: LocalServer) -> None:
    agent = Agent(local_server.model, base_url=local_server.base_url, memory=memory, **PARAMS)
    assert agent.ask(QUESTION).text
    assert isinstance(agent.model, Upstream)
    agent.model.close()
    with pytest.raises(ValueError, match="base_url"):
        Agent("gpt")
    with pytest.raises(ValueError, match="has its own"):
        Agent(Parrot(), base_url="http://127.0.0.1:9/v1")


def test_feedback_about_an_episode_goes_through_the_agent(memory: Memory) -> None:
    agent = Agent(Parrot(), memory=memory)
    agent.ask(QUESTION, episode_id="case-7", step=2, tags=("vip",))
    assert agent.feedback(Feedback(episode_id="case-7", reward=1.0)) == 1
    stored = last(memory)
    assert (stored.reward, stored.step, stored.tags) == (1.0, 2, ("vip",))
