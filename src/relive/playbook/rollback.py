"""Takes back everything that came from an experience, an agent or a time span, through prompts already given.

What is bad spreads in two steps, over and over: an experience supports a lesson, and a lesson (or the experience
itself, as an example) stands in the prompt of later experiences, which support further lessons. Both steps are stored
(`lesson_source`, `given`), so the whole spread can be found. Then

- every experience reached is *distrusted*: nothing is learnt from it again, and it is shown to nobody;
- it no longer supports any lesson; a lesson that has no support left is retired, one that has some is a candidate again
  until it has been looked at or supported anew;
- exposures of distrusted experiences leave the evidence for uplifts.

A lesson that a person approved stays in use if other sources still support it, or if it never had any.
"""

from datetime import datetime

import apsw
import msgspec

from relive.experience import now
from relive.playbook import exposures, shelf
from relive.playbook.changes import Author
from relive.playbook.exposures import EXPERIENCE, LESSON
from relive.playbook.lesson import InvalidLessonError
from relive.playbook.uplift import Rules
from relive.storage.connection import fetch
from relive.storage.record import microseconds
from relive.storage.transaction import Transaction


class Origins(msgspec.Struct, frozen=True, kw_only=True):
    """Where what is to be taken back began; what is given must all hold.

    Attributes:
        experience: This experience.
        agent: The experiences of this agent.
        since: What happened at this time or later, UTC.
        until: What happened before this time.
    """

    experience: int | None = None
    agent: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class RolledBack(msgspec.Struct, frozen=True):
    """What was taken back.

    Attributes:
        experiences: Ids of the experiences that are distrusted now, those it began with included.
        retired: Lessons without any support left.
        candidates: Lessons that lost some of their support and are candidates again.
        weakened: Other lessons that lost support.
    """

    experiences: tuple[int, ...]
    retired: tuple[int, ...]
    candidates: tuple[int, ...]
    weakened: tuple[int, ...]


def spread(connection: apsw.Connection, origins: Origins) -> tuple[set[int], set[int]]:
    """Experiences and lessons that came from the origins, directly or through prompts; nothing is changed.

    Raises:
        InvalidLessonError: nothing is given.
    """
    reached = _begin(connection, origins)
    lessons: set[int] = set()
    fresh = set(reached)
    while fresh:
        learnt = _of(connection, "SELECT lesson_id FROM lesson_source WHERE experience_id = ? AND weight > 0", fresh)
        learnt -= lessons
        lessons |= learnt
        led = _of(connection, f"SELECT experience_id FROM given WHERE kind = {LESSON} AND ref = ?", learnt)  # noqa: S608
        shown = _of(connection, f"SELECT experience_id FROM given WHERE kind = {EXPERIENCE} AND ref = ?", fresh)  # noqa: S608
        fresh = (led | shown) - reached
        reached |= fresh
    return reached, lessons


def roll_back(transaction: Transaction, origins: Origins, author: Author, rules: Rules) -> RolledBack:
    """Takes back what came from the origins; see the module. Doing it again changes nothing more."""
    connection = transaction.connection
    reached, lessons = spread(connection, origins)
    at, ids = microseconds(now()), sorted(reached)
    what = _named(origins)
    connection.executemany(
        "INSERT OR IGNORE INTO distrusted VALUES (?, ?, ?)", [(n, at, f"Rolled back with {what}.") for n in ids]
    )
    exposed = _of(connection, "SELECT lesson_id FROM exposure WHERE experience_id = ?", reached)
    for table in ("lesson_source", "exposure"):
        connection.executemany(f"DELETE FROM {table} WHERE experience_id = ?", [(n,) for n in ids])  # noqa: S608
    retired: list[int] = []
    candidates: list[int] = []
    weakened: list[int] = []
    reason = f"Rolled back with {what}."
    for number in sorted(lessons):
        shelf.count_support(connection, number)
        lesson = shelf.read(connection, [number])[0]
        if lesson is None:
            continue
        if not lesson.support and lesson.status != "retired":
            shelf.set_status(connection, number, "retired", "rollback", author.name, reason)
            retired.append(number)
        elif lesson.status == "active" and not _approved(connection, number):
            shelf.set_status(connection, number, "candidate", "rollback", author.name, reason)
            candidates.append(number)
        else:
            weakened.append(number)
    exposures.review(transaction, sorted(exposed | lessons), rules)
    transaction.audit(
        "rollback",
        who=author.name,
        target=what,
        after={"experiences": len(ids), "retired": retired, "candidates": candidates, "weakened": weakened},
    )
    return RolledBack(tuple(ids), tuple(retired), tuple(candidates), tuple(weakened))


def _begin(connection: apsw.Connection, origins: Origins) -> set[int]:
    given = {
        "id = ?": origins.experience,
        "agent = ?": origins.agent,
        "created_at >= ?": None if origins.since is None else microseconds(origins.since),
        "created_at < ?": None if origins.until is None else microseconds(origins.until),
    }
    terms = {term: value for term, value in given.items() if value is not None}
    if not terms:
        raise InvalidLessonError("Say what to roll back: an experience, an agent, or a time span.")
    rows = fetch(connection, f"SELECT id FROM experience WHERE {' AND '.join(terms)}", tuple(terms.values()))  # noqa: S608
    found = {row[0] for row in rows}
    if origins.experience is not None and len(terms) == 1:
        found.add(origins.experience)  # it may have been evicted, and its lessons still be there
    return found


def _of(connection: apsw.Connection, statement: str, numbers: set[int]) -> set[int]:
    return {row[0] for number in numbers for row in connection.execute(statement, (number,))}


def _approved(connection: apsw.Connection, number: int) -> bool:
    """Whether a person approved the lesson as it is now."""
    return (
        connection.execute(
            """SELECT 1 FROM lesson_version v JOIN lesson l ON l.id = v.lesson_id
            WHERE v.lesson_id = ? AND v.change = 'approve' AND v.version = l.version""",
            (number,),
        ).get
        is not None
    )


def _named(origins: Origins) -> str:
    parts = [f"experience {origins.experience}"] if origins.experience is not None else []
    parts += ["an agent's experiences"] if origins.agent is not None else []
    parts += [f"what happened since {origins.since:%Y-%m-%d %H:%M} UTC"] if origins.since else []
    parts += [f"what happened until {origins.until:%Y-%m-%d %H:%M} UTC"] if origins.until else []
    return ", ".join(parts)
