"""The tables of policy versions, in the same file as the experiences, and what forgetting an agent takes with it.

Which version is promoted and why is the business of `relive.train.gate`; here is only what a store must know.
"""

from collections.abc import Sequence

import apsw

TABLES = (
    # name: where the weights, the model or the prompt are found. share: of the agent's calls that it gets, 0 to 1.
    # status: see `train.policies.Status`. parent: the version that was promoted when it was proposed. times:
    # microseconds since 1970 UTC. An id is never given again.
    """CREATE TABLE policy(
        id INTEGER PRIMARY KEY AUTOINCREMENT, agent TEXT NOT NULL, name TEXT NOT NULL, parent INTEGER,
        status TEXT NOT NULL, share REAL NOT NULL, reason TEXT NOT NULL, created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL) STRICT""",
    "CREATE UNIQUE INDEX policy_name ON policy(agent, name)",
    # One version is promoted and one on trial at most, whatever processes do.
    "CREATE UNIQUE INDEX policy_promoted ON policy(agent) WHERE status = 'promoted'",
    "CREATE UNIQUE INDEX policy_trial ON policy(agent) WHERE status IN ('candidate', 'trial')",
    # What a check measured (differences by task, tasks as hashes) and what it found, as JSON.
    """CREATE TABLE policy_check(
        id INTEGER PRIMARY KEY, policy_id INTEGER NOT NULL, at INTEGER NOT NULL, who TEXT NOT NULL,
        status TEXT NOT NULL, share REAL NOT NULL, reason TEXT NOT NULL, measured TEXT NOT NULL,
        found TEXT NOT NULL) STRICT""",
    "CREATE INDEX policy_check_policy ON policy_check(policy_id)",
)

_TEXT = """SELECT id, agent || char(10) || name || char(10) || reason FROM policy UNION ALL
    SELECT policy_id, who || char(10) || reason || char(10) || measured || char(10) || found FROM policy_check"""


def create(connection: apsw.Connection) -> None:
    """The migration that adds the tables to a file."""
    for statement in TABLES:
        connection.execute(statement)


def forget(
    connection: apsw.Connection,
    *,
    agents: Sequence[str] | None,
    episodes: Sequence[str] | None,
    forms: Sequence[str] | None,
) -> int:
    """Takes out the versions for which all that is given holds; returns how many. Weights are files elsewhere.

    Args:
        connection: The connection for writing, inside the transaction that removes the experiences.
        agents: Names of the agent whose they are.
        episodes: Names of an episode; a version belongs to none.
        forms: A text that they hold, in every form in which JSON may hold it, in small letters.
    """
    if episodes is not None:
        return 0
    found: list[set[int]] = []
    if agents is not None:
        statement = "SELECT id FROM policy WHERE agent = ?"
        found.append({row[0] for name in agents for row in connection.execute(statement, (name,))})
    if forms is not None:
        rows = connection.execute(_TEXT)
        found.append({number for number, text in rows if any(form in text.casefold() for form in forms)})
    numbers = sorted(set.intersection(*found)) if found else []
    for number in numbers:
        connection.execute("DELETE FROM policy WHERE id = ?", (number,))
        connection.execute("DELETE FROM policy_check WHERE policy_id = ?", (number,))
        connection.execute("UPDATE policy SET parent = NULL WHERE parent = ?", (number,))
    return len(numbers)
