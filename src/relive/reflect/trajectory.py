"""What a model reflects on: whole episodes as conversations, and which of them are worth its attention.

Only episodes whose outcome is known are looked at. Those come first that are

- *failed*: there is something to avoid;
- *surprising*: they ended differently from most others of their task, or of their agent;
- *learnable*: the task is sometimes solved and sometimes not (p(1 - p) of its success rate is high);
- *rare*: few others used the same tools in the same order.

Each is a factor, and they multiply, as the buffer's priority rules do. Attempts at one task (``group_id``) of which
some succeeded and some failed stay together, so that they can be compared.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from relive.experience import Outcome, Transition
from relive.reflect.features import tools_of
from relive.reflect.finished import Steps, finished_episodes
from relive.storage import SqliteStorage

Message = dict[str, Any]

_OF_A_TASK = 8  # attempts at one task that are compared


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """An episode, or a part of a long one.

    Attributes:
        experience: Id of its last experience.
        experiences: Ids of all of them.
        agent: Who acted.
        outcome: How it ended.
        group: Attempts at one task share it; ``None``: of its own.
        messages: What was seen and done, in order.
        part: Which part of the episode this is, from 1, and of how many.
    """

    experience: int
    experiences: tuple[int, ...]
    agent: str
    outcome: Outcome
    group: str | None
    messages: tuple[Message, ...]
    part: tuple[int, int] = (1, 1)


def trajectories(
    store: SqliteStorage, *, agent: str | None = None, distrusted: frozenset[int] = frozenset(), newest: int = 2_000
) -> list[Trajectory]:
    """The episodes of a store as conversations, the newest first; see `finished_episodes` for the arguments."""
    found = finished_episodes(store, agent=agent, distrusted=distrusted, newest=newest)
    return [_trajectory(steps) for steps in found]


def chosen(found: Sequence[Trajectory], most: int) -> list[list[Trajectory]]:
    """The trajectories most worth a look, in groups to be compared; one alone is a group of its own.

    Args:
        found: Trajectories with a known outcome.
        most: At most so many.
    """
    priority = dict(zip((one.experience for one in found), priorities(found), strict=True))
    ranked = sorted(found, key=lambda one: (-priority[one.experience], -one.experience))
    tasks: dict[tuple[str, str], list[Trajectory]] = defaultdict(list)
    for one in ranked:
        if one.group is not None:
            tasks[one.agent, one.group].append(one)
    result: list[list[Trajectory]] = []
    taken: set[int] = set()
    left = most
    for one in ranked:
        if one.experience in taken or left <= 0:
            continue
        task = [one] if one.group is None else tasks[one.agent, one.group]
        mixed = len({member.outcome for member in task}) > 1
        group = _balanced(task)[: min(left, _OF_A_TASK)] if mixed else [one]
        taken.update(member.experience for member in (task if mixed else group))
        left -= len(group)
        result.append(group)
    return result


def priorities(found: Sequence[Trajectory]) -> list[float]:
    """How much each trajectory is worth a look; see the module."""
    by_task: dict[tuple[str, str | None], list[bool]] = defaultdict(list)
    for one in found:
        for task in {(one.agent, one.group), (one.agent, None)}:
            by_task[task].append(one.outcome == "success")
    tools = [(one.agent, tuple(name for message in one.messages for name in tools_of(message))) for one in found]
    alike = Counter(tools)
    result = []
    for one, course in zip(found, tools, strict=True):
        known = by_task[one.agent, one.group]
        known = known if len(known) > 1 else by_task[one.agent, None]
        rate = sum(known) / len(known)
        good = one.outcome == "success"
        surprise = 1 + abs(good - rate)
        learnable = 0.5 + 2 * rate * (1 - rate)
        result.append((1 if good else 2) * surprise * learnable * (1 + alike[course] ** -0.5))
    return result


def _balanced(group: Sequence[Trajectory]) -> list[Trajectory]:
    """Failures and successes in turn, so that both are there wherever it is cut."""
    failures = [one for one in group if one.outcome == "failure"]
    successes = [one for one in group if one.outcome == "success"]
    pairs = zip(failures, successes, strict=False)
    both = [one for pair in pairs for one in pair]
    return both + failures[len(successes) :] + successes[len(failures) :]


def _trajectory(steps: Steps) -> Trajectory:
    experience, last = steps[-1]
    return Trajectory(
        experience=experience,
        experiences=tuple(number for number, _ in steps),
        agent=last.agent,
        outcome=last.outcome,
        group=last.group_id,
        messages=tuple(_conversation(transition for _, transition in steps)),
    )


def _conversation(steps: Iterable[Transition]) -> list[Message]:
    """The steps as one conversation. What a later state repeats of earlier ones is there once."""
    result: list[Message] = []
    have: Counter[str] = Counter()
    for step in steps:
        for value, role in ((step.state, "user"), (step.action, "assistant"), (step.next_state, "user")):
            here: Counter[str] = Counter()
            repeats = value is not step.action
            for message in _messages(value, role):
                key = _key(message)
                here[key] += 1
                if not repeats or here[key] > have[key]:
                    have[key] += 1
                    result.append(message)
        if step.error is not None:
            result.append({"role": "error", "content": step.error})
    return result


def _messages(value: Any, role: str) -> list[Message]:
    """A state or an action as messages; any other JSON value becomes one of this role."""
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]
    given = value if isinstance(value, list) and value else [value]
    if all(isinstance(one, dict) and ("role" in one or "type" in one) for one in given):
        return [one if "role" in one else {"role": role, **one} for one in given]
    return [] if value is None else [{"role": role, "content": value if isinstance(value, str) else json.dumps(value)}]


def _key(message: Message) -> str:
    """What makes a message the same as one of another state, whatever else a client adds to it."""
    calls = [name for call in message.get("tool_calls") or () if isinstance(call, dict) for name in [call.get("id")]]
    return json.dumps([message.get("role"), message.get("content") or "", calls], sort_keys=True, default=str)
