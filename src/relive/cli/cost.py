"""What calls cost and how they went: `relive cost`, `relive cost estimate`, `relive report`."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from relive.cli.arguments import DEFAULT_FILE, Json, StoreFile
from relive.cli.groups import WithDefault
from relive.cli.output import console, print_json, say, short, table
from relive.errors import ReliveError
from relive.server.spending import spending
from relive.server.words import count, dollars, number, share
from relive.storage import SqliteStorage
from relive.storage.usage_report import By, UsageRow

if TYPE_CHECKING:
    from relive.llm.pricing import Price

cost = typer.Typer(cls=WithDefault, help="What calls cost, and what they would cost.")

GROUPS = ", ".join(get_args(By))
Zone = Annotated[str, typer.Option(envvar="RELIVE_TIME_ZONE", help="Where days begin, such as Europe/Berlin.")]
DEFAULT_CONFIG = Path("relive.toml")


@cost.command("show")
def show(
    file: StoreFile = DEFAULT_FILE,
    by: Annotated[list[str] | None, typer.Option(help=f"Group by {GROUPS}; repeatable. By default: model.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Only the last so many days.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.")] = None,
    time_zone: Zone = "UTC",
    json: Json = False,
) -> None:
    """Show what calls cost, by day, model, agent or outcome, and what a month comes to.

    A cost that is not known is not 0: it is left out, and counted.
    """
    groups = by or ["model"]
    if not set(groups) <= set(get_args(By)) or len(set(groups)) != len(groups):
        raise typer.BadParameter(f"each is one of {GROUPS}, named once.", param_hint="--by")
    zone = time_zone_of(time_zone)
    with SqliteStorage(file, readonly=True) as store:
        found = spending(store, groups, days=days, agent=agent, zone=zone)  # type: ignore[arg-type]
    rows, total, month = found.rows, found.total, found.month
    if json:
        print_json({"rows": [_cost_row(row, groups) for row in rows], "total": _total(total, month)})
        return
    if total is None:
        say(f"{file} holds no calls{_span(days)}.")
        return
    names = ("calls", "success", "tokens in", "cached", "tokens out", "cost", "per success", "unknown")
    shown = table(*groups, *names, right=names)
    for row in rows:
        shown.add_row(*(short(value, 40) for value in row.group), *_cost_cells(row))
    if len(rows) > 1:
        shown.add_row(*(["all", *[""] * (len(groups) - 1)]), *_cost_cells(total), style="bold")
    console().print(shown)
    least = "at least " if total.unknown_costs else ""
    if total.unknown_costs:
        say(
            f"The cost of {total.unknown_costs:,} of {total.calls:,} calls is not known: the price or the usage is "
            "missing. Sums leave them out."
        )
    if month is not None:
        say(f"A month at this rate: {least}{dollars(month)}.")


@cost.command("estimate")
def estimate(
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of prompts and answers together, for example a month's.")],
    model: Annotated[list[str] | None, typer.Option(help="A model; repeatable.")] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=USD", help="A model's price for a million tokens: one number, or INPUT,OUTPUT."),
    ] = None,
    answer_share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Which part of the tokens answers are.")] = 0.25,
    base_url: Annotated[
        str | None, typer.Option(help="The provider's address: the same model costs differently elsewhere.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings with prices; by default relive.toml, if it is here.")
    ] = None,
    json: Json = False,
) -> None:
    """Compare what models would cost, before there is any data."""
    from relive.llm.comparison import compare  # here: other commands start faster without it
    from relive.llm.pricing import PriceTable

    own: dict[str, Any] = _configured(config)
    named = list(own)
    given = prices_of(price or [])
    own.update(given)
    named += given
    models = list(dict.fromkeys([*(model or []), *([] if model else named)]))
    if not models:
        raise typer.BadParameter("name at least one, or give prices with --price.", param_hint="--model")
    found = compare(models, PriceTable(own), tokens=tokens, answer_share=answer_share, base_url=base_url)
    if json:
        print_json(found)
        return
    rows = table("model", "tokens in", "tokens out", "cost", right=("tokens in", "tokens out", "cost"))
    for one in found:
        rows.add_row(short(one.model, 60), f"{one.input_tokens:,}", f"{one.output_tokens:,}", dollars(one.cost))
    console().print(rows)
    unknown = [one.model for one in found if one.cost is None]
    if unknown:
        where = "" if base_url else " at an address that --base-url names, or"
        say(f"No price is known for {', '.join(unknown)}; look{where} give one with --price MODEL=USD.")


def prices_of(texts: Sequence[str]) -> dict[str, "Price"]:
    """Prices by model, from texts such as ``m=0.15,0.6``."""
    from relive.llm.pricing import Price

    result: dict[str, Price] = {}
    for text in texts:
        name, _, amounts = text.rpartition("=")
        first, _, second = amounts.partition(",")
        if not name:
            raise typer.BadParameter(f"{text!r} is not of the form MODEL=USD.", param_hint="--price")
        try:
            result[name] = Price.of(first, second or first)
        except ReliveError as error:
            raise typer.BadParameter(f"{text!r}: {error}.", param_hint="--price") from error
    return result


def report(
    file: StoreFile = DEFAULT_FILE,
    days: Annotated[int, typer.Option(min=1, help="The last so many days.")] = 7,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.")] = None,
    json: Json = False,
) -> None:
    """Show how calls went lately: how many succeeded, how long they took, what they used and cost, by model.

    Latencies are those of calls that ended without an error.
    """
    until = datetime.now(UTC)
    since = until - timedelta(days=days)
    with SqliteStorage(file, readonly=True) as store:
        rows = store.usage(by=("model",), since=since, until=until, agent=agent)
        total = next(iter(store.usage(since=since, until=until, agent=agent)), None)
    if json:
        print_json(
            {
                "days": days,
                "models": [{"model": row.group[0], **_report_row(row)} for row in rows],
                "total": None if total is None else _report_row(total),
            }
        )
        return
    if total is None:
        say(f"{file} holds no calls{_span(days)}.")
        return
    names = ("calls", "ok", "ok but time-outs", "p50 ms", "p95 ms", "tokens in", "tokens out", "cost", "unknown")
    shown = table("model", *names, right=names, title=f"The last {days} day{'' if days == 1 else 's'}")
    for name, row in [*((row.group[0], row) for row in rows), *([("all", total)] if len(rows) > 1 else [])]:
        shown.add_row(
            short(name, 40),
            f"{row.calls:,}",
            share(row.success_rate),
            share(row.success_rate_without_timeouts),
            number(row.latency_p50, 0),
            number(row.latency_p95, 0),
            count(row.input_tokens),
            count(row.output_tokens),
            dollars(row.cost),
            f"{row.unknown_costs:,}" if row.unknown_costs else "",
        )
    console().print(shown)


def _cost_row(row: UsageRow, groups: Sequence[str]) -> dict[str, Any]:
    return {**dict(zip(groups, row.group, strict=True)), **_cost_facts(row)}


def _cost_facts(row: UsageRow) -> dict[str, Any]:
    names = ("calls", "successes", "failures", "input_tokens", "cached_tokens", "output_tokens", "cost")
    return {
        **{name: getattr(row, name) for name in names},
        "unknown_costs": row.unknown_costs,
        "cost_per_success": row.cost_per_success,
    }


def _total(total: UsageRow | None, month: int | None) -> dict[str, Any] | None:
    return None if total is None else {**_cost_facts(total), "projected_month": month}


def _report_row(row: UsageRow) -> dict[str, Any]:
    names = ("calls", "errors", "timeouts", "success_rate", "success_rate_without_timeouts", "latency_p50")
    more = ("latency_p95", "input_tokens", "cached_tokens", "output_tokens", "cost", "unknown_costs")
    return {name: getattr(row, name) for name in (*names, *more)}


def _cost_cells(row: UsageRow) -> list[str]:
    return [
        f"{row.calls:,}",
        f"{row.successes:,}",
        count(row.input_tokens),
        count(row.cached_tokens),
        count(row.output_tokens),
        dollars(row.cost),
        dollars(row.cost_per_success),
        f"{row.unknown_costs:,}" if row.unknown_costs else "",
    ]


def _configured(config: Path | None) -> dict[str, Any]:
    """The prices of a settings file."""
    from relive.server.settings import load

    if config is None and not DEFAULT_CONFIG.exists():
        return {}
    tables = load(config or DEFAULT_CONFIG).models
    return {one.name: one.price.model_dump() for one in tables if one.price is not None}


def time_zone_of(name: str) -> ZoneInfo:
    """The zone of an option."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise typer.BadParameter(f"{name!r} is no time zone; give one such as Europe/Berlin.") from error


def _span(days: int | None) -> str:
    return "" if days is None else f" of the last {days} day{'' if days == 1 else 's'}"
