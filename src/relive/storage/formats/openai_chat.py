"""OpenAI chat JSONL: one conversation a line under ``messages``, as fine-tuning files and many logs have it.

Tools and what else shaped the answer become part of the state. Of the other fields those that every experience has are
taken (``reward`` and ``outcome`` of the conversation, ``model``, ``agent``, ``episode_id``, ``group_id``, ``tags``,
``policy_version``, ``created_at``); what is left is reported and not imported: a reference answer, for example, is
nothing the agent saw.
"""

from collections.abc import Iterator
from typing import Any

from relive.storage.formats import conversation
from relive.storage.formats.found import Identity, Ignored, Item, each
from relive.storage.formats.jsontext import Json
from relive.storage.formats.source import Source

NAME = "openai"
EXAMPLE = '{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}'

_SEEN = ("tools", "functions", "tool_choice", "function_call", "parallel_tool_calls", "response_format")


def matches(record: dict[str, Any]) -> bool:
    """Whether a record looks like one of this format."""
    return isinstance(record.get("messages"), list)


def read(source: Source) -> Iterator[Item]:
    """The experiences of a file."""
    identity = Identity()

    def convert(line: int, record: Json) -> Iterator[Item]:
        value: dict[str, Any] = record.value
        roles = conversation.roles_of(value.get("messages"))
        raw = conversation.raw_fields(record.text)
        record_id = identity(record.text)
        base = conversation.common(value, record_id, source)
        for name in value.keys() - {"messages", "reward", "model", *_SEEN, *conversation.COMMON}:
            yield Ignored(f"field {name}")
        yield from conversation.found(
            line,
            record_id,
            conversation.raw_items(raw["messages"]),
            roles,
            base,
            beside={name: raw[name] for name in _SEEN if value.get(name) is not None},
            final_reward=base.reward,
        )

    return each(source, convert)
