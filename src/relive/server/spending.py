"""What calls cost and what a month comes to: the figures of `relive cost` and of the page about costs."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

import msgspec

from relive.storage import SqliteStorage
from relive.storage.usage_report import By, UsageRow

DAYS_OF_A_MONTH = 30


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls of a time span cost.

    Attributes:
        rows: By what was asked for.
        total: All together; ``None``: there were none.
        month: What a month comes to, in nano-USD; see `projected`. ``None``: not known.
    """

    rows: list[UsageRow]
    total: UsageRow | None
    month: int | None


def spending(
    store: SqliteStorage,
    by: Sequence[By],
    *,
    days: int | None = None,
    agent: str | None = None,
    zone: tzinfo = UTC,
) -> Spending:
    """What calls cost until now.

    Args:
        store: Where they are recorded.
        by: What to group by.
        days: Only the last so many days.
        agent: Only this agent's.
        zone: Where days begin and end.
    """
    until = datetime.now(UTC)
    since = None if days is None else until - timedelta(days=days)
    rows = store.usage(by=by, since=since, until=until, agent=agent, zone=zone)
    total = next(iter(store.usage(since=since, until=until, agent=agent)), None)
    began = _first_call(store, since, agent) if total is not None else None
    return Spending(
        rows=rows, total=total, month=None if total is None or began is None else projected(total, began, until)
    )


def projected(total: UsageRow, began: datetime, until: datetime) -> int | None:
    """What a month of 30 days comes to at the rate so far, in nano-USD; the part of a first day counts as a whole one.

    ``None``: no cost is known. Where some are not, it is the least that it comes to.
    """
    if total.cost is None:
        return None
    days = max(1.0, (until - began) / timedelta(days=1))
    return round(total.cost * DAYS_OF_A_MONTH / days)


def _first_call(store: SqliteStorage, since: datetime | None, agent: str | None) -> datetime | None:
    """When the first call of the span was, or the span's own beginning where calls go back before it."""
    if since is not None and store.query(until=since, agent=agent, limit=1):
        return since
    rows = store.query(since=since, agent=agent, limit=1)
    return rows[0].created_at if rows else None
