"""Which commands there are."""

import typer

from relive.cli import doctor, local, look


def register(app: typer.Typer) -> None:
    """Adds every command to the program."""
    app.command()(look.stats)
    app.add_typer(look.experiences, name="experiences")
    app.add_typer(local.local, name="local")
    app.command()(doctor.doctor)
