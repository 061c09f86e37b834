"""Simulated agents for `learning.py`: the whole path of Relive, with a model that is a few lines of code.

The simulated model (`Reader`) does what a language model is hoped to do, and no more: it follows what its prompt says
with a certain chance, a past success more readily than a lesson, and else knows the right answer with a small chance.
What is around it is real: memory, recall, reflection by contrast, injection with its random holdout, retirement.

A request speaks of one of eight topics in words of the topic and of none; each topic has one right route.
"""

import json
import random
import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import relive
from _report import Bar
from relive import Memory
from relive.demo.bandit import WordCountBandit
from relive.envs.single import SingleAnswer
from relive.experience import Usage
from relive.learner import EXPLORATION, Agent, ContinualLearner
from relive.llm import Completion
from relive.playbook.book import Playbook
from relive.playbook.injection import Injection
from relive.playbook.lesson import Add, LessonText
from relive.playbook.recall import Recall, estimate_tokens
from relive.playbook.trust import Trust
from relive.reflect.contrast import contrast, lesson_of, reflect
from relive.reflect.features import episode_of

ROUTES = tuple(f"route_{letter}" for letter in "abcdefgh")
TOPIC_WORDS = {route: tuple(f"{name}{route[-1]}ish" for name in ("lor", "dan", "mek")) for route in ROUTES}
FILLERS = ("please", "today", "again", "really", "someone", "perhaps", "quickly", "account", "problem", "urgent")

KNOWS, FOLLOWS_SUCCESS, FOLLOWS_LESSON = 0.4, 0.85, 0.75  # chances of the simulated model
NOISE = 0.1  # share of rewards that say the opposite
ARMS = ("no_memory", "random_lessons", "lessons", "recall", "both", "oracle", "poisoned", "no_llm")
STEPS, AGENTS = 1_000, 8
QUICK_STEPS, QUICK_AGENTS = 400, 2
REFLECT_EVERY = 50
HELD_OUT = 120

_LESSON = re.compile(r'the request says [“"]([^"”]+)["”].*?(do not )?choose (\w+)', re.IGNORECASE)


class Reader:
    """A model that follows its prompt with some chance, and knows a little by itself."""

    model = "simulated"

    def __init__(self, right: Mapping[str, str], seed: int) -> None:
        self._right = right
        self._rng = random.Random(seed)
        self.tokens = 0

    def chat_sync(
        self, messages: Sequence[Mapping[str, Any]], *, response_format: Mapping[str, Any] | None = None, **_: Any
    ) -> Completion:
        """Chooses one of the actions that the schema allows."""
        assert response_format is not None
        allowed = response_format["json_schema"]["schema"]["properties"]["action"]["enum"]
        text = json.dumps({"action": self._choose(messages, allowed)})
        prompt = sum(estimate_tokens(str(message["content"])) for message in messages)
        usage = Usage(input_tokens=prompt, output_tokens=estimate_tokens(text))
        self.tokens += prompt + (usage.output_tokens or 0)
        return Completion(
            message={"role": "assistant", "content": text},
            finish_reason="stop",
            usage=usage,
            cost=None,
            latency_ms=1.0,
            attempts=(),
            model=self.model,
            raw={},
        )

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, response_format: Mapping[str, Any] | None = None, **params: Any
    ) -> Completion:
        """The same, for an event loop."""
        return self.chat_sync(messages, response_format=response_format, **params)

    def _choose(self, messages: Sequence[Mapping[str, Any]], allowed: list[str]) -> str:
        *before, last = messages
        request = str(last["content"]).rsplit("\n", 1)[-1]
        shown = [json.loads(m["content"])["action"] for m in before if m["role"] == "assistant"]
        if shown and shown[-1] in allowed and self._rng.random() < FOLLOWS_SUCCESS:
            return str(shown[-1])
        for word, not_, route in _LESSON.findall(str(last["content"])):
            if word not in request.split() or self._rng.random() >= FOLLOWS_LESSON:
                continue
            if not not_ and route in allowed:
                return str(route)
            allowed = [one for one in allowed if one != route] or allowed
        if self._rng.random() < KNOWS and self._right[request] in allowed:
            return self._right[request]
        return self._rng.choice(allowed)


class World:
    """Requests, their right routes, and rewards that are wrong now and then.

    Args:
        seed: Seed of the requests.
        count: How many.
        flip: In the second half half of the routes have changed places, two by two.
    """

    def __init__(self, seed: int, count: int, *, flip: bool = False) -> None:
        rng = random.Random(seed)
        topics = [rng.choice(ROUTES) for _ in range(count)]
        self.texts = [_request(topic, rng) for topic in topics]
        moved = rng.sample(ROUTES, len(ROUTES) // 2)
        swap = {a: b for pair in zip(moved[::2], moved[1::2], strict=True) for a, b in (pair, pair[::-1])}
        self.labels = [swap.get(t, t) if flip and at >= count // 2 else t for at, t in enumerate(topics)]
        self._lies = [rng.random() < NOISE for _ in range(count)]
        self.right = dict(zip(self.texts, self.labels, strict=True))

    def stream(self) -> SingleAnswer:
        """The environment."""
        questions = [[{"role": "user", "content": text}] for text in self.texts]
        return SingleAnswer(questions, self._reward, actions=ROUTES)

    def _reward(self, index: int, action: Any) -> float:
        return float((action == self.labels[index]) != self._lies[index])


def _request(topic: str, rng: random.Random) -> str:
    words = [*rng.sample(TOPIC_WORDS[topic], 2), *rng.sample(FILLERS, 4), f"no{rng.randrange(10**6)}"]
    rng.shuffle(words)
    return " ".join(words)


class Life:
    """What became of one simulated agent.

    Args:
        arm: What it is given.
        world: What it lives through.
        seed: Seed of its draws.
    """

    def __init__(self, arm: str, world: World, seed: int) -> None:
        self.model = Reader(world.right, seed)
        self.right: list[bool] = []
        if arm == "no_llm":
            self._bandit(world, seed)
            return
        with tempfile.TemporaryDirectory() as folder, relive.open(Path(folder) / "life.db", seed=seed) as memory:
            self._live(arm, world, seed, memory)

    def _live(self, arm: str, world: World, seed: int, memory: Memory) -> None:
        book = Playbook(memory, trust=Trust(autonomy=3, episodes=5, sources=1))
        _give(book, arm, seed)
        learner = ContinualLearner(world.stream(), _agent(arm, self.model, memory, book), seed=seed)
        for at in range(0, len(world.texts), REFLECT_EVERY):
            steps = learner.run(min(REFLECT_EVERY, len(world.texts) - at))
            self.right += [step.action == world.labels[step.index] for step in steps]
            if arm in {"lessons", "both"}:
                reflect(book)
            if arm in {"lessons", "both", "poisoned", "random_lessons"}:
                book.follow()
        if learner.agent.last_failure is not None:
            raise SystemExit(f"The memory failed in arm {arm}: {learner.agent.last_failure}")
        self.retired = len(book.lessons(status="retired"))

    def _bandit(self, world: World, seed: int) -> None:
        env, bandit = world.stream(), WordCountBandit(ROUTES, EXPLORATION, seed)
        for step, text in enumerate(world.texts):
            env.reset()
            action, _ = bandit.choose(text, step)
            bandit.learn(text, action, env.step(action)[1] == 1.0)
            self.right.append(action == world.labels[step])


def _agent(arm: str, model: Reader, memory: Memory, book: Playbook) -> Agent:
    recall = Recall(memory, agent="router", demonstrations=2) if arm in {"recall", "both"} else False
    notes = Injection(book, lessons=3) if arm not in {"recall", "no_memory"} else None
    return Agent(model, memory=memory, recall=recall, lessons=notes, name="router")


def _give(book: Playbook, arm: str, seed: int) -> None:
    """Lessons that are there from the start, approved."""
    mixed = list(ROUTES)
    random.Random(seed).shuffle(mixed)
    routes = {"oracle": ROUTES, "poisoned": mixed}.get(arm, ())
    for topic, route in zip(ROUTES, routes, strict=False):
        for word in TOPIC_WORDS[topic]:
            _approved(book, f"Choose {route}", f'the request says "{word}"')
    if arm == "random_lessons":
        rng = random.Random(seed)
        for word in FILLERS:
            _approved(book, f"Choose {rng.choice(ROUTES)}", f'the request says "{word}"')


def _approved(book: Playbook, do: str, when: str) -> None:
    added = book.apply([Add(text=LessonText(do=do, when=when), agent="router")], person=True)[0]
    if added.lesson is not None:
        book.approve(added.lesson)


def chosen(seed: int, *, by_priority: bool, budget: int) -> float:
    """Success on held-out requests with lessons made of as many tokens of experiences as `budget` allows.

    An agent without lessons lives through many requests; of its experiences some are chosen, by priority or uniformly,
    until the budget is spent, and reflection sees these alone.
    """
    world, held = World(seed, 1_500), World(seed + 1, HELD_OUT)
    with tempfile.TemporaryDirectory() as folder:
        sampler = relive.Prioritized(alpha=1.0) if by_priority else relive.Uniform()
        with relive.open(Path(folder) / "first.db", seed=seed, sampler=sampler) as memory:
            model = Reader(world.right, seed)
            ContinualLearner(world.stream(), Agent(model, memory=memory, recall=False, name="router"), seed=seed).run(
                len(world.texts)
            )
            taken: dict[int, Any] = {}
            while budget > 0:
                batch = memory.sample(8)
                for number, one in zip(batch.ids.tolist(), batch.experiences, strict=True):
                    size = estimate_tokens(json.dumps(one.state)) + estimate_tokens(json.dumps(one.action))
                    if number not in taken:
                        taken[number] = episode_of([one], number)
                        budget -= size
        patterns = contrast(list(taken.values())).patterns
        with relive.open(Path(folder) / "second.db", seed=seed) as memory:
            book = Playbook(memory, trust=Trust(autonomy=3, episodes=1, sources=1))
            for add in filter(None, map(lesson_of, patterns)):
                _approved(book, add.text.do, add.text.when)
            agent = Agent(Reader(held.right, seed), memory=memory, recall=False, lessons=Injection(book), name="router")
            answers = [
                agent.ask([{"role": "user", "content": text}], actions=ROUTES, record=False).action
                for text in held.texts
            ]
    return float(np.mean([answer == label for answer, label in zip(answers, held.labels, strict=True)]))


def cliff_updates(states: int, seed: int, *, by_priority: bool) -> int:
    """Updates that Q-learning takes on the blind cliffwalk until its values are right (Schaul et al. 2016, 3.1).

    In each of the states one action goes on and the other ends the episode; only the last step is rewarded. All
    2^(states + 1) - 2 transitions of all behaviours are in the buffer; a priority is the last TD error seen.
    """
    gamma, rate = 1 - 1 / states, 0.25
    rng = np.random.default_rng(seed)
    turns = [_walk(states, code) for code in range(2**states)]
    transitions = [step for walk in turns for step in walk]
    transitions = [transitions[i] for i in rng.permutation(len(transitions))]
    sampler = relive.Prioritized(alpha=1.0, beta=0.0) if by_priority else relive.Uniform()
    buffer = relive.ReplayBuffer(len(transitions), sampler=sampler, seed=seed)
    buffer.add_batch(transitions)
    truth = np.array([[gamma ** (states - 1 - s), 0.0] for s in range(states)])
    q = rng.normal(0, 0.1, (states + 1, 2))
    q[states] = 0.0
    for update in range(1, 1_000_001):
        batch = buffer.sample(1)
        state, action, reward, after, ended = batch.experiences[0]
        error = reward + (0.0 if ended else gamma * q[after].max()) - q[state, action]
        q[state, action] += rate * error
        if by_priority:
            buffer.update_priorities(batch.ids, td_errors=[error])
        if update % 10 == 0 and np.mean((q[:states] - truth) ** 2) < 1e-3:
            return update
    return update


def _walk(states: int, code: int) -> list[tuple[int, int, float, int, bool]]:
    """One behaviour's walk: bit s of `code` says whether it takes the wrong action in state s."""
    walk = []
    for state in range(states):
        wrong = code >> state & 1
        last = state == states - 1
        walk.append((state, wrong, float(last and not wrong), state + 1, bool(wrong or last)))
        if wrong:
            break
    return walk


def measure(*, quick: bool) -> tuple[dict[str, float], dict[str, Bar]]:
    """All figures of simulated agents, with 95 % intervals over agents; there are no bars."""
    agents, steps = (QUICK_AGENTS, QUICK_STEPS) if quick else (AGENTS, STEPS)
    figures: dict[str, float] = {}
    print(f"{agents} simulated agents an arm, {steps} requests, {NOISE:.0%} of rewards wrong")
    print(f"{'':<16} {'regret':>14} {'last 100':>14} {'after flip':>12} {'successes per 1M tokens':>24}")
    lives: dict[str, list[Life]] = defaultdict(list)
    for arm in ARMS:
        flips = []
        for seed in range(agents):
            lives[arm].append(Life(arm, World(seed, steps), seed))
            flips.append(np.mean(Life(arm, World(seed, steps, flip=True), seed).right[-100:]))
        regret = [steps - sum(life.right) for life in lives[arm]]
        last = [np.mean(life.right[-100:]) for life in lives[arm]]
        tokens = sum(life.model.tokens for life in lives[arm])
        per_million = sum(sum(life.right) for life in lives[arm]) / tokens * 1e6 if tokens else float("nan")
        print(
            f"{arm:<16} {_mean(regret):>14} {_mean(last):>14} {np.mean(flips):>12.3f} {per_million:>24,.0f}", flush=True
        )
        figures |= {
            f"simulated_regret_{arm}": float(np.mean(regret)),
            f"simulated_last_100_{arm}": float(np.mean(last)),
            f"simulated_after_flip_{arm}": float(np.mean(flips)),
        }
        if tokens:
            figures[f"simulated_successes_per_million_tokens_{arm}"] = per_million
    figures["simulated_poisoned_retired"] = float(np.mean([life.retired for life in lives["poisoned"]]))
    for name, by_priority in (("priority", True), ("uniform", False)):
        found = [chosen(seed, by_priority=by_priority, budget=6_000) for seed in range(agents)]
        print(f"lessons from experiences chosen by {name}: held-out success {_mean(found)}", flush=True)
        figures[f"simulated_chosen_by_{name}"] = float(np.mean(found))
    states = 8 if quick else 12
    for name, by_priority in (("priority", True), ("uniform", False)):
        updates = [cliff_updates(states, seed, by_priority=by_priority) for seed in range(agents)]
        print(f"blind cliffwalk, {states} states, replay by {name}: {np.median(updates):,.0f} updates", flush=True)
        figures[f"cliffwalk_updates_{name}"] = float(np.median(updates))
    print()
    return figures, {}


def _mean(values: Sequence[Any]) -> str:
    """A mean with half of its 95 % interval."""
    half = 1.96 * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{np.mean(values):.3g} ± {half:.2g}"
