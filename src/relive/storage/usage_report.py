"""What recorded calls used and cost, by day, model, agent or outcome; totals say how much of them is not known."""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any, Literal

import apsw
import msgspec
import numpy as np

from relive.storage.connection import fetch
from relive.storage.record import OUTCOMES, microseconds, moment

By = Literal["day", "model", "agent", "outcome"]

_COLUMNS: dict[By, str] = {"model": "coalesce(policy, '')", "agent": "agent", "outcome": "outcome"}
OBSERVED = "observed"
"""The tag of steps that are no calls to a model; see `relive.observation`."""

_TIMED_OUT = "gave no whole answer in time"
"""What the errors of calls that timed out say; see `relive.llm.errors.UpstreamTimeoutError`."""

_SUMS = """count(*), sum(error IS NOT NULL), sum(error IS NOT NULL AND instr(error, ?)), sum(outcome = 1),
    sum(outcome = 2), sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(cost), sum(cost IS NULL)"""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one group.

    Attributes:
        group: Its value of each thing asked for, in that order.
        calls: How many there were; failed tries of a call that went on do not count.
        errors: How many ended with an error.
        timeouts: How many of those because the time was up.
        successes: How many have the outcome success.
        failures: How many have the outcome failure.
        input_tokens: Sum of the known counts; ``None``: none is known. So for the next two.
        cached_tokens: Of those, read from a provider's cache.
        output_tokens: Of the answers.
        cost: Sum of the known costs in nano-USD; ``None``: none is known.
        unknown_costs: How many have no known cost.
        latency_p50: Median latency of the calls without an error in milliseconds; ``None``: none is known.
        latency_p95: Its 95th percentile.
    """

    group: tuple[str, ...]
    calls: int
    errors: int
    timeouts: int
    successes: int
    failures: int
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    cost: int | None
    unknown_costs: int
    latency_p50: float | None
    latency_p95: float | None

    @property
    def cost_per_success(self) -> float | None:
        """Nano-USD for each success; ``None``: no success, or no known cost."""
        return None if self.cost is None or not self.successes else self.cost / self.successes

    @property
    def success_rate(self) -> float | None:
        """Share of the calls that ended without an error; ``None``: there were none."""
        return (self.calls - self.errors) / self.calls if self.calls else None

    @property
    def success_rate_without_timeouts(self) -> float | None:
        """The same, leaving out calls whose time was up."""
        counted = self.calls - self.timeouts
        return (self.calls - self.errors) / counted if counted else None


def usage_rows(
    connection: apsw.Connection,
    *,
    by: Sequence[By] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    agent: str | None = None,
    zone: tzinfo = UTC,
) -> list[UsageRow]:
    """The groups of the recorded calls, in order of their values; without `by` one row for all.

    Args:
        connection: To the store.
        by: What to group by.
        since: Only calls from then on.
        until: Only calls before then.
        agent: Only this agent's.
        zone: Where days begin and end.
    """
    spans: Iterable[tuple[str | None, int | None, int | None]] = [(None, _micro(since), _micro(until))]
    if "day" in by:
        spans = _days(connection, since, until, zone)
    rows: list[UsageRow] = []
    for day, start, end in spans:
        rows += _span(connection, by, day, start, end, agent)
    return sorted(rows, key=lambda row: row.group)


def _span(
    connection: apsw.Connection,
    by: Sequence[By],
    day: str | None,
    start: int | None,
    end: int | None,
    agent: str | None,
) -> list[UsageRow]:
    columns = [_COLUMNS[name] for name in by if name != "day"]
    where, values = ["parent IS NULL", f"(tags IS NULL OR instr(tags, '\"{OBSERVED}\"') = 0)"], []
    # Within a time, rows are found by the time: an agent may have most of them, and each day asks anew.
    of_agent = "agent = ?" if start is None and end is None else "+agent = ?"
    for term, value in (("created_at >= ?", start), ("created_at < ?", end), (of_agent, agent)):
        if value is not None:
            where.append(term)
            values.append(value)
    condition = " AND ".join(where)
    grouping = f" GROUP BY {', '.join(columns)}" if columns else ""
    chosen = ", ".join([*columns, ""])
    sums = fetch(
        connection,
        f"SELECT {chosen}{_SUMS} FROM experience WHERE {condition}{grouping}",  # noqa: S608 - own names only
        (_TIMED_OUT, *values),
    )
    latencies: dict[tuple[Any, ...], list[float]] = {}
    for *key, latency in fetch(
        connection,
        f"SELECT {chosen}latency_ms FROM experience WHERE {condition} "  # noqa: S608 - own names only
        "AND error IS NULL AND latency_ms IS NOT NULL",
        tuple(values),
    ):
        latencies.setdefault(tuple(key), []).append(latency)
    rows = []
    for row in sums:
        key, counts = tuple(row[: len(columns)]), row[len(columns) :]
        if counts[0] == 0:
            continue
        named = iter(key)
        times = latencies.get(key)
        rows.append(
            UsageRow(
                group=tuple(day or "" if name == "day" else _shown(name, next(named)) for name in by),
                calls=counts[0],
                errors=counts[1],
                timeouts=counts[2],
                successes=counts[3],
                failures=counts[4],
                input_tokens=counts[5],
                cached_tokens=counts[6],
                output_tokens=counts[7],
                cost=counts[8],
                unknown_costs=counts[9],
                latency_p50=None if times is None else float(np.percentile(times, 50)),
                latency_p95=None if times is None else float(np.percentile(times, 95)),
            )
        )
    return rows


def _days(
    connection: apsw.Connection, since: datetime | None, until: datetime | None, zone: tzinfo
) -> list[tuple[str, int, int]]:
    """The local days from the first to the last call, each with its beginning and end in microseconds."""
    first, last = connection.execute("SELECT min(created_at), max(created_at) FROM experience").get
    if first is None:
        return []
    start = max(moment(first), since) if since is not None else moment(first)
    end = min(moment(last + 1), until) if until is not None else moment(last + 1)
    days = []
    day = start.astimezone(zone).date()
    while (begins := _midnight(day, zone)) < end:
        following = day + timedelta(days=1)
        low, high = max(begins, start), min(_midnight(following, zone), end)
        days.append((day.isoformat(), microseconds(low), microseconds(high)))
        day = following
    return days


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime.combine(day, time(), zone).astimezone(UTC)


def _micro(when: datetime | None) -> int | None:
    return None if when is None else microseconds(when)


def _shown(name: By, value: Any) -> str:
    return OUTCOMES[value] if name == "outcome" else str(value) or "(unknown)"
