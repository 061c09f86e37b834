"""`relive cost`, `relive report`, `relive rewards check`: figures by hand, and what is not known is said."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relive.cli.app import app
from relive.experience import Feedback, Transition, Usage
from relive.server.spending import projected
from relive.storage import SqliteStorage
from relive.storage.usage_report import UsageRow

NOW = datetime.now(UTC)


def run(*arguments: str) -> str:
    """What a command prints, in this process; one that fails shows its output."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def call(days_ago: float, **fields: Any) -> Transition:
    known = {"policy": "large", "usage": Usage(input_tokens=1_000, output_tokens=100), "cost": 2_000_000}
    return Transition(state=1, action="a", created_at=NOW - timedelta(days=days_ago), **{**known, **fields})


def stored(folder: Path, rows: Sequence[Transition]) -> str:
    with SqliteStorage(folder / "agent.db") as store:
        store.append(rows)
    return str(folder / "agent.db")


@pytest.fixture
def store(tmp_path: Path) -> str:
    rows = [
        call(10.0, outcome="success", latency_ms=100.0),
        call(3.0, outcome="success", agent="b", latency_ms=300.0),
        call(2.0, outcome="failure", policy="small", cost=500_000),
        call(1.0, policy="small", usage=None, cost=None, error="x gave no whole answer in time"),
        call(0.5, policy=None, usage=None, cost=None, error="overloaded"),
    ]
    return stored(tmp_path, rows)


def test_costs_are_summed_by_model_and_what_is_unknown_is_counted_apart(store: str) -> None:
    found = json.loads(run("cost", store, "--json"))
    rows = {row["model"]: row for row in found["rows"]}
    assert rows["large"]["cost"] == 4_000_000
    assert rows["large"]["cost_per_success"] == 2_000_000
    assert (rows["small"]["cost"], rows["small"]["unknown_costs"]) == (500_000, 1)
    assert rows["small"]["cost_per_success"] is None
    assert rows["(unknown)"]["cost"] is None
    total = found["total"]
    assert (total["calls"], total["cost"], total["unknown_costs"]) == (5, 4_500_000, 2)
    assert total["projected_month"] == pytest.approx(4_500_000 * 30 / 10, rel=0.01)


def test_the_table_says_that_sums_leave_unknown_costs_out(store: str) -> None:
    printed = run("cost", store, "--by", "outcome")
    assert "The cost of 2 of 5 calls is not known" in printed
    assert "A month at this rate: at least $0.013" in printed
    assert "unknown" in printed


def test_a_span_an_agent_and_several_groups_can_be_asked_for(store: str) -> None:
    found = json.loads(run("cost", store, "--days", "5", "--agent", "b", "--by", "day", "--by", "agent", "--json"))
    assert [(row["agent"], row["cost"]) for row in found["rows"]] == [("b", 2_000_000)]
    assert found["total"]["calls"] == 1
    empty = json.loads(run("cost", store, "--agent", "nobody", "--json"))
    assert empty == {"rows": [], "total": None}
    assert "no calls" in run("cost", store, "--agent", "nobody")


def test_the_first_command_of_a_group_needs_no_name(store: str) -> None:
    assert run("cost", "show", store) == run("cost", store)
    assert "estimate" in run("cost", "--help")


def test_a_month_is_projected_from_what_is_known_and_never_from_minutes() -> None:
    def row(cost: int | None) -> UsageRow:
        counts = {"calls": 2, "errors": 0, "timeouts": 0, "successes": 0, "failures": 0, "unknown_costs": 0}
        unknown = dict.fromkeys(("input_tokens", "cached_tokens", "output_tokens", "latency_p50", "latency_p95"))
        return UsageRow(group=(), cost=cost, **counts, **unknown)  # type: ignore[arg-type]

    assert projected(row(10), NOW - timedelta(days=3), NOW) == 100
    assert projected(row(10), NOW - timedelta(minutes=5), NOW) == 300
    assert projected(row(None), NOW - timedelta(days=3), NOW) is None


def test_what_was_observed_is_no_call_and_costs_nothing_unknown(tmp_path: Path) -> None:
    file = stored(tmp_path, [call(1.0), Transition(state=1, action=1, policy="look_up", tags=("observed",))])
    assert json.loads(run("cost", file, "--json"))["total"]["unknown_costs"] == 0
    assert json.loads(run("report", file, "--json"))["total"]["calls"] == 1


def test_the_articles_price_table_before_there_is_any_data() -> None:
    prices = {"a": ("8.00", 80), "b": ("15.00", 150), "c": ("2.50", 25), "d": ("0.42", 4.20)}
    options = [word for name, (price, _) in prices.items() for word in ("--price", f"{name}={price}")]
    found = json.loads(run("cost", "estimate", "--tokens", "10000000", *options, "--json"))
    assert {one["model"]: one["cost"] / 1e9 for one in found} == {name: usd for name, (_, usd) in prices.items()}
    printed = run("cost", "estimate", "--tokens", "10000000", *options)
    assert [word in printed for word in ("$80", "$150", "$25", "$4.2")] == [True] * 4


def test_prompts_and_answers_have_prices_of_their_own() -> None:
    given = ("cost", "estimate", "--tokens", "1000", "--price", "m=2,10", "--json")
    [one] = json.loads(run(*given, "--answer-share", "0.1"))
    # 900 x 2 + 100 x 10 USD for a million of each = 0.0028 USD
    assert (one["input_tokens"], one["output_tokens"], one["cost"]) == (900, 100, 2_800_000)


def test_an_unknown_price_is_said_and_a_known_one_found_by_its_providers_address(tmp_path: Path) -> None:
    given = ("cost", "estimate", "--tokens", "1000", "--model", "gpt-4o")
    assert "No price is known for gpt-4o" in run(*given)
    [one] = json.loads(run(*given, "--base-url", "https://api.openai.com/v1", "--json"))
    assert one["cost"] > 0


def test_the_prices_of_a_settings_file_are_compared_by_default(tmp_path: Path) -> None:
    config = tmp_path / "relive.toml"
    config.write_text(
        '[[models]]\nname = "own"\nupstream = "http://127.0.0.1:1/v1"\nprice = { input = 1, output = 1 }\n'
    )
    [one] = json.loads(run("cost", "estimate", "--tokens", "1000000", "--config", str(config), "--json"))
    assert (one["model"], one["cost"]) == ("own", 10**9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cost", "estimate", "--tokens", "1"), "name at least one"),
        (("cost", "estimate", "--tokens", "1", "--price", "8.00"), "MODEL=USD"),
        (("cost", "estimate", "--tokens", "1", "--price", "m=cheap"), "not a number"),
        (("cost", "--by", "weekday"), "one of day, model, agent, outcome"),
        (("cost", "--time-zone", "Mars/Olympus"), "no time zone"),
    ],
)
def test_wrong_options_are_named(arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_a_report_counts_time_outs_apart_and_gives_latencies_of_what_succeeded(store: str) -> None:
    found = json.loads(run("report", store, "--days", "7", "--json"))
    total = found["total"]
    assert (total["calls"], total["errors"], total["timeouts"]) == (4, 2, 1)
    assert total["success_rate"] == pytest.approx(2 / 4)
    assert total["success_rate_without_timeouts"] == pytest.approx(2 / 3)
    assert [row["model"] for row in found["models"]] == ["(unknown)", "large", "small"]
    assert json.loads(run("report", store, "--days", "30", "--json"))["total"]["latency_p50"] == 200.0
    printed = run("report", store)
    assert "66.7%" in printed
    assert "The last 7 days" in printed


def test_rewards_are_checked_with_their_judges(tmp_path: Path) -> None:
    answers = ["a" * (n + 1) for n in range(20)]
    rows = [
        Transition(state=n, action=text, group_id=f"g{n // 4}", reward=n / 20) for n, text in enumerate(answers)
    ] + [Transition(state=n, action="x") for n in range(5)]
    file = stored(tmp_path, rows)
    with SqliteStorage(file) as store:
        for n in range(20):
            store.feedback(Feedback(experience_id=n + 1, source="anna", reward=n / 20))
            store.feedback(Feedback(experience_id=n + 1, source="ben", reward=1 - n / 20))
    found = json.loads(run("rewards", "check", file, "--json"))
    assert (found["transitions"], found["unscored"], found["groups"]) == (25, 5 / 25, 5)
    [pair] = found["judges"]
    assert (pair["first"], pair["second"], pair["both"], pair["reversed_pairs"]) == ("anna", "ben", 20, 1.0)
    printed = run("rewards", "check", file)
    assert "anna and ben order 100% of the pairs the opposite way." in printed
    assert "20% have no reward" in printed


def test_failed_tries_of_a_call_are_no_rewards_that_are_missing(tmp_path: Path) -> None:
    rows = [call(1.0, reward=1.0), call(1.0, tags=("attempt",), error="overloaded")]
    found = json.loads(run("rewards", "check", stored(tmp_path, rows), "--json"))
    assert (found["transitions"], found["unscored"]) == (1, 0.0)
