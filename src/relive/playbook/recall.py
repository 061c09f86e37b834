"""Recall: past successes most like the present state, put before the question as demonstrations.

What holds here:

- Only experiences whose outcome is *success* are shown; an unknown outcome is never one. So nothing reaches a prompt
  before its reward was earned.
- Recalled text is data. It stands in example turns of its own between the instructions and the conversation, never
  among the instructions, and what a chat template would read as the border of a turn is broken up.
- The demonstrations fit a token budget, the least alike are left out first, and the most alike stands last, next to the
  question: small models copy what they read last.

Failures are used as well, but not shown. A success is shown only if it is among the nearest experiences, failures
counted: what merely shares common words with the question would mislead more than it helps. And an action that failed
in situations like this one, and did not succeed in others as much like it, is *ruled out* (`Recall.allowed`).
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard

import msgspec
import numpy as np

from relive.experience import Outcome, Transition
from relive.storage.text import state_text

Message = dict[str, Any]

_KNOWN: tuple[Outcome, ...] = ("success", "failure")
_TURN_BORDER = re.compile(
    r"[<\[][|｜]([^<>|｜\s\]]{1,64})[|｜][>\]]"  # <|im_end|>, DeepSeek's <｜end▁of▁sentence｜>, Exaone's [|user|]
    r"|<\|(\w{1,32})>|<(\w{1,32})\|>"  # <|turn>, <turn|>
    r"|<<(/?[A-Z][A-Z_]{1,31})>>|\[(/?[A-Z][A-Z_]{2,31})\]"  # <<SYS>>, [INST], [TOOL_CALLS], [SYSTEM_PROMPT]
    r"|(?i:<(/?(?:(?:start|end)_of_(?:turn|image)|s|bos|eos|pad|unk|sop|eop|think|tools?|tool_calls?|tool_response|"
    r"(?:extra_id|special)_\d{1,4}|seed:\w{1,16}))>|\[(gMASK)\])"
    r"|^[ \t]*#{2,3} ?(Instruction|Input|Response|System|User|Human|Assistant):",  # Alpaca's, which are plain words
    re.MULTILINE,
)
_SPREAD = 4  # random candidates for each demonstration wanted: doubles and those over the budget fall out


class SearchableMemory(Protocol):
    """What is needed of a memory: `relive.Memory` and `SqliteStorage` have it."""

    def search(
        self, text: str, *, outcome: Outcome | None = None, agent: str | None = None, limit: int = 10
    ) -> list[tuple[int, float]]:
        """Ids of the experiences whose states are most like a text, with a score that is higher the more alike."""

    def get(self, ids: Sequence[int]) -> Sequence[Transition | None]:
        """The experiences of these ids; ``None`` where there is none any more."""


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """A past experience that is like the present state.

    Attributes:
        id: Its id in the memory.
        score: How alike it is; comparable within one question only.
        transition: The experience.
    """

    id: int
    score: float
    transition: Transition


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A question with what was recalled for it.

    Attributes:
        messages: What to send to the model.
        demonstrations: What was put before the question, the most alike last.
    """

    messages: list[Message]
    demonstrations: tuple[Recalled, ...] = ()


class Recall:
    """Finds past successes and puts them before a question.

    Args:
        memory: Where experiences are.
        demonstrations: At most so many are shown. Default 4.
        neighbours: Of the past experiences with a known outcome, the so many most alike are looked at: the successes
            among them can be shown, and together they rule actions out. Default 12.
        token_budget: At most so many tokens of demonstrations, by `count_tokens`. Default 1,000.
        agent: Only experiences of this agent; ``None``: of all.
        count_tokens: Tokens of a text; by default an estimate, see `estimate_tokens`.
        distrusted: Of some experiences, those that must not be shown nor counted, such as `Playbook.distrusted`;
            ``None``: all may be.

    Raises:
        ValueError: a number is negative.
    """

    def __init__(
        self,
        memory: SearchableMemory,
        *,
        demonstrations: int = 4,
        neighbours: int = 12,
        token_budget: int = 1_000,
        agent: str | None = None,
        count_tokens: Callable[[str], int] | None = None,
        distrusted: Callable[[Sequence[int]], set[int]] | None = None,
    ) -> None:
        for name, value in {
            "demonstrations": demonstrations,
            "neighbours": neighbours,
            "token_budget": token_budget,
        }.items():
            if value < 0:
                raise ValueError(f"{name} is {value}; it must be at least 0.")
        self.memory = memory
        self.demonstrations = demonstrations
        self.neighbours = neighbours
        self.token_budget = token_budget
        self.agent = agent
        self._count_tokens = count_tokens or estimate_tokens
        self._distrusted = distrusted

    def nearest(self, text: str) -> list[Recalled]:
        """The past experiences with a known outcome that are most alike, the best first; ties go to the later one.

        Args:
            text: What is asked, as `relive.storage.text.state_text` gives it.
        """
        if not self.neighbours:
            return []
        found: list[tuple[int, float]] = []
        for outcome in _KNOWN:
            found += self.memory.search(text, outcome=outcome, agent=self.agent, limit=self.neighbours)
        if self._distrusted is not None and found:
            bad = self._distrusted([number for number, _ in found])
            found = [one for one in found if one[0] not in bad]
        found.sort(key=lambda one: (one[1], one[0]), reverse=True)
        return _load(self.memory, found[: self.neighbours])

    def candidates(self, text: str) -> list[Recalled]:
        """Past successes in the order in which they are to be considered; a subclass may find them in another way.

        Args:
            text: What is asked, as `relive.storage.text.state_text` gives it.
        """
        return [one for one in self.nearest(text) if one.transition.outcome == "success"]

    def find(self, state: Any, *, show: Callable[[Any], str] | None = None) -> list[Recalled]:
        """The demonstrations for a state, within the budget, the most alike last; none that has to do with tools.

        Args:
            state: The present state; chat messages or any other JSON value.
            show: Writes a past action as the assistant's words, empty to leave it out; ``None``: `action_text`.
        """
        if not self.demonstrations:
            return []
        show = show or action_text
        chosen: list[Recalled] = []
        seen: set[tuple[str, str]] = set()
        left = self.token_budget
        for candidate in self.candidates(state_text(state)):
            if _uses_tools(candidate.transition):
                continue
            turn = asked_text(candidate.transition.state), show(candidate.transition.action)
            tokens = self._count_tokens(turn[0]) + self._count_tokens(turn[1])
            if turn in seen or not all(turn) or tokens > left:
                continue
            seen.add(turn)
            left -= tokens
            chosen.append(candidate)
            if len(chosen) == self.demonstrations:
                break
        return chosen[::-1]

    def prompt(self, messages: Sequence[Message], *, show: Callable[[Any], str] | None = None) -> Prompt:
        """The messages with demonstrations between the leading instructions and the conversation.

        Args:
            messages: The conversation as it would be without a memory; it is not changed.
            show: Writes a past action as the assistant's words; ``None``: `action_text`.
        """
        show = show or action_text
        found = self.find(list(messages), show=show)
        start = instructed(messages)
        turns: list[Message] = []
        for one in found:
            turns.append({"role": "user", "content": as_data(asked_text(one.transition.state))})
            turns.append({"role": "assistant", "content": as_data(show(one.transition.action))})
        return Prompt(messages=[*messages[:start], *turns, *messages[start:]], demonstrations=tuple(found))

    def allowed(self, state: Any, actions: Sequence[Any]) -> list[Any]:
        """The actions that experience does not rule out, in the given order; all of them if it rules out every one.

        For each action the squared scores of its successes among the nearest experiences are added up, and those of
        its failures taken off. Below 0 it is ruled out; an action that was not tried there stays in.

        Args:
            state: The present state.
            actions: All actions, JSON values.
        """
        evidence = self.evidence(state, actions)
        kept = [action for action, value in zip(actions, evidence, strict=True) if value >= 0]
        return kept or list(actions)

    def evidence(self, state: Any, actions: Sequence[Any]) -> list[float]:
        """For each action what speaks for it (above 0) or against it (below 0); 0 where nothing is known."""
        value = {_key(action): 0.0 for action in actions}
        for one in self.nearest(state_text(state)):
            key = _key(one.transition.action)
            if key in value:
                value[key] += one.score**2 if one.transition.outcome == "success" else -(one.score**2)
        return [value[_key(action)] for action in actions]


class RandomRecall(Recall):
    """Random past successes instead of similar ones: what recall has to be better than.

    Args:
        memory: Where experiences are.
        successes: Ids of the successes to draw from, asked at each question.
        seed: Seed of the draws.
        options: As for `Recall`; with no neighbours it rules nothing out.
    """

    def __init__(
        self,
        memory: SearchableMemory,
        successes: Callable[[], Sequence[int]],
        *,
        seed: int | Sequence[int] = 0,
        **options: Any,
    ) -> None:
        super().__init__(memory, **{**options, "neighbours": 0})
        self._successes = successes
        self._rng = np.random.default_rng(seed)

    def candidates(self, text: str) -> list[Recalled]:  # noqa: ARG002 - the text plays no part here
        """Random successes, each at most once."""
        ids = list(self._successes())
        drawn = self._rng.permutation(len(ids))[: self.demonstrations * _SPREAD]
        return _load(self.memory, [(ids[i], 0.0) for i in drawn])


def action_text(action: Any) -> str:
    """A past action as the assistant's words: a message's text or tool calls, a string as it is, else JSON."""
    if isinstance(action, str):
        return action
    if isinstance(action, dict) and action.get("role") == "assistant":
        if calls := action.get("tool_calls"):
            return json.dumps([call.get("function", call) for call in calls], ensure_ascii=False)
        return state_text([action])
    return json.dumps(action, ensure_ascii=False)


def is_chat(value: Any) -> TypeGuard[list[Message]]:
    """Whether a value is a list of chat messages."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, dict) and "role" in message for message in value)
    )


def instructed(messages: Sequence[Message]) -> int:
    """How many messages at the beginning are instructions."""
    roles = (message.get("role") for message in messages)
    return next((at for at, role in enumerate(roles) if role not in ("system", "developer")), len(messages))


def asked_text(state: Any) -> str:
    """What a state asks, as a user's words: of a chat what `state_text` gives, a string as it is, else JSON."""
    chat = is_chat(state.get("messages") if isinstance(state, dict) else state)
    return state_text(state) if chat or isinstance(state, str) else json.dumps(state, ensure_ascii=False)


def as_data(text: str) -> str:
    """A recalled text in which nothing reads as the border of a chat turn: ``<|im_end|>`` becomes ``(im_end)``."""
    return _TURN_BORDER.sub(lambda found: f"({''.join(part or '' for part in found.groups())})", text)


def estimate_tokens(text: str) -> int:
    """An estimate of a text's tokens, on the high side: four ASCII characters or one other character each, and a turn.

    A tokenizer is rarely at hand for a model behind an API; the provider's own count is in the experience's usage.
    """
    plain = len(text.encode("ascii", "ignore"))
    return plain // 4 + (len(text) - plain) + 5


def _load(memory: SearchableMemory, found: Sequence[tuple[int, float]]) -> list[Recalled]:
    """The experiences of a search; what was removed since then is left out."""
    transitions = memory.get([number for number, _ in found])
    return [
        Recalled(id=number, score=score, transition=transition)
        for (number, score), transition in zip(found, transitions, strict=True)
        if transition is not None
    ]


def _uses_tools(past: Transition) -> bool:
    """Whether a tool is called or its answer read.

    A call that is shown as words teaches a model to write calls as words, and an answer without the call before it
    teaches it to make up what the tool would have said.
    """
    messages = past.state.get("messages") if isinstance(past.state, dict) else past.state
    read = messages[-1:] if is_chat(messages) else []
    done = [past.action] if isinstance(past.action, dict) and past.action.get("role") == "assistant" else []
    return any(_has_tools(message) for message in (*read, *done))


def _has_tools(message: Message) -> bool:
    content = message.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return (
        message["role"] in {"tool", "function"}
        or bool(message.get("tool_calls") or message.get("function_call"))
        or any(str(part.get("type")).endswith(("tool_use", "tool_result")) for part in parts)
    )


def _key(action: Any) -> str:
    return json.dumps(action, sort_keys=True, ensure_ascii=False)
