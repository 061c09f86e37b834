"""`relive experiment`: compare whole variants of an agent, and find the best."""

from pathlib import Path
from typing import Annotated

import typer

from relive.cli.arguments import DEFAULT_FILE, Json, StoreFile
from relive.cli.groups import WithDefault
from relive.cli.lessons import Tenant, open_book
from relive.cli.output import console, print_json, say, short, table
from relive.playbook.experiment import ExperimentError, Result, read_variants
from relive.playbook.lesson import DEFAULT_TENANT
from relive.server.words import share

experiment = typer.Typer(
    cls=WithDefault, help="Compare variants of an agent: its instructions, its model, its memory on or off."
)


@experiment.command("show")
def show(file: StoreFile = DEFAULT_FILE, tenant: Tenant = DEFAULT_TENANT, json: Json = False) -> None:
    """Show what the newest experiment has found so far."""
    with open_book(file, tenant) as book:
        book.follow()
        results = book.experiments.results()
    if json:
        print_json([_as_json(one) for one in results])
        return
    if not results:
        raise ExperimentError("There is no experiment; `relive experiment start VARIANTS.toml` starts one.")
    newest = results[0]
    rows = table(
        "variant", "what differs", "episodes", "succeeded", "rate", "next get it",
        right=("episodes", "succeeded", "rate", "next get it"),
    )  # fmt: skip
    for place, variant in enumerate(newest.experiment.variants):
        count, good = newest.episodes[place], newest.successes[place]
        differs = [
            *(["other instructions"] if variant.prompt is not None else []),
            *([f"model {variant.model}"] if variant.model is not None else []),
            *([] if variant.recall else ["without memory"]),
        ]
        rows.add_row(
            short(variant.name, 30),
            short(", ".join(differs) or "as it is", 60),
            f"{count:,}",
            f"{good:,}",
            share(good / count if count else None),
            f"{newest.experiment.proportions[place]:.0%}",
        )
    console().print(rows)
    say(_sentence(newest))


@experiment.command("start")
def start(
    variants: Annotated[Path, typer.Argument(metavar="VARIANTS.toml", help="A table [[variants]] for each.")],
    file: StoreFile = DEFAULT_FILE,
    agent: Annotated[str | None, typer.Option(help="Whose calls; without: everybody's.")] = None,
    delta: Annotated[
        float, typer.Option(min=0.0001, max=0.5, help="The chance of choosing a wrong one that you accept.")
    ] = 0.05,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Begin to compare variants; each episode gets one of them and keeps it."""
    found = read_variants(variants)
    with open_book(file, tenant) as book:
        made = book.experiments.start(found, agent=agent, delta=delta)
    say(f"Experiment {made.number} compares {', '.join(one.name for one in found)}.")


@experiment.command("stop")
def stop(file: StoreFile = DEFAULT_FILE, tenant: Tenant = DEFAULT_TENANT) -> None:
    """End the experiment; calls are as they were before it."""
    with open_book(file, tenant) as book:
        ended = book.experiments.stop()
    say(f"Experiment {ended.number} is stopped.")


def _sentence(result: Result) -> str:
    experiment, found = result.experiment, result.standing
    if experiment.best is not None:
        best = experiment.variants[experiment.best].name
        ends = "" if experiment.stopped_at else " Every new episode gets it until the experiment is stopped."
        return f"The best is {best}, with a chance of at most {experiment.delta:.1%} of being wrong.{ends}"
    state = "It was stopped before it was known" if experiment.stopped_at else "It is not known yet"
    return f"{state} which is best: evidence {found.evidence:.1f} of the {found.needed:.1f} that are needed."


def _as_json(result: Result) -> dict[str, object]:
    return {
        "experiment": result.experiment,
        "episodes": result.episodes,
        "successes": result.successes,
        "evidence": result.standing.evidence,
        "needed": result.standing.needed,
    }
