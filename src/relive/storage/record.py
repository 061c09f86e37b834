"""A `Transition` as the columns of its tables, and back.

This is the one place where an experience becomes bytes, and where the redactor takes out what must not reach the disk.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from relive.errors import InvalidExperienceError
from relive.experience import Outcome, TokenTrace, Transition, Usage
from relive.storage import checks
from relive.storage.checks import LEAST
from relive.storage.codec import TraceRow, clean_text, encode_json, encode_payload, encode_trace
from relive.storage.redaction import Redactor
from relive.storage.text import index_text

OUTCOMES: tuple[Outcome, ...] = ("unknown", "success", "failure")
"""An outcome's number on disk is its position here."""

OUTCOME_NUMBERS = {name: number for number, name in enumerate(OUTCOMES)}

COLUMNS = (
    "agent", "episode_id", "step", "outcome", "reward", "created_at", "flags", "recorded_outcome", "recorded_reward",
    "parent", "group_id", "tags", "policy", "policy_version", "cost", "latency_ms", "error", "input_tokens",
    "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens",
)  # fmt: skip
"""Columns of the table ``experience`` that hold a transition, in the order of `Row.columns`."""

Columns: TypeAlias = tuple[Any, ...]

NEVER_LEARNT = "relive:cached"
"""The tag of answers that were given a second time: they are never drawn, and never found by what they are about."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST, _LAST = ((time.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND for time in (datetime.min, datetime.max))
_TERMINATED, _TRUNCATED, _HAS_USAGE, HAS_TOKENS, HAS_NEXT_STATE, HAS_LATE_NEXT_STATE = 1, 2, 4, 8, 16, 32
_INTEGERS = (("step", 0), ("parent", LEAST), ("policy_version", LEAST), ("cost", 0))  # with the least that each may be


class Row(NamedTuple):
    """A transition ready to be written, all but its id.

    Attributes:
        columns: Values of `COLUMNS`.
        payload: JSON text of state, action, and, where there are any, next state and info.
        trace: Columns of the token trace; ``None``: it has none.
        tags: Its tags, each once.
        words: Tokens for the full-text index; empty: nothing to find.
        priority: The priority asked for; ``None``: whatever the owner's rule says.
        uid: Identity of an imported row; ``None``: it was recorded here.
    """

    columns: Columns
    payload: bytes
    trace: TraceRow | None
    tags: tuple[str, ...]
    words: str
    priority: float | None = None
    uid: bytes | None = None


def size(row: Row) -> int:
    """Bytes of a row's payload and tokens, not yet compressed."""
    return len(row.payload) + (0 if row.trace is None else len(row.trace.body))


def microseconds(time: datetime) -> int:
    """Microseconds since 1970 UTC.

    Raises:
        InvalidExperienceError: the time does not say its zone, or is before year 1 or after year 9999 in UTC.
    """
    try:
        count = (time - _EPOCH) // _MICROSECOND
    except TypeError as error:
        raise InvalidExperienceError(f"created_at is {time!r}; it must be a datetime with a time zone.") from error
    if not _FIRST <= count <= _LAST:
        raise InvalidExperienceError(f"created_at is {time}; in UTC it must be from year 1 to year 9999.")
    return count


def moment(count: int) -> datetime:
    """The UTC time so many microseconds after 1970."""
    return _EPOCH + timedelta(0, 0, count)


def encode(
    transition: Transition,
    *,
    priority: float | None = None,
    uid: bytes | None = None,
    with_text: bool = True,
    redact: Redactor | None = None,
) -> Row:
    """The row of a transition, redacted; nothing the caller changes later in the transition reaches it.

    Raises:
        InvalidExperienceError: a field has a value that the store cannot hold; the message names it.
    """
    t = transition
    _check(t)
    text = _payload(t)
    if redact is not None:
        t, text, _ = redact.stored(t, text)
    usage = t.usage
    outcome = OUTCOME_NUMBERS[t.outcome]
    reward = None if t.reward is None else checks.number(t.reward, "reward")
    tags = tuple(checks.text(tag, "tags") for tag in t.tags)
    columns = (
        checks.text(t.agent, "agent"),
        checks.text(t.episode_id, "episode_id"),
        t.step,
        outcome,
        reward,
        microseconds(t.created_at),
        (_TERMINATED if t.terminated else 0)
        | (_TRUNCATED if t.truncated else 0)
        | (_HAS_USAGE if usage is not None else 0)
        | (HAS_TOKENS if t.tokens is not None else 0)
        | (HAS_NEXT_STATE if t.next_state is not None else 0),
        outcome,
        reward,
        t.parent,
        None if t.group_id is None else checks.text(t.group_id, "group_id"),
        encode_json(tags).decode() if tags else None,
        None if t.policy is None else checks.text(t.policy, "policy"),
        t.policy_version,
        t.cost,
        None if t.latency_ms is None else checks.number(t.latency_ms, "latency_ms", 0.0),
        None if t.error is None else checks.text(t.error, "error"),
        *_usage_columns(usage),
    )
    trace = None if t.tokens is None else encode_trace(t.tokens)
    if NEVER_LEARNT in tags:
        with_text, priority = False, 0.0
    words = clean_text(index_text(_readable(t))) if with_text else ""
    return Row(columns, text, trace, tuple(dict.fromkeys(tags)), words, priority, uid)


def decode(columns: Columns, payload: dict[str, Any], tokens: TokenTrace | None) -> Transition:
    """The transition of its columns (in the order of `COLUMNS`), with reward and outcome as they hold now."""
    flags = columns[6]
    return Transition(
        state=payload.get("state"),
        action=payload.get("action"),
        next_state=payload.get("next_state"),
        reward=columns[4],
        terminated=bool(flags & _TERMINATED),
        truncated=bool(flags & _TRUNCATED),
        outcome=OUTCOMES[columns[3]],
        agent=columns[0],
        episode_id=columns[1],
        step=columns[2],
        parent=columns[9],
        group_id=columns[10],
        tags=() if columns[11] is None else tuple(msgspec.json.decode(columns[11])),
        policy=columns[12],
        policy_version=columns[13],
        usage=_usage(columns[17:22]) if flags & _HAS_USAGE else None,
        cost=columns[14],
        latency_ms=columns[15],
        error=columns[16],
        created_at=moment(columns[5]),
        tokens=tokens,
        info=payload.get("info"),
    )


def _usage_columns(usage: Usage | None) -> tuple[int | None, ...]:
    if usage is None:
        return (None, None, None, None, None)
    counts = (
        usage.input_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
    )
    for count in counts:
        if count is not None:
            checks.integer(count, "usage", 0)
    return counts


def _usage(counts: Columns) -> Usage:
    return Usage(
        input_tokens=counts[0],
        cached_tokens=counts[1],
        cache_write_tokens=counts[2],
        output_tokens=counts[3],
        reasoning_tokens=counts[4],
    )


def _readable(transition: Transition) -> Transition:
    """The transition with a state that the text index can walk through."""
    if not isinstance(transition.state, msgspec.Raw):
        return transition
    try:
        state = msgspec.json.decode(transition.state)
    except msgspec.DecodeError:  # a number beyond a double, or of more digits than Python converts
        state = json.loads(bytes(transition.state), parse_int=str, parse_float=str)
    return msgspec.structs.replace(transition, state=state)


def _payload(t: Transition) -> bytes:
    """JSON text of what a transition holds as JSON; what is not known of the last two is left out."""
    parts = [b'{"state":', encode_payload(t.state, "state"), b',"action":', encode_payload(t.action, "action")]
    if t.next_state is not None:
        parts += b',"next_state":', encode_payload(t.next_state, "next_state")
    if t.info is not None:
        parts += b',"info":', encode_payload(t.info, "info")
    return b"".join((*parts, b"}"))


def _check(t: Transition) -> None:
    """The same bounds as `Transition.from_dict`, for a record made without it; what it leaves, encoding checks.

    What is stored can then always be exported and imported again, and nothing is silently taken for something else.
    """
    if not isinstance(t.outcome, str) or t.outcome not in OUTCOME_NUMBERS:
        raise InvalidExperienceError(f"outcome is {checks.shown(t.outcome)}; it must be success, failure or unknown.")
    for field, least in _INTEGERS:
        value = getattr(t, field)
        if value is not None or field == "step":
            checks.integer(value, field, least)
    for field in ("terminated", "truncated"):
        flag = getattr(t, field)
        if not isinstance(flag, bool | np.bool_):
            raise InvalidExperienceError(f"{field} is {checks.shown(flag)}; it must be True or False.")
    if not isinstance(t.tags, tuple | list | set | frozenset):
        raise InvalidExperienceError(f"tags is {checks.shown(t.tags)}; it must be a tuple of texts.")
    if t.usage is not None and not isinstance(t.usage, Usage):
        raise InvalidExperienceError(f"usage is {checks.shown(t.usage)}; it must be a Usage or None.")
    if t.tokens is not None:
        _check_trace(t.tokens)


def _check_trace(trace: object) -> None:
    """Its arrays were checked when it was made."""
    if not isinstance(trace, TokenTrace):
        raise InvalidExperienceError(f"tokens is {checks.shown(trace)}; it must be a TokenTrace or None.")
    for field in ("temperature", "top_p"):
        value = getattr(trace, field)
        if value is not None:
            checks.number(value, f"tokens.{field}")
    if trace.tokenizer is not None:
        checks.text(trace.tokenizer, "tokens.tokenizer")
