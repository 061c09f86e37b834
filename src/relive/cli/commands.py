"""Which commands there are."""

import typer

from relive.cli import care, demo, doctor, exchange, local, look, privacy, serve


def register(app: typer.Typer) -> None:
    """Adds every command to the program."""
    app.command()(demo.demo)
    app.command()(look.stats)
    app.add_typer(look.experiences, name="experiences")
    app.command("import")(exchange.import_experiences)
    app.command("export")(exchange.export_experiences)
    app.command()(care.check)
    app.command()(care.recover)
    app.command()(care.backup)
    app.command()(care.compact)
    app.command()(privacy.forget)
    app.command()(privacy.audit)
    app.add_typer(local.local, name="local")
    app.command()(doctor.doctor)
    app.command()(serve.serve)
    app.add_typer(serve.keys, name="keys")
