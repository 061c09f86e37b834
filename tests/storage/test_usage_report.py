"""What calls used and cost: sums by hand, days where the user lives, and what is not known is said."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from relive.experience import Transition, Usage
from relive.storage import SqliteStorage
from relive.storage.usage_report import UsageRow


def call(when: str, **fields: Any) -> Transition:
    known = {
        "policy": "m",
        "usage": Usage(input_tokens=10, cached_tokens=4, output_tokens=2),
        "cost": 100,
        "latency_ms": 5.0,
    }
    at = datetime.fromisoformat(when).replace(tzinfo=UTC)
    return Transition(state=1, action=1, created_at=at, **{**known, **fields})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStorage]:
    rows = [
        call("2026-05-01T10:00", agent="a", outcome="success"),
        call("2026-05-01T23:30", agent="b", outcome="failure", latency_ms=15.0),
        call("2026-05-02T10:00", agent="a", policy="n", cost=None, usage=None),
        call("2026-05-02T11:00", agent="a", error="x gave no whole answer in time.", cost=None, latency_ms=9_999.0),
        call("2026-05-02T12:00", agent="a", error="overloaded", cost=None),
        call("2026-05-02T12:00", agent="a", parent=5, error="a failed try of the call above"),
    ]
    with SqliteStorage(tmp_path / "s.db") as opened:
        opened.append(rows)
        yield opened


def test_the_sums_of_all_calls(store: SqliteStorage) -> None:
    (row,) = store.usage()
    assert row == UsageRow(
        group=(),
        calls=5,
        errors=2,
        timeouts=1,
        successes=1,
        failures=1,
        input_tokens=40,
        cached_tokens=16,
        output_tokens=8,
        cost=200,
        unknown_costs=3,
        latency_p50=5.0,
        latency_p95=14.0,
    )
    assert row.cost_per_success == 200
    assert row.success_rate == pytest.approx(3 / 5)
    assert row.success_rate_without_timeouts == pytest.approx(3 / 4)


def test_groups_by_day_model_agent_and_outcome(store: SqliteStorage) -> None:
    assert [(r.group, r.calls) for r in store.usage(by=["model"])] == [(("m",), 4), (("n",), 1)]
    assert [(r.group, r.calls) for r in store.usage(by=["outcome", "agent"])] == [
        (("failure", "b"), 1),
        (("success", "a"), 1),
        (("unknown", "a"), 3),
    ]
    assert [(r.group, r.calls) for r in store.usage(by=["day"])] == [(("2026-05-01",), 2), (("2026-05-02",), 3)]
    berlin = store.usage(by=["day", "agent"], zone=ZoneInfo("Europe/Berlin"))
    assert [(r.group, r.calls) for r in berlin] == [
        (("2026-05-01", "a"), 1),
        (("2026-05-02", "a"), 3),
        (("2026-05-02", "b"), 1),
    ], "half past eleven in the evening is the next day in Berlin"


def test_only_the_time_and_agent_asked_for(store: SqliteStorage) -> None:
    noon = datetime(2026, 5, 2, 10, 30, tzinfo=UTC)
    assert store.usage(since=noon)[0].calls == 2
    assert store.usage(until=noon)[0].calls == 3
    assert [r.group for r in store.usage(until=noon, by=["day"])] == [("2026-05-01",), ("2026-05-02",)]
    assert store.usage(agent="b")[0].cost == 100
    assert store.usage(agent="nobody") == []


def test_what_is_not_known_is_none_and_never_zero(store: SqliteStorage) -> None:
    (row,) = [row for row in store.usage(by=["model"]) if row.group == ("n",)]
    assert (row.cost, row.input_tokens, row.unknown_costs) == (None, None, 1)
    assert row.cost_per_success is None


def test_an_empty_store_has_no_rows(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "empty.db") as empty:
        assert empty.usage() == empty.usage(by=["day"]) == []


def test_a_day_that_is_an_hour_longer_counts_each_call_once(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "s.db") as store:
        store.append([call(f"2026-10-{day}T{hour:02}:30") for day in (24, 25, 26) for hour in range(24)])
        days = store.usage(by=["day"], zone=ZoneInfo("Europe/Berlin"))
        assert {r.group[0]: r.calls for r in days} == {
            "2026-10-24": 22,
            "2026-10-25": 25,
            "2026-10-26": 24,
            "2026-10-27": 1,
        }
