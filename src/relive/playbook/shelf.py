"""Lessons as rows: reading them, writing them, and the history of each, inside whatever transaction is given."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import apsw
import msgspec

from relive.experience import now
from relive.playbook.lesson import STATUSES, Add, InvalidLessonError, Lesson, LessonText, Source, Status, Uplift
from relive.playbook.likeness import identity
from relive.storage.connection import fetch
from relive.storage.record import microseconds, moment
from relive.storage.text import tokens

_SELECT = """SELECT l.id, l.version, l.text, l.status, l.reason, l.agent, l.tenant, l.origin, l.support, l.opposed,
    l.uses, l.proved, l.calls, l.effect, l.low, l.high, l.error, l.created_at, l.updated_at FROM lesson l"""

_ALL = -1
"""As a limit: none."""

_FOR, _AGAINST, _ORIGIN = 1, -1, 2
"""Weights of sources; all above 0 are what a lesson comes from, and only the first is support."""


class Version(msgspec.Struct, frozen=True):
    """One entry of a lesson's history.

    Attributes:
        version: Its text's version.
        status: Its status from then on.
        change: What was done: add, edit, merge, vote, retire, approve, quarantine, promote, prove, rollback.
        who: Who did it.
        at: When, UTC.
        text: What it said from then on.
        reason: Why, in one sentence; empty: nothing was said.
    """

    version: int
    status: Status
    change: str
    who: str
    at: datetime
    text: LessonText
    reason: str


class Scope(NamedTuple):
    """Whose lessons: those of a tenant, of one agent (``""``: those shared by all)."""

    tenant: str
    agent: str


def read(connection: apsw.Connection, numbers: Sequence[int]) -> list[Lesson | None]:
    """Lessons by id; ``None`` where there is none."""
    found: dict[int, Lesson] = {}
    for number in set(numbers):
        rows = fetch(connection, f"{_SELECT} WHERE l.id = ?", (number,))
        if rows:
            found[number] = _lesson(rows[0])
    return [found.get(number) for number in numbers]


def require(connection: apsw.Connection, number: int, tenant: str) -> Lesson:
    """A lesson of this tenant.

    Raises:
        InvalidLessonError: there is none of this id.
    """
    lesson = read(connection, [number])[0]
    if lesson is None or lesson.tenant != tenant:
        raise InvalidLessonError(f"There is no lesson {number}; `relive lessons list` shows those there are.")
    return lesson


def listing(
    connection: apsw.Connection,
    tenant: str,
    *,
    status: Status | None = None,
    agent: str | None = None,
    after: int | None = None,
    limit: int = 100,
    newest_first: bool = False,
) -> list[Lesson]:
    """One page of lessons in the order of their ids.

    Args:
        connection: Any connection.
        tenant: Whose.
        status: Only with this status.
        agent: Only what this agent may be shown: its own and the shared ones; ``None``: all.
        after: Only ids above this one (below it, if `newest_first`).
        limit: At most so many.
        newest_first: In falling order of ids.
    """
    terms: list[str] = ["l.tenant = ?"]
    values: list[Any] = [tenant]
    if after is not None:
        terms.append("l.id < ?" if newest_first else "l.id > ?")
        values.append(after)
    if status is not None:
        terms.append("l.status = ?")
        values.append(STATUSES.index(status))
    if agent is not None:
        terms.append("l.agent IN (?, '')")
        values.append(agent)
    where = " AND ".join(terms)
    order = "DESC" if newest_first else "ASC"
    rows = fetch(connection, f"{_SELECT} WHERE {where} ORDER BY l.id {order} LIMIT ?", (*values, limit))
    return [_lesson(row) for row in rows]


def most_useful(connection: apsw.Connection, tenant: str, limit: int) -> list[Lesson]:
    """The lessons in use that helped most for sure: those whose interval begins highest, the highest first."""
    rows = fetch(
        connection,
        f"""{_SELECT} WHERE l.status = ? AND l.tenant = ? AND l.calls > 0
        ORDER BY l.low DESC, l.effect DESC, l.id LIMIT ?""",
        (STATUSES.index("active"), tenant, limit),
    )
    return [_lesson(row) for row in rows]


def history(connection: apsw.Connection, number: int, *, limit: int = _ALL) -> list[Version]:
    """What happened to a lesson, the oldest first; `limit`: only the newest so many entries."""
    return [
        Version(version, STATUSES[status], change, who, moment(at), msgspec.json.decode(text, type=LessonText), reason)
        for version, status, change, who, at, text, reason in fetch(
            connection,
            """SELECT version, status, change, who, at, text, reason FROM (
            SELECT * FROM lesson_version WHERE lesson_id = ? ORDER BY id DESC LIMIT ?) ORDER BY id""",
            (number, limit),
        )
    ]


def sources(connection: apsw.Connection, number: int, *, limit: int = _ALL) -> list[tuple[Source, bool]]:
    """What speaks for a lesson (True) and against it (False), in the order in which it came, at most so many."""
    rows = fetch(
        connection,
        "SELECT ref, who, experience_id, episode_id, weight FROM lesson_source WHERE lesson_id = ? ORDER BY id LIMIT ?",
        (number, limit),
    )
    return [
        (Source(ref=r, by=w, experience_id=e, episode_id=p, counts=weight != _ORIGIN), weight > 0)
        for r, w, e, p, weight in rows
    ]


def same(connection: apsw.Connection, scope: Scope, text: LessonText) -> int | None:
    """Id of the lesson that says the same in this scope; ``None``: there is none."""
    found: int | None = connection.execute(
        "SELECT id FROM lesson WHERE tenant = ? AND agent = ? AND identity = ?",
        (scope.tenant, scope.agent, identity(text)),
    ).get
    return found


def insert(connection: apsw.Connection, tenant: str, add: Add, status: Status, reason: str, who: str) -> int:
    """Writes a new lesson and returns its id; the caller has looked whether it is there already."""
    at, text = microseconds(now()), _json(add.text)
    connection.execute(
        """INSERT INTO lesson(tenant, agent, identity, status, version, text, origin, reason, support, opposed, uses,
        proved, calls, effect, low, high, error, created_at, updated_at)
        VALUES (?, ?, ?, ?, 1, ?, ?, ?, 0, 0, 0, 0, 0, 0.0, -1.0, 1.0, 1.0, ?, ?)""",
        (tenant, add.agent or "", identity(add.text), STATUSES.index(status), text, add.origin, reason, at, at),
    )
    number = connection.last_insert_rowid()
    index(connection, number, add.text)
    note(connection, number, "add", who, reason)
    return number


def set_text(connection: apsw.Connection, number: int, text: LessonText) -> None:
    """Gives a lesson another text: a new version, about which nothing is known yet.

    Raises:
        InvalidLessonError: another lesson of its scope says this already.
    """
    try:
        connection.execute(
            """UPDATE lesson SET text = ?, identity = ?, version = version + 1, proved = 0, calls = 0, effect = 0.0,
            low = -1.0, high = 1.0, error = 1.0 WHERE id = ?""",
            (_json(text), identity(text), number),
        )
    except apsw.ConstraintError:
        raise InvalidLessonError(f"Another lesson says this already; merge lesson {number} into it instead.") from None
    connection.execute("DELETE FROM lesson_vector WHERE id = ?", (number,))
    index(connection, number, text)


def set_status(connection: apsw.Connection, number: int, status: Status, change: str, who: str, reason: str) -> None:
    """Gives a lesson a status, and notes who did it and why."""
    connection.execute(
        "UPDATE lesson SET status = ?, reason = ? WHERE id = ?", (STATUSES.index(status), reason, number)
    )
    note(connection, number, change, who, reason)


def note(connection: apsw.Connection, number: int, change: str, who: str, reason: str = "") -> None:
    """Adds to a lesson's history what was done, with its text and status as they are now."""
    at = microseconds(now())
    connection.execute("UPDATE lesson SET updated_at = ? WHERE id = ?", (at, number))
    connection.execute(
        """INSERT INTO lesson_version(lesson_id, version, status, change, who, at, text, reason)
        SELECT id, version, status, ?, ?, ?, text, ? FROM lesson WHERE id = ?""",
        (change, who, at, reason, number),
    )


def index(connection: apsw.Connection, number: int, text: LessonText) -> None:
    """Makes a lesson findable by its words."""
    connection.execute("DELETE FROM lesson_text WHERE rowid = ?", (number,))
    words = " ".join(tokens(f"{text.when} {text.title} {text.do}"))
    connection.execute("INSERT INTO lesson_text(rowid, words) VALUES (?, ?)", (number, words))


def support(connection: apsw.Connection, number: int, given: Sequence[Source], *, up: bool = True) -> int:
    """Adds sources to a lesson, each name once, and counts anew; returns how many were new.

    One that was only an origin becomes support, or speaks against it, when it is named as that.
    """
    at, before = microseconds(now()), connection.total_changes()
    connection.executemany(
        f"""INSERT INTO lesson_source(lesson_id, ref, who, experience_id, episode_id, weight, at)
        VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT(lesson_id, ref) DO UPDATE SET weight = excluded.weight
        WHERE weight = {_ORIGIN} AND excluded.weight != {_ORIGIN}""",  # noqa: S608 - own numbers
        [
            (
                number,
                s.ref,
                s.by,
                s.experience_id,
                s.episode_id,
                _AGAINST if not up else _FOR if s.counts else _ORIGIN,
                at,
            )
            for s in given
        ],
    )
    added = connection.total_changes() - before
    count_support(connection, number)
    return added


def no_support(connection: apsw.Connection, number: int) -> None:
    """Makes origins of all that supported a lesson: it spoke for another text."""
    connection.execute(
        f"UPDATE lesson_source SET weight = {_ORIGIN} WHERE lesson_id = ? AND weight = {_FOR}",  # noqa: S608 - own numbers
        (number,),
    )
    count_support(connection, number)


def count_support(connection: apsw.Connection, number: int) -> None:
    """Counts the sources for and against a lesson anew."""
    connection.execute(
        f"""UPDATE lesson SET
        support = (SELECT count(*) FROM lesson_source WHERE lesson_id = lesson.id AND weight = {_FOR}),
        opposed = (SELECT count(*) FROM lesson_source WHERE lesson_id = lesson.id AND weight = {_AGAINST})
        WHERE id = ?""",  # noqa: S608 - own numbers
        (number,),
    )


def independent(connection: apsw.Connection, number: int) -> tuple[int, int, int]:
    """Supporting episodes of a lesson, the agents they come from, and the sources against it."""
    episodes, agents, opposed = fetch(
        connection,
        f"""SELECT count(DISTINCT CASE WHEN weight = {_FOR} THEN coalesce(episode_id, ref) END),
        count(DISTINCT CASE WHEN weight = {_FOR} AND who != '' THEN who END), sum(weight = {_AGAINST})
        FROM lesson_source WHERE lesson_id = ?""",  # noqa: S608 - own numbers
        (number,),
    )[0]
    return episodes, agents, opposed or 0


def _json(text: LessonText) -> str:
    return msgspec.json.encode(text).decode()


def _lesson(row: tuple[Any, ...]) -> Lesson:
    (number, version, text, status, reason, agent, tenant, origin, support_, opposed, uses, proved, calls, *rest) = row
    effect, low, high, error, created_at, updated_at = rest
    return Lesson(
        id=number,
        version=version,
        text=msgspec.json.decode(text, type=LessonText),
        status=STATUSES[status],
        reason=reason,
        agent=agent or None,
        tenant=tenant,
        origin=origin,
        support=support_,
        opposed=opposed,
        uses=uses,
        proved=bool(proved),
        calls=calls,
        uplift=Uplift(effect, low, high, error),
        created_at=moment(created_at),
        updated_at=moment(updated_at),
    )
