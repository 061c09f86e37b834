"""The real model's part of `learning.py`: what an agent learns on a stream of messages, and its worth on others.

A stream teaches a memory (`Stream`); nothing is recorded any more while the held-out messages are answered (`answers`),
so that every arm answers the same ones from what its stream has taught.
"""

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import relive
from relive import Memory
from relive.demo.bandit import WordCountBandit
from relive.envs import Banking77
from relive.envs.banking import INSTRUCTION, INTENTS, messages
from relive.envs.single import SingleAnswer
from relive.learner import EXPLORATION, Agent, ContinualLearner
from relive.llm import Upstream
from relive.playbook.book import Playbook
from relive.playbook.injection import Injection
from relive.playbook.lesson import Add, LessonText
from relive.playbook.recall import RandomRecall, Recall
from relive.playbook.uplift import Rules
from relive.reflect.contrast import reflect

Question = list[dict[str, str]]

_RECALL = {"demonstrations": 2, "token_budget": 90}  # as in the demo
_NOTES = {"lessons": 2, "token_budget": 160}
_WORDS = 3  # of each intent that an oracle lesson names
_ALWAYS = Rules(new=1 - 1e-9)  # what is held out to measure a lesson's uplift would be missing here


class Held(NamedTuple):
    """The messages kept back: as many of each intent, always the same ones."""

    questions: list[Question]
    labels: list[str]


class Answers(NamedTuple):
    """How an arm did on the messages kept back.

    Attributes:
        rewards: 1 right, 0 wrong, by message; not a number: it was not asked.
        tokens: Tokens of a call, prompt and answer, on average.
    """

    rewards: list[float]
    tokens: float


def held_out(count: int) -> Held:
    """The first so many messages of the test split, the same number of each intent."""
    by_intent: dict[str, list[str]] = defaultdict(list)
    for text, intent in messages("test"):
        by_intent[intent].append(text)
    chosen = [(text, intent) for intent in INTENTS for text in by_intent[intent][: count // len(INTENTS)]]
    return Held([question(text) for text, _ in chosen], [intent for _, intent in chosen])


def question(text: str) -> Question:
    """A customer's message as the agent sees it."""
    return [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": text}]


def flipping(count: int, seed: int) -> SingleAnswer:
    """A stream in whose second half eight of the sixteen intents have changed places, two by two."""
    rng = np.random.default_rng(seed)
    train = messages("train")
    chosen = [train[i] for i in rng.permutation(len(train))[:count]]
    names = [INTENTS[i] for i in rng.permutation(len(INTENTS))[: len(INTENTS) // 2]]
    swapped = {a: b for pair in zip(names[::2], names[1::2], strict=True) for a, b in (pair, pair[::-1])}
    labels = [label if i < count // 2 else swapped.get(label, label) for i, (_, label) in enumerate(chosen)]
    return SingleAnswer(
        [question(text) for text, _ in chosen], lambda index, action: float(action == labels[index]), actions=INTENTS
    )


class Stream:
    """An agent that has learnt from a stream of messages, told only whether it was right.

    Args:
        model: The model.
        file: Where its memory is kept.
        env: The stream.
        count: How many of its messages.
        seed: Seed of its draws.
    """

    def __init__(self, model: Upstream, file: Path, env: SingleAnswer, count: int, seed: int) -> None:
        self.model = model
        self.memory: Memory = relive.open(file, seed=seed)
        self.seed = seed
        agent = routing(model, self.memory, Recall(self.memory, agent="router", **_RECALL))
        steps = ContinualLearner(env, agent, seed=seed).run(count)
        self.rewards = [step.reward or 0.0 for step in steps]

    def recall(self) -> Recall:
        """Similar experiences of the stream."""
        return Recall(self.memory, agent="router", **_RECALL)

    def random(self) -> Recall:
        """Random successes of the stream."""
        page = self.memory.query(agent="router", outcome="success", limit=10_000)
        known = [one.id for one in page]
        return RandomRecall(self.memory, lambda: known, seed=self.seed, **_RECALL)

    def lessons(self) -> Playbook:
        """What reflection by contrast makes of the stream, all of it approved."""
        book = Playbook(self.memory, rules=_ALWAYS)
        reflect(book)
        for lesson in book.lessons(status="candidate"):
            book.approve(lesson.id)
        return book

    def answered(
        self, held: Held, recall: Recall | None = None, book: Playbook | None = None, *, every: int = 1
    ) -> Answers:
        """How the model does on the messages kept back with what the stream has taught."""
        return answers(self.model, held, memory=self.memory, recall=recall, book=book, every=every)


def routing(model: Upstream, memory: Memory | None, recall: Recall | None, book: Playbook | None = None) -> Agent:
    """The agent of all arms."""
    notes = None if book is None else Injection(book, held_out=0.0, **_NOTES)
    return Agent(
        model,
        memory=memory,
        recall=recall or False,
        lessons=notes,
        name="router",
        choice_key="intent",
        temperature=0,
        max_tokens=48,
    )


def answers(
    model: Upstream,
    held: Held,
    *,
    memory: Memory | None = None,
    recall: Recall | None = None,
    book: Playbook | None = None,
    every: int = 1,
) -> Answers:
    """Asks the model about the messages kept back, all or every second, third ...; nothing is recorded."""
    agent = routing(model, memory, recall, book)
    rewards, tokens = [math.nan] * len(held.labels), 0
    for at in range(0, len(held.labels), every):
        answer = agent.ask(held.questions[at], actions=INTENTS, record=False)
        rewards[at] = float(answer.action == held.labels[at])
        if answer.usage is not None:
            tokens += (answer.usage.input_tokens or 0) + (answer.usage.output_tokens or 0)
    if agent.last_failure is not None:
        raise SystemExit(f"The memory failed while an arm answered: {agent.last_failure}")
    return Answers(rewards, tokens / len(range(0, len(held.labels), every)))


def bandit(held: Held, count: int, seed: int) -> Answers:
    """A word-count bandit without an LLM, taught by the same stream."""
    env = Banking77(count=count, seed=seed)
    learner = WordCountBandit(INTENTS, EXPLORATION, seed)
    for step, text in enumerate(env.texts):
        env.reset()
        action, _ = learner.choose(text, step)
        learner.learn(text, action, bool(env.step(action)[1]))
    rng = np.random.default_rng(seed)
    chosen = [learner.preferred(asked[-1]["content"], rng) for asked in held.questions]
    return Answers([float(a == label) for a, label in zip(chosen, held.labels, strict=True)], 0.0)


def oracle(memory: Memory) -> Playbook:
    """Lessons from all labels: for each intent the words that most surely mean it."""
    return _book(memory, {intent: intent for intent in INTENTS})


def poisoned(memory: Memory) -> Playbook:
    """The same lessons with the intents mixed up: what somebody may write who wants to do harm."""
    mixed = list(INTENTS)
    random.Random(0).shuffle(mixed)
    return _book(memory, dict(zip(INTENTS, mixed, strict=True)))


def _book(memory: Memory, route: dict[str, str]) -> Playbook:
    book = Playbook(memory, rules=_ALWAYS)
    adds = [
        Add(text=LessonText(do=f"Choose {route[intent]}", when=f'the request says "{word}"'), agent="router")
        for intent, words in _telling_words().items()
        for word in words
    ]
    for applied in book.apply(adds, person=True):
        book.approve(applied.lesson)
    return book


def _telling_words() -> dict[str, Sequence[str]]:
    counts: dict[str, Counter[str]] = {intent: Counter() for intent in INTENTS}
    total: Counter[str] = Counter()
    for text, intent in messages("train"):
        words = set(re.findall(r"[a-z]{3,}", text.lower()))
        counts[intent].update(words)
        total.update(words)
    return {
        intent: sorted(found, key=lambda word: (-(found[word] ** 2) / total[word], word))[:_WORDS]
        for intent, found in counts.items()
    }
