"""The tables, and the numbered steps that bring an older file up to date.

The schema version is the database's ``user_version``; a file whose version is higher than `SCHEMA_VERSION` is never
written. A migration is never changed once it was released: a change of the tables is a new entry at the end.
"""

from collections.abc import Callable
from typing import TypeAlias

import apsw

from relive.storage import playbook_tables, policy_tables
from relive.storage.text import FTS5_TOKENIZER

APPLICATION_ID = 0x52454C56  # "RELV", in the header of the database file
CHUNK = 8192
"""Slots in one chunk of the sampling index."""

FIRST_DICTIONARY = 16
"""Payload codecs below are fixed (see `codec`); from here on a codec is the id of a dictionary."""

Migration: TypeAlias = Callable[[apsw.Connection], None]

_VERSION_1 = (
    # What the file is about: its own id (16 random bytes in hex), weights, switches; one JSON value each.
    "CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID, STRICT",
    # One row. Ids are given out in the order of commits, without gaps, and never again.
    "INSERT INTO setting VALUES ('store_id', '\"' || lower(hex(randomblob(16))) || '\"')",
    """CREATE TABLE total(
        one INTEGER PRIMARY KEY CHECK (one = 1), next_id INTEGER NOT NULL, rows INTEGER NOT NULL,
        bytes INTEGER NOT NULL, evicted INTEGER NOT NULL) STRICT""",
    "INSERT INTO total VALUES (1, 1, 0, 0, 0)",
    # reward and outcome are what holds now; recorded_* are what the payload came with. See `feedback` for the rule.
    # created_at: microseconds since 1970 UTC. bytes: stored size of payload and tokens. cost: nano-USD. priority: what
    # whoever appended asked for. uid: identity given by whoever appended it (16 bytes), so that doing so twice adds
    # nothing. stored_at: like created_at, never falling with the id.
    """CREATE TABLE experience(
        id INTEGER PRIMARY KEY, agent TEXT NOT NULL, episode_id TEXT NOT NULL, step INTEGER NOT NULL,
        outcome INTEGER NOT NULL, reward REAL, created_at INTEGER NOT NULL, bytes INTEGER NOT NULL,
        flags INTEGER NOT NULL, recorded_outcome INTEGER NOT NULL, recorded_reward REAL, parent INTEGER,
        group_id TEXT, tags TEXT, policy TEXT, policy_version INTEGER, cost INTEGER, latency_ms REAL, error TEXT,
        input_tokens INTEGER, cached_tokens INTEGER, cache_write_tokens INTEGER, output_tokens INTEGER,
        reasoning_tokens INTEGER, priority REAL, uid BLOB,
        stored_at INTEGER NOT NULL) STRICT""",
    "CREATE INDEX experience_agent ON experience(agent, created_at)",
    "CREATE INDEX experience_episode ON experience(episode_id, step)",
    "CREATE INDEX experience_outcome ON experience(outcome, reward)",
    "CREATE INDEX experience_group ON experience(group_id) WHERE group_id IS NOT NULL",
    "CREATE UNIQUE INDEX experience_uid ON experience(uid) WHERE uid IS NOT NULL",
    "CREATE INDEX experience_error ON experience(id) WHERE error IS NOT NULL",
    "CREATE TABLE payload(id INTEGER PRIMARY KEY, codec INTEGER NOT NULL, body BLOB NOT NULL) STRICT",
    # What became known after the row: a next state that arrived with the agent's next call. Same codecs as payloads.
    "CREATE TABLE next_state(id INTEGER PRIMARY KEY, codec INTEGER NOT NULL, body BLOB NOT NULL) STRICT",
    """CREATE TABLE dictionary(
        id INTEGER PRIMARY KEY AUTOINCREMENT, created_at INTEGER NOT NULL, body BLOB NOT NULL) STRICT""",
    """CREATE TABLE token_trace(
        id INTEGER PRIMARY KEY, length INTEGER NOT NULL, parts INTEGER NOT NULL, temperature REAL, top_p REAL,
        tokenizer TEXT, body BLOB NOT NULL) STRICT""",
    "CREATE TABLE tag(name TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (name, id)) WITHOUT ROWID, STRICT",
    """CREATE TABLE feedback(
        id INTEGER PRIMARY KEY, experience_id INTEGER, episode_id TEXT, source TEXT NOT NULL, key TEXT NOT NULL,
        reward REAL, comment TEXT, demonstration BLOB, created_at INTEGER NOT NULL) STRICT""",
    """CREATE UNIQUE INDEX feedback_experience ON feedback(experience_id, source, key)
        WHERE experience_id IS NOT NULL""",
    "CREATE UNIQUE INDEX feedback_episode ON feedback(episode_id, source, key) WHERE episode_id IS NOT NULL",
    # What happened, for followers: kind 0 added, 1 rewarded, 2 removed; ids first..last, or those in ids (int64).
    """CREATE TABLE change(
        number INTEGER PRIMARY KEY, origin INTEGER NOT NULL, kind INTEGER NOT NULL, first INTEGER NOT NULL,
        last INTEGER NOT NULL, ids BLOB) STRICT""",
    # The sampling index, by slot: chunks of CHUNK int64 ids (0: free) and float32 priorities, and what changed since.
    "CREATE TABLE index_ids(chunk INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT",
    "CREATE TABLE index_priorities(chunk INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT",
    """CREATE TABLE index_log(
        number INTEGER PRIMARY KEY, slots BLOB NOT NULL, ids BLOB, priorities BLOB NOT NULL) STRICT""",
    "CREATE TABLE index_state(one INTEGER PRIMARY KEY CHECK (one = 1), body BLOB NOT NULL) STRICT",
    f"""CREATE VIRTUAL TABLE state_text USING fts5(
        words, content='', contentless_delete=1, tokenize='{FTS5_TOKENIZER}')""",
    # Who did what; see `audit`. at: microseconds since 1970 UTC. before, after: JSON; NULL: nothing.
    """CREATE TABLE audit(
        number INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, who TEXT NOT NULL, action TEXT NOT NULL,
        target TEXT NOT NULL, before TEXT, after TEXT) STRICT""",
    """CREATE TRIGGER audit_unchanged BEFORE UPDATE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit is only ever added to'); END""",
    """CREATE TRIGGER audit_kept BEFORE DELETE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit is only ever added to'); END""",
    # INSERT OR REPLACE would take an entry's place without a word; a number that is left out is negative here.
    """CREATE TRIGGER audit_added BEFORE INSERT ON audit WHEN new.number > 0
        AND new.number <= (SELECT coalesce(max(number), 0) FROM audit)
        BEGIN SELECT RAISE(ABORT, 'the audit is only ever added to'); END""",
)


def _version_1(connection: apsw.Connection) -> None:
    for statement in _VERSION_1:
        connection.execute(statement)


_VERSION_3 = (
    # Each index ends with the id: pages are in the order of ids, and are read without sorting all that is found.
    "DROP INDEX experience_agent",
    "CREATE INDEX experience_agent ON experience(agent)",
    "DROP INDEX experience_outcome",
    "CREATE INDEX experience_outcome ON experience(outcome)",
    "CREATE INDEX experience_created ON experience(created_at)",
    "CREATE INDEX experience_parent ON experience(parent) WHERE parent IS NOT NULL",
    "ALTER TABLE change DROP COLUMN origin",  # who made a change was never asked
)


def _version_3(connection: apsw.Connection) -> None:
    for statement in _VERSION_3:
        connection.execute(statement)


MIGRATIONS: tuple[Migration, ...] = (_version_1, playbook_tables.create, _version_3, policy_tables.create)
"""Entry n brings a file from version n to version n + 1; each runs inside one transaction."""

SCHEMA_VERSION = len(MIGRATIONS)
"""The newest version that this Relive reads and writes."""
