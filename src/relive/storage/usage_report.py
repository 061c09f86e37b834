"""What recorded calls used and cost, by day, model, agent or outcome; totals say how much of them is not known."""

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any, Literal

import apsw
import msgspec
import numpy as np

from relive.storage.connection import fetch
from relive.storage.record import OUTCOMES, microseconds, moment

By = Literal["day", "model", "agent", "outcome"]

_QUARTER = 15 * 60 * 1_000_000
_YEAR_1 = 62_135_596_800_000_000
"""Microseconds from the year 1, the first of a ``datetime``, to 1970: a time counted from there is never below 0."""

# Days are put together from quarters of an hour, in one pass: every zone's days begin at one (since 1972).
_COLUMNS: dict[By, str] = {
    "day": f"(created_at + {_YEAR_1}) / {_QUARTER}",
    "model": "coalesce(policy, '')",
    "agent": "agent",
    "outcome": "outcome",
}
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
    columns = [_COLUMNS[name] for name in by]
    where, values = ["parent IS NULL", f"(tags IS NULL OR instr(tags, '\"{OBSERVED}\"') = 0)"], []
    # Within a time, rows are found by the time: an agent may have most of them.
    of_agent = "agent = ?" if since is None and until is None else "+agent = ?"
    for term, value in (("created_at >= ?", _micro(since)), ("created_at < ?", _micro(until)), (of_agent, agent)):
        if value is not None:
            where.append(term)
            values.append(value)
    condition = " AND ".join(where)
    grouping = f" GROUP BY {', '.join(columns)}" if columns else ""
    chosen = ", ".join([*columns, ""])
    sums: dict[tuple[str, ...], list[int | None]] = {}
    for row in fetch(
        connection,
        f"SELECT {chosen}{_SUMS} FROM experience WHERE {condition}{grouping}",  # noqa: S608 - own names only
        (_TIMED_OUT, *values),
    ):
        key, counts = _group(by, row, zone), row[len(columns) :]
        sums[key] = [_sum(pair) for pair in zip(sums[key], counts, strict=True)] if key in sums else list(counts)
    latencies: dict[tuple[str, ...], list[float]] = {}
    for *values_of_group, latency in fetch(
        connection,
        f"SELECT {chosen}latency_ms FROM experience WHERE {condition} "  # noqa: S608 - own names only
        "AND error IS NULL AND latency_ms IS NOT NULL",
        tuple(values),
    ):
        latencies.setdefault(_group(by, values_of_group, zone), []).append(latency)
    return [_row(key, counts, latencies.get(key)) for key, counts in sorted(sums.items()) if counts[0]]


def _row(group: tuple[str, ...], counts: Sequence[Any], times: list[float] | None) -> UsageRow:
    return UsageRow(
        group=group,
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


def _group(by: Sequence[By], row: Sequence[Any], zone: tzinfo) -> tuple[str, ...]:
    """The values of a group as they are shown."""
    return tuple(_shown(name, row[place], zone) for place, name in enumerate(by))


@lru_cache(maxsize=65_536)
def _day(quarter: int, zone: tzinfo) -> str:
    return moment(quarter * _QUARTER - _YEAR_1).astimezone(zone).date().isoformat()


def _sum(pair: tuple[int | None, int | None]) -> int | None:
    known = [one for one in pair if one is not None]
    return sum(known) if known else None


def _micro(when: datetime | None) -> int | None:
    return None if when is None else microseconds(when)


def _shown(name: By, value: Any, zone: tzinfo) -> str:
    if name == "day":
        return _day(value, zone)
    return OUTCOMES[value] if name == "outcome" else str(value) or "(unknown)"
