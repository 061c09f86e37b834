"""`relive reflect`: what successes have that failures have not."""

from typing import Annotated

import typer

from relive.cli.arguments import DEFAULT_FILE, Json, StoreFile
from relive.cli.output import console, print_json, short, table
from relive.playbook.book import Playbook
from relive.playbook.changes import Applied
from relive.playbook.lesson import DEFAULT_TENANT
from relive.reflect.contrast import Settings, contrast, episodes_of
from relive.reflect.contrast import reflect as by_contrast
from relive.storage import SqliteStorage
from relive.storage.connection import check_path


def reflect(
    file: StoreFile = DEFAULT_FILE,
    agent: Annotated[str | None, typer.Option(help="Only this agent's experiences.")] = None,
    false_discoveries: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Share of what is found that may be false.")
    ] = 0.1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what is found; write no lesson.")] = False,
    tenant: Annotated[str, typer.Option(help="Whose book.")] = DEFAULT_TENANT,
    json: Json = False,
) -> None:
    """Compare successes with failures and write what goes with either as candidate lessons; no model is asked."""
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
        return
    if found.reason:
        console().print(found.reason, markup=False)
        return
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
            "–" if one.held_out_lift is None else f"{one.held_out_lift:.2f}",
            f"{one.q:.2g}",
        )
    console().print(rows)
    added = sum(one.what == "added" for one in applied)
    console().print(
        f"{found.tested:,} features of {found.episodes:,} episodes ({found.successes:,} successes) were tested; "
        f"{added:,} new lessons wait for approval or support (`relive lessons list {file}`).",
        markup=False,
        soft_wrap=True,
    )
