"""Cuts trajectories into requests that a model can take, as lines of data.

What holds here:

- A tool call and its results are never parted: they are in one chunk or the chunk begins after them. Results belong to
  the call before them by position, since agents repeat ids.
- A giant message is shortened to its head, its tail and its length; the agent's instructions never are: if these alone
  are too long, that is an error which says so.
- No chunk is longer than the limit, by the estimate of tokens that recall and injection use, nor has more trajectories
  than allowed. Groups that are to be compared stay in one chunk if they fit.
- Text put into prompts from memory is left out, so nothing is learnt from what was learnt; and a line of data can
  neither break out of its line nor read as the border of the block or of a turn (`as_notes`).
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from relive.errors import ReliveError
from relive.playbook.injection import as_notes
from relive.playbook.recall import estimate_tokens
from relive.reflect.trajectory import Message, Trajectory
from relive.storage.text import without_notes

MOST = 20
"""Trajectories of a chunk."""

_INSTRUCTIONS = ("system", "developer")
_SHARE = 3  # a message may take one part in so many of a chunk
_LEAST = 24  # tokens, below which a shortened message says nothing
_TITLE = 20  # tokens of the line above a trajectory


class TooLongError(ReliveError, ValueError):
    """Something that must not be shortened is longer than a request may be."""


class Line(msgspec.Struct, frozen=True):
    """A message as a line of data.

    Attributes:
        message: Its position in the conversation.
        text: The line.
        tokens: How long it is, estimated.
    """

    message: int
    text: str
    tokens: int


class Piece(msgspec.Struct, frozen=True):
    """A trajectory, or a part of one, with its lines."""

    trajectory: Trajectory
    lines: tuple[Line, ...]


def pack(
    groups: Sequence[Sequence[Trajectory]], limit: int, *, most: int = MOST
) -> tuple[list[list[Piece]], list[str]]:
    """Chunks of at most `limit` tokens and `most` trajectories of one agent, and what could not be taken in and why."""
    chunks: list[list[Piece]] = []
    problems: list[str] = []
    open_chunks: dict[str, list[Piece]] = {}
    for group in groups:
        pieces: list[Piece] = []
        for trajectory in group:
            try:
                parts = _parts(trajectory, limit)
            except TooLongError as error:
                problems.append(f"Experience {trajectory.experience} was left out: {error}")
                continue
            if len(parts) == 1:
                pieces += parts
            else:
                chunks += [[part] for part in parts]
        for at in range(0, len(pieces), most):
            some = pieces[at : at + most]
            agent = some[0].trajectory.agent
            here = open_chunks.get(agent, [])
            if len(here) + len(some) <= most and size([*here, *some]) <= limit:
                open_chunks[agent] = [*here, *some]
                continue
            if here:
                chunks.append(here)
            *full, open_chunks[agent] = _cut(some, limit)
            chunks += full
    return chunks + [chunk for chunk in open_chunks.values() if chunk], problems


def size(chunk: Sequence[Piece]) -> int:
    """Tokens of a chunk, estimated; instructions that several trajectories share are told once."""
    return sum(_TITLE + sum(estimate_tokens(text) for text in texts) for texts in lines_of(chunk))


def lines_of(chunk: Sequence[Piece]) -> list[list[str]]:
    """The lines of each piece; instructions that a piece before it has are not repeated."""
    seen: set[str] = set()
    result = []
    for piece in chunk:
        texts = [line.text for line in piece.lines]
        told = {text for text in texts if text.startswith(tuple(f"{role}:" for role in _INSTRUCTIONS))}
        result.append([f"{text.partition(':')[0]}: as above" if text in told & seen else text for text in texts])
        seen |= told
    return result


def split(messages: Sequence[Message], limit: int) -> list[list[Line]]:
    """A conversation as chunks of lines of at most `limit` tokens; every message is in one of them.

    Raises:
        TooLongError: the instructions, or a call with its many results, do not fit however short the rest is made.
    """
    chunks: list[list[Line]] = []
    used = limit + 1
    for start, end in units(messages):
        lines = _fitted(messages[start:end], start, limit)
        length = sum(line.tokens for line in lines)
        if used + length > limit:
            chunks.append([])
            used = 0
        chunks[-1] += lines
        used += length
    return chunks


def units(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """What must not be parted: from each call to the last of its results, else each message alone; begin and end."""
    result: list[tuple[int, int]] = []
    start = 0
    while start < len(messages):
        open_calls, end, at = _calls(messages[start]), start + 1, start + 1
        while open_calls > 0 and at < len(messages):
            beside = end == start + 1 and messages[at].get("type") == "function_call"  # one of several at once
            if messages[at].get("role") == "assistant" and not beside:
                break  # it went on without the result
            open_calls += _calls(messages[at]) - _answers(messages[at])
            end = at + 1 if _answers(messages[at]) else end
            at += 1
        result.append((start, end))
        start = end
    return result


def shortened(text: str, limit: int, length: int | None = None) -> str:
    """A text of at most `limit` tokens: head, tail, and how long it was (`length` characters) where it is longer."""
    tokens = estimate_tokens(text)
    if tokens <= limit:
        return text
    mark = f" […shortened from {len(text) if length is None else length:,} characters…] "
    keep = max(int((limit - estimate_tokens(mark)) * len(text) / tokens), 0)
    while True:
        head, tail = keep - keep // 3, keep // 3
        result = text[:head] + mark + text[len(text) - tail :]
        if estimate_tokens(result) <= limit or not keep:
            return result
        keep = keep * 9 // 10  # its ends hold more tokens than the rest


def _parts(trajectory: Trajectory, limit: int) -> list[Piece]:
    found = split(trajectory.messages, limit - _TITLE)
    if len(found) <= 1:
        return [Piece(trajectory, tuple(line for lines in found for line in lines))]
    return [
        Piece(
            msgspec.structs.replace(
                trajectory, messages=tuple(trajectory.messages[line.message] for line in lines), part=(at, len(found))
            ),
            tuple(lines),
        )
        for at, lines in enumerate(found, 1)
    ]


def _cut(pieces: Sequence[Piece], limit: int) -> list[list[Piece]]:
    chunks: list[list[Piece]] = [[]]
    for piece in pieces:
        if chunks[-1] and size([*chunks[-1], piece]) > limit:
            chunks.append([])
        chunks[-1].append(piece)
    return chunks


def _fitted(messages: Sequence[Message], start: int, limit: int) -> list[Line]:
    share = max(limit // _SHARE, min(_LEAST, limit))
    lines = [_line(message, at, limit, share) for at, message in enumerate(messages, start)]
    if sum(line.tokens for line in lines) > limit:
        share = limit // len(lines)
        if share < _LEAST:
            raise TooLongError(
                f"A call with {len(lines) - 1:,} results does not fit into {limit:,} tokens; use a model with a "
                "larger window, and say so with --window."
            )
        lines = [_line(message, at, limit, share) for at, message in enumerate(messages, start)]
    return lines


def _line(message: Message, at: int, limit: int, share: int) -> Line:
    role = str(message.get("role") or message.get("type") or "message")
    said = without_notes(text_of(message))
    text = as_notes(f"{role}: {said}")
    if role not in _INSTRUCTIONS:
        text = shortened(text, share, len(said))
    tokens = estimate_tokens(text)
    if tokens > limit:
        raise TooLongError(
            f"The {role} message alone takes about {tokens:,} tokens, and a request has room for {limit:,}; "
            "use a model with a larger window, and say so with --window."
        )
    return Line(at, text, tokens)


def text_of(message: Message) -> str:
    """All that a message says and calls, whichever provider's form it has."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content] if content is not None else []
    said = [_part(part) for part in parts]
    calls = message.get("tool_calls")
    said += [_call(call.get("function", call)) for call in calls or () if isinstance(call, dict)]
    if isinstance(message.get("function_call"), dict):
        said.append(_call(message["function_call"]))
    if message.get("type") in ("function_call", "function_call_output"):
        said.append(_part(message))
    return "\n".join(text for text in said if text)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return json.dumps(part, ensure_ascii=False)
    kind = part.get("type")
    if kind in ("tool_use", "function_call"):
        return _call(part)
    for field in ("text", "content", "output", "refusal"):
        if isinstance(part.get(field), str):
            return str(part[field])
    if isinstance(part.get("content"), list):
        return "\n".join(_part(one) for one in part["content"])
    return f"[{kind}]" if isinstance(kind, str) else json.dumps(part, ensure_ascii=False)


def _call(function: Any) -> str:
    if not isinstance(function, dict):
        return ""
    given = function.get("arguments", function.get("input", ""))
    return f"calls {function.get('name')}({given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)})"


def _calls(message: Message) -> int:
    calls = message.get("tool_calls")
    count = len(calls) if isinstance(calls, list) else 0
    count += isinstance(message.get("function_call"), dict) or message.get("type") == "function_call"
    return count + _blocks(message, "tool_use")


def _answers(message: Message) -> int:
    told = message.get("role") in ("tool", "function") or message.get("type") == "function_call_output"
    return int(told) + _blocks(message, "tool_result")


def _blocks(message: Message, kind: str) -> int:
    content = message.get("content")
    return sum(isinstance(p, dict) and p.get("type") == kind for p in content) if isinstance(content, list) else 0
