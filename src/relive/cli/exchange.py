"""Files in and out of a store: `relive import`, `relive export`."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, get_args

import typer

from relive.cli.arguments import DEFAULT_FILE, Json, StoreFile
from relive.cli.output import console, print_json, say, short
from relive.cli.progress import progress_bar
from relive.errors import ReliveError
from relive.experience import Outcome
from relive.storage import Query, SqliteStorage
from relive.storage.backup import note_copy
from relive.storage.exporter import export_lines, replacing
from relive.storage.formats import FORMATS, Source, read
from relive.storage.importer import ImportReport, import_file
from relive.storage.parquet import export_parquet
from relive.storage.training_rows import export_chats, export_preferences

SHOWN = 20
OUTCOMES = ", ".join(get_args(Outcome))
_KINDS = {"": "jsonl", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
_LINES = {"jsonl": export_lines, "chat": export_chats, "preference": export_preferences}
_DATES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]


def import_experiences(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The file to import; - is standard input.")],
    file: StoreFile = DEFAULT_FILE,
    format: Annotated[  # noqa: A002 - the option's name
        str | None, typer.Option(help=f"Read it as one of {', '.join(FORMATS)}; else told by its content.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Who acted, whatever the file says.")] = None,
    policy: Annotated[str | None, typer.Option(help="The model that acted, whatever the file says.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Add this tag to each experience; may be repeated.")] = None,
    json: Json = False,
) -> None:
    """Import experiences from a file; what is there already is not added again.

    Exit code 1 if some records could not be taken; the rest is imported all the same.
    """
    with Source(source) as opened:
        read(opened, format)  # so that a file that cannot be read makes no store
        with SqliteStorage(file) as storage, progress_bar("importing") as bar:
            report = import_file(
                opened,
                storage,
                format=format,
                agent=agent,
                policy=policy,
                tags=tag or (),
                progress=lambda done, total: bar("importing", done, total),
            )
    if json:
        print_json(report)
    else:
        _tell(report, file)
    if report.failed:
        rest = "the rest was imported" if report.imported or report.known else "nothing was imported"
        raise ReliveError(f"{report.failed:,} record{_s(report.failed)} could not be taken; {rest}.")


def export_experiences(
    file: StoreFile = DEFAULT_FILE,
    to: Annotated[
        str,
        typer.Option(help="The file to write, - for standard output. Names that end with .gz, .zst are packed."),
    ] = "-",
    format: Annotated[  # noqa: A002 - the option's name
        str | None,
        typer.Option(
            help="jsonl or parquet, else told by the file's name; chat or preference: rows to train on, of successes "
            "or of demonstrations beside what was answered."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.")] = None,
    episode: Annotated[str | None, typer.Option(help="Only this episode's.")] = None,
    group: Annotated[str | None, typer.Option(help="Only this group's.")] = None,
    outcome: Annotated[str | None, typer.Option(help=f"Only with this outcome: {OUTCOMES}.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only by this policy or model.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only with this tag.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Only with at least this reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Only with at most this reward.")] = None,
    since: Annotated[datetime | None, typer.Option(formats=_DATES, help="Only from this time on (UTC).")] = None,
    until: Annotated[datetime | None, typer.Option(formats=_DATES, help="Only before this time (UTC).")] = None,
) -> None:
    """Export experiences as JSON Lines or Parquet, all of them or those that the options name."""
    if outcome is not None and outcome not in get_args(Outcome):
        raise typer.BadParameter(f"{outcome!r} is none of {OUTCOMES}.", param_hint="--outcome")
    kind = format or _KINDS.get(Path(to.removesuffix(".gz").removesuffix(".zst")).suffix)
    if kind is None:
        raise typer.BadParameter(f"{to} does not say which format to write; add --format.", param_hint="--to")
    if kind not in (*_LINES, "parquet") or (kind == "parquet" and to == "-"):
        known = ", ".join(_LINES)
        raise typer.BadParameter(f"it is {known}, or parquet with a file as --to.", param_hint="--format")
    query = Query(
        agent=agent,
        episode_id=episode,
        group_id=group,
        outcome=outcome,  # type: ignore[arg-type]  # checked above
        policy=policy,
        tag=tag,
        min_reward=min_reward,
        max_reward=max_reward,
        since=since and since.replace(tzinfo=UTC),
        until=until and until.replace(tzinfo=UTC),
    )
    with SqliteStorage(file, readonly=True) as storage:
        if to == "-":
            _LINES[kind](storage, sys.stdout.buffer, query)
            return
        with progress_bar("exporting") as bar:

            def progress(done: int, total: int) -> None:
                bar("exporting", done, total)

            if kind == "parquet":
                count = export_parquet(storage, Path(to), query, force=force, progress=progress)
            else:
                with replacing(Path(to), force=force) as out:
                    count = _LINES[kind](storage, out, query, progress=progress)
    note_copy(file, "export", Path(to), count)
    what = f"{kind} row" if kind in ("chat", "preference") else "experience"
    say(f"Exported {count:,} {what}{_s(count)} to {to}.")


def _tell(report: ImportReport, file: Path) -> None:
    out = console()
    if report.format == "none":
        say(f"{report.source} holds no records.")
        return
    known = f" ({report.known:,} there already)" if report.known else ""
    say(f"Imported {report.imported:,} experience{_s(report.imported)} into {file}{known}; read as {report.format}.")
    for what, count in sorted(report.ignored.items()):
        out.print(short(f"Left out {count:,} times: {what}", 200), soft_wrap=True)
    for line, reason in report.problems[:SHOWN]:
        typer.echo(f"{f'line {line}: ' if line else ''}{short(reason, 200).plain}", err=True)
    if report.failed > SHOWN:
        typer.echo(f"… and {report.failed - SHOWN:,} more; --json lists them.", err=True)


def _s(count: int) -> str:
    return "" if count == 1 else "s"
