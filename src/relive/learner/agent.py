"""`Agent`: a call to a model, recorded, with past successes put before the question.

Recording fails open in every path here: whatever breaks in the memory, the answer still comes, and the failure is
counted, logged and shown on the answer.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from relive.errors import InvalidExperienceError
from relive.experience import Feedback, Transition, Usage, new_episode_id
from relive.learner.choice import choice_format, read_choice, shown_choice
from relive.llm import Completion, Upstream, UpstreamError
from relive.memory import Memory
from relive.playbook.book import Playbook
from relive.playbook.injection import Injection, Plan
from relive.playbook.recall import Message, Prompt, Recall, Recalled, action_text

if TYPE_CHECKING:
    from relive.client import RemoteMemory

T = TypeVar("T")

_log = logging.getLogger("relive.learner")


class Model(Protocol):
    """What an agent needs of a model; `Upstream` has it."""

    model: str

    def chat_sync(
        self, messages: Sequence[Mapping[str, Any]], *, response_format: Mapping[str, Any] | None = None, **params: Any
    ) -> Completion:
        """Asks for the next message."""

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, response_format: Mapping[str, Any] | None = None, **params: Any
    ) -> Completion:
        """Asks for the next message."""


class Answer:
    """What the model said, and the handle for saying later how good it was.

    Attributes:
        text: The answer's text; ``str(answer)`` gives it too.
        action: The chosen action where `Agent.ask` was given actions, ``None`` if the model chose none of them; without
            actions the assistant's whole message.
        completion: All that the call left behind.
        demonstrations: The past successes that were shown to the model, the most alike last.
        transition: The record.
        id: The record's id in the memory; ``None``: it is not recorded.
        not_recorded: Why the record could not be kept, in one sentence; ``None``: it could, or nothing was to be kept.
    """

    def __init__(
        self,
        agent: "Agent",
        completion: Completion,
        action: Any,
        demonstrations: tuple[Recalled, ...],
        transition: Transition,
    ) -> None:
        self._agent = agent
        self.completion = completion
        self.action = action
        self.demonstrations = demonstrations
        self.transition = transition
        self.id: int | None = None
        self.not_recorded: str | None = None

    @property
    def text(self) -> str:
        """The answer's text."""
        return self.completion.text

    @property
    def message(self) -> Message:
        """The assistant's message, to be appended to the conversation."""
        return self.completion.message

    @property
    def cost(self) -> int | None:
        """Price of the call in nano-USD; ``None``: not known."""
        return self.completion.cost

    @property
    def usage(self) -> Usage | None:
        """The tokens that the provider counted; ``None``: it counted none."""
        return self.completion.usage

    @property
    def latency_ms(self) -> float:
        """From the call to the whole answer in milliseconds."""
        return self.completion.latency_ms

    def feedback(self, reward: float, *, source: str = "user", comment: str | None = None) -> int:
        """Says how good the answer was, at any time and as often as wanted; the same source replaces what it said.

        Args:
            reward: From 0.5 on it counts as a success, and may be shown to the model in similar situations.
            source: Who says so.
            comment: Free text for people.

        Returns:
            How many records it is about: 1, or 0 if the answer is not recorded or the memory is broken.
        """
        if self.id is None:
            return 0
        return self._agent.feedback(Feedback(experience_id=self.id, source=source, reward=reward, comment=comment))

    async def afeedback(self, reward: float, *, source: str = "user", comment: str | None = None) -> int:
        """The same as `feedback`, for an event loop."""
        return await asyncio.to_thread(self.feedback, reward, source=source, comment=comment)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Answer({self.text!r}, id={self.id})"


class Agent:
    """A model with a memory: each call is recorded, and past successes are put before the question.

    Args:
        model: The model: an `Upstream`, or a model's name together with `base_url`.
        memory: Where calls are recorded and recalled from, a file's or a server's; ``None``: nowhere.
        recall: How past successes are found; ``True``: a `Recall` over `memory` for this agent's own; ``False``: none.
        lessons: What of a playbook is put before the question, and what that is worth is measured; ``None``: nothing.
        name: Who acts, as recorded. Default ``"default"``.
        base_url: The endpoint's address, where `model` is a name.
        api_key: The endpoint's key; ``None``: it needs none.
        choice_key: The field that holds the chosen action in a JSON answer. Default ``"action"``.
        params: Further fields of each request, for example ``temperature=0``.

    Attributes:
        failures: How often the memory failed so far; each is logged too.
        last_failure: The last such failure in one sentence; ``None``: there was none.

    Raises:
        ValueError: `model` is a name and `base_url` is missing, or the other way round.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        memory: "Memory | RemoteMemory | None" = None,
        recall: Recall | bool = True,
        lessons: Injection | None = None,
        name: str = "default",
        base_url: str | None = None,
        api_key: str | None = None,
        choice_key: str = "action",
        **params: Any,
    ) -> None:
        if isinstance(model, str):
            if base_url is None:
                raise ValueError(f"Give base_url together with the model's name {model!r}, or give an Upstream.")
            model = Upstream(base_url, model, api_key)
        elif base_url is not None or api_key is not None:
            raise ValueError("base_url and api_key belong to a model's name; the model given has its own.")
        if recall is True and memory is not None:
            book = lessons.book if lessons is not None else Playbook(memory) if isinstance(memory, Memory) else None
            recall = Recall(memory, agent=name, distrusted=None if book is None else book.distrusted)
        self.model = model
        self.memory = memory
        self.recall = recall if isinstance(recall, Recall) else None
        self.lessons = lessons
        self.name = name
        self.params = params
        self.failures = 0
        self.last_failure: str | None = None
        self._choice_key = choice_key

    def ask(
        self,
        messages: str | Sequence[Message],
        *,
        actions: Sequence[Any] | None = None,
        record: bool = True,
        episode_id: str | None = None,
        step: int = 0,
        tags: Sequence[str] = (),
        **params: Any,
    ) -> Answer:
        """Asks the model, with past successes put before the question, and records what came of it.

        Args:
            messages: The conversation, as it is without a memory, or what the user says as text; only this is recorded
                as the state.
            actions: The model has to choose one of these JSON values, by a JSON schema; ``None``: it answers freely.
            record: Whether to record the call now. If not, `Answer.transition` can be completed and given to `record`.
            episode_id: The episode this belongs to; ``None``: one of its own.
            step: Position in the episode, from 0.
            tags: Labels of the record.
            params: Further fields of this request; they replace the agent's.

        Raises:
            InvalidExperienceError: `messages` is neither text nor a list of chat messages.
            UpstreamError: the call failed; it is recorded with its error all the same.
        """
        call = self._prepare(messages, actions, episode_id, step, tags, params)
        try:
            completion = self.model.chat_sync(call.prompt.messages, **call.request)
        except UpstreamError as error:
            self.record(call.failed(error))
            raise
        return self._finish(call, completion, record)

    async def aask(
        self,
        messages: str | Sequence[Message],
        *,
        actions: Sequence[Any] | None = None,
        record: bool = True,
        episode_id: str | None = None,
        step: int = 0,
        tags: Sequence[str] = (),
        **params: Any,
    ) -> Answer:
        """The same as `ask`, for an event loop."""
        call = await asyncio.to_thread(self._prepare, messages, actions, episode_id, step, tags, params)
        try:
            completion = await self.model.chat(call.prompt.messages, **call.request)
        except UpstreamError as error:
            await asyncio.to_thread(self.record, call.failed(error))
            raise
        return await asyncio.to_thread(self._finish, call, completion, record)

    def allowed(self, state: Any, actions: Sequence[Any]) -> list[Any]:
        """The actions that past failures in similar situations do not rule out; see `Recall.allowed`."""
        recall = self.recall
        if recall is None:
            return list(actions)
        return self.failing_open(lambda: recall.allowed(state, actions), list(actions))

    def record(self, transition: Transition, *, priority: float | None = None) -> int | None:
        """Keeps a record; returns its id, or ``None`` where there is no memory or it is broken (see `last_failure`)."""
        memory = self.memory
        if memory is None:
            return None
        return self.failing_open(lambda: memory.add(transition, priority), None)

    def feedback(self, feedback: Feedback) -> int:
        """Hands feedback on; returns how many records it is about, 0 if the memory is broken (see `last_failure`)."""
        memory = self.memory
        if memory is None:
            return 0
        return self.failing_open(lambda: memory.feedback(feedback), 0)

    def _prepare(
        self,
        messages: str | Sequence[Message],
        actions: Sequence[Any] | None,
        episode_id: str | None,
        step: int,
        tags: Sequence[str],
        params: Mapping[str, Any],
    ) -> "_Call":
        messages = _as_chat(messages)
        request = {**self.params, **params}
        episode = episode_id or new_episode_id()
        lessons, plan = self.lessons, Plan()
        if lessons is not None:
            plan = self.failing_open(lambda: lessons.plan(messages, agent=self.name, episode=episode), plan)
        if plan.model is not None:
            request["model"] = plan.model
        choices = None
        if actions is not None:
            choices = self.allowed(messages, actions) if plan.recalls else list(actions)
            request.setdefault("response_format", choice_format(self._choice_key, choices))
        prompt, recall = Prompt(messages=messages), self.recall if plan.recalls else None
        if recall is not None:
            show = action_text if actions is None else partial(shown_choice, self._choice_key, actions)
            prompt = self.failing_open(lambda: recall.prompt(messages, show=show), prompt)
        prompt = replace(prompt, messages=plan.messages(prompt.messages))
        transition = Transition(
            state={"messages": messages},
            action=None,
            agent=self.name,
            episode_id=episode,
            step=step,
            tags=tuple(tags),
            policy=plan.model or self.model.model,
        )
        return _Call(prompt, request, choices, transition, plan)

    def _finish(self, call: "_Call", completion: Completion, record: bool) -> Answer:
        action: Any = completion.message
        if call.choices is not None:
            action = read_choice(completion.text, self._choice_key, call.choices)
        transition = replace(
            call.transition,
            action=completion.message if action is None else action,
            usage=completion.usage,
            cost=completion.cost,
            latency_ms=completion.latency_ms,
            policy=completion.model,
            error="The model chose none of the allowed actions." if action is None else None,
            info={"finish_reason": completion.finish_reason, **told(completion), **call.recalled},
        )
        answer = Answer(self, completion, action, call.prompt.demonstrations, transition)
        if record:
            answer.id = self.record(transition)
            if answer.id is None and self.memory is not None:
                answer.not_recorded = self.last_failure
        return answer

    def failing_open(self, act: Callable[[], T], otherwise: T) -> T:
        """What the memory gives; where it breaks, `otherwise`, and the failure is counted and logged."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - whatever breaks in the memory must not stop the agent
            self.failures += 1
            self.last_failure = f"{type(error).__name__}: {error}"
            _log.warning("The memory of agent %r failed, and its answer goes on: %s", self.name, self.last_failure)
            return otherwise


def _as_chat(messages: str | Sequence[Message]) -> list[Message]:
    """Chat messages of their own; a text alone is the user's."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if isinstance(messages, Mapping) or not all(isinstance(message, Mapping) for message in messages):
        raise InvalidExperienceError(
            f"messages is {messages!r:.80}; give text, or a list of messages with their roles."
        )
    return [dict(message) for message in messages]


class _Call(msgspec.Struct, frozen=True):
    """A call that is about to be made: what is sent, and the record it will complete."""

    prompt: Prompt
    request: dict[str, Any]
    choices: list[Any] | None
    transition: Transition
    plan: Plan

    def failed(self, error: UpstreamError) -> Transition:
        """The record of the call when it failed: no action, no reward, the error."""
        info = {"error_kind": error.kind, **told(error), **self.recalled}
        return replace(self.transition, error=str(error), latency_ms=error.latency_ms, info=info)

    @property
    def recalled(self) -> dict[str, Any]:
        """What the record says about the prompt: id and score of each demonstration, and what came of the playbook."""
        return {"recalled": [[one.id, one.score] for one in self.prompt.demonstrations], **self.plan.facts}


def told(call: Completion | UpstreamError) -> dict[str, Any]:
    """What the record of a call says about its tries: each of them in order, and how long was waited in all."""
    return {"attempts": msgspec.to_builtins(call.attempts), "waited_ms": round(call.waited_ms, 3)}
