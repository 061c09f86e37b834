"""Budgets: an amount is reserved before a call, settled after it, and released when the call fails or its gateway dies.

Amounts are whole nano-USD. A budget holds for a scope (everything, one key, one agent) and a day or calendar month in
the user's own time zone. A call is admitted only if what was spent, what is reserved and its own estimate together stay
within every limit that it falls under; the check and the reservation are one transaction, so calls that arrive together
in any number of processes cannot pass it together. ``None`` means no limit, and nothing spent yet counts as 0.
"""

import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, tzinfo
from typing import Literal

import apsw
import msgspec

from relive.errors import ReliveError
from relive.gateway.ledger import Ledger

Span = Literal["day", "month"]

EVERYTHING = "all"
"""The scope that every call falls under; others are ``key:ID`` and ``agent:NAME``."""

RESERVATION_LIVES = 900.0
"""Seconds after which a reservation whose gateway died no longer counts; longer than any call takes."""


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


class Budgets:
    """Keeps calls within their budgets.

    Args:
        ledger: Where amounts are kept.
        budgets: The limits.
        zone: The user's time zone, in which days and months begin.
        now: The present time, with a time zone.
        lives: Seconds after which a reservation that nobody settled no longer counts; longer than any call takes.
    """

    def __init__(
        self,
        ledger: Ledger,
        budgets: Iterable[Budget],
        *,
        zone: tzinfo,
        now: Callable[[], datetime],
        lives: float = RESERVATION_LIVES,
    ) -> None:
        self._ledger = ledger
        self._budgets = tuple(budgets)
        self._zone = zone
        self._now = now
        self._lives = lives

    def __bool__(self) -> bool:
        return any(budget.limits() for budget in self._budgets)

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
        under, now = {EVERYTHING, *scopes}, self._now()
        call, cost = uuid.uuid4().hex, amount or 0

        def act(connection: apsw.Connection) -> None:
            connection.execute("DELETE FROM reservation WHERE expires <= ?", (now.timestamp(),))
            for budget in self._budgets:
                if budget.scope in under:
                    self._reserve(connection, budget, call, cost, now)

        self._ledger.transaction(act)
        return call

    def settle(self, call: str, cost: int | None) -> None:
        """Books what a call cost in place of what was reserved; twice for one call changes nothing.

        Args:
            call: What `reserve` gave.
            cost: What it cost; ``None``: not known, then what was reserved is booked.
        """

        def act(connection: apsw.Connection) -> None:
            reserved = connection.execute(
                "SELECT scope, period, amount FROM reservation WHERE call = ?", (call,)
            ).fetchall()
            connection.execute("DELETE FROM reservation WHERE call = ?", (call,))
            connection.executemany(
                "INSERT INTO spend VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
                "amount = coalesce(amount, 0) + excluded.amount",
                [(scope, period, amount if cost is None else cost) for scope, period, amount in reserved],
            )

        self._ledger.transaction(act)

    def release(self, call: str) -> None:
        """Gives back what was reserved for a call that cost nothing."""
        self._ledger.transaction(lambda c: c.execute("DELETE FROM reservation WHERE call = ?", (call,)).fetchall())

    def start_from(self, scope: str, span: Span, amount: int) -> None:
        """Tells what was spent in the present period before there was a budget; where something is booked, nothing."""
        period = self._period(span, self._now())
        self._ledger.transaction(
            lambda c: c.execute("INSERT OR IGNORE INTO spend VALUES (?, ?, ?)", (scope, period, amount)).fetchall()
        )

    def spent(self, scope: str, span: Span) -> int:
        """What is booked in the present day or month, reservations not included, in nano-USD."""
        period = self._period(span, self._now())
        rows = self._ledger.rows("SELECT amount FROM spend WHERE scope = ? AND period = ?", (scope, period))
        return rows[0][0] or 0 if rows else 0

    def _reserve(self, connection: apsw.Connection, budget: Budget, call: str, cost: int, now: datetime) -> None:
        for span, limit in budget.limits().items():
            period = self._period(span, now)
            spent = connection.execute(
                "SELECT coalesce((SELECT amount FROM spend WHERE scope = ?1 AND period = ?2), 0) "
                "+ (SELECT coalesce(sum(amount), 0) FROM reservation WHERE scope = ?1 AND period = ?2)",
                (budget.scope, period),
            ).get
            if spent + cost > limit or spent >= limit:
                raise BudgetExceededError(
                    f"The budget of ${limit / 1e9:.2f} a {span} for {_said(budget.scope)} is used up "
                    f"(${spent / 1e9:.4f} spent or reserved, this call needs up to ${cost / 1e9:.4f}); "
                    f"it starts anew with the next {span}."
                )
            connection.execute(
                "INSERT INTO reservation VALUES (?, ?, ?, ?, ?)",
                (call, budget.scope, period, cost, now.timestamp() + self._lives),
            )

    def _period(self, span: Span, now: datetime) -> str:
        local = now.astimezone(self._zone)
        return local.strftime("%Y-%m-%d" if span == "day" else "%Y-%m")


def _said(scope: str) -> str:
    kind, _, name = scope.partition(":")
    return "all calls" if scope == EVERYTHING else f"the {kind} {name!r}"
