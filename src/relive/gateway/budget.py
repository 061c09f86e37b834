"""Budgets: an amount is reserved before a call, settled after it, and released when the call fails or its gateway dies.

Amounts are whole nano-USD. A budget holds for a scope (everything, one key, one agent) and a day or calendar month in
the user's own time zone. A call is admitted only if what was spent, what is reserved and its own estimate together stay
within every limit that it falls under, in all processes beside the store together. ``None`` means no limit, and nothing
spent yet counts as 0.

A process reserves in the ledger a *lease* for all its calls in flight, in one transaction with the check against the
limit, and admits calls within its lease by itself, so that most calls wait for no database. A lease grows with use, by
at most an eighth of what is left, and is given back when no call is in flight. What calls cost is booked within
`FLUSH` seconds of their end. If the ledger cannot be used, calls go on within what was left of their budgets when it
could, and their cost is booked later: a broken disk stops no agent.
"""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, tzinfo
from typing import Literal, NamedTuple

import apsw
import msgspec

from relive.errors import ReliveError
from relive.gateway.fresh import fresh_id
from relive.gateway.ledger import Ledger, LedgerError

Span = Literal["day", "month"]

EVERYTHING = "all"
"""The scope that every call falls under; others are ``key:ID`` and ``agent:NAME``."""

RESERVATION_LIVES = 300.0
"""Seconds after which a reservation whose gateway died no longer counts; one that lives renews it before."""

FLUSH = 0.05
"""Seconds within which the cost of a finished call is booked in the ledger."""

PATIENCE = 5.0
"""Seconds for which a ledger that could not be used is left alone."""

_SHARE = 8  # a lease grows by at most one part in so many of what is left
_CALLS = 64  # and by what so many calls need
_MOST_KNOWN = 1_000  # sets of scopes

_Key = tuple[str, str]


class BudgetExceededError(ReliveError):
    """A call would go beyond a budget; the message names it and when it starts anew."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A limit.

    Attributes:
        scope: What it is for.
        day: The most that a day may cost, in nano-USD; ``None``: no limit.
        month: The most that a calendar month may cost; ``None``: no limit.
    """

    scope: str = EVERYTHING
    day: int | None = None
    month: int | None = None

    def limits(self) -> dict[Span, int]:
        """The limits that there are, by span."""
        spans: dict[Span, int | None] = {"day": self.day, "month": self.month}
        return {span: limit for span, limit in spans.items() if limit is not None}


class _Pot:
    """What this process knows of one scope and period.

    Attributes:
        limit: The most that may be spent.
        lease: What is reserved in the ledger for this process.
        held: What its calls in flight need at most.
        unbooked: What finished calls cost, not yet booked in the ledger.
        left: What nobody had spent or reserved when the ledger was last looked at.
        admitted: Calls admitted since then.
    """

    __slots__ = ("admitted", "held", "lease", "left", "limit", "unbooked")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lease = self.held = self.unbooked = self.admitted = 0
        self.left = limit

    def takes(self, cost: int) -> bool:
        """Whether a call of this cost fits into the lease."""
        return self.held + self.unbooked + max(cost, 1) <= self.lease


class _Open(NamedTuple):
    """A call in flight: what it may cost, and what it is counted in."""

    cost: int
    keys: tuple[_Key, ...]


class Budgets:
    """Keeps calls within their budgets; any thread may use it.

    Args:
        ledger: Where amounts are kept.
        budgets: The limits.
        zone: The user's time zone, in which days and months begin.
        now: The present time, with a time zone.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        budgets: Iterable[Budget],
        *,
        zone: tzinfo,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._budgets = tuple(budget for budget in budgets if budget.limits())
        self._zone = zone
        self._now = now
        self._clock = clock
        self._process = uuid.uuid4().hex  # whose lease it is in the ledger
        self._pots: dict[_Key, _Pot] = {}
        self._open: dict[str, _Open] = {}
        self._memory = threading.Lock()  # held for moments, while numbers change
        self._transactions = threading.Lock()  # held while the ledger is written
        self._leave_alone_until = float("-inf")
        self._renew_at = float("inf")
        self._minute = -1
        self._known: dict[tuple[str, ...], list[_Limit]] = {}  # limits by scopes, in this minute

    def __bool__(self) -> bool:
        return bool(self._budgets)

    @property
    def unbooked(self) -> bool:
        """Whether a finished call's cost, or a lease that nobody needs, is not in the ledger yet."""
        return any(pot.unbooked or (pot.lease and not pot.held) for pot in tuple(self._pots.values()))

    @property
    def in_use(self) -> bool:
        """Whether a call is in flight, or anything that was is not in the ledger yet."""
        return bool(self._open) or self.unbooked

    @property
    def due(self) -> bool:
        """Whether the ledger wants to be brought up to date, and can be."""
        now = self._clock()
        return now >= self._leave_alone_until and (self.unbooked or now >= self._renew_at)

    def admit(self, scopes: Iterable[str], amount: int | None) -> str | None:
        """Like `reserve`, but never waits; ``None``: only the ledger can tell whether the call fits."""
        cost, now = amount or 0, self._now()
        with self._memory:
            limits = self._limits(tuple(scopes), now)
            pots = [self._pot(key, limit) for key, limit, _ in limits]
            if all(pot.takes(cost) for pot in pots):
                return self._admitted(limits, cost)
        return None

    def reserve(self, scopes: Iterable[str], amount: int | None) -> str:
        """Admits a call.

        Args:
            scopes: What it falls under, besides `EVERYTHING`.
            amount: The most it is expected to cost; ``None``: not known, then it counts as 0 until it is settled.

        Returns:
            What to settle or release it by.

        Raises:
            BudgetExceededError: it does not fit into a budget.
        """
        scopes, cost, now = tuple(scopes), amount or 0, self._now()
        while True:
            with self._transactions:
                call = self.admit(scopes, amount)
                if call is not None:
                    return call
                with self._memory:
                    self._forget_past(now)
                    limits = self._limits(scopes, now)
                try:
                    self._write(now, limits, cost)
                except LedgerError:
                    return self._admit_without_ledger(limits, cost)
                call = self.admit(scopes, amount)
            if call is not None:
                return call  # else another call took what was leased for this one

    def book(self, call: str, cost: int | None) -> None:
        """Like `settle`, but never waits: the ledger has it once `flush` was called."""
        with self._memory:
            known = self._open.pop(call, None)
            if known is None:
                return
            for key in known.keys:
                pot = self._pots[key]
                pot.held -= known.cost
                pot.unbooked += known.cost if cost is None else cost

    def settle(self, call: str, cost: int | None) -> None:
        """Books what a call cost in place of what was reserved; twice for one call changes nothing.

        Args:
            call: What `reserve` gave.
            cost: What it cost; ``None``: not known, then what was reserved is booked.
        """
        self.book(call, cost)
        self.flush()

    def release(self, call: str) -> None:
        """Gives back what was reserved for a call that cost nothing."""
        self.settle(call, 0)

    def flush(self) -> None:
        """Books what finished calls cost, gives back what is leased for none and renews the rest.

        If the ledger fails, that is left for later.
        """
        with self._transactions:
            if self.unbooked or self._clock() >= self._renew_at:
                with contextlib.suppress(LedgerError):
                    self._write(self._now(), [], 0)

    def start_from(self, scope: str, span: Span, amount: int) -> None:
        """Tells what was spent in the present period as far as the store knows; what is booked is never lowered."""
        period = self._period(span, self._now())
        self._ledger.transaction(
            lambda c: c.execute(
                "INSERT INTO spend VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
                "amount = max(coalesce(amount, 0), excluded.amount)",
                (scope, period, amount),
            ).fetchall()
        )

    def spent(self, scope: str, span: Span) -> int:
        """What calls cost in the present day or month, reservations not included, in nano-USD."""
        key = (scope, self._period(span, self._now()))
        with self._transactions:
            rows = self._ledger.rows("SELECT amount FROM spend WHERE scope = ? AND period = ?", key)
            pot = self._pots.get(key)
            return (rows[0][0] or 0 if rows else 0) + (pot.unbooked if pot is not None else 0)

    # -- numbers, with the memory's lock held ---------------------------------------------------------------------

    def _limits(self, scopes: tuple[str, ...], now: datetime) -> "list[_Limit]":
        """What a call falls under; days and months begin on whole minutes everywhere."""
        minute = int(now.timestamp()) // 60
        if minute != self._minute or len(self._known) >= _MOST_KNOWN:
            self._minute, self._known = minute, {}
        limits = self._known.get(scopes)
        if limits is None:
            limits = self._known[scopes] = [
                _Limit((budget.scope, self._period(span, now)), limit, span)
                for budget in self._budgets
                if budget.scope == EVERYTHING or budget.scope in scopes
                for span, limit in budget.limits().items()
            ]
        return limits

    def _pot(self, key: _Key, limit: int) -> _Pot:
        pot = self._pots.get(key)
        if pot is None:
            pot = self._pots[key] = _Pot(limit)
        return pot

    def _admitted(self, limits: "list[_Limit]", cost: int) -> str:
        call = fresh_id().hex()
        for key, limit, _ in limits:
            pot = self._pot(key, limit)
            pot.held += cost
            pot.admitted += 1
        keys = tuple(limit.key for limit in limits)
        self._open[call] = _Open(cost, keys)
        return call

    def _forget_past(self, now: datetime) -> None:
        """Days that are over no longer count, unless a call of theirs is still in flight."""
        wanted = {key for call in self._open.values() for key in call.keys}
        today = {self._period("day", now), self._period("month", now)}
        for key, pot in list(self._pots.items()):
            if key[1] not in today and key not in wanted and not (pot.unbooked or pot.lease):
                del self._pots[key]

    def _admit_without_ledger(self, limits: "list[_Limit]", cost: int) -> str:
        """Within what was left when the ledger was last looked at."""
        with self._memory:
            for key, limit, span in limits:
                pot = self._pot(key, limit)
                if pot.held + pot.unbooked + max(cost, 1) - pot.lease > pot.left:
                    raise self._exceeded(key, limit, span, limit - pot.left, cost)
            for key, limit, _ in limits:
                pot = self._pot(key, limit)
                need = max(0, pot.held + pot.unbooked + cost - pot.lease)
                pot.lease += need
                pot.left -= need
            return self._admitted(limits, cost)

    # -- the ledger, with the lock for transactions held ----------------------------------------------------------

    def _write(self, now: datetime, limits: "list[_Limit]", cost: int) -> None:
        """Books what is not booked, gives back leases that nobody needs, and leases what a call needs.

        Raises:
            BudgetExceededError: the call does not fit into a budget; the rest is written.
            LedgerError: nothing is written.
        """
        if self._clock() < self._leave_alone_until:
            raise LedgerError("The ledger could not be used a moment ago.")
        wanted = {limit.key: limit for limit in limits}
        with self._memory:
            for key, limit, _ in limits:
                self._pot(key, limit)
            pots = dict(self._pots)
            booked = {key: pot.unbooked for key, pot in pots.items()}
            given_back = {}
            for key, pot in pots.items():
                slack = pot.lease - pot.held - pot.unbooked
                given_back[key] = slack if not pot.held and key not in wanted else 0
                pot.lease -= given_back[key]
            leases = {key: pot.lease - booked[key] for key, pot in pots.items()}
            needs = {key: max(0, pots[key].held + max(cost, 1) - leases[key]) for key in wanted}
            used = {key: pots[key].admitted for key in wanted}
        try:
            asked = {key: _Asked(wanted[key].limit, needs[key], cost * min(used[key], _CALLS)) for key in wanted}
            left, granted = self._ledger.transaction(lambda c: self._transact(c, now, booked, leases, asked))
        except LedgerError:
            self._leave_alone_until = self._renew_at = self._clock() + PATIENCE
            with self._memory:
                for key, amount in given_back.items():
                    pots[key].lease += amount
            raise
        with self._memory:
            self._renew_at = self._clock() + RESERVATION_LIVES / 3
            for key, pot in pots.items():
                pot.unbooked -= booked[key]
                pot.lease += granted.get(key, 0) - booked[key]
                if key in left:
                    pot.left, pot.admitted = left[key] - granted.get(key, 0), 0
        for key, limit, span in limits:
            if needs[key] > left[key]:
                raise self._exceeded(key, limit, span, limit - left[key], cost)

    def _transact(
        self,
        connection: apsw.Connection,
        now: datetime,
        booked: dict[_Key, int],
        leases: dict[_Key, int],
        wanted: "dict[_Key, _Asked]",
    ) -> tuple[dict[_Key, int], dict[_Key, int]]:
        """What nobody had spent or reserved in each budget that is wanted, and what is leased of it."""
        connection.execute("DELETE FROM reservation WHERE expires <= ?", (now.timestamp(),))
        connection.executemany(
            "INSERT INTO spend VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
            "amount = coalesce(amount, 0) + excluded.amount",
            [(*key, amount) for key, amount in booked.items() if amount],
        )
        left, granted = {}, {}
        for key, asked in wanted.items():
            taken = connection.execute(
                "SELECT coalesce((SELECT amount FROM spend WHERE scope = ?1 AND period = ?2), 0) + (SELECT "
                "coalesce(sum(amount), 0) FROM reservation WHERE scope = ?1 AND period = ?2 AND call <> ?3)",
                (*key, self._process),
            ).get
            left[key] = asked.limit - taken - leases[key]
        if all(asked.need <= left[key] for key, asked in wanted.items()):
            for key, asked in wanted.items():
                granted[key] = asked.need + min((left[key] - asked.need) // _SHARE, asked.more)
        connection.executemany(
            "INSERT INTO reservation VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET amount = excluded.amount, "
            "expires = excluded.expires",
            [
                (self._process, *key, lease + granted.get(key, 0), now.timestamp() + RESERVATION_LIVES)
                for key, lease in leases.items()
            ],
        )
        connection.execute("DELETE FROM reservation WHERE call = ? AND amount <= 0", (self._process,))
        return left, granted

    def _exceeded(self, key: _Key, limit: int, span: Span, taken: int, cost: int) -> BudgetExceededError:
        return BudgetExceededError(
            f"The budget of ${limit / 1e9:.2f} a {span} for {_said(key[0])} is used up "
            f"(${taken / 1e9:.4f} spent or reserved, this call needs up to ${cost / 1e9:.4f}); "
            f"it starts anew with the next {span}."
        )

    def _period(self, span: Span, now: datetime) -> str:
        day = now.astimezone(self._zone).date().isoformat()
        return day if span == "day" else day[:7]


class _Asked(NamedTuple):
    """What is asked of the ledger: within which limit, how much at least, and how much more if there is plenty."""

    limit: int
    need: int
    more: int


class _Limit(NamedTuple):
    """One limit that a call falls under: its scope and period, the most that may be spent, and its span."""

    key: _Key
    limit: int
    span: Span


def _said(scope: str) -> str:
    kind, _, name = scope.partition(":")
    return "all calls" if scope == EVERYTHING else f"the {kind} {name!r}"
