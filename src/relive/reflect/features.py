"""What an episode consists of, as a set of features that can be told in a sentence.

Features come from four places: what the agent did (tools called, how often, in which order, phrases of its answers),
what it was asked (words of the opening request), what it chose at which word where an episode is one choice, and how it
went (errors of tools, length). Text that was put into
prompts from memory is left out, so that nothing is learnt from what was learnt.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec

from relive.experience import Outcome, Transition
from relive.storage.text import normalise, state_text, without_notes

Kind = Literal["tool", "order", "phrase", "asked", "choice", "course"]

_WORD = re.compile(r"[^\W\d_][\w'-]*")
_FILLERS = frozenset(
    [
        "the",
        "and",
        "for",
        "you",
        "your",
        "that",
        "this",
        "with",
        "are",
        "was",
        "were",
        "will",
        "would",
        "could",
        "should",
        "can",
        "have",
        "has",
        "had",
        "not",
        "but",
        "from",
        "they",
        "them",
        "their",
        "there",
        "here",
        "what",
        "when",
        "where",
        "which",
        "who",
        "how",
        "i'm",
        "i've",
        "it's",
        "me",
        "my",
        "we",
        "our",
        "us",
        "is",
        "am",
        "be",
        "been",
        "being",
        "of",
        "to",
        "in",
        "on",
        "at",
        "as",
        "by",
        "an",
        "or",
        "if",
        "so",
        "do",
        "does",
        "did",
        "a",
        "i",
        "it",
    ]
)
_LONGEST_PHRASES = 400  # words of an answer that are looked at
_MANY = 3


class Feature(msgspec.Struct, frozen=True, order=True):
    """Something that an episode has or has not.

    Attributes:
        kind: ``tool``: a tool was called; ``order``: one tool followed another; ``phrase``: words of an answer;
            ``asked``: a word of the request; ``choice``: what was chosen, at a word of the request or anywhere, in an
            episode of one step; ``course``: how it went.
        name: What it is, told in a few words.
    """

    kind: Kind
    name: str


class Episode(msgspec.Struct, frozen=True):
    """An episode as the contrast sees it.

    Attributes:
        id: Its name.
        agent: Who acted.
        outcome: How it ended.
        group: Episodes of one task share it; ``None``: of its own.
        features: What it has.
        experience: Id of its last experience; ``None``: it is not stored.
    """

    id: str
    agent: str
    outcome: Outcome
    group: str | None
    features: frozenset[Feature]
    experience: int | None = None


def episode_of(steps: Sequence[Transition], experience: int | None = None) -> Episode:
    """An episode from its steps in order, at least one.

    Args:
        steps: Its transitions.
        experience: Id of the last one.
    """
    last = steps[-1]
    return Episode(last.episode_id, last.agent, last.outcome, last.group_id, frozenset(_features(steps)), experience)


def _features(steps: Sequence[Transition]) -> Iterator[Feature]:
    asked = set(_words(state_text(steps[0].state)))
    for word in asked:
        yield Feature("asked", word)
    calls: list[str] = []
    for step in steps:
        calls += tools_of(step.action)
        for phrase in _phrases(_said(step.action)):
            yield Feature("phrase", phrase)
        if step.error is not None:
            yield Feature("course", "an error")
    if len(steps) == 1 and calls == [steps[0].action]:
        yield from _of_choice(calls[0], asked)
    else:
        yield from _of_calls(calls)
    if any(_is_error(text) for text in _results(steps)):
        yield Feature("course", "a tool that answers with an error")
    for bound in (5, 10, 20, 40):
        if len(steps) > bound:
            yield Feature("course", f"more than {bound} steps")


def _of_choice(choice: str, asked: Iterable[str]) -> Iterator[Feature]:
    yield Feature("choice", choice)
    for word in asked:
        yield Feature("choice", f"{choice} at {word}")


def _of_calls(calls: Sequence[str]) -> Iterator[Feature]:
    for tool, count in Counter(calls).items():
        yield Feature("tool", tool)
        if count >= _MANY:
            yield Feature("tool", f"{tool}, {_MANY} times or more")
    for first, second in pairwise(calls):
        yield Feature("order", f"{first}, then {second}" if first != second else f"{first} twice in a row")
    if calls:
        yield Feature("order", f"{calls[0]} first")
        yield Feature("order", f"{calls[-1]} last")
    else:
        yield Feature("tool", "no tool")


def tools_of(action: Any) -> list[str]:
    """Names of the tools that an action calls; of an action that is no message, its text if it is short."""
    if isinstance(action, dict):
        calls = action.get("tool_calls")
        if isinstance(calls, list):
            functions = (call.get("function", call) for call in calls if isinstance(call, dict))
            return [f["name"] for f in functions if isinstance(f, dict) and isinstance(f.get("name"), str)]
        for field in ("tool", "name", "action"):
            if isinstance(action.get(field), str) and "role" not in action:
                return [action[field][:60]]
        return []
    return [action] if isinstance(action, str) and len(action) <= 40 and " " not in action.strip() else []


def _said(action: Any) -> str:
    if isinstance(action, str):
        return "" if tools_of(action) else without_notes(action)
    return state_text([action]) if isinstance(action, dict) and action.get("role") == "assistant" else ""


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(normalise(text)) if word not in _FILLERS and 3 <= len(word) <= 30]


def _phrases(text: str) -> set[str]:
    words = _WORD.findall(normalise(text))[:_LONGEST_PHRASES]
    return {
        f"{first} {second}"
        for first, second in pairwise(words)
        if not (first in _FILLERS and second in _FILLERS) and len(first) > 1 and len(second) > 1
    }


def _results(steps: Sequence[Transition]) -> Iterable[str]:
    """What tools answered: the tool messages of the longest state and of what followed it."""
    last = steps[-1]
    for value in (last.state, last.next_state):
        messages = value.get("messages") if isinstance(value, dict) else value
        for message in messages if isinstance(messages, list) else []:
            if isinstance(message, dict) and message.get("role") == "tool" and isinstance(message.get("content"), str):
                yield message["content"]


def _is_error(text: str) -> bool:
    return text.lstrip()[:20].lower().startswith(("error", '{"error', "exception", "traceback"))
