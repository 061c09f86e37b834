"""Applies typed deltas to the book, inside one write transaction. Code decides; whoever proposed only proposed.

Invariants: nothing known is ever deleted by adding (a lesson that says the same gains the new one's sources); nobody
but a person makes an active lesson of one that is quarantined or retired, or takes one out of use (what is measured
does, see `exposures`); support counts for the text that it was given for, so neither an edit nor a merge by a model
carries it to another text; every change of status has an entry in the lesson's history and in the store's audit, which
holds ids and reasons but no text.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from relive.playbook import shelf, trust
from relive.playbook.lesson import (
    Add,
    Approve,
    Delta,
    Edit,
    InvalidLessonError,
    Lesson,
    LessonText,
    Merge,
    Quarantine,
    Retire,
    Source,
    Vote,
)
from relive.playbook.likeness import likeness
from relive.playbook.retrieval import search
from relive.playbook.shelf import Scope
from relive.playbook.trust import Trust
from relive.storage.playbook_tables import distrusted
from relive.storage.transaction import Transaction

What = Literal["added", "merged", "known", "changed", "refused"]

_LOOKED_AT = 8  # lessons that a new one is compared with
_READ = 20  # supporting experiences whose outside text is looked through


class Applied(msgspec.Struct, frozen=True):
    """What became of a delta.

    Attributes:
        what: ``added``: a new lesson; ``merged``: its sources went to one that says nearly the same; ``known``: nothing
            new; ``changed``: done; ``refused``: not done, see `reason`.
        lesson: The lesson; ``None``: refused.
        reason: Why it was refused or quarantined; empty: nothing is to be said.
    """

    what: What
    lesson: int | None
    reason: str = ""


class Author(NamedTuple):
    """Who changes the book.

    Attributes:
        name: For the history and the audit.
        person: Only people approve, and bring back what was retired or quarantined.
    """

    name: str
    person: bool


def apply(
    transaction: Transaction, deltas: Sequence[Delta], *, tenant: str, author: Author, trusted: Trust
) -> list[Applied]:
    """Applies deltas in order.

    Raises:
        InvalidLessonError: one of them names a lesson that is not there; nothing is done then.
    """
    return [_one(transaction, delta, tenant, author, trusted) for delta in deltas]


def _one(transaction: Transaction, delta: Delta, tenant: str, author: Author, trusted: Trust) -> Applied:
    if trusted.autonomy == 1 and not author.person:
        return Applied("refused", None, "Autonomy 1 only records: lessons are written by people.")
    if isinstance(delta, Approve) and not author.person:
        return Applied("refused", None, "Only a person approves a lesson.")
    if isinstance(delta, Add):
        return _add(transaction, delta, tenant, author, trusted)
    lesson = shelf.require(transaction.connection, delta.lesson, tenant)
    if isinstance(delta, Edit | Retire) and lesson.status == "active" and not author.person:
        return _in_use(lesson)
    if isinstance(delta, Edit):
        return _edit(transaction, lesson, delta.text, author)
    if isinstance(delta, Merge):
        return _merge(transaction, lesson, delta.other, tenant, author, trusted)
    if isinstance(delta, Vote):
        added = shelf.support(transaction.connection, lesson.id, [_dated(transaction, delta.source)], up=delta.up)
        if added:
            shelf.note(transaction.connection, lesson.id, "vote", author.name, "" if delta.up else "against")
            promote(transaction, lesson.id, author, trusted)
        return Applied("changed" if added else "known", lesson.id)
    if isinstance(delta, Retire):
        return _status(transaction, lesson, "retired", "retire", author, delta.reason)
    if isinstance(delta, Quarantine):
        return _status(transaction, lesson, "quarantined", "quarantine", author, delta.reason)
    return _status(transaction, lesson, "active", "approve", author, f"Approved by {author.name}.")


def promote(transaction: Transaction, number: int, author: Author, trusted: Trust) -> bool:
    """Makes a candidate active if it has the support that it needs; returns whether it did."""
    connection = transaction.connection
    lesson = shelf.read(connection, [number])[0]
    if lesson is None or lesson.status != "candidate":
        return False
    episodes, agents, opposed = shelf.independent(connection, number)
    if not trusted.activates(episodes, agents, opposed):
        return False
    if why := _danger(transaction, number, lesson.text):  # its later sources may show where its words come from
        _status(transaction, lesson, "quarantined", "quarantine", author, why)
        return False
    reason = f"Supported by {episodes} episodes of {agents} agents."
    _status(transaction, lesson, "active", "promote", author, reason)
    return True


def _add(transaction: Transaction, add: Add, tenant: str, author: Author, trusted: Trust) -> Applied:
    connection = transaction.connection
    scope = Scope(tenant, add.agent or "")
    given = [_dated(transaction, source) for source in add.sources]
    known = shelf.same(connection, scope, add.text)
    near = known or _near(transaction, scope, add.text)
    if near is not None:
        added = shelf.support(connection, near, given)
        if added:
            shelf.note(connection, near, "merge", author.name)
            promote(transaction, near, author, trusted)
        return Applied("merged" if added else "known", near)
    number = shelf.insert(connection, tenant, add, "candidate", "", author.name)
    shelf.support(connection, number, given)
    transaction.audit("lesson", who=author.name, target=f"lesson {number}", after={"status": "candidate"})
    danger = _danger(transaction, number, add.text)
    if danger:
        lesson = shelf.require(connection, number, tenant)
        _status(transaction, lesson, "quarantined", "quarantine", author, danger)
    else:
        promote(transaction, number, author, trusted)
    return Applied("added", number, danger)


def _near(transaction: Transaction, scope: Scope, text: LessonText) -> int | None:
    """A lesson of exactly this scope that says nearly the same."""
    found = search(
        transaction.connection,
        f"{text.when} {text.do}",
        tenant=scope.tenant,
        agent=scope.agent or None,
        status=None,
        limit=_LOOKED_AT,
    )
    for one in found:
        if (one.lesson.agent or "") == scope.agent and likeness(one.lesson.text, text) == "near":
            return one.lesson.id
    return None


def _edit(transaction: Transaction, lesson: Lesson, text: LessonText, author: Author) -> Applied:
    if lesson.text == text:
        return Applied("known", lesson.id)
    connection = transaction.connection
    if lesson.status in ("retired", "quarantined") and not author.person:
        return Applied("refused", lesson.id, f"Lesson {lesson.id} is {lesson.status}; only a person may change it.")
    shelf.set_text(connection, lesson.id, text)
    if not author.person:
        shelf.no_support(connection, lesson.id)
    danger = _danger(transaction, lesson.id, text)
    status = lesson.status if author.person else "candidate"
    if danger:
        status = "quarantined"
    shelf.set_status(connection, lesson.id, status, "edit", author.name, danger)
    _audit(transaction, lesson, status, author, danger or "Its text was changed.")
    return Applied("changed", lesson.id, danger)


def _merge(
    transaction: Transaction, lesson: Lesson, other: int, tenant: str, author: Author, trusted: Trust
) -> Applied:
    gone = shelf.require(transaction.connection, other, tenant)
    if gone.id == lesson.id:
        raise InvalidLessonError(f"Lesson {other} cannot be merged with itself.")
    if gone.agent != lesson.agent:
        return Applied("refused", lesson.id, "Lessons of different agents are kept apart.")
    if "quarantined" in (gone.status, lesson.status) and not author.person:
        return Applied("refused", lesson.id, "A lesson in quarantine is merged by a person only.")
    if gone.status == "active" and not author.person:
        return _in_use(gone)
    for source, up in shelf.sources(transaction.connection, other):
        taken = source if author.person else msgspec.structs.replace(source, counts=False)
        shelf.support(transaction.connection, lesson.id, [taken], up=up)
    shelf.note(transaction.connection, lesson.id, "merge", author.name, f"Took in lesson {other}.")
    _status(transaction, gone, "retired", "merge", author, f"Merged into lesson {lesson.id}.")
    promote(transaction, lesson.id, author, trusted)
    return Applied("changed", lesson.id)


def _in_use(lesson: Lesson) -> Applied:
    return Applied("refused", lesson.id, f"Lesson {lesson.id} is in use; only a person, or its uplift, takes it out.")


def _status(
    transaction: Transaction,
    lesson: Lesson,
    status: Literal["active", "retired", "quarantined"],
    change: str,
    author: Author,
    reason: str,
) -> Applied:
    if lesson.status == status:
        return Applied("known", lesson.id)
    shelf.set_status(transaction.connection, lesson.id, status, change, author.name, reason)
    _audit(transaction, lesson, status, author, reason)
    return Applied("changed", lesson.id, reason)


def _audit(transaction: Transaction, lesson: Lesson, status: str, author: Author, reason: str) -> None:
    transaction.audit(
        "lesson",
        who=author.name,
        target=f"lesson {lesson.id}",
        before={"status": lesson.status},
        after={"status": status, "reason": reason},
    )


def _dated(transaction: Transaction, source: Source) -> Source:
    """A source with the agent and episode of its experience, as the store knows them; what others claim is not used.

    What a rollback reached supports nothing any more.
    """
    if source.experience_id is None:
        return source
    stored = transaction.read([source.experience_id])[0]
    if stored is None:
        return msgspec.structs.replace(source, by="", episode_id=None)
    counts = source.counts and not distrusted(transaction.connection, [stored.id])
    return msgspec.structs.replace(source, by=stored.agent, episode_id=stored.episode_id, counts=counts)


def _danger(transaction: Transaction, number: int, text: LessonText) -> str:
    """Why a lesson belongs into quarantine, in one sentence; empty: it does not."""
    if found := trust.suspicions(text):
        return f"Its text holds {', '.join(found)}."
    ids = [s.experience_id for s, _ in shelf.sources(transaction.connection, number) if s.experience_id is not None]
    outside: list[str] = []
    for stored in transaction.read(ids[:_READ]):
        if stored is None:
            continue
        told = trust.outside_text(stored.transition.state, stored.transition.next_state)
        if sum(map(len, told)) > trust.MOST_TEXT:
            return f"Experience {stored.id} was given more from outside than can be looked through for its words."
        outside += told
    share = trust.borrowed_share(text, outside)
    return f"{share:.0%} of what it says stands in what its experiences were given from outside." if share else ""
