"""The demo itself: an agent that routes customers' messages, is told only whether it was right, and gets better.

The agent learns over the whole stream. Over the last third the same messages are also answered, by the same model under
the same instructions, without a memory and with random past successes, and may choose any intent, while the agent's
schema leaves out those that failed on messages like this one; a bandit without an LLM has learnt from its own rewards
since the first message. Compared are the messages on which the agent did not explore (nor did the bandit, whose draws
are the same).

What makes it comparable and safe to interrupt: everything is recorded before it is shown, each record names its
message, and what an arm may draw on is what was stored before the message itself.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

import relive.memory
from relive.demo.bandit import WordCountBandit
from relive.demo.settings import DEMO, DemoError, Settings, check, free_file, read_settings, resumed
from relive.envs import Banking77
from relive.envs.banking import INTENTS
from relive.experience import Transition
from relive.learner import EXPLORATION, EXPLORED, Agent, ContinualLearner, Model
from relive.llm import Upstream
from relive.llm.local import LocalServer
from relive.memory import Memory
from relive.playbook.recall import RandomRecall, Recall

RECALL, NO_MEMORY, RANDOM_SUCCESSES, NO_LLM = "recall", "no_memory", "random_successes", "no_llm"
ARMS = (RECALL, NO_MEMORY, RANDOM_SUCCESSES, NO_LLM)

_RECALL: dict[str, Any] = {"demonstrations": 2, "token_budget": 90}  # what two cores can read in five minutes
_LOCAL_PARAMS: dict[str, Any] = {"temperature": 0, "max_tokens": 48}
_MESSAGE = "message="


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """One message as one arm answered it.

    Attributes:
        arm: Who answered.
        index: The message's number, from 0.
        reward: 1 right, 0 wrong.
        explored: Whether the answer was tried out instead of chosen.
    """

    arm: str
    index: int
    reward: float
    explored: bool


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a demo gave.

    Attributes:
        settings: What it was run with.
        answers: Every answer that is in the file.
        seconds: How long this run took.
        file: The memory's file.
    """

    settings: Settings
    answers: list[Answered]
    seconds: float
    file: Path

    def compared(self, arm: str) -> list[float]:
        """An arm's rewards on the messages that are compared, in their order."""
        return compared(self.answers, self.settings)[arm]

    def summary(self) -> dict[str, object]:
        """The result for programs: seed, messages, accuracy by arm, seconds, file."""
        accuracy = {arm: {"last_third": _mean(self.compared(arm))} for arm in ARMS}
        return {
            "seed": self.settings.seed,
            "messages": self.settings.messages,
            "accuracy": accuracy,
            "seconds": round(self.seconds, 1),
            "file": str(self.file),
        }


def run(
    settings: Settings,
    *,
    on_message: Callable[[list[Answered], int], object] | None = None,
    model: Model | None = None,
) -> Result:
    """Runs a demo, or goes on with an interrupted one.

    Args:
        settings: What to run.
        on_message: Told after each message what is now kept about it, one entry an arm, and how many messages there
            are; at a resumption first of all that the file holds already.
        model: A model that is at hand already; ``None``: the one that the settings name.

    Raises:
        DemoError: the settings do not work.
        LocalModelError: the small model cannot be served.
        StorageError: the file cannot be used.
        UpstreamError: a call to the model failed for good; `Settings.resume` goes on from there.
    """
    check(settings)
    started = time.monotonic()
    file = settings.resume or settings.file or free_file(Path.cwd())
    with ExitStack() as stack:
        params: dict[str, Any] = {}
        if model is None and settings.base_url is not None and settings.model is not None:
            model = stack.enter_context(Upstream(settings.base_url, settings.model, settings.api_key()))
        elif model is None:
            server = stack.enter_context(LocalServer())
            model, params = stack.enter_context(Upstream(server.base_url, server.model)), _LOCAL_PARAMS
        memory = stack.enter_context(relive.memory.open_file(file, seed=settings.seed))
        if settings.resume is not None:
            settings = resumed(settings, memory, file)
        demo = _Demo(settings, memory, model, params)
        if on_message is not None and demo.answers:
            on_message(demo.answers, settings.messages)
        for index in range(settings.messages):
            new = demo.message(index)
            if on_message is not None and new:
                on_message(new, settings.messages)
    return Result(settings=settings, answers=demo.answers, seconds=time.monotonic() - started, file=file)


class _Demo:
    """The four arms over one memory."""

    def __init__(self, settings: Settings, memory: Memory, model: Model, params: dict[str, Any]) -> None:
        self._settings = settings
        self._memory = memory
        self._model = model
        self._params = params
        self._texts = self._stream(0).texts
        self._bandit = WordCountBandit(INTENTS, EXPLORATION, settings.seed)
        self._ids: list[int] = []  # of the learner's records, by message
        self._successes: list[int] = []  # those of them that were right
        self._done: dict[tuple[str, int], Answered] = {}
        for number, transition in _all(memory):
            self._take_in(number, transition)
        start = len(self._ids)
        env = self._stream(min(start, settings.messages - 1))
        agent = self._agent(RECALL, Recall(memory, agent=RECALL, **_RECALL))
        self._learner = ContinualLearner(env, agent, seed=settings.seed, start=start, tags=settings.tags)

    @property
    def answers(self) -> list[Answered]:
        """Every answer that is kept, in the order of messages."""
        return sorted(self._done.values(), key=lambda one: (one.index, ARMS.index(one.arm)))

    def message(self, index: int) -> list[Answered]:
        """Has each arm answer a message that it has not answered yet; returns the new answers, all of them kept."""
        before = len(self._done)
        if (RECALL, index) not in self._done:
            self._keep(self._learner)
        if (NO_LLM, index) not in self._done:
            self._ask_bandit(index)
        if index >= self._settings.last_third and not self._done[RECALL, index].explored:
            known = [number for number in self._successes if number < self._ids[index]]
            draw = RandomRecall(self._memory, lambda: known, seed=(self._settings.seed, index), **_RECALL)
            for arm, recall in ((NO_MEMORY, None), (RANDOM_SUCCESSES, draw)):
                if (arm, index) not in self._done:
                    self._keep(self._control(arm, index, recall))
        return list(self._done.values())[before:]

    def _control(self, arm: str, index: int, recall: Recall | None) -> ContinualLearner:
        """The same model and instructions at one message, without similar experiences."""
        agent = self._agent(arm, recall or False)
        tags = self._tags(index)
        return ContinualLearner(self._stream(index), agent, 0.0, seed=self._settings.seed, start=index, tags=tags)

    def _ask_bandit(self, index: int) -> None:
        env = self._stream(index)
        observation, _ = env.reset()
        action, explored = self._bandit.choose(self._texts[index], index)
        _, reward, _, _, _ = env.step(action)
        record = Transition(
            state={"messages": observation},
            action=action,
            reward=reward,
            terminated=True,
            outcome="success" if reward else "failure",
            agent=NO_LLM,
            tags=(*self._tags(index), EXPLORED) if explored else self._tags(index),
        )
        self._take_in(self._memory.add(record), record)

    def _keep(self, learner: ContinualLearner) -> None:
        """Has a learner take its step, and takes in what is kept of it."""
        [step] = learner.run(1)
        stored = None if step.id is None else self._memory.get([step.id])[0]
        if step.id is None or stored is None:
            raise DemoError(f"Message {step.index + 1} could not be kept: {learner.agent.last_failure}")
        self._take_in(step.id, stored)

    def _take_in(self, number: int, kept: Transition) -> None:
        """Takes in a record, new or read from the file at a resumption."""
        reward = kept.reward or 0.0
        if kept.agent == RECALL:
            index = len(self._ids)
            self._ids.append(number)
            if kept.outcome == "success":
                self._successes.append(number)
        else:
            index = int(next(tag for tag in kept.tags if tag.startswith(_MESSAGE)).removeprefix(_MESSAGE))
            if kept.agent == NO_LLM:
                self._bandit.learn(self._texts[index], kept.action, reward > 0)
        self._done[kept.agent, index] = Answered(
            arm=kept.agent, index=index, reward=reward, explored=EXPLORED in kept.tags
        )

    def _agent(self, name: str, recall: Recall | bool) -> Agent:
        return Agent(self._model, memory=self._memory, recall=recall, name=name, choice_key="intent", **self._params)

    def _stream(self, start: int) -> Banking77:
        return Banking77(
            count=self._settings.messages,
            seed=self._settings.seed,
            start=start,
            shuffled_rewards=self._settings.shuffled_rewards,
        )

    def _tags(self, index: int) -> tuple[str, ...]:
        return (*self._settings.tags, f"{_MESSAGE}{index}")


def answers_in(memory: Memory) -> tuple[Settings, list[Answered]]:
    """The settings and the answers of a demo's file, finished or not.

    Raises:
        DemoError: the file holds no demo.
    """
    settings = read_settings(memory, Path(memory.storage.path)) or Settings()
    nobody = Upstream("http://127.0.0.1:9/v1", "nobody")  # nothing is asked
    return settings, _Demo(settings, memory, nobody, {}).answers


def compared(answers: list[Answered], settings: Settings) -> dict[str, list[float]]:
    """Each arm's rewards on the messages of the last third on which nothing was tried out, in their order."""
    last = [one for one in answers if one.index >= settings.last_third]
    explored = {one.index for one in last if one.explored}
    return {arm: [one.reward for one in last if one.arm == arm and one.index not in explored] for arm in ARMS}


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _all(memory: Memory) -> Iterator[tuple[int, Transition]]:
    """Every answer in a memory, in order; a call that failed is none, and took no action."""
    last = 0
    while page := memory.query(tag=DEMO, after=last, limit=1000):
        kept = ((stored.id, stored.transition) for stored in page)
        yield from ((number, transition) for number, transition in kept if transition.action is not None)
        last = page[-1].id
