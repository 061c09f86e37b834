"""Arguments and options that several commands share, so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_FILE = Path("relive.db")

StoreFile = Annotated[
    Path, typer.Argument(metavar="[FILE]", envvar="RELIVE_FILE", show_default=True, help="The store's file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]
