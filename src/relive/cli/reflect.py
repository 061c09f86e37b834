"""`relive reflect`: candidate lessons from a store, by contrast or by a model."""

import os
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relive.cli.arguments import DEFAULT_FILE, Json, StoreFile
from relive.cli.output import console, print_json, say, short, table
from relive.playbook.book import Playbook
from relive.playbook.changes import Applied
from relive.playbook.lesson import DEFAULT_TENANT
from relive.reflect.contrast import Contrast, Settings, contrast, episodes_of
from relive.reflect.contrast import reflect as by_contrast
from relive.server.words import dollars, number
from relive.storage import SqliteStorage
from relive.storage.connection import check_path

if TYPE_CHECKING:
    from relive.llm import Upstream
    from relive.reflect.reflector import Reflection


def reflect(
    file: StoreFile = DEFAULT_FILE,
    agent: Annotated[str | None, typer.Option(help="Only this agent's experiences.")] = None,
    false_discoveries: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=0.5,
            help="Share that may be false of what is found for one agent and kind of feature; without a model.",
        ),
    ] = 0.1,
    model: Annotated[str | None, typer.Option(help="A model that reflects; without: no model is asked.")] = None,
    upstream: Annotated[str | None, typer.Option(help="Base address of the API that the model is called at.")] = None,
    strong_model: Annotated[
        str | None, typer.Option(help="A stronger model there, which judges what the other one proposes.")
    ] = None,
    api_key_env: Annotated[str | None, typer.Option(help="The environment variable that holds the API's key.")] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="The most tokens that the run may use, prompts and answers together.")
    ] = 200_000,
    max_cost: Annotated[
        str | None, typer.Option(metavar="USD", help="The most that the run may cost; needs the models' prices.")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=USD", help="A model's price for a million tokens: one number, or INPUT,OUTPUT."),
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Tokens of prompt and answer together that the model takes.")] = (
        16_384
    ),
    answer_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of one answer.")] = 1_500,
    experiences: Annotated[int, typer.Option(min=1, help="The most episodes that a model looks at.")] = 100,
    live_check: Annotated[
        bool,
        typer.Option("--live-check", help="Try the model on planted episodes: does it find what is there?"),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what is found, or would be asked; write no lesson.")
    ] = False,
    tenant: Annotated[str, typer.Option(help="Whose book.")] = DEFAULT_TENANT,
    json: Json = False,
) -> None:
    """Make candidate lessons of what successes have that failures have not: by statistics, or by a model.

    Without --model no model is asked. With one, at most --max-tokens and --max-cost are used, whatever happens.
    """
    if model is None and upstream is None and not live_check:
        _by_contrast(file, agent, false_discoveries, dry_run, tenant, json)
        return
    if model is None or upstream is None:
        raise typer.BadParameter(
            "name both, such as --model smollm2-135m-instruct --upstream http://127.0.0.1:8089/v1",
            param_hint="--model, --upstream",
        )
    from relive.reflect.reflector import Reflector  # here: other commands start faster without it
    from relive.reflect.spending import Spending

    prices = _prices(price or [])
    options: dict[str, Any] = {"window": window, "answer_tokens": answer_tokens}
    spending = Spending(max_tokens, _nano(max_cost))
    with _upstream(upstream, model, api_key_env, prices) as cheap:
        strong = None if strong_model is None else _upstream(upstream, strong_model, api_key_env, prices)
        try:
            if live_check:
                _live_check(cheap, strong, spending, options, json)
                return
            check_path(file, readonly=True)
            with SqliteStorage(file, readonly=dry_run) as store:
                try:
                    reflector = Reflector(
                        Playbook(store, tenant=tenant),
                        cheap,
                        strong=strong,
                        spending=spending,
                        experiences=experiences,
                        **options,
                    )
                except ValueError as error:
                    raise typer.BadParameter(str(error), param_hint="--window") from error
                done = reflector.plan(agent) if dry_run else reflector.run(agent)
        finally:
            if strong is not None:
                strong.close()
    if json:
        print_json(done)
    else:
        _tell(done, file, dry_run)


def _by_contrast(
    file: Path, agent: str | None, false_discoveries: float, dry_run: bool, tenant: str, json: bool
) -> None:
    settings = Settings(false_discoveries=false_discoveries)
    check_path(file, readonly=True)  # a store that is not there is not made
    with SqliteStorage(file, readonly=dry_run) as store:
        book = Playbook(store, tenant=tenant)
        applied: list[Applied] = []
        if dry_run:
            episodes = episodes_of(store, agent=agent, distrusted=book.all_distrusted())
            found = contrast(episodes, settings)
        else:
            found, applied = by_contrast(book, agent=agent, settings=settings)
    if json:
        print_json({"contrast": found, "lessons": applied})
    elif found.reason:
        say(found.reason)
    else:
        _tell_contrast(found, applied, file)


def _tell_contrast(found: Contrast, applied: list[Applied], file: Path) -> None:
    rows = table(
        "agent", "what", "goes with", "with", "without", "lift", "on other tasks", "corrected p",
        right=("with", "without", "lift", "on other tasks", "corrected p"),
    )  # fmt: skip
    for one in found.patterns:
        rows.add_row(
            short(one.agent, 16),
            short(f"{one.feature.kind}: {one.feature.name}", 60),
            "success" if one.helps else "failure",
            f"{one.good_with}/{one.with_it}",
            f"{one.good - one.good_with}/{one.count - one.with_it}",
            f"{one.lift:.2f}",
            number(one.held_out_lift),
            f"{one.q:.2g}",
        )
    console().print(rows)
    added = sum(one.what == "added" for one in applied)
    say(
        f"{found.tested:,} features of {found.episodes:,} episodes ({found.successes:,} successes) were tested; "
        f"{added:,} new lessons wait for approval or support (`relive lessons list {file}`)."
    )


def _tell(done: "Reflection", file: Path, dry_run: bool) -> None:
    for sentence in done.problems:
        say(sentence)
    if done.reason:
        say(done.reason)
    if dry_run:
        say(f"{done.experiences:,} experiences with a known outcome would make {done.requests:,} requests.")
        return
    if not done.tries:
        return
    count = {what: sum(one.what == what for one in done.applied) for what in ("added", "merged", "changed", "refused")}
    quarantined = sum(one.what == "added" and bool(one.reason) for one in done.applied)
    say(
        f"Looked at {done.trajectories:,} episodes: {count['added']:,} new lessons ({quarantined:,} of them in "
        f"quarantine), {count['merged']:,} more support for known ones, {count['changed']:,} changes, "
        f"{count['refused']:,} refused. What is new waits for approval or support (`relive lessons list {file}`)."
    )
    _tell_spent(done)


def _tell_spent(done: "Reflection") -> None:
    assumed = f" ({done.assumed:,} of them assumed, since no server counted them)" if done.assumed else ""
    cost = "at a price that is not known" if done.cost is None else f"for {dollars(done.cost)}"
    say(f"{len(done.tries):,} calls used {done.tokens:,} tokens{assumed} {cost}.")


def _live_check(
    model: "Upstream", strong: "Upstream | None", spending: Any, options: dict[str, Any], json: bool
) -> None:
    from relive.reflect.live_check import live_check

    verdicts, spent = live_check(model, strong=strong, spending=spending, **options)
    if json:
        print_json({"plants": verdicts, "spent": spent})
    else:
        rows = table("", "what was planted", "what the model wrote")
        for one in verdicts:
            wrote = "; ".join(one.lessons) or "; ".join(one.problems) or "nothing"
            rows.add_row("pass" if one.passed else "FAIL", one.plant, short(wrote, 300))
        console().print(rows)
        if spent.reason:
            say(spent.reason)
        _tell_spent(spent)
    if not all(one.passed for one in verdicts):
        raise typer.Exit(1)


def _upstream(base_url: str, model: str, api_key_env: str | None, prices: Any) -> "Upstream":
    from relive.llm import Upstream

    key = None if api_key_env is None else os.environ.get(api_key_env)
    if api_key_env is not None and not key:
        raise typer.BadParameter(f"the variable {api_key_env} is empty or not set.", param_hint="--api-key-env")
    # of each request as many tries are reserved as may be made
    return Upstream(base_url, model, key, timeout=120.0, max_attempts=2, prices=prices)


def _prices(texts: list[str]) -> Any:
    from relive.cli.cost import prices_of
    from relive.llm import PriceTable

    return PriceTable(prices_of(texts))


def _nano(usd: str | None) -> int | None:
    """An amount in USD as nano-USD, exactly."""
    if usd is None:
        return None
    try:
        nano = Decimal(usd.removeprefix("$")) * 10**9
    except InvalidOperation:
        nano = Decimal(-1)
    if not nano.is_finite() or nano < 0:
        raise typer.BadParameter(f"{usd!r} is no amount in USD.", param_hint="--max-cost")
    return int(nano)
