"""The audit: who did what to a store and when, what it was before and what after. It is only ever added to.

An entry is written in the transaction of what it tells of, so neither can be there without the other. The database
itself refuses to change or remove an entry (triggers of the table ``audit``); only `forget` puts references in the
place of names, in the transaction that forgets. What was forgotten must not live on here, hence entries hold names of
experiences by number, of episodes by a short keyed hash (`reference`), figures and settings, but nothing that anybody
wrote: of a comment only that there was one.
"""

import getpass
import hashlib
import os
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import apsw
import msgspec

from relive.storage.connection import bounded, fetch
from relive.storage.record import microseconds, moment

PATHS = ("backup", "export", "import", "recover")
"""Actions whose target is a file."""

MOST_NAMED = 8
"""Experiences that an entry about many of them names."""


class AuditEntry(msgspec.Struct, frozen=True):
    """One thing that was done.

    Attributes:
        number: Its number, rising in the order of commits.
        at: When, UTC.
        who: The source of a feedback, else the user of the operating system, or whom a server let in.
        action: ``feedback``, ``priority``, ``forget``, ``import``, ``export``, ``backup``, ``recover``, ``settings``,
            and what later parts add.
        target: What it was done to.
        before: What held before, any JSON value; ``None``: nothing.
        after: What holds now; ``None``: nothing.
    """

    number: int
    at: datetime
    who: str
    action: str
    target: str
    before: Any = None
    after: Any = None


def add(
    connection: apsw.Connection,
    action: str,
    *,
    at: int,
    who: str | None = None,
    target: str = "",
    before: Any = None,
    after: Any = None,
) -> int:
    """Adds an entry; must run inside the write transaction of what it tells of.

    Args:
        connection: The connection for writing.
        action: What was done, in one word.
        at: When, in microseconds since 1970 UTC.
        who: Who did it; ``None``: the user of the operating system.
        target: What it was done to.
        before: What held before, any JSON value without what people wrote; ``None``: nothing.
        after: What holds now; likewise.

    Returns:
        The entry's number.
    """
    texts = [None if value is None else msgspec.json.encode(value).decode() for value in (before, after)]
    connection.execute(
        "INSERT INTO audit(at, who, action, target, before, after) VALUES (?, ?, ?, ?, ?, ?)",
        (at, who or system_user(), action, target, *texts),
    )
    return connection.last_insert_rowid()


def entries(
    connection: apsw.Connection,
    *,
    action: str | None = None,
    who: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after: int | None = None,
    limit: int = 100,
    newest_first: bool = False,
) -> list[AuditEntry]:
    """One page of the audit.

    Args:
        connection: Any connection to the store.
        action: Only this action.
        who: Only by this one.
        since: At this time or later.
        until: Before this time.
        after: Only numbers above this one (below it, if `newest_first`).
        limit: At most so many.
        newest_first: The newest first.
    """
    conditions = {
        "action = ?": action,
        "who = ?": who,
        "at >= ?": None if since is None else microseconds(since),
        "at < ?": None if until is None else microseconds(until),
        "number < ?" if newest_first else "number > ?": None if after is None else bounded(after),
    }
    given = {term: value for term, value in conditions.items() if value is not None}
    rows = fetch(
        connection,
        f"SELECT number, at, who, action, target, before, after FROM audit WHERE {' AND '.join(given) or '1'} "  # noqa: S608 - terms from above
        f"ORDER BY number {'DESC' if newest_first else 'ASC'} LIMIT ?",
        (*given.values(), bounded(limit)),
    )
    return [
        AuditEntry(
            number, moment(at), by, what, target, *(None if v is None else msgspec.json.decode(v) for v in values)
        )
        for number, at, by, what, target, *values in rows
    ]


def forget(connection: apsw.Connection, *, names: Iterable[str], text: str | None) -> None:
    """Puts references in the place of what is forgotten, in who acted and on what; must run inside a transaction.

    An entry keeps its number and all else. Paths of copies and imports stay: they say where it may still be.

    Args:
        connection: The connection for writing.
        names: Whoever or whatever is called exactly so.
        text: And all that holds this text, large and small letters alike.
    """
    whole = {name.casefold() for name in names}
    part = None if text is None else text.casefold()

    def held(value: str) -> str:
        folded = value.casefold()
        gone = folded in whole or (part is not None and part in folded)
        return reference(connection, value) if gone else value

    changed = []
    for number, who, action, target in connection.execute("SELECT number, who, action, target FROM audit"):
        about, colon, key = target.partition(": ")
        kept = target if action in PATHS else held(about) + colon + held(key)
        if (held(who), kept) != (who, target):
            changed.append((held(who), kept, number))
    if changed:
        trigger = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'audit_unchanged'").get
        connection.execute("DROP TRIGGER audit_unchanged")
        connection.executemany("UPDATE audit SET who = ?, target = ? WHERE number = ?", changed)
        connection.execute(trigger)


def reference(connection: apsw.Connection, text: str) -> str:
    """A short hash that stands for an id or a name, the same within one store; it does not give the text away."""
    store_id: str = connection.execute("SELECT value FROM setting WHERE name = 'store_id'").get
    return "#" + hashlib.blake2b(text.encode(), key=store_id.encode(), digest_size=5).hexdigest()


def system_user() -> str:
    """Name of the user that this process runs as; its number where it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13
        return str(os.getuid())
