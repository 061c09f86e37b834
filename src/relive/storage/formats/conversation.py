"""Chat messages as an episode: one experience for each message of the assistant.

- `state` is what the assistant saw: ``{"messages": [...]}`` with all messages before its own, and the tools if known.
- `action` is its message.
- `next_state` is what it saw next: ``{"messages": [...]}`` with the messages between this one of its own and the
  following (the results of the tools it called, or the user's answer); none after the last one of a conversation that
  it ended itself.

So an episode's last experience holds the whole conversation, message by message as the file had it. Results are joined
to calls by position and not by call id: agents repeat ids within one conversation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from relive.experience import Transition
from relive.storage.formats.found import Found, part_of, transition, with_payload
from relive.storage.formats.jsontext import BadRecordError
from relive.storage.formats.source import Source

COMMON = (
    "outcome", "agent", "episode_id", "group_id", "tags", "policy", "policy_version", "created_at", "error",
)  # fmt: skip
"""Fields of a record that are taken for all experiences of its conversation."""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def roles_of(messages: Any) -> list[str]:
    """The role of each message.

    Raises:
        BadRecordError: it is no list of messages, or none of them is the assistant's.
    """
    if not isinstance(messages, list) or not messages:
        raise BadRecordError("it holds no list of messages")
    roles: list[str] = []
    for number, message in enumerate(messages, 1):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ROLES:
            raise BadRecordError(f"message {number} has no role that is one of {', '.join(sorted(ROLES))}")
        roles.append(role)
    if "assistant" not in roles:
        raise BadRecordError("no message is the assistant's, so there is nothing that an agent did")
    return roles


def found(
    line: int,
    record: bytes,
    messages: Sequence[bytes],
    roles: Sequence[str],
    base: Transition,
    *,
    beside: Mapping[str, bytes] | None = None,
    final_reward: float | None = None,
) -> Iterator[Found]:
    """The experiences of one conversation.

    Args:
        line: Where its record begins.
        record: Its identity; it also makes the episode id, unless `base` was given one.
        messages: JSON text of each message, in order.
        roles: The role of each.
        base: What all its experiences have in common.
        beside: JSON text of what else belongs to the state, by name, such as ``tools``.
        final_reward: The reward of the last experience; the others have none of their own.
    """
    acts = [at for at, role in enumerate(roles) if role == "assistant"]
    ends = [*acts[1:], len(messages)]
    extra = b"".join(b',"%s":%s' % (name.encode(), text) for name, text in (beside or {}).items())
    for step, (at, end) in enumerate(zip(acts, ends, strict=True)):
        last = step == len(acts) - 1
        after = messages[at + 1 : end]
        experience = with_payload(
            base,
            state=b'{"messages":[%s]%s}' % (b",".join(messages[:at]), extra),
            action=messages[at],
            next_state=b'{"messages":[%s]}' % b",".join(after) if after else None,
            step=step,
            reward=final_reward if last else None,
            terminated=last,
        )
        yield Found(line, part_of(record, step), experience)


def common(record: dict[str, Any], identity: bytes, source: Source) -> Transition:
    """What the experiences of a conversation have in common, from the fields of its record that every experience has.

    Raises:
        InvalidExperienceError: one of them is of the wrong type or out of range; it is named.
    """
    fields = {name: record[name] for name in COMMON if record.get(name) is not None}
    if isinstance(record.get("model"), str):
        fields.setdefault("policy", record["model"])
    return transition({"episode_id": identity.hex(), **fields, "reward": record.get("reward")}, source)


def raw_fields(text: bytes) -> dict[str, bytes]:
    """JSON text of each field of a JSON object."""
    return {name: bytes(raw) for name, raw in msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items()}


def raw_items(text: bytes) -> list[bytes]:
    """JSON text of each element of a JSON array."""
    return [bytes(raw) for raw in msgspec.json.decode(text, type=list[msgspec.Raw])]
