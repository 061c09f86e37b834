"""The learner's loop: explore, choose, record, set priorities, also where rewards come late."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from learner_calls import ACTIONS, Parrot, last

import relive
from relive import Memory, Transition
from relive.envs import SingleAnswer
from relive.learner import EXPLORED, Agent, ContinualLearner, Step
from relive.llm import Completion, UnreachableError
from relive.storage import StorageError


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
