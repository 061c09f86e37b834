"""What a store gives away: `relive forget`, `relive audit`."""

from typing import Annotated, Any

import typer

from relive.cli.arguments import DEFAULT_FILE, Json, StoreFile
from relive.cli.output import console, print_json, say, short, table
from relive.cli.progress import progress_bar
from relive.errors import ReliveError
from relive.server.words import UNKNOWN
from relive.storage import SqliteStorage
from relive.storage import forget as forgetting
from relive.storage.connection import check_path


def forget(
    file: StoreFile = DEFAULT_FILE,
    agent: Annotated[str | None, typer.Option(help="All of this agent.")] = None,
    episode: Annotated[str | None, typer.Option(help="All of this episode.")] = None,
    match: Annotated[
        str | None, typer.Option(help="All that holds this text anywhere, large and small letters alike.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Take experiences out of a store so that no byte of them is left in it; what is given must all hold."""
    selection = forgetting.Selection(agent=agent, episode=episode, match=match)
    try:
        selection.check()
    except forgetting.NothingToForgetError as error:
        raise typer.BadParameter(str(error), param_hint="--agent, --episode or --match") from error
    check_path(file, readonly=True)  # a store that is not there is not made
    with SqliteStorage(file) as store:
        if not yes:
            with progress_bar("looking"):
                count = len(forgetting.find(store, selection))
            _confirm(f"Forget {count:,} of {len(store):,} experiences in {file}? This cannot be undone.")
        with progress_bar("forgetting") as bar:
            report = forgetting.forget(store, selection, tell=bar)
    if json:
        print_json(report)
        return
    what = f"{_count(report.experiences, 'experience')} of {_count(report.episodes, 'episode')}"
    say(
        f"Forgot {what} and {_count(report.feedback, 'piece')} of feedback; {file} has "
        f"{report.bytes_after / 1e6:,.1f} MB now, {report.bytes_before / 1e6:,.1f} MB before."
    )
    for copy in report.copies:
        say(f"The {copy.kind} of {copy.at:%Y-%m-%d %H:%M} UTC may still hold it: {copy.path}")
    for other in report.beside:
        say(f"Not looked through: {other}")
    if report.named_in_audit:
        entries = _count(report.named_in_audit, "entry", "entries")
        say(f"It stays as a file's path in {entries} of the audit (`relive audit {file}`).")
    say("Copies that were made in another way are not known here, nor is what the disk keeps of overwritten blocks.")


def audit(
    file: StoreFile = DEFAULT_FILE,
    action: Annotated[str | None, typer.Option(help="Only this action, such as feedback or forget.")] = None,
    who: Annotated[str | None, typer.Option(help="Only by this one.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 20,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="Start with the oldest.")] = False,
    json: Json = False,
) -> None:
    """Show who did what to a store, and when; the newest first."""
    with SqliteStorage(file, readonly=True) as store:
        found = store.audit(action=action, who=who, limit=limit, newest_first=not oldest_first)
    if json:
        for entry in found:
            print_json(entry)
        return
    rows = table("when (UTC)", "who", "action", "target", "before", "after")
    for entry in found:
        rows.add_row(
            f"{entry.at:%Y-%m-%d %H:%M:%S}",
            short(entry.who, 20),
            short(entry.action, 12),
            short(entry.target, 60),
            _value(entry.before),
            _value(entry.after),
        )
    console().print(rows)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _value(value: Any) -> Any:
    return UNKNOWN if value is None else short(value, 60)


def _confirm(question: str) -> None:
    """Asks on the terminal; without an answer nothing happens."""
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        raise ReliveError("Nothing was forgotten; give --yes where nobody can answer.") from None
    if not agreed:
        raise ReliveError("Nothing was forgotten.")
