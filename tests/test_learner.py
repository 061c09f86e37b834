"""The agent that learns: asks, records and recalls in one, chooses what is allowed, and never stops for its memory."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import pytest

import relive
from relive import Feedback, Memory, Transition
from relive.envs import SingleAnswer
from relive.errors import InvalidExperienceError
from relive.learner import EXPLORED, Agent, ContinualLearner, Step
from relive.learner.choice import choice_format, choice_text, read_choice
from relive.llm import Attempt, Completion, LocalServer, UnreachableError, Upstream
from relive.storage import StorageError

QUESTION = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "I lost my card"}]
ACTIONS = ["block", "refund", "close"]
PARAMS: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


class Parrot:
    """A model that keeps what it was sent and answers with what it was made with."""

    model = "parrot"

    def __init__(self, text: str = '{"action": "block"}') -> None:
        self.text = text
        self.seen: list[list[dict[str, Any]]] = []
        self.requests: list[dict[str, Any]] = []

    def chat_sync(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> Completion:
        self.seen.append([dict(message) for message in messages])
        self.requests.append(request)
        return Completion(
            message={"role": "assistant", "content": self.text},
            finish_reason="stop",
            usage=None,
            cost=7,
            latency_ms=1.5,
            attempts=(),
            model="parrot-1",
            raw={},
        )

    async def chat(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> Completion:
        return self.chat_sync(messages, **request)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with relive.open(tmp_path / "memory.db") as opened:
        yield opened


@pytest.fixture
def model(local_server: LocalServer) -> Iterator[Upstream]:
    with Upstream(local_server.base_url, local_server.model) as upstream:
        yield upstream


def last(memory: Memory) -> Transition:
    return memory.query(newest_first=True, limit=1)[0].transition


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


def test_the_model_can_only_choose_an_allowed_action(memory: Memory, model: Upstream) -> None:
    agent = Agent(model, memory=memory, **PARAMS)
    chosen = Counter(agent.ask([{"role": "user", "content": text}], actions=ACTIONS).action for text in ("a", "b", "c"))
    assert set(chosen) <= set(ACTIONS)
    assert last(memory).action in ACTIONS


def test_a_choice_is_shown_in_the_form_in_which_it_is_asked_for(memory: Memory) -> None:
    parrot = Parrot()
    agent = Agent(parrot, memory=memory)
    answer = agent.ask(QUESTION, actions=ACTIONS)
    assert answer.action == "block"
    answer.feedback(1.0)
    agent.ask(QUESTION, actions=ACTIONS)
    assert parrot.seen[1][2] == {"role": "assistant", "content": '{"action": "block"}'}
    assert parrot.requests[1]["response_format"] == choice_format("action", ACTIONS)


def test_what_failed_in_similar_situations_cannot_be_chosen(memory: Memory) -> None:
    parrot = Parrot()
    agent = Agent(parrot, memory=memory)
    agent.ask(QUESTION, actions=ACTIONS).feedback(0.0)
    answer = agent.ask(QUESTION, actions=ACTIONS)
    schema = parrot.requests[1]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["action"]["enum"] == ["refund", "close"]
    assert answer.action is None  # the parrot says "block" all the same
    assert answer.transition.error == "The model chose none of the allowed actions."


@pytest.mark.parametrize(
    ("actions", "kind"),
    [
        (["block", "refund"], "string"),
        ([0, 1], "integer"),
        ([0.5, 1], "number"),
        ([True, False], "boolean"),
        (["block", 1], None),
        ([True, 1], None),
        ([{"x": 1}, {"x": 2}], None),
    ],
)
def test_a_strict_schema_names_the_type_of_its_values_and_other_values_are_not_asked_for_strictly(
    actions: list[Any], kind: str | None
) -> None:
    asked = choice_format("action", actions)["json_schema"]
    assert asked["strict"] is (kind is not None)
    assert asked["schema"] == {
        "type": "object",
        "properties": {"action": {"enum": actions} if kind is None else {"type": kind, "enum": actions}},
        "required": ["action"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"a": "card"}', "card"),
        ('"card"', "card"),
        ('{"a": 2}', 2),
        ('{"a": {"x": 1}}', {"x": 1}),
        ("I would say card_lost.", "card_lost"),
        ("card or refund", None),
        ('```json\n{"a": 2}\n```', 2),
        ('```\n{"a": "card"}\n```\n', "card"),
        ("the discarded refunds", None),
        ("I do not know.", None),
        ("No idea, I cannot tell.", None),
        ("No.", "no"),
        ("This is not about a card_lost.", None),
        ("I don't think that it is a refund.", None),
        ("返金ではない", None),
        ("It is a refund-like thing.", None),
        ('<think>card or refund? refund.</think>\n{"a": "card"}', "card"),
        ("So card.</think>refund", "refund"),
        ("それは返金です", "返金"),
        ("[" * 100_000, None),
        ('{"a": "other"}', None),
        ('{"b": "card"}', None),
        ('{"a": true}', None),
        ("", None),
    ],
)
def test_a_choice_is_read_back(text: str, action: Any) -> None:
    actions = ["card", "card_lost", "refund", "no", "返金", 1, 2, {"x": 1}]
    assert read_choice(text, "a", actions) == action
    if action is not None:
        assert read_choice(choice_text("a", action), "a", actions) == action


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


def riddle(count: int = 6, reward: Any = None) -> SingleAnswer:
    questions = [[{"role": "user", "content": f"question {n}"}] for n in range(count)]
    return SingleAnswer(questions, reward or (lambda index, action: float(action == "block")), actions=ACTIONS)


def test_each_step_is_recorded_with_its_reward_before_the_next_begins(memory: Memory) -> None:
    seen: list[int] = []

    class Watching(Parrot):
        def chat_sync(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> Completion:
            seen.append(len(memory))
            return super().chat_sync(messages, **request)

    learner = ContinualLearner(riddle(), Agent(Watching(), memory=memory), exploration=0.0, tags=("t",))
    steps = learner.run(6)
    assert seen == [0, 1, 2, 3, 4, 5]
    assert [step.reward for step in steps] == [1.0] * 6
    stored = [one.transition for one in memory.query()]
    assert [one.state["messages"][0]["content"] for one in stored] == [f"question {n}" for n in range(6)]
    assert {(one.action, one.reward, one.outcome, one.terminated, one.tags, one.cost) for one in stored} == {
        ("block", 1.0, "success", True, ("t",), 7)
    }
    assert len({one.episode_id for one in stored}) == 6


def test_exploration_tries_allowed_actions_about_as_often_as_asked(memory: Memory) -> None:
    env = riddle(100, lambda index, action: 1.0)
    agent = Agent(Parrot(), memory=memory)
    steps = ContinualLearner(env, agent).run(100)  # the default: 0.3
    tried = [step for step in steps if step.explored]
    assert 18 <= len(tried) <= 44  # 30 ± 3 standard deviations
    assert {step.action for step in tried} == set(ACTIONS)
    assert all(step.chosen and step.action == "block" for step in steps if not step.explored)
    assert len(memory.query(tag=EXPLORED)) == len(tried)


def test_exploration_can_follow_a_schedule_and_must_be_a_probability(memory: Memory) -> None:
    agent = Agent(Parrot(), memory=memory)
    steps = ContinualLearner(riddle(), agent, lambda step: 1.0 if step < 3 else 0.0).run(6)
    assert [step.explored for step in steps] == [True] * 3 + [False] * 3
    with pytest.raises(ValueError, match=r"exploration is 1\.5"):
        ContinualLearner(riddle(), agent, 1.5)
    with pytest.raises(ValueError, match="does not list its actions"):
        ContinualLearner(SingleAnswer(["q"], lambda index, action: 0.0), agent)


def test_an_interrupted_run_goes_on_as_it_would_have(tmp_path: Path) -> None:
    def run(name: str, *lengths: int) -> list[tuple[bool, Any, float]]:
        steps: list[Step] = []
        with relive.open(tmp_path / name) as memory:
            for length in lengths:
                agent = Agent(Parrot(), memory=memory)
                env = SingleAnswer(
                    [[{"role": "user", "content": f"question {n}"}] for n in range(20)],
                    lambda index, action: float(action == "block"),
                    actions=ACTIONS,
                    start=len(steps),
                )
                steps += ContinualLearner(env, agent, 0.5, seed=3, start=len(steps)).run(length)
            priorities = [one.priority for one in memory.query(agent=agent.name)]
        return [(step.explored, step.action, at) for step, at in zip(steps, priorities, strict=True)]

    assert run("whole.db", 20) == run("parts.db", 7, 13)


class Failing(Parrot):
    """A parrot whose second call fails."""

    def chat_sync(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> Completion:
        completion = super().chat_sync(messages, **request)
        if len(self.seen) == 2:
            raise UnreachableError("gone")
        return completion


def test_a_question_whose_call_failed_is_asked_again(memory: Memory) -> None:
    learner = ContinualLearner(riddle(), Agent(Failing(), memory=memory), 0.0, tags=("t",))
    with pytest.raises(UnreachableError):
        learner.run(3)
    learner.run(2)
    kept = [one.transition for one in memory.query(tag="t")]
    assert [(one.state["messages"][-1]["content"], one.error) for one in kept] == [
        ("question 0", None),
        ("question 1", "gone"),
        ("question 1", None),
        ("question 2", None),
    ]
    assert kept[1].episode_id != kept[2].episode_id  # what is said of the episode is not about a call that failed


def test_a_step_whose_model_names_no_action_tries_one(memory: Memory) -> None:
    [step] = ContinualLearner(riddle(), Agent(Parrot("no idea"), memory=memory), 0.0).run(1)
    assert step.action in ACTIONS
    assert (step.chosen, step.explored) == (False, False)
    assert last(memory).error == "The model chose none of the allowed actions."


def test_priorities_follow_surprise_once_the_reward_is_known(memory: Memory) -> None:
    rewards = [0.0, 0.0, 0.0, 1.0]
    env = riddle(4, lambda index, action: rewards[index])
    ContinualLearner(env, Agent(Parrot(), memory=memory), 0.0).run(4)
    priorities = [one.priority for one in memory.query()]
    assert priorities == pytest.approx([1e-5, 1e-5, 1e-5, 1.0 + 1e-5])  # |reward - mean before it| + 1e-5


class Slow:
    """Rewards become known one step later."""

    actions = ("block", "refund")

    def __init__(self) -> None:
        self.count = 0
        self.open: dict[str, float] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count += 1
        known, self.open = self.open, {f"case-{self.count}": float(self.count)}
        return [{"role": "user", "content": "hello"}], {"episode_id": f"case-{self.count}", "late_rewards": known}

    def step(self, action: Any) -> tuple[Any, float | None, bool, bool, dict[str, Any]]:
        return None, None, True, False, {}


def test_late_rewards_reach_their_steps_and_set_their_priorities(memory: Memory) -> None:
    learner = ContinualLearner(Slow(), Agent(Parrot(), memory=memory), 0.0)
    learner.run(3)
    assert [one.reward for one in memory.query()] == [1.0, 2.0, None]
    assert [one.outcome for one in memory.query()] == ["success", "success", "unknown"]
    assert [one.priority for one in memory.query()][:2] == pytest.approx([1.0, 1.0], abs=1e-4)
    assert learner.late_rewards({"case-3": 0.0, "never": 1.0}) == 1
    assert last(memory).outcome == "failure"


class Walk:
    """Episodes of steps that are given: reward, terminated, truncated and info of each."""

    actions = ("forward", "back")

    def __init__(self, *steps: tuple[float | None, bool, bool, dict[str, Any]]) -> None:
        self.steps = list(steps)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return {"room": 0}, {}

    def step(self, action: Any) -> tuple[Any, float | None, bool, bool, dict[str, Any]]:
        return {"room": 1}, *self.steps.pop(0)


GO, END, CUT = (False, False), (True, False), (False, True)


@pytest.mark.parametrize(
    ("rewards", "end", "info", "outcome"),
    [
        ([1.0], END, {}, "success"),
        ([0.0], END, {}, "failure"),
        ([0.0, 0.0, 1.0], END, {}, "success"),  # only the goal is rewarded: FrozenLake
        ([0.0, 0.0, 0.0], END, {}, "failure"),  # a hole in the ice
        ([-1.0, -1.0, -1.0], END, {}, "unknown"),  # each step costs: CliffWalking, at the goal
        ([1.0, 1.0, 1.0], END, {}, "unknown"),  # each step earns: CartPole, which has just fallen
        ([None, 1.0], END, {}, "unknown"),
        ([0.0, 0.0], CUT, {}, "unknown"),  # out of time
        ([-1.0, -1.0], END, {"is_success": True}, "success"),
        ([1.0, 1.0], CUT, {"is_success": 0.0}, "failure"),
        ([1.0, None], END, {}, "unknown"),
    ],
)
def test_of_an_episode_of_several_steps_the_outcome_is_known_only_where_it_is_certain(
    memory: Memory, rewards: list[float | None], end: tuple[bool, bool], info: dict[str, Any], outcome: str
) -> None:
    flags = [GO] * (len(rewards) - 1) + [end]
    env = Walk(*[(reward, *flag, info) for reward, flag in zip(rewards, flags, strict=True)])
    ContinualLearner(env, Agent(Parrot('{"action": "forward"}'), memory=memory), 0.0).run(len(rewards))
    assert [one.outcome for one in memory.query()] == ["unknown"] * (len(rewards) - 1) + [outcome]


def test_an_observation_is_recorded_in_the_words_in_which_it_was_asked(memory: Memory) -> None:
    asked = []

    def as_messages(observation: Any) -> list[dict[str, Any]]:
        asked.append(observation)
        return [{"role": "user", "content": f"You stand in room {observation['room']}. Where do you go?"}]

    parrot = Parrot('{"action": "forward"}')
    agent = Agent(parrot, memory=memory)
    ContinualLearner(Corridor(), agent, 0.0, as_messages=as_messages).run(3)
    assert asked == [{"room": 0}, {"room": 1}, {"room": 2}]  # each once: it may keep a history
    kept = last(memory)
    assert kept.state == {"messages": [{"role": "user", "content": "You stand in room 2. Where do you go?"}]}
    assert memory.query()[1].transition.next_state == kept.state
    agent.ask(kept.state["messages"], actions=Corridor.actions)
    assert parrot.seen[-1] == [
        *kept.state["messages"],
        {"role": "assistant", "content": '{"action": "forward"}'},
        *kept.state["messages"],
    ]


def test_what_is_no_choice_among_the_actions_is_not_shown_as_one(memory: Memory) -> None:
    parrot = Parrot("I blocked it.")
    agent = Agent(parrot, memory=memory)
    agent.ask(QUESTION).feedback(1.0)
    assert agent.ask(QUESTION, actions=ACTIONS).demonstrations == ()
    assert len(agent.ask(QUESTION).demonstrations) == 1


class Corridor:
    """Three rooms in a row; the way out is forward."""

    actions = ("forward", "back")

    def __init__(self) -> None:
        self.room = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.room = 0
        return {"room": 0}, {}

    def step(self, action: Any) -> tuple[Any, float | None, bool, bool, dict[str, Any]]:
        self.room += 1 if action == "forward" else -1
        return {"room": self.room}, float(self.room == 3), self.room == 3, False, {}


def test_an_episode_of_several_steps_is_kept_together(memory: Memory) -> None:
    parrot = Parrot('{"action": "forward"}')
    learner = ContinualLearner(Corridor(), Agent(parrot, memory=memory), 0.0)
    assert [step.ended for step in learner.run(2) + learner.run(2)] == [False, False, True, False]
    stored = [one.transition for one in memory.query()]
    assert [(one.state, one.next_state, one.step, one.outcome) for one in stored[:3]] == [
        ({"room": 0}, {"room": 1}, 0, "unknown"),
        ({"room": 1}, {"room": 2}, 1, "unknown"),
        ({"room": 2}, None, 2, "success"),
    ]
    assert stored[0].episode_id == stored[2].episode_id != stored[3].episode_id
    assert parrot.seen[0] == [{"role": "user", "content": '{"room": 0}'}]


def test_a_broken_memory_does_not_stop_the_learner(memory: Memory) -> None:
    agent = Agent(Parrot(), memory=memory)
    learner = ContinualLearner(riddle(), agent, 0.0)
    learner.run(1)
    memory.close()
    assert [step.id for step in learner.run(2)] == [None, None]
    assert agent.failures > 0
    with pytest.raises(StorageError):
        memory.add(Transition(state="s", action="a"))


def test_feedback_about_an_episode_goes_through_the_agent(memory: Memory) -> None:
    agent = Agent(Parrot(), memory=memory)
    agent.ask(QUESTION, episode_id="case-7", step=2, tags=("vip",))
    assert agent.feedback(Feedback(episode_id="case-7", reward=1.0)) == 1
    stored = last(memory)
    assert (stored.reward, stored.step, stored.tags) == (1.0, 2, ("vip",))
