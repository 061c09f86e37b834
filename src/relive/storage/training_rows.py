"""Takes experiences out of a store as rows that trainers read: what was right as chats, and pairs of right and wrong.

``chat``: ``{"messages": [the prompt …, the answer], "tools": …}``, one row for each success and for each demonstration,
as fine-tuning files of OpenAI and others, and TRL's ``SFTTrainer``, have it.

``preference``: ``{"prompt": […], "chosen": [the right answer], "rejected": [what was answered], "tools": …}``, one row
for each demonstration of something else than was answered, as TRL's ``DPOTrainer`` and others have it.

A demonstration is a row once, though the gateway also keeps it as an experience of its own. What has an unknown outcome
or was reached by a rollback is not learnt from; what is no chat (a state or an action of numbers) is left out.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from relive.experience import Transition
from relive.storage.codec import encode_json
from relive.storage.exporter import Exported, Progress, selected
from relive.storage.playbook_tables import distrusted
from relive.storage.reading import Query
from relive.storage.record import NEVER_LEARNT
from relive.storage.sqlite import SqliteStorage

DEMONSTRATION = "demonstration"
"""The tag of an experience that is what somebody showed as the right answer to another one."""

_ANSWER = ("role", "content", "tool_calls", "function_call")
Row = dict[str, Any]


def export_chats(
    storage: SqliteStorage, out: IO[bytes], query: Query | None = None, *, progress: Progress | None = None
) -> int:
    """Writes one chat a line for each success and each demonstration that a query finds; returns how many."""
    return _write(storage, out, query, progress, _chats)


def export_preferences(
    storage: SqliteStorage, out: IO[bytes], query: Query | None = None, *, progress: Progress | None = None
) -> int:
    """Writes one pair a line for each demonstration about what a query finds; returns how many."""
    return _write(storage, out, query, progress, _preferences)


def _write(
    storage: SqliteStorage,
    out: IO[bytes],
    query: Query | None,
    progress: Progress | None,
    rows_of: Callable[[Transition, Row, list[Row]], Iterator[tuple[Row, bool]]],
) -> int:
    """Writes the rows of each experience that is a chat; those that were shown only once each."""
    shown: set[bytes] = set()
    count = 0
    for exported in selected(storage, query, progress=progress):
        transition = exported.stored.transition
        asked = _prompt(transition.state)
        if asked is None or NEVER_LEARNT in transition.tags or _distrusted(storage, exported.stored.id):
            continue
        for row, demonstrated in rows_of(transition, asked, _demonstrations(exported)):
            line = encode_json(row)
            if demonstrated:
                mark = hashlib.blake2b(line, digest_size=16).digest()
                if mark in shown:
                    continue
                shown.add(mark)
            out.write(line + b"\n")
            count += 1
    return count


def _distrusted(storage: SqliteStorage, number: int) -> bool:
    return bool(storage.view(lambda connection: distrusted(connection, [number])))


def _chats(transition: Transition, asked: Row, demonstrations: list[Row]) -> Iterator[tuple[Row, bool]]:
    answer = _answer(transition.action)
    if answer is not None and transition.outcome == "success":
        yield _chat(asked, answer), DEMONSTRATION in transition.tags
    for right in demonstrations:
        yield _chat(asked, right), True


def _preferences(transition: Transition, asked: Row, demonstrations: list[Row]) -> Iterator[tuple[Row, bool]]:
    answer = _answer(transition.action)
    for right in demonstrations:
        if answer is not None and right != answer:
            pair = {"prompt": asked["messages"], "chosen": [right], "rejected": [answer]}
            yield ({**pair, "tools": asked["tools"]} if "tools" in asked else pair), True


def _chat(asked: Row, answer: Row) -> Row:
    return {**asked, "messages": [*asked["messages"], answer]}


def _demonstrations(exported: Exported) -> list[Row]:
    """What was shown as the right answer to this very step, each as a message."""
    about = [one for one in exported.feedback if one.experience_id is not None]
    messages = [_answer(one.demonstration) for one in about]
    return [message for message in messages if message is not None]


def _answer(action: Any) -> Row | None:
    """What was answered or shown, as an assistant's message; ``None``: it is none."""
    if isinstance(action, str) and action:
        return {"role": "assistant", "content": action}
    if isinstance(action, dict) and action.get("role") == "assistant":
        return {name: action[name] for name in _ANSWER if name in action}
    return None


def _prompt(state: Any) -> Row | None:
    """What was asked: messages, and the tools there were; ``None``: it is no chat."""
    if isinstance(state, str) and state:
        return {"messages": [{"role": "user", "content": state}]}
    messages = state.get("messages") if isinstance(state, dict) else None
    if not isinstance(messages, list) or not messages:
        return None
    tools = state.get("tools")
    return {"messages": messages, "tools": tools} if tools else {"messages": messages}
