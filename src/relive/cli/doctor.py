"""`relive doctor`: is everything that Relive needs here, and if not, what to run next."""

from typing import Annotated

import typer
from rich.text import Text

from relive.cli.arguments import DEFAULT_FILE, Json, StoreFile
from relive.cli.output import console, print_json, say, table
from relive.errors import ReliveError


def doctor(
    file: StoreFile = DEFAULT_FILE,
    base_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible endpoint to ask for its models.")] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(help="The environment variable that holds its key; for api.openai.com OPENAI_API_KEY."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model that it should offer.")] = None,
    json: Json = False,
) -> None:
    """Check this machine, and an endpoint if one is named; exit code 1 if something is missing."""
    from relive.doctor import examine  # here: other commands start faster without it

    checks = examine(file, base_url=base_url, api_key_env=api_key_env, model=model)
    if json:
        print_json(checks)
    else:
        rows = table("", "", "")
        for check in checks:
            rows.add_row("[green]ok[/]" if check.ok else "[red]missing[/]", check.name, Text(check.detail))
        console().print(rows)
        for check in checks:
            if not check.ok and check.next:
                say(f"{check.name}: {check.next}")
    failed = [check.name for check in checks if not check.ok]
    if failed:
        raise ReliveError(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}.")
