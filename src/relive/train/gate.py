"""The gate: a new version of a policy serves only as far as it is measured to be better.

A version is *proposed* and is a candidate then, with no share of the calls. Each *check* compares it with the version
that is promoted, on held-out tasks and on those of earlier times (`relive.train.paired` has the statistics):

- From stage to stage (5 %, 25 %, 100 % of the calls) all measurements since it was proposed must together say that it
  is better on held-out tasks and not worse on earlier ones. If they do not, it is out for good: another try is another
  version, or chance would let every version through that is checked often enough.
- Once promoted it is checked on schedule, by the new measurement alone: where that says that it is worse, it is demoted
  and the version before it serves again.

As every stage must be passed, two equal policies reach 5 % of the calls in about 5 % of trials and all of them in 1 %;
one better by 0.10 is promoted with 320 tasks in 82 % where tasks are all alike and each outcome a coin's throw (the
worst case), in 90 % where some tasks are hard and some easy (4,000 simulated trials each).

Versions, their parents and all evidence are in the store; every change has an entry in its audit, with figures and
numbers only. Tasks are kept as hashes.
"""

from collections.abc import Mapping

import msgspec

from relive.experience import now
from relive.memory import Memory
from relive.storage import SqliteStorage
from relive.storage.audit import system_user
from relive.storage.transaction import Transaction
from relive.train import policies
from relive.train.paired import Compared, Differences, better, compared, not_worse, pooled, worse
from relive.train.policies import Check, Found, GateError, Measured, PolicyVersion, Serving, Status


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """When a version passes.

    Attributes:
        alpha: The chance with which each end of an interval is exceeded.
        effect: The least mean difference on held-out tasks that is worth a change.
        tolerance: What may be lost on earlier tasks.
        least: Held-out tasks below which nothing is decided.
        stages: Shares of the calls, rising to 1.
    """

    alpha: float = 0.05
    effect: float = 0.02
    tolerance: float = 0.05
    least: int = 30
    stages: tuple[float, ...] = (0.05, 0.25, 1.0)

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:
            raise ValueError(f"alpha is {self.alpha}; it must be above 0 and below 0.5.")
        if not (0 <= self.effect < 1 and 0 < self.tolerance <= 1 and self.least >= 1):
            raise ValueError("effect must be from 0 to 1, tolerance above 0 and at most 1, least at least 1.")
        rising = all(low < high for low, high in zip((0.0, *self.stages), self.stages, strict=False))
        if not self.stages or not rising or self.stages[-1] != 1:
            raise ValueError(f"stages are {self.stages}; they must rise from above 0 to 1.")


class Gate:
    """The versions of an agent's policy, of which one is on trial at a time.

    Args:
        memory: The memory, or the store, that holds them.
        agent: Whose.
        rules: When a version passes.
        author: Who makes changes; ``None``: the user of the operating system.
    """

    def __init__(
        self,
        memory: Memory | SqliteStorage,
        agent: str = "default",
        *,
        rules: Rules | None = None,
        author: str | None = None,
    ) -> None:
        self.storage = memory.storage if isinstance(memory, Memory) else memory
        self.agent = agent
        self.rules = rules or Rules()
        self.author = author or system_user()

    # ---- Changing

    def propose(self, name: str) -> PolicyVersion:
        """Adds a version, to be checked against the one that is promoted.

        Args:
            name: Where it is found; a name is used once.

        Raises:
            GateError: another is a candidate or on trial, or the name is taken.
        """

        def act(transaction: Transaction) -> PolicyVersion:
            connection = transaction.connection
            if (waiting := policies.unsettled(connection, self.agent)) is not None:
                what = "a candidate" if waiting.status == "candidate" else "on trial"
                raise GateError(f"Version {waiting.id} is {what}; check or demote it before the next.")
            promoted = policies.serving(connection, self.agent).promoted
            made = policies.insert(connection, self.agent, name, None if promoted is None else promoted.id)
            transaction.audit("policy", who=self.author, target=f"policy {made.id}", after=_state(made))
            return made

        made: PolicyVersion = self.storage.write(act).result()
        return made

    def check(
        self, version: int, held_out: Differences, earlier: Mapping[str, Differences] | None = None
    ) -> PolicyVersion:
        """Takes in a new measurement, and moves the version on, leaves it where it is, or takes it out.

        Args:
            version: A candidate, one on trial, or the promoted one.
            held_out: `relive.train.paired.differences` to its parent on tasks that it was not trained on.
            earlier: The same on tasks of earlier times, by a name for each set; each check measures the same sets.

        Raises:
            GateError: the version is settled, there are too few held-out tasks, or an earlier set is missing; nothing
                was decided or kept then.
        """
        measured = Measured(
            policies.hashed(held_out), {name: policies.hashed(found) for name, found in sorted((earlier or {}).items())}
        )

        def act(transaction: Transaction) -> PolicyVersion:
            connection = transaction.connection
            policy = policies.require(connection, self.agent, version)
            if policy.status not in ("candidate", "trial", "promoted"):
                raise GateError(f"Version {version} is {policy.status} and stays so; propose another one.")
            past = [] if policy.status == "promoted" else policies.past(connection, version)
            _check_measured(measured, past, self.rules)
            found = _compare(_together([*past, measured]), self.rules)
            status, share, reason = _verdict(policy, found, self.rules)
            made = Check(at=now(), who=self.author, status=status, share=share, reason=reason, found=found)
            policies.note(connection, version, made, measured)
            return self._move(transaction, policy, status, share, reason, found)

        moved: PolicyVersion = self.storage.write(act).result()
        return moved

    def demote(self, version: int, reason: str = "") -> PolicyVersion:
        """Takes a version out at once, whatever was measured; the one before it serves again. For people.

        Raises:
            GateError: it is out already, or superseded.
        """
        reason = reason or f"Demoted by {self.author}."

        def act(transaction: Transaction) -> PolicyVersion:
            policy = policies.require(transaction.connection, self.agent, version)
            if policy.status not in ("candidate", "trial", "promoted"):
                raise GateError(f"Version {version} is {policy.status}; it serves nobody.")
            status: Status = "rejected" if policy.status == "candidate" else "demoted"
            return self._move(transaction, policy, status, 0.0, reason, None)

        moved: PolicyVersion = self.storage.write(act).result()
        return moved

    # ---- Looking

    def serving(self) -> Serving:
        """What serves the agent's calls now."""
        return self.storage.view(lambda connection: policies.serving(connection, self.agent))

    def versions(self) -> list[PolicyVersion]:
        """All of them, the oldest first."""
        return self.storage.view(lambda connection: policies.where(connection, "agent = ? ORDER BY id", self.agent))

    def checks(self, version: int) -> list[Check]:
        """The evidence for and against a version, the oldest first."""
        return self.storage.view(lambda connection: policies.checks(connection, self.agent, version))

    # ---- Within

    def _move(
        self,
        transaction: Transaction,
        policy: PolicyVersion,
        status: Status,
        share: float,
        reason: str,
        found: Found | None,
    ) -> PolicyVersion:
        """Gives a version a status; where that leaves one promoted too many, or none, the other one follows."""
        incumbent = policies.serving(transaction.connection, self.agent).promoted
        if status == "promoted" and incumbent is not None and incumbent.id != policy.id:
            self._set(transaction, incumbent, "superseded", 0.0, f"Version {policy.id} was promoted.")
        self._set(transaction, policy, status, share, reason, found)
        if policy.status == "promoted" and status == "demoted":
            before = policies.before(transaction.connection, policy)
            if before is not None:
                self._set(transaction, before, "promoted", 1.0, f"Version {policy.id} was demoted.")
        return policies.require(transaction.connection, self.agent, policy.id)

    def _set(
        self,
        transaction: Transaction,
        policy: PolicyVersion,
        status: Status,
        share: float,
        reason: str,
        found: Found | None = None,
    ) -> None:
        policies.set_status(transaction.connection, policy.id, status, share, reason)
        if (status, share) == (policy.status, policy.share):
            return
        after: dict[str, object] = {"status": status, "share": share}
        if found is not None:
            after["held_out"] = found.held_out._asdict()
            after["earlier"] = [each._asdict() for each in found.earlier.values()]
        transaction.audit("policy", who=self.author, target=f"policy {policy.id}", before=_state(policy), after=after)


# ---- Deciding


def _compare(measured: Measured, rules: Rules) -> Found:
    return Found(
        compared(measured.held_out, alpha=rules.alpha),
        {name: compared(found, alpha=rules.alpha) for name, found in measured.earlier.items()},
    )


def _together(parts: list[Measured]) -> Measured:
    names = parts[-1].earlier
    return Measured(
        pooled(part.held_out for part in parts),
        {name: pooled(part.earlier[name] for part in parts) for name in names},
    )


def _check_measured(measured: Measured, past: list[Measured], rules: Rules) -> None:
    for name, found in (("held-out tasks", measured.held_out), *measured.earlier.items()):
        if len(found) < rules.least:
            raise GateError(f"{name}: {len(found)} tasks were measured; at least {rules.least} are needed.")
    if past and (missing := past[0].earlier.keys() ^ measured.earlier.keys()):
        raise GateError(
            f"Each check measures the same earlier tasks; {', '.join(sorted(missing))} is not in all of them."
        )


def _why_not(found: Found, rules: Rules) -> str:
    """Why a version does not pass; empty: it does."""
    if not better(found.held_out, rules.effect):
        return f"It is not shown to be better on held-out tasks: {_figures(found.held_out)}."
    for name, each in found.earlier.items():
        if not not_worse(each, rules.tolerance):
            return f"It is not shown to lose less than {rules.tolerance:g} on {name}: {_figures(each)}."
    return ""


def _why_worse(found: Found) -> str:
    """Why a promoted version must go; empty: it may stay."""
    for name, each in (("held-out tasks", found.held_out), *found.earlier.items()):
        if worse(each):
            return f"It is worse on {name}: {_figures(each)}."
    return ""


def _verdict(policy: PolicyVersion, found: Found, rules: Rules) -> tuple[Status, float, str]:
    """A version's status and share from now on, and why."""
    if why := _why_worse(found) if policy.status == "promoted" else _why_not(found, rules):
        return "rejected" if policy.status == "candidate" else "demoted", 0.0, why
    if policy.status == "promoted":
        return (
            "promoted",
            1.0,
            f"It is not shown to be worse than the one before: {_figures(found.held_out)}.",
        )
    share = next(stage for stage in rules.stages if stage > policy.share)
    return "promoted" if share == 1 else "trial", share, f"It is better on held-out tasks: {_figures(found.held_out)}."


def _figures(found: Compared) -> str:
    return f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f}) on {found.tasks} tasks"


def _state(policy: PolicyVersion) -> dict[str, object]:
    return {"status": policy.status, "share": policy.share}
