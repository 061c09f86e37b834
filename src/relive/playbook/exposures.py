"""What prompts held, and what came of it: from the records of calls to the uplift of each lesson.

A call that had lessons to choose from says so in its record (``info.injected``, see `injection`): which lessons were
eligible, which of them it was shown, and with what chance. The record is all there is; nothing else is written while an
agent waits. Here those records are followed by the store's change number and become rows of two tables: `exposure` (one
a lesson and episode, for the uplift) and `given` (one a call and thing shown, for lineage).

An episode counts once for a lesson, as it was first assigned, whatever came later (analysed as assigned). Its outcome
is that of the newest of its experiences whose outcome is known: 1 for success, 0 for failure; an unknown outcome counts
as neither, and is waited for.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import apsw
import msgspec
import numpy as np

from relive.experience import now
from relive.playbook import shelf, uplift
from relive.playbook.changes import Author
from relive.playbook.lesson import Uplift
from relive.playbook.uplift import Rules
from relive.storage.connection import fetch
from relive.storage.playbook_tables import distrusted
from relive.storage.record import OUTCOME_NUMBERS, microseconds
from relive.storage.stored import Stored
from relive.storage.transaction import Transaction

FACT = "injected"
"""The field of a record's ``info`` that says what its prompt held."""

BOOK = 0
"""Stands for the whole book where a lesson's id is expected."""

TRIAL = -1
"""Stands for an experiment there: its number is in place of the version, the variant in place of whether shown."""

LESSON, EXPERIENCE = 0, 1
"""Kinds of things that a prompt is given."""

_FOLLOWED = "playbook_followed"
_MARKS = re.compile(b'"injected":|"recalled":\\[\\[')  # in the JSON of a record that is of interest here
_PART = 2_000  # experiences looked at in one transaction
_REVIEWER = Author("uplift", person=False)


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """One eligible lesson of a call: id and version, its distance, whether it was shown and with what chance."""

    lesson: int
    version: int
    distance: float | None
    shown: bool
    propensity: float


class Injected(msgspec.Struct, frozen=True, kw_only=True):
    """What a call's record says about its prompt.

    Attributes:
        episode: What assignments were made by: the episode, or the conversation where none was named.
        tenant: Whose book.
        agent: Who asked.
        book: Whether the book was used at all, and the chance that it was; ``None``: nothing in it was near enough.
        lessons: Those that were eligible; none if the book was held out.
        experiences: Id and distance of each past success that was shown.
        tokens: How long the block was, estimated.
        trial: The experiment's number, the position of the episode's variant, and the chance of it; see `experiment`.
    """

    episode: str
    tenant: str
    agent: str
    book: tuple[bool, float] | None = None
    lessons: tuple[Shown, ...] = ()
    experiences: tuple[tuple[int, float | None], ...] = ()
    tokens: int = 0
    trial: tuple[int, int, float | None] | None = None


class Followed(msgspec.Struct, frozen=True):
    """What came of following the store.

    Attributes:
        experiences: How many were looked at.
        exposures: Eligible episodes that were new.
        settled: Exposures whose outcome became known or changed.
        reviewed: Lessons whose uplift was estimated anew.
        proved: Lessons whose uplift was proved now.
        retired: Lessons that were retired for what they are worth.
        complete: False: there is more to follow.
    """

    experiences: int = 0
    exposures: int = 0
    settled: int = 0
    reviewed: int = 0
    proved: tuple[int, ...] = ()
    retired: tuple[int, ...] = ()
    complete: bool = True


def follow(transaction: Transaction, rules: Rules) -> Followed:
    """Takes in what happened since the last time, at most `_PART` experiences, and reviews the lessons concerned."""
    connection = transaction.connection
    since, after, target = remembered(connection, _FOLLOWED) or (0, 0, None)
    changes = transaction.changes(since)
    number = changes.number if target is None else target  # what a part began with; later changes come next time
    ids = sorted({*changes.added, *changes.rewarded})
    if not changes.complete:
        ids = [row[0] for row in fetch(connection, "SELECT id FROM experience ORDER BY id")]
    ids = [one for one in ids if one > after]
    part, complete = ids[:_PART], len(ids) <= _PART
    dirty: set[int] = set()
    exposures = settled = 0
    for stored in transaction.read(part):
        if stored is None or _MARKS.search(stored.json()) is None:
            continue
        info = stored.transition.info
        _give(connection, stored.id, [(EXPERIENCE, one, None) for one in recalled_in(info)])
        injected = injected_of(info)
        if injected is None or distrusted(connection, [stored.id]):
            continue
        exposures += _expose(connection, stored, injected, dirty)
        settled += _settle(connection, stored, injected, number, dirty)
    remember(connection, _FOLLOWED, [number, 0, None] if complete else [since, part[-1], number])
    proved, retired = review(transaction, sorted(dirty), rules)
    return Followed(len(part), exposures, settled, len(dirty), proved, retired, complete)


def injected_of(info: Any) -> Injected | None:
    """What a record's ``info`` says about its prompt; ``None``: nothing that can be read."""
    value = info.get(FACT) if isinstance(info, dict) else None
    try:
        return msgspec.convert(value, Injected)
    except msgspec.ValidationError:
        return None


def recalled_in(info: Any) -> list[int]:
    """The past successes that an agent's prompt held as example turns."""
    value = info.get("recalled") if isinstance(info, dict) else None
    return [
        one[0]
        for one in (value if isinstance(value, list) else [])
        if isinstance(one, list) and one and isinstance(one[0], int)
    ]


def review(transaction: Transaction, numbers: Sequence[int], rules: Rules) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Estimates the uplift of lessons anew, and settles or retires them; returns those proved, and those retired."""
    connection = transaction.connection
    proved: list[int] = []
    retired: list[int] = []
    for number in numbers:
        lesson = shelf.read(connection, [number])[0]
        if lesson is None:  # it is gone, or `BOOK` or `TRIAL`
            continue
        evidence = evidence_of(connection, number, lesson.version)
        interval = uplift.interval(evidence, alpha=rules.alpha)
        found, calls = Uplift(*map(float, interval)), int(evidence.calls)
        connection.execute(
            """UPDATE lesson SET calls = ?, effect = ?, low = ?, high = ?, error = ?,
            uses = (SELECT count(*) FROM exposure WHERE lesson_id = lesson.id AND shown) WHERE id = ?""",
            (calls, *found, number),
        )
        if lesson.status != "active":
            continue
        verdict = uplift.VERDICTS[uplift.judge(evidence, rules, lesson.proved, interval)]
        if verdict == "proved" and not lesson.proved:
            connection.execute("UPDATE lesson SET proved = 1 WHERE id = ?", (number,))
            shelf.note(connection, number, "prove", _REVIEWER.name, _says(found, calls))
            transaction.audit("lesson", who=_REVIEWER.name, target=f"lesson {number}", after={"proved": True})
            proved.append(number)
        elif verdict in ("harmful", "useless"):
            reason = f"Found {verdict}: {_says(found, calls)}"
            shelf.set_status(connection, number, "retired", "retire", _REVIEWER.name, reason)
            transaction.audit(
                "lesson",
                who=_REVIEWER.name,
                target=f"lesson {number}",
                before={"status": lesson.status},
                after={"status": "retired", "reason": reason},
            )
            retired.append(number)
    return tuple(proved), tuple(retired)


def evidence_of(
    connection: apsw.Connection, number: int, version: int, *, tenant: str | None = None, agent: str | None = None
) -> uplift.Evidence:
    """What the eligible episodes of a lesson add up to, in the order in which their outcomes became known.

    Args:
        connection: Any connection.
        number: The lesson; `BOOK`: the whole book, whose version is 0.
        version: The version of its text.
        tenant: Only this tenant's; for the book.
        agent: Only this agent's episodes.
    """
    terms = ""
    values: list[Any] = [number, version]
    for column, value in (("tenant", tenant), ("agent", agent)):
        if value is not None:
            terms += f" AND {column} = ?"
            values.append(value)
    rows = fetch(
        connection,
        f"""SELECT shown, propensity, outcome FROM exposure WHERE lesson_id = ? AND version = ? {terms}
        AND known IS NOT NULL AND propensity > 0 AND propensity < 1 ORDER BY known, id""",  # noqa: S608 - own terms
        values,
    )
    if not rows:
        return uplift.NOTHING
    shown, propensity, outcome = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    return uplift.gather(shown > 0, propensity, outcome)


def remembered(connection: apsw.Connection, name: str) -> Any:
    """A setting of the book; ``None``: it was never set."""
    text = connection.execute("SELECT value FROM setting WHERE name = ?", (name,)).get
    return None if text is None else msgspec.json.decode(text)


def remember(connection: apsw.Connection, name: str, value: Any) -> None:
    """Keeps a setting of the book."""
    connection.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (name, msgspec.json.encode(value).decode()))


def _expose(connection: apsw.Connection, stored: Stored, injected: Injected, dirty: set[int]) -> int:
    before = connection.total_changes()
    at = microseconds(now())
    rows: list[tuple[int, int, int, float, float | None]] = [
        (one.lesson, one.version, one.shown, one.propensity, one.distance) for one in injected.lessons
    ]
    if injected.book is not None:
        rows.append((BOOK, 0, *injected.book, None))
    if injected.trial is not None:
        number, variant, chance = injected.trial
        rows.append((TRIAL, number, variant, 1.0 if chance is None else chance, None))
    connection.executemany(
        """INSERT OR IGNORE INTO exposure(lesson_id, version, episode, tenant, agent, shown, propensity, distance,
        experience_id, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        [
            (number, version, injected.episode, injected.tenant, injected.agent, shown, p, distance, stored.id, at)
            for number, version, shown, p, distance in rows
        ],
    )
    added = connection.total_changes() - before
    _give(connection, stored.id, [(LESSON, one.lesson, one.distance) for one in injected.lessons if one.shown])
    _give(connection, stored.id, [(EXPERIENCE, number, distance) for number, distance in injected.experiences])
    if added:
        dirty.update(s.lesson for s in injected.lessons)
    return added


def _give(connection: apsw.Connection, number: int, given: Iterable[tuple[int, int, float | None]]) -> None:
    """Notes what the prompt of an experience held."""
    connection.executemany(
        "INSERT OR IGNORE INTO given(experience_id, kind, ref, distance) VALUES (?, ?, ?, ?)",
        [(number, *one) for one in given],
    )


def _settle(connection: apsw.Connection, stored: Stored, injected: Injected, number: int, dirty: set[int]) -> int:
    if stored.outcome == "unknown" or _later_is_known(connection, stored):
        return 0
    outcome = 1.0 if stored.outcome == "success" else 0.0
    where = "episode = ? AND tenant = ? AND agent = ? AND outcome IS NOT ?"
    values = (injected.episode, injected.tenant, injected.agent, outcome)
    touched = fetch(connection, f"SELECT lesson_id FROM exposure WHERE {where}", values)  # noqa: S608 - own terms
    connection.execute(
        f"UPDATE exposure SET outcome = ?, known = coalesce(known, ?) WHERE {where}",  # noqa: S608 - own terms
        (outcome, number, *values),
    )
    dirty.update(row[0] for row in touched)
    return len(touched)


def _later_is_known(connection: apsw.Connection, stored: Stored) -> bool:
    """Whether the outcome of a later experience of the same episode is known, which is the one that counts."""
    one = stored.transition
    found = connection.execute(
        "SELECT 1 FROM experience WHERE episode_id = ? AND agent = ? AND id > ? AND outcome != ? LIMIT 1",
        (one.episode_id, one.agent, stored.id, OUTCOME_NUMBERS["unknown"]),
    ).get
    return found is not None


def _says(found: Uplift, calls: int) -> str:
    return (
        f"{100 * found.estimate:+.1f} points of success ({100 * found.low:+.1f} to {100 * found.high:+.1f}) "
        f"over {calls:,} eligible episodes."
    )
