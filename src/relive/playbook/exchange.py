"""Lessons as JSON objects, one a line of a file: what `relive lessons export` writes and `import` reads."""

import hashlib
from typing import Any

import msgspec

from relive.playbook.lesson import Add, InvalidLessonError, Lesson, LessonText, Source

FORMAT = "relive-lesson/1"
"""The value of each object's field ``format``."""

_TEXT = ("title", "when", "when_not", "do", "why")


def to_json(lesson: Lesson, sources: list[tuple[Source, bool]]) -> dict[str, Any]:
    """A lesson as a JSON object; its ids belong to its own store and mean nothing in another."""
    return {
        "format": FORMAT,
        **{name: getattr(lesson.text, name) for name in _TEXT},
        "agent": lesson.agent,
        "status": lesson.status,
        "origin": lesson.origin,
        "version": lesson.version,
        "proved": lesson.proved,
        "calls": lesson.calls,
        "uplift": lesson.uplift._asdict(),
        "sources": [{"ref": source.ref, "by": source.by, "up": up} for source, up in sources],
    }


def from_json(record: object, source: str) -> Add:
    """The delta that adds a lesson from a JSON object.

    Where its sources came from cannot be looked up here, so that they count as one source: the file.

    Raises:
        InvalidLessonError: it is none.
    """
    if not isinstance(record, dict):
        raise InvalidLessonError(f"A lesson is a JSON object, not {type(record).__name__}.")
    if record.get("format", FORMAT) != FORMAT:
        raise InvalidLessonError(f"The format {record['format']!r} is not known; this Relive reads {FORMAT}.")
    agent = record.get("agent")
    if agent is not None and not isinstance(agent, str):
        raise InvalidLessonError("A lesson's agent must be a text or null.")
    try:
        text = msgspec.convert({name: record[name] for name in _TEXT if name in record}, LessonText)
    except msgspec.ValidationError as error:
        raise InvalidLessonError(f"Not a lesson: {error}") from error
    mark = hashlib.blake2b(msgspec.json.encode([text, agent]), digest_size=8).hexdigest()
    ref = f"import:{source[:100]}:{mark}"
    return Add(text=text, agent=agent, sources=(Source(ref=ref, by=f"import:{source[:100]}"),), origin="import")
