"""Commands that only look: `relive stats`, `relive experiences list`, `relive experiences show`."""

from typing import Annotated, Any, get_args

import typer
from rich.table import Table

import relive
from relive.cli.arguments import DEFAULT_FILE, Json, StoreFile
from relive.cli.output import console, print_json, short, table
from relive.errors import ReliveError
from relive.experience import Outcome
from relive.server.words import count, dollars, gist, number
from relive.storage import Stored

experiences = typer.Typer(help="Look at single experiences.", no_args_is_help=True)
OUTCOMES = ", ".join(get_args(Outcome))


def stats(file: StoreFile = DEFAULT_FILE, json: Json = False) -> None:
    """Show what a store holds: size, rewards, cost."""
    with relive.open(file, readonly=True) as memory:
        found = memory.stats()
    if json:
        print_json(found)
        return
    rows = table("", "", right=("",), title=str(file))
    for name, value in found.to_dict().items():
        if name == "cost":
            text = dollars(value)
        elif isinstance(value, float):
            text = number(value, 4)
        else:
            text = count(value) if value is None or isinstance(value, int) else str(value)
        rows.add_row(name.replace("_", " "), text)
    console().print(rows)


@experiences.command("list")
def list_experiences(
    file: StoreFile = DEFAULT_FILE,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.")] = None,
    episode: Annotated[str | None, typer.Option(help="Only this episode's.")] = None,
    outcome: Annotated[str | None, typer.Option(help=f"Only with this outcome: {OUTCOMES}.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only with this tag.")] = None,
    text: Annotated[str | None, typer.Option(help="Only whose state holds words of this text.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 20,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="Start with the oldest.")] = False,
    json: Json = False,
) -> None:
    """List experiences, the newest first."""
    if outcome is not None and outcome not in get_args(Outcome):
        raise typer.BadParameter(f"{outcome!r} is none of {OUTCOMES}.", param_hint="--outcome")
    with relive.open(file, readonly=True) as memory:
        found = memory.query(
            agent=agent,
            episode_id=episode,
            outcome=outcome,
            tag=tag,
            text=text,
            limit=limit,
            newest_first=not oldest_first,
        )
        if json:
            for stored in found:
                print_json(_as_json(stored))
            return
        if found:
            console().print(_listing(found))
        else:
            console().print("No experience matches.")


@experiences.command("show")
def show_experience(
    experience_id: Annotated[int, typer.Argument(metavar="ID", help="The experience's id.")],
    file: StoreFile = DEFAULT_FILE,
    json: Json = False,
) -> None:
    """Show one experience whole."""
    with relive.open(file, readonly=True) as memory:
        found = memory.query(after=experience_id - 1, limit=1)
        if not found or found[0].id != experience_id:
            raise ReliveError(
                f"{file} holds no experience {experience_id}; `relive experiences list {file}` shows what it holds."
            )
        record = _as_json(found[0])
    if json:
        print_json(record)
    else:
        console().print_json(data=record, default=str)


def _as_json(stored: Stored) -> dict[str, Any]:
    return {"id": stored.id, "priority": stored.priority, **stored.transition.to_dict()}


def _listing(found: list[Stored]) -> Table:
    rows = table(
        "id", "when (UTC)", "agent", "outcome", "reward", "cost", "state", "action", right=("id", "reward", "cost")
    )
    for stored in found:
        one = stored.transition
        rows.add_row(
            str(stored.id),
            f"{one.created_at:%Y-%m-%d %H:%M:%S}",
            short(one.agent, 16),
            one.outcome,
            number(one.reward),
            dollars(one.cost),
            short(gist(one.state), 60),
            short(f"error: {one.error}" if one.action is None and one.error else gist(one.action), 40),
        )
    return rows
