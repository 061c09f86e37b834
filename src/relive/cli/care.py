"""A store's care: `relive check`, `relive recover`, `relive backup`, `relive compact`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from relive.cli.arguments import DEFAULT_FILE, Json, StoreFile
from relive.cli.output import print_json, say
from relive.cli.progress import progress_bar
from relive.errors import ReliveError
from relive.storage import backup as backups
from relive.storage import check as checks
from relive.storage import recover as recovery


def check(
    file: StoreFile = DEFAULT_FILE,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out what takes long: indexes and the reading of every payload.")
    ] = False,
    json: Json = False,
) -> None:
    """Look a store through without changing it; exit code 1 if something is wrong."""
    with progress_bar("checking") as bar:
        report = checks.check(
            file, quick=quick, progress=lambda what, done, total: bar(f"checking {what}", done, total)
        )
    if json:
        print_json(report)
    else:
        for problem in report.problems:
            say(problem)
        if not report.problems:
            say(f"{file}: {report.experiences:,} experiences, nothing wrong.")
    if report.problems:
        count = len(report.problems)
        raise ReliveError(
            f"{file} has {count} problem{'s' if count > 1 else ''}; "
            f"`relive recover {file} NEW` saves what can be read into a new file."
        )


def recover(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The damaged store; it is not changed.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The file to make.")],
    json: Json = False,
) -> None:
    """Save what can be read of a damaged store into a new file; exit code 1 if anything was lost.

    Close whatever uses the store first. The damaged file stays as it is.
    """
    with progress_bar("recovering") as bar:
        report = recovery.recover(old, new, tell=lambda what: bar(what, 0, 0))
    if json:
        print_json(report)
    else:
        lost = "an unknown number" if report.lost is None else f"{report.lost:,}"
        say(f"Saved {report.saved:,} experiences to {new}; lost {lost}.")
        for sentence in report.damage:
            say(sentence)
    if not report.complete:
        raise ReliveError(f"Not all of {old} could be saved; keep it, and any backup that you have.")


def backup(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="[FILE] TO", help="The store's file, and the file to make.", show_default=False),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: Json = False,
) -> None:
    """Copy a store while it is in use; the copy is a store like any other."""
    if len(paths) > 2:
        raise typer.BadParameter("give at most the store's file and the file to make.", param_hint="[FILE] TO")
    store = paths[0] if len(paths) == 2 else Path(os.environ.get("RELIVE_FILE", DEFAULT_FILE))
    if len(paths) == 1 and not store.exists() and paths[0].exists():
        raise typer.BadParameter(f"say where to: relive backup {paths[0]} TO", param_hint="[FILE] TO")
    with progress_bar("copying"):
        report = backups.backup(store, paths[-1], force=force)
    if json:
        print_json(report)
    else:
        say(f"Backed up {report.experiences:,} experiences to {report.path} ({report.bytes / 1e6:,.1f} MB).")


def compact(file: StoreFile = DEFAULT_FILE, json: Json = False) -> None:
    """Make a store's file as small as its content; others wait meanwhile."""
    with progress_bar("compacting"):
        report = backups.compact(file)
    if json:
        print_json(report)
    else:
        say(f"{file}: {report.bytes_before / 1e6:,.1f} MB before, {report.bytes_after / 1e6:,.1f} MB after.")
