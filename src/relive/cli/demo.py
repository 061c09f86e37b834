"""`relive demo`: a small real model gets better from its own experience, on this machine, in a few minutes."""

from pathlib import Path
from typing import Annotated

import typer

from relive.cli.arguments import Json


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the messages' order and of every draw.")] = 0,
    messages: Annotated[
        int, typer.Option(min=3, help="How many messages; the arms are compared on the last third.")
    ] = 300,
    file: Annotated[Path | None, typer.Option(help="The memory's file; by default a new one in this folder.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the file of an interrupted demo.")] = None,
    base_url: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible endpoint, in place of the small model.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name there.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="The environment variable that holds its key.")] = None,
    json: Json = False,
) -> None:
    """Watch a small model learn to route bank customers' messages from its own experience."""
    from relive.demo.present import present  # here: other commands start faster without it
    from relive.demo.settings import DemoError, Settings, check

    settings = Settings(
        seed=seed,
        messages=messages,
        file=file,
        resume=resume,
        base_url=base_url,
        model=model,
        api_key_env=api_key_env,
    )
    try:
        check(settings)
    except DemoError as error:
        raise typer.BadParameter(str(error)) from error
    present(settings, as_json=json)
