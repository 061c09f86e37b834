"""Trajectories of tau-bench (Yao et al. 2024, arXiv 2406.12045): one trial of one task each, judged by its reward.

The reward belongs to the last experience; the outcome to all of them, since a step's worth is that of its trial. A
trial is a success where tau-bench says so: its reward is 1 within 10^-6. The trials of one task share a group.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from relive.storage.formats import conversation
from relive.storage.formats.found import Identity, Item, each, transition
from relive.storage.formats.jsontext import BadRecordError, Json
from relive.storage.formats.source import Source

NAME = "tau-bench"
EXAMPLE = '{"task_id": 0, "trial": 0, "reward": 1.0, "traj": [messages], "info": ...}'


def matches(record: dict[str, Any]) -> bool:
    """Whether a record looks like one of this format."""
    return isinstance(record.get("traj"), list) and "task_id" in record


def read(source: Source) -> Iterator[Item]:
    """The experiences of a file."""
    identity = Identity()

    def convert(line: int, record: Json) -> Iterator[Item]:
        value: dict[str, Any] = record.value
        if "task_id" not in value or "traj" not in value:
            raise BadRecordError("it has no task_id or no traj")
        roles = conversation.roles_of(value["traj"])
        messages = conversation.raw_items(conversation.raw_fields(record.text)["traj"])
        record_id = identity(record.text)
        fields = {"episode_id": record_id.hex(), "group_id": _group(value), "reward": value.get("reward")}
        base = transition(fields, source)
        base = msgspec.structs.replace(base, outcome=_outcome(base.reward))
        yield from conversation.found(line, record_id, messages, roles, base, final_reward=base.reward)

    return each(source, convert)


def _outcome(reward: float | None) -> str:
    if reward is None:
        return "unknown"
    return "success" if abs(reward - 1.0) <= 1e-6 else "failure"


def _group(record: dict[str, Any]) -> str:
    """The task's name; tasks of different domains have the same numbers, so what the task is belongs to it."""
    info = record.get("info")
    task = info.get("task") if isinstance(info, dict) else record["traj"][0]
    digest = hashlib.blake2b(msgspec.json.encode(task, order="sorted"), digest_size=4).hexdigest()
    return f"tau-bench-{record['task_id']}-{digest}"
