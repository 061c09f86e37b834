"""Versions of agents' policies as records and as rows: what `relive.train.gate` decides about."""

import hashlib
from datetime import datetime
from typing import Literal, NamedTuple

import apsw
import msgspec

from relive.errors import ReliveError
from relive.experience import now
from relive.storage.connection import fetch
from relive.storage.record import microseconds, moment
from relive.train.paired import Compared, Differences

Status = Literal["candidate", "trial", "promoted", "superseded", "rejected", "demoted"]

_SELECT = "SELECT id, agent, name, parent, status, share, reason, created_at, updated_at FROM policy"


class GateError(ReliveError, ValueError):
    """A version cannot be proposed, checked or demoted."""


class PolicyVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of an agent's policy.

    Attributes:
        id: Its number, the `policy_version` of the experiences that it makes.
        agent: Whose.
        name: Where it is found: a folder of weights, a model, a prompt.
        parent: What was promoted when it was proposed; ``None``: nothing was, the agent was as it is without.
        status: ``candidate``: proposed; ``trial``: serves a part of the calls; ``promoted``: serves; ``superseded``: a
            later one was promoted; ``rejected``: never served; ``demoted``: no longer serves.
        share: Of the calls that it gets, 0 to 1.
        reason: Why it is what it is, in one sentence.
        created_at: UTC.
        updated_at: UTC.
    """

    id: int
    agent: str
    name: str
    parent: int | None
    status: Status
    share: float
    reason: str
    created_at: datetime
    updated_at: datetime


class Found(msgspec.Struct, frozen=True):
    """What a check decided by.

    Attributes:
        held_out: The difference on held-out tasks.
        earlier: On earlier tasks, by their name.
    """

    held_out: Compared
    earlier: dict[str, Compared]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check, as evidence.

    Attributes:
        at: When, UTC.
        who: Who made it.
        status: The version's status from then on.
        share: Its share from then on.
        reason: Why, in one sentence.
        found: What was decided by.
    """

    at: datetime
    who: str
    status: Status
    share: float
    reason: str
    found: Found


class Serving(NamedTuple):
    """What serves an agent's calls.

    Attributes:
        promoted: Serves all that is not the trial's; ``None``: the agent as it is without.
        trial: Serves its share of them; ``None``: nothing is on trial.
    """

    promoted: PolicyVersion | None
    trial: PolicyVersion | None


class Measured(msgspec.Struct, frozen=True):
    """What one check measured, tasks as hashes.

    Attributes:
        held_out: The differences on held-out tasks.
        earlier: On earlier tasks, by the name of each set.
    """

    held_out: Differences
    earlier: dict[str, Differences]


def where(connection: apsw.Connection, condition: str, *values: object) -> list[PolicyVersion]:
    """The versions for which a condition holds, which is written in the code and never comes from outside."""
    rows = fetch(connection, f"{_SELECT} WHERE {condition}", values)
    return [
        PolicyVersion(
            id=number, agent=agent, name=name, parent=parent, status=status, share=share, reason=reason,
            created_at=moment(created), updated_at=moment(updated),
        )
        for number, agent, name, parent, status, share, reason, created, updated in rows
    ]  # fmt: skip


def insert(connection: apsw.Connection, agent: str, name: str, parent: int | None) -> PolicyVersion:
    """Adds a candidate.

    Raises:
        GateError: the name is taken.
    """
    if where(connection, "agent = ? AND name = ?", agent, name):
        raise GateError(f"There is a version named {name!r} already; propose a new one under another name.")
    at = microseconds(now())
    connection.execute(
        "INSERT INTO policy(agent, name, parent, status, share, reason, created_at, updated_at) "
        "VALUES (?, ?, ?, 'candidate', 0, '', ?, ?)",
        (agent, name, parent, at, at),
    )
    return require(connection, agent, connection.last_insert_rowid())


def set_status(connection: apsw.Connection, version: int, status: Status, share: float, reason: str) -> None:
    """Gives a version another status."""
    connection.execute(
        "UPDATE policy SET status = ?, share = ?, reason = ?, updated_at = ? WHERE id = ?",
        (status, share, reason, microseconds(now()), version),
    )


def note(connection: apsw.Connection, version: int, check: Check, measured: Measured) -> None:
    """Keeps a check with all that it measured."""
    texts = [msgspec.json.encode(value).decode() for value in (measured, check.found)]
    connection.execute(
        "INSERT INTO policy_check(policy_id, at, who, status, share, reason, measured, found) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (version, microseconds(check.at), check.who, check.status, check.share, check.reason, *texts),
    )


def checks(connection: apsw.Connection, agent: str, version: int) -> list[Check]:
    """All checks of a version of this agent, the oldest first."""
    rows = fetch(
        connection,
        "SELECT at, who, status, share, reason, found FROM policy_check WHERE policy_id = ? ORDER BY id",
        (require(connection, agent, version).id,),
    )
    return [
        Check(
            at=moment(at), who=who, status=status, share=share, reason=reason,
            found=msgspec.json.decode(found, type=Found),
        )
        for at, who, status, share, reason, found in rows
    ]  # fmt: skip


def require(connection: apsw.Connection, agent: str, version: int) -> PolicyVersion:
    """A version of this agent.

    Raises:
        GateError: there is none of this id.
    """
    found = where(connection, "agent = ? AND id = ?", agent, version)
    if not found:
        raise GateError(f"The agent {agent!r} has no policy version {version}.")
    return found[0]


def serving(connection: apsw.Connection, agent: str) -> Serving:
    """What serves an agent's calls."""
    found = {one.status: one for one in where(connection, "agent = ? AND status IN ('promoted', 'trial')", agent)}
    return Serving(found.get("promoted"), found.get("trial"))


def unsettled(connection: apsw.Connection, agent: str) -> PolicyVersion | None:
    """The version that is not decided about yet."""
    return next(iter(where(connection, "agent = ? AND status IN ('candidate', 'trial')", agent)), None)


def before(connection: apsw.Connection, policy: PolicyVersion) -> PolicyVersion | None:
    """The nearest ancestor that was promoted and did well."""
    while policy.parent is not None:
        policy = require(connection, policy.agent, policy.parent)
        if policy.status == "superseded":
            return policy
    return None


def past(connection: apsw.Connection, version: int) -> list[Measured]:
    """What was measured of a version since it was proposed."""
    rows = fetch(connection, "SELECT measured FROM policy_check WHERE policy_id = ? ORDER BY id", (version,))
    return [msgspec.json.decode(row[0], type=Measured) for row in rows]


def hashed(found: Differences) -> Differences:
    """Tasks by a hash: the store must tell them apart, not know them."""
    return {hashlib.blake2b(task.encode(), digest_size=8).hexdigest(): each for task, each in found.items()}
