"""The tables of the playbook, in the same file as the experiences, and what forgetting an experience takes with it.

Who writes lessons and how is the business of `relive.playbook`; here is only what a store must know about its own
tables. Scope and tenant are part of every key: ``agent`` is empty for a lesson that all agents share.
"""

from collections.abc import Sequence

import apsw

from relive.storage.text import FTS5_TOKENIZER, tokens

TABLES = (
    # status: see `playbook.lesson.STATUSES`. text, reason: JSON and a sentence. effect, low, high, error: the uplift
    # when it was last looked at. times: microseconds since 1970 UTC. A removed lesson's id is never given again.
    """CREATE TABLE lesson(
        id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, agent TEXT NOT NULL, identity BLOB NOT NULL,
        status INTEGER NOT NULL, version INTEGER NOT NULL, text TEXT NOT NULL, origin TEXT NOT NULL,
        reason TEXT NOT NULL, support INTEGER NOT NULL, opposed INTEGER NOT NULL, uses INTEGER NOT NULL,
        proved INTEGER NOT NULL, calls INTEGER NOT NULL, effect REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL,
        error REAL NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL) STRICT""",
    "CREATE UNIQUE INDEX lesson_identity ON lesson(tenant, agent, identity)",
    "CREATE INDEX lesson_status ON lesson(status, tenant, agent)",
    # Lessons that apply always, the most useful first.
    """CREATE INDEX lesson_general ON lesson(tenant, agent, status, proved, effect)
        WHERE json_extract(text, '$.when') = ''""",
    # What speaks for a lesson (weight 1) or against it (-1), and where else it comes from (2: that is no support). who:
    # whose experience it is.
    """CREATE TABLE lesson_source(
        id INTEGER PRIMARY KEY, lesson_id INTEGER NOT NULL, ref TEXT NOT NULL, who TEXT NOT NULL,
        experience_id INTEGER, episode_id TEXT, weight INTEGER NOT NULL, at INTEGER NOT NULL) STRICT""",
    "CREATE UNIQUE INDEX lesson_source_ref ON lesson_source(lesson_id, ref)",
    "CREATE INDEX lesson_source_experience ON lesson_source(experience_id) WHERE experience_id IS NOT NULL",
    # Every state a lesson was in: change: what was done; text: what it said from then on.
    """CREATE TABLE lesson_version(
        id INTEGER PRIMARY KEY, lesson_id INTEGER NOT NULL, version INTEGER NOT NULL, status INTEGER NOT NULL,
        change TEXT NOT NULL, who TEXT NOT NULL, at INTEGER NOT NULL, text TEXT NOT NULL,
        reason TEXT NOT NULL) STRICT""",
    "CREATE INDEX lesson_version_lesson ON lesson_version(lesson_id)",
    # One eligible episode of a lesson (lesson_id 0: of the whole book). known: the change number at which its outcome
    # was first known, NULL: it is not; outcomes are analysed in that order.
    """CREATE TABLE exposure(
        id INTEGER PRIMARY KEY, lesson_id INTEGER NOT NULL, version INTEGER NOT NULL, episode TEXT NOT NULL,
        tenant TEXT NOT NULL, agent TEXT NOT NULL, shown INTEGER NOT NULL, propensity REAL NOT NULL, distance REAL,
        experience_id INTEGER NOT NULL, at INTEGER NOT NULL, outcome REAL, known INTEGER) STRICT""",
    "CREATE UNIQUE INDEX exposure_lesson ON exposure(lesson_id, version, tenant, agent, episode)",
    "CREATE INDEX exposure_episode ON exposure(episode)",
    "CREATE INDEX exposure_experience ON exposure(experience_id)",
    # What prompts held: kind 0: the lesson ref, 1: the experience ref; experience_id: the call that was given it.
    """CREATE TABLE given(
        id INTEGER PRIMARY KEY, experience_id INTEGER NOT NULL, kind INTEGER NOT NULL, ref INTEGER NOT NULL,
        distance REAL) STRICT""",
    "CREATE UNIQUE INDEX given_experience ON given(experience_id, kind, ref)",
    "CREATE INDEX given_ref ON given(kind, ref)",
    # Experiences from which nothing is learnt any more: what a rollback reached. reason: a sentence.
    "CREATE TABLE distrusted(experience_id INTEGER PRIMARY KEY, at INTEGER NOT NULL, reason TEXT NOT NULL) STRICT",
    "CREATE TABLE lesson_vector(id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT",
    f"""CREATE VIRTUAL TABLE lesson_text USING fts5(
        words, content='', contentless_delete=1, tokenize='{FTS5_TOKENIZER}')""",
)

_OF_LESSONS = ("lesson_source", "lesson_version", "exposure")


def create(connection: apsw.Connection) -> None:
    """The migration that adds the tables to a file."""
    for statement in TABLES:
        connection.execute(statement)


def remove(connection: apsw.Connection, lessons: Sequence[int]) -> None:
    """Takes lessons out for good, with all that hangs on them."""
    for number in lessons:
        connection.execute("DELETE FROM lesson WHERE id = ?", (number,))
        for table in _OF_LESSONS:
            connection.execute(f"DELETE FROM {table} WHERE lesson_id = ?", (number,))  # noqa: S608 - from above
        connection.execute("DELETE FROM given WHERE kind = 0 AND ref = ?", (number,))
        connection.execute("DELETE FROM lesson_vector WHERE id = ?", (number,))
        connection.execute("DELETE FROM lesson_text WHERE rowid = ?", (number,))


def forget(
    connection: apsw.Connection,
    ids: Sequence[int],
    *,
    agents: Sequence[str] | None,
    episodes: Sequence[str] | None,
    forms: Sequence[str] | None,
) -> int:
    """Takes out the lessons that rest on what is forgotten; returns how many.

    Those are the lessons of the experiences, and also, for these may have been evicted long ago, those for which all
    that is given holds.

    Args:
        connection: The connection for writing, inside the transaction that removes the experiences.
        ids: The experiences.
        agents: Names of the agent that a lesson is for or comes from.
        episodes: Names of an episode that it comes from.
        forms: A text that it holds, in every form in which JSON may hold it, in small letters.
    """
    found: set[int] = set()
    for number in ids:
        found.update(
            row[0]
            for row in connection.execute("SELECT lesson_id FROM lesson_source WHERE experience_id = ?", (number,))
        )
        connection.execute("DELETE FROM exposure WHERE experience_id = ?", (number,))
        connection.execute("DELETE FROM distrusted WHERE experience_id = ?", (number,))
        connection.execute("DELETE FROM given WHERE experience_id = ? OR (kind = 1 AND ref = ?)", (number, number))
    by_name: list[set[int]] = []
    exposed: list[set[int]] = []
    if agents is not None:
        by_name.append(
            _numbers(connection, "SELECT id FROM lesson WHERE agent = ?", agents)
            | _numbers(connection, "SELECT lesson_id FROM lesson_source WHERE who = ?", agents)
        )
        exposed.append(_numbers(connection, "SELECT id FROM exposure WHERE agent = ?", agents))
    if episodes is not None:
        by_name.append(_numbers(connection, "SELECT lesson_id FROM lesson_source WHERE episode_id = ?", episodes))
        exposed.append(_numbers(connection, "SELECT id FROM exposure WHERE episode = ?", episodes))
    if forms is not None:
        by_name.append(
            _holding(
                connection,
                """SELECT lesson_id, text || char(10) || reason FROM lesson_version UNION ALL
                SELECT lesson_id, ref || char(10) || who || char(10) || coalesce(episode_id, '') FROM lesson_source""",
                forms,
            )
        )
        exposed.append(
            _holding(
                connection,
                "SELECT id, episode || char(10) || tenant || char(10) || agent FROM exposure",
                forms,
            )
        )
    found |= set.intersection(*by_name)
    connection.executemany("DELETE FROM exposure WHERE id = ?", [(number,) for number in set.intersection(*exposed)])
    remove(connection, sorted(found))
    return len(found)


def distrusted(connection: apsw.Connection, ids: Sequence[int]) -> set[int]:
    """Which of these experiences nothing may be learnt from: those that a rollback reached."""
    return {
        number
        for number in ids
        if connection.execute("SELECT 1 FROM distrusted WHERE experience_id = ?", (number,)).get is not None
    }


def _numbers(connection: apsw.Connection, statement: str, names: Sequence[str]) -> set[int]:
    return {row[0] for name in names for row in connection.execute(statement, (name,))}


def _holding(connection: apsw.Connection, statement: str, forms: Sequence[str]) -> set[int]:
    return {number for number, text in connection.execute(statement) if any(form in text.casefold() for form in forms)}


def index_words(connection: apsw.Connection) -> None:
    """Makes the text index of all lessons anew, for a store that was recovered."""
    connection.execute("INSERT INTO lesson_text(lesson_text) VALUES ('delete-all')")
    parts = " || ' ' || ".join(f"coalesce(json_extract(text, '$.{name}'), '')" for name in ("when", "title", "do"))
    for number, text in connection.execute(f"SELECT id, {parts} FROM lesson").fetchall():  # noqa: S608 - own names
        connection.execute("INSERT INTO lesson_text(rowid, words) VALUES (?, ?)", (number, " ".join(tokens(str(text)))))
