"""From other gateways: `relive import litellm-config`, `relive import tensorzero`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relive.cli.arguments import DEFAULT_FILE, Json, StoreFile
from relive.cli.exchange import import_experiences
from relive.cli.output import console, say

if TYPE_CHECKING:
    from relive.server.migrate import Draft

DEFAULT_CONFIG = Path("relive.toml")
To = Annotated[Path, typer.Option(help="The settings to write; - for standard output.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]


def litellm_config(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="LiteLLM's config.yaml.")],
    to: To = DEFAULT_CONFIG,
    force: Force = False,
) -> None:
    """Make a relive.toml from the configuration of LiteLLM's proxy; what cannot be carried over is said."""
    from relive.server.migrate import from_litellm  # here: other commands start faster without it

    _write(from_litellm(source), source, to, force=force)


def tensorzero(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="A tensorzero.toml, or a dump: pg_dump --data-only --schema=tensorzero."),
    ],
    file: StoreFile = DEFAULT_FILE,
    to: To = DEFAULT_CONFIG,
    force: Force = False,
    json: Json = False,
) -> None:
    """Take over from TensorZero: its settings into a relive.toml, or the rows of a dump into a store."""
    if source.suffix != ".toml":
        import_experiences(str(source), file, format="tensorzero", json=json)
        return
    from relive.server.migrate import from_tensorzero

    _write(from_tensorzero(source), source, to, force=force)


def _write(draft: "Draft", source: Path, to: Path, *, force: bool) -> None:
    text = draft.toml(source.name)
    if str(to) == "-":
        sys.stdout.write(text)
        return
    if to.exists() and not force:
        raise typer.BadParameter(f"{to} is there already; replace it with --force.", param_hint="--to")
    to.write_text(text, encoding="utf-8")
    out = console()
    count = len(draft.models)
    say(f"Wrote {to}: {count} model{'' if count == 1 else 's'}.")
    for sentence in draft.notes:
        say(f"- {sentence}")
    out.print("Next: relive serve --check", soft_wrap=True)
