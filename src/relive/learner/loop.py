"""`ContinualLearner`: runs an agent in an environment so that it learns from what it does.

A step is recorded before the next one begins; its priority is set as soon as its reward is known.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from relive.envs.protocol import Environment, Info
from relive.experience import Feedback, Outcome, Transition, new_episode_id
from relive.learner.agent import Agent
from relive.playbook.recall import Message, asked_text, is_chat

EXPLORATION = 0.3
"""Share of steps on which an action is tried instead of asking the model."""

SUCCESS_AT = 0.5
"""From this reward on, an episode that only its end rewards counts as a success."""

EXPLORED = "explored"
"""Tag of a step that was tried out, not answered by the model."""

_EPSILON = 1e-5  # keeps an experience without any surprise drawable
_PAGE = 1_000  # records that are read at a time
_LONGEST_EPISODE = 10_000  # steps whose priorities a late reward changes


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a `ContinualLearner`.

    Attributes:
        index: Its number, from 0.
        id: Its record's id; ``None``: it could not be recorded.
        action: What was done.
        reward: What it gave; ``None``: not known yet.
        explored: Whether the action was tried out instead of asked for.
        chosen: Whether the model chose the action; ``False`` also where its answer named none that is allowed.
        ended: Whether the episode ended with it.
        info: What the environment said beside.
    """

    index: int
    id: int | None
    action: Any
    reward: float | None
    explored: bool
    chosen: bool
    ended: bool
    info: Info


class ContinualLearner:
    """Runs an agent in an environment so that it learns from what it does.

    Each step is ε-greedy over the environment's actions: with probability `exploration` one that experience does not
    rule out is tried, each with the same chance; otherwise the model chooses, with its past successes before it. The
    step is recorded with its reward before the next one begins, and its priority is set once the reward is known.

    The step that ends an episode is a success or a failure if the environment says so, or if no other step of the
    episode was rewarded: then one of at least `SUCCESS_AT` is. Any other step's outcome stays unknown, and is not
    recalled.

    The draws of a step depend on the seed and the step's number only, and the mean reward is that of all the agent's
    recorded steps, so that a run that was interrupted goes on as it would have. A step whose call fails is not taken:
    the next one asks about the same observation.

    Args:
        env: Where the agent acts; its actions must be listed.
        agent: Who acts. Its memory learns.
        exploration: Probability of trying an action. Default 0.3; a function gives it for each step's number.
        seed: Seed of the draws.
        start: Number of the first step, to go on after an interruption.
        tags: Labels of every record.
        td_error: From an experience with a known reward to its signed TD error, which sets the priority |δ| + ε;
            ``None``: how far the reward is from the mean reward so far.
        as_messages: Makes chat messages of an observation; ``None``: it is chat messages already, or becomes the JSON
            text of a user message. What it makes is recorded as the state.

    Raises:
        ValueError: `exploration` is not between 0 and 1, or the environment does not list its actions or is not
            of Relive's kind.
    """

    def __init__(
        self,
        env: Environment,
        agent: Agent,
        exploration: float | Callable[[int], float] = EXPLORATION,
        *,
        seed: int = 0,
        start: int = 0,
        tags: Sequence[str] = (),
        td_error: Callable[[Transition], float] | None = None,
        as_messages: Callable[[Any], list[Message]] | None = None,
    ) -> None:
        if not callable(exploration) and not 0 <= exploration <= 1:
            raise ValueError(f"exploration is {exploration}; it must be from 0 to 1.")
        if not hasattr(env, "actions"):
            raise ValueError(
                f"{type(env).__name__} is no environment of Relive's; one of Gymnasium's is wrapped by "
                "relive.envs.GymnasiumEnvironment(env)."
            )
        if env.actions is None:
            raise ValueError("This environment does not list its actions, so none can be tried; give one that does.")
        self.env = env
        self.agent = agent
        self.exploration = exploration
        self.steps = start
        self._actions = env.actions
        self._seed = seed
        self._tags = tuple(tags)
        self._td_error = td_error or self._surprise
        self._as_messages = as_messages
        self._mean_reward, self._rewards = 0.0, 0
        self._episode: _Episode | None = None
        if start and td_error is None:
            agent.failing_open(self._look_back, None)

    def run(self, steps: int, *, on_step: Callable[[Step], object] | None = None) -> list[Step]:
        """Takes so many steps and returns them. An episode that is not over is gone on with by the next call.

        Args:
            steps: How many.
            on_step: Told of each step once it is recorded.

        Raises:
            UpstreamError: a call to the model failed; what was done before is recorded.
        """
        done = []
        for _ in range(steps):
            step = self._step()
            done.append(step)
            if on_step is not None:
                on_step(step)
        return done

    def late_rewards(self, rewards: Mapping[str, float]) -> int:
        """Takes rewards that became known after their steps: episode id to reward.

        Returns:
            How many records they are about.
        """
        return sum(self._late_reward(episode_id, float(reward)) for episode_id, reward in rewards.items())

    def _step(self) -> Step:
        episode = self._episode = self._episode or self._begin()
        rng = np.random.default_rng([self._seed, self.steps])
        rate = self.exploration(self.steps) if callable(self.exploration) else self.exploration
        transition = Transition(state=None, action=None, agent=self.agent.name)
        action = None
        explored = bool(rng.random() < rate)
        if not explored:
            answer = self.agent.ask(episode.messages, actions=self._actions, record=False, tags=self._tags)
            transition, action = answer.transition, answer.action
        chosen = action is not None
        if not chosen:  # tried out on purpose, or because the model named nothing that is allowed
            options = self.agent.allowed(episode.messages, self._actions)
            action = options[rng.integers(len(options))]
        observation, reward, terminated, truncated, info = self.env.step(action)
        ended = terminated or truncated
        reward = None if reward is None else float(reward)
        next_state, messages = (None, []) if terminated else self._see(observation)
        transition = replace(
            transition,
            state=episode.state,
            action=action,
            next_state=next_state,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            outcome=_outcome(episode, reward, terminated, truncated, info),
            episode_id=episode.id,
            step=episode.length,
            tags=(*self._tags, EXPLORED) if explored else self._tags,
        )
        number = self._record(transition)
        self._episode = None if ended else episode.after(reward, next_state, messages)
        step = Step(
            index=self.steps,
            id=number,
            action=action,
            reward=reward,
            explored=explored,
            chosen=chosen,
            ended=ended,
            info=info,
        )
        self.steps += 1
        self.late_rewards(info.get("late_rewards") or {})
        return step

    def _begin(self) -> "_Episode":
        observation, info = self.env.reset(seed=self._seed if self.steps == 0 else None)
        self.late_rewards(info.get("late_rewards") or {})
        return _Episode(info.get("episode_id") or new_episode_id(), *self._see(observation))

    def _see(self, observation: Any) -> tuple[Any, list[Message]]:
        """An observation as it is recorded and as it is asked."""
        if self._as_messages is None and not is_chat(observation):
            return observation, [{"role": "user", "content": asked_text(observation)}]
        messages = list(observation) if self._as_messages is None else self._as_messages(observation)
        return {"messages": messages}, messages

    def _record(self, transition: Transition) -> int | None:
        """Keeps the step, with its priority if the reward is known."""
        if transition.reward is None:
            return self.agent.record(transition)
        priority = abs(self._td_error(transition)) + _EPSILON
        self._take_in(transition.reward)
        return self.agent.record(transition, priority=priority)

    def _late_reward(self, episode_id: str, reward: float) -> int:
        count = self.agent.feedback(Feedback(episode_id=episode_id, source="environment", reward=reward))
        memory = self.agent.memory
        if count and memory is not None:
            self.agent.failing_open(lambda: self._prioritize(episode_id), None)
        self._take_in(reward)
        return count

    def _prioritize(self, episode_id: str) -> None:
        """Sets the priorities of an episode's experiences, whose rewards are now known."""
        memory = self.agent.memory
        if memory is None:
            return
        stored = memory.query(episode_id=episode_id, limit=_LONGEST_EPISODE)
        known = [one for one in stored if one.reward is not None]
        if known:
            errors = [self._td_error(one.transition) for one in known]
            memory.update_priorities([one.id for one in known], td_errors=errors)

    def _surprise(self, transition: Transition) -> float:
        """How far the reward is from the mean of those before: the TD error of a step that nothing follows."""
        return (transition.reward or 0.0) - self._mean_reward

    def _look_back(self) -> None:
        """Takes in the rewards that the agent's memory holds, in the order of their steps."""
        memory, last = self.agent.memory, 0
        while memory is not None and (page := memory.query(agent=self.agent.name, after=last, limit=_PAGE)):
            for stored in page:
                if stored.reward is not None:
                    self._take_in(stored.reward)
            last = page[-1].id

    def _take_in(self, reward: float) -> None:
        self._rewards += 1
        self._mean_reward += (reward - self._mean_reward) / self._rewards


class _Episode(msgspec.Struct, frozen=True):
    """An episode so far: its id, what is seen now and how that is asked, its steps, and whether one may be rewarded."""

    id: str
    state: Any
    messages: list[Message]
    length: int = 0
    rewarded: bool = False

    def after(self, reward: float | None, state: Any, messages: list[Message]) -> "_Episode":
        """The episode one step on."""
        return _Episode(self.id, state, messages, self.length + 1, self.rewarded or reward != 0)


def _outcome(episode: _Episode, reward: float | None, terminated: bool, truncated: bool, info: Info) -> Outcome:
    """Whether the step that was just taken succeeded, where that is certain.

    An environment may say so itself. Otherwise the reward at an episode's end tells it where it is the only one: one
    among many (a cost of each step, a point for each step survived) does not. And an episode of several steps that is
    cut off is over for another reason than its last step.
    """
    if not (terminated or truncated):
        return "unknown"
    said = info.get("is_success")
    if isinstance(said, bool | int | float):
        return "success" if said else "failure"
    alone = episode.length == 0 or (terminated and not episode.rewarded)
    if reward is None or not alone:
        return "unknown"
    return "success" if reward >= SUCCESS_AT else "failure"
