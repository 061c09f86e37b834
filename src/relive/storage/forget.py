"""Forgetting: what is taken out of a store so that no byte of it is left in the file or beside it.

Deleting a row leaves its bytes in freed pages, in the write-ahead log, in the segments of the text index and in the
dictionary that payloads are compressed with, which is made of pieces of them. So forgetting has three steps:

1. The rows and all that hangs on them leave in one transaction, their pages overwritten with zeros. From its end on
   nobody reads them any more, and the audit says how many they were.
2. If a dictionary was made while they were there, a new one is made of what is left, and every payload that needed
   the old one is written anew, a piece at a time, so that others can write in between.
3. The text index is merged, the file written anew without its free pages, and the log cut to nothing.

A store remembers that it is under way; whatever ends it early, forgetting again (anything) finishes it. Copies made
before, and what a file system or a disk keeps of overwritten blocks, are out of its reach: the report names the former.
"""

import json
import re
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import apsw
import msgspec

from relive.storage import audit, dictionaries, playbook_tables, policy_tables
from relive.storage.codec import Decompressor, clean_text
from relive.storage.connection import connect, errors_of, fetch
from relive.storage.errors import StorageError
from relive.storage.purge import Progress, every_dictionary, overwrite_deleted, purge, replace_dictionaries
from relive.storage.reading import int64
from relive.storage.record import HAS_TOKENS, moment
from relive.storage.sqlite import SqliteStorage
from relive.storage.transaction import Transaction

_PENDING = "forget_pending"
_STATE = "SELECT evicted, (SELECT max(created_at) FROM dictionary) FROM total"
_PAGE = 1000  # entries of the audit looked at together
_MOST_COPIES = 1000
_MOST_NESTED = 4  # levels of JSON inside text inside JSON in which a text is found
_TEXTS = "e.agent, e.episode_id, e.group_id, e.tags, e.policy, e.error"


class NothingToForgetError(StorageError, ValueError):
    """It was not said what to forget."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What to forget; what is given must all hold.

    Attributes:
        agent: All of this agent.
        episode: All of this episode.
        match: All that holds this text anywhere, large and small letters alike: in payloads, in errors, tags and names,
            in what was fed back. Tokens are not looked through; they leave with their experience.
    """

    agent: str | None = None
    episode: str | None = None
    match: str | None = None

    def check(self) -> None:
        """Raises `NothingToForgetError` unless something is given."""
        if not any((self.agent, self.episode, self.match)):
            raise NothingToForgetError("Say what to forget: an agent, an episode, or a text.")


class Copy(msgspec.Struct, frozen=True):
    """A file that was made from the store while something was there that is forgotten now.

    Attributes:
        path: Where it was written.
        at: When, UTC.
        kind: ``backup`` or ``export``.
    """

    path: str
    at: datetime
    kind: str


class Forgotten(msgspec.Struct, frozen=True):
    """What was forgotten.

    Attributes:
        experiences: How many experiences were deleted.
        episodes: To how many episodes they belonged.
        feedback: How many pieces of feedback were deleted.
        token_traces: How many of the experiences had tokens.
        rewritten: Payloads and next states that were written anew because their dictionary may have held traces.
        copies: Backups and exports, known to the store, that may still hold what was forgotten.
        beside: Files and folders beside the store whose names begin like it and which are not its own, such as a
            gateway's with records that wait to be written; they were not looked through.
        named_in_audit: Entries of the audit that still hold the text that was looked for, as a file's path; everywhere
            else there it was replaced by a short hash.
        bytes_before: Size of the file and its log before.
        bytes_after: And after.
    """

    experiences: int
    episodes: int
    feedback: int
    token_traces: int
    rewritten: int
    copies: list[Copy]
    beside: list[str]
    named_in_audit: int
    bytes_before: int
    bytes_after: int


def find(store: SqliteStorage, selection: Selection) -> list[int]:
    """Ids of what would be forgotten, increasing; nothing is changed.

    Raises:
        NothingToForgetError: nothing is given.
    """
    selection.check()
    with errors_of(store.path), closing(connect(store.path, readonly=True)) as connection:
        connection.execute("BEGIN")
        return _select(connection, _known_names(store, selection), every_dictionary(connection))


def forget(
    store: SqliteStorage, selection: Selection, *, who: str | None = None, tell: Progress | None = None
) -> Forgotten:
    """Takes all that is selected out of a store, for good.

    Other processes may use the store meanwhile; while the file is written anew their writes wait.

    Args:
        store: The store, open for writing.
        selection: What to forget.
        who: Who wants it, for the audit; ``None``: the user of the operating system.
        tell: Told how far it has come.

    Raises:
        NothingToForgetError: nothing is given.
        StorageBusyError: it is deleted, but another process keeps an older view of the file open, which holds it still.
        StorageFullError: it is deleted, but there is no room to write the file anew.
    """
    selection.check()
    tell = tell or (lambda _what, _done, _whole: None)
    names = _known_names(store, selection)
    before = _size(store.path)
    tell("deleting", 0, 0)
    deleted = store.write(lambda transaction: _delete(transaction, names, selection, who)).result()
    rewritten = replace_dictionaries(store, tell) if deleted.traces else 0
    tell("writing the file anew", 0, 0)
    store.alone(lambda connection: purge(connection, store.path)).result()
    store.write(_finish).result()
    return Forgotten(
        experiences=deleted.experiences,
        episodes=deleted.episodes,
        feedback=deleted.feedback,
        token_traces=deleted.token_traces,
        rewritten=rewritten,
        copies=_copies(store, deleted.since),
        beside=_beside(store.path),
        named_in_audit=_named_in_audit(store, selection),
        bytes_before=before,
        bytes_after=_size(store.path),
    )


# ---- Finding


class _Names(NamedTuple):
    """The selection with names in every form in which the store may hold them, and a text in every form of JSON."""

    agents: list[str] | None
    episodes: list[str] | None
    forms: list[str] | None


def _known_names(store: SqliteStorage, selection: Selection) -> _Names:
    return _Names(
        None if selection.agent is None else store.identifiers(selection.agent),
        None if selection.episode is None else store.identifiers(selection.episode),
        None if selection.match is None else _forms(clean_text(selection.match)),
    )


def _select(connection: apsw.Connection, names: _Names, decompress: Decompressor) -> list[int]:
    terms, values = ["1"], []
    for column, given in (("e.agent", names.agents), ("e.episode_id", names.episodes)):
        if given is not None:
            terms.append(f"{column} IN ({', '.join('?' * len(given))})")
            values += given
    where = " AND ".join(terms)
    if names.forms is None:
        return [row[0] for row in fetch(connection, f"SELECT id FROM experience e WHERE {where} ORDER BY id", values)]  # noqa: S608
    found: set[int] = set()
    for number, *texts, codec, body, late_codec, late in connection.execute(
        f"""SELECT e.id, {_TEXTS}, p.codec, p.body, n.codec, n.body FROM experience e JOIN payload p ON p.id = e.id
        LEFT JOIN next_state n ON n.id = e.id WHERE {where}""",  # noqa: S608 - terms from above
        values,
    ):
        bodies = [decompress(codec, body)] if late is None else [decompress(codec, body), decompress(late_codec, late)]
        if _holds(names.forms, texts, bodies):
            found.add(number)
    for about in ("f.experience_id = e.id", "f.episode_id = e.episode_id"):
        for number, *texts, demonstration in connection.execute(
            f"""SELECT e.id, f.source, f.key, f.comment, f.demonstration FROM feedback f JOIN experience e ON {about}
            WHERE {where}""",  # noqa: S608 - terms from above
            values,
        ):
            if _holds(names.forms, texts, [] if demonstration is None else [demonstration]):
                found.add(number)
    return sorted(found)


def _waiting(connection: apsw.Connection, names: _Names) -> list[int]:
    """Numbers of feedback that waits for an experience or an episode still to come, and is to be forgotten too."""
    if names.agents is not None:
        return []  # whose it will be is not known
    rows = connection.execute(
        """SELECT id, episode_id, source, key, comment, demonstration FROM feedback f
        WHERE NOT EXISTS (SELECT 1 FROM experience e WHERE e.id = f.experience_id)
        AND NOT EXISTS (SELECT 1 FROM experience e WHERE e.episode_id = f.episode_id)"""
    )
    return [
        number
        for number, episode_id, *texts, demonstration in rows
        if (names.episodes is None or episode_id in names.episodes)
        and (
            names.forms is None
            or _holds(names.forms, [episode_id, *texts], [] if demonstration is None else [demonstration])
        )
    ]


def _forms(text: str) -> list[str]:
    """How a text may be written in JSON, and in JSON inside text inside JSON, in small letters."""
    forms = {text}
    for _ in range(_MOST_NESTED):
        forms |= {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in forms for ascii_only in (False, True)}
    return sorted(form.casefold() for form in forms)


def _holds(forms: list[str], texts: list[str | None], bodies: list[bytes]) -> bool:
    whole = "\n".join([*(text for text in texts if text), *(body.decode() for body in bodies)])
    if _is_in(forms, whole):
        return True
    for _ in range(_MOST_NESTED + 1):
        if _OTHER_ESCAPES.search(whole) is None:  # all else is written in one of the forms
            return False
        whole = clean_text(_ESCAPE.sub(_unescaped, whole))
        if _is_in(forms, whole):
            return True
    return False


def _is_in(forms: list[str], whole: str) -> bool:
    whole = whole.casefold()
    return any(form in whole for form in forms)


def _unescaped(escape: re.Match[str]) -> str:
    digits = escape["digits"]
    return _SHORT_ESCAPES[escape["short"]] if digits is None else chr(int(digits, 16))


_OTHER_ESCAPES = re.compile(r"\\(?:u[0-9A-Fa-f]{4}|/)")
_ESCAPE = re.compile(r"\\(?:u(?P<digits>[0-9A-Fa-f]{4})|(?P<short>[\"\\/bfnrt]))")
_SHORT_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", **{sign: sign for sign in '"\\/'}}


# ---- Deleting


class _Deleted(NamedTuple):
    """What the first step did; `since`: when the oldest of it was stored; `traces`: a dictionary may hold some."""

    experiences: int
    episodes: int
    feedback: int
    token_traces: int
    since: int | None
    traces: bool


def _figures(connection: apsw.Connection, ids: list[int]) -> tuple[int, int, int | None]:
    """Of these experiences: the number of episodes, that of token traces, and when the oldest was stored."""
    if not ids:
        return 0, 0, None
    episodes, since, tokens = fetch(
        connection,
        """SELECT count(DISTINCT episode_id), min(stored_at), sum(flags & ? > 0) FROM experience
        WHERE id IN (SELECT value FROM carray(?))""",
        (HAS_TOKENS, apsw.carray(int64(ids))),
    )[0]
    return episodes, tokens, since


def _delete(transaction: Transaction, names: _Names, asked: Selection, who: str | None) -> _Deleted:
    """The first step, inside one transaction; what it finds is what is there now."""
    connection = transaction.connection
    overwrite_deleted(transaction)
    ids = _select(connection, names, every_dictionary(connection))
    episodes, token_traces, since = _figures(connection, ids)
    evicted, last_dictionary = fetch(connection, _STATE)[0]
    feedback_before = connection.execute("SELECT count(*) FROM feedback").get
    waiting = _waiting(connection, names)
    connection.executemany("DELETE FROM feedback WHERE id = ?", [(number,) for number in waiting])
    transaction.evict(ids)
    playbook_tables.forget(connection, ids, agents=names.agents, episodes=names.episodes, forms=names.forms)
    policy_tables.forget(connection, agents=names.agents, episodes=names.episodes, forms=names.forms)
    audit.forget(connection, names=[*(names.agents or ()), *(names.episodes or ())], text=asked.match)
    feedback = feedback_before - connection.execute("SELECT count(*) FROM feedback").get
    pending = bool(fetch(connection, "SELECT 1 FROM setting WHERE name = ?", (_PENDING,)))
    count = dictionaries.forgotten(connection)
    connection.executemany(
        "INSERT OR REPLACE INTO setting VALUES (?, ?)", [(_PENDING, "true"), (dictionaries.FORGOTTEN, str(count + 1))]
    )
    reference = [
        f"{what} {audit.reference(connection, text)}"
        for what, text in (("agent", asked.agent), ("episode", asked.episode), ("text", asked.match))
        if text is not None
    ]
    transaction.audit(
        "forget", who=who, target=", ".join(reference), before={"experiences": len(ids), "feedback": feedback}
    )
    learnt_from = since is not None and last_dictionary is not None and since <= last_dictionary
    # What was evicted before it could be forgotten may be in a dictionary too.
    may_hold = last_dictionary is not None and (learnt_from or evicted > 0 or pending)
    return _Deleted(len(ids), episodes, feedback, token_traces, since, may_hold)


def _finish(transaction: Transaction) -> None:
    transaction.connection.execute("DELETE FROM setting WHERE name = ?", (_PENDING,))


# ---- What is out of reach


def _copies(store: SqliteStorage, since: int | None) -> list[Copy]:
    """Copies that were made since the oldest of what is forgotten was stored."""
    if since is None:
        return []
    return [
        Copy(entry.target, entry.at, entry.action)
        for action in ("backup", "export")
        for entry in store.audit(action=action, since=moment(since), limit=_MOST_COPIES)
    ]


def _beside(path: Path) -> list[str]:
    own = {path.name, *(f"{path.name}-{suffix}" for suffix in ("wal", "shm", "owner"))}
    names = (file.name for file in path.parent.iterdir())
    return sorted(str(path.parent / name) for name in names if name.startswith(path.name) and name not in own)


def _named_in_audit(store: SqliteStorage, selection: Selection) -> int:
    texts = [text.casefold() for text in (selection.agent, selection.episode, selection.match) if text]
    count, last = 0, 0
    while page := store.audit(after=last, limit=_PAGE):
        last = page[-1].number
        paths = [entry.target.casefold() for entry in page if entry.action in audit.PATHS]
        count += sum(any(text in path for text in texts) for path in paths)
    return count


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, Path(f"{path}-wal")) if file.exists())
