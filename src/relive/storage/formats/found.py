"""What a format's reader gives back, and how an experience is recognised when it is imported again.

An imported experience's `uid` is 16 bytes that depend on the file's content alone, never on the file's name, on the
time of the import or on what redaction does to the text: importing a file twice, under another name or packed, or a log
that has grown meanwhile, finds the same uids. Two records of one file that are equal to the byte are two experiences;
the second one's uid says that it is the second.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from relive.errors import InvalidExperienceError
from relive.experience import Feedback, Transition
from relive.storage.formats import jsontext
from relive.storage.formats.jsontext import BadRecordError, Json
from relive.storage.formats.source import Source


class Found(NamedTuple):
    """One experience of a file.

    Attributes:
        line: The line that its record begins on, from 1.
        uid: Its identity, 16 bytes.
        transition: The experience; `state`, `action` and `next_state` are `msgspec.Raw`, the bytes of the file.
        priority: The priority that it had; ``None``: the file says nothing.
        parent: Identity of the experience that it belongs under; ``None``: none.
        feedback: What was fed back about it; without an episode's id it is about the experience itself, whose id (0
            here) it gets when it is stored.
    """

    line: int
    uid: bytes
    transition: Transition
    priority: float | None = None
    parent: bytes | None = None
    feedback: tuple[Feedback, ...] = ()


class Problem(NamedTuple):
    """A record that could not be taken.

    Attributes:
        line: The line that it begins on, from 1; 0 where the file as a whole is meant.
        reason: Why, in a few words that follow "line 7: ".
    """

    line: int
    reason: str


class Ignored(NamedTuple):
    """Something of a record that was left out on purpose, such as a field that no experience has.

    Attributes:
        what: What it was, for people.
    """

    what: str


Item = Found | Problem | Ignored


class Identity:
    """Gives each record of one file its identity, and counts records that are equal."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}

    def __call__(self, content: bytes) -> bytes:
        """16 bytes for a record with this content; those of the n-th equal record differ from the first's."""
        digest = hashlib.blake2b(content, digest_size=16).digest()
        earlier = self._seen.get(digest, 0)
        self._seen[digest] = earlier + 1
        return digest if earlier == 0 else part_of(digest, earlier, b"again")


def part_of(record: bytes, number: int, what: bytes = b"step") -> bytes:
    """Identity of the `number`-th part of the record with this identity."""
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16, key=record, person=what).digest()


Convert = Callable[[int, Json], Iterable[Item]]


def each(source: Source, convert: Convert, unread: frozenset[str] = frozenset()) -> Iterator[Item]:
    """Reads every record and converts it; what is wrong with one becomes a `Problem`, and the next is read.

    Args:
        source: The file.
        convert: Turns the record that begins on a line into experiences; raises `BadRecordError` or
            `InvalidExperienceError` before it gives back the first.
        unread: Fields of a record that are kept as text; see `jsontext.read`.
    """
    for chunk in source.chunks():
        if chunk.data is None:
            yield Problem(chunk.line, chunk.problem)
            continue
        try:
            record = jsontext.read(chunk.data, unread)
            if not isinstance(record.value, dict):
                raise BadRecordError("it is no JSON object")
            yield from convert(chunk.line, record)
        except (BadRecordError, InvalidExperienceError) as error:
            yield Problem(chunk.line, str(error))
        except RecursionError:
            yield Problem(chunk.line, "it is nested too deeply")


def transition(fields: dict[str, Any], source: Source) -> Transition:
    """A transition with these fields and an empty payload, each of them checked.

    A file that does not say when it happened is taken to tell of the time when it was last changed.

    Raises:
        InvalidExperienceError: a field is unknown, of the wrong type or out of range; it is named.
    """
    when = {"created_at": datetime.fromtimestamp(source.modified, UTC)}
    return Transition.from_dict({**when, **fields, "state": None, "action": None})


def with_payload(
    base: Transition, *, state: bytes, action: bytes, next_state: bytes | None, **changes: Any
) -> Transition:
    """A copy of `base` with JSON text as its payload, kept byte for byte, and other fields changed."""
    return msgspec.structs.replace(
        base,
        state=msgspec.Raw(state),
        action=msgspec.Raw(action),
        next_state=None if next_state is None else msgspec.Raw(next_state),
        **changes,
    )
