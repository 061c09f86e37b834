"""Which commands there are."""

import typer

from relive.cli import (
    care,
    cost,
    demo,
    doctor,
    exchange,
    experiment,
    lessons,
    local,
    look,
    migrate,
    privacy,
    reflect,
    rewards,
    serve,
    ui,
)
from relive.cli.groups import WithDefault


def register(app: typer.Typer) -> None:
    """Adds every command to the program."""
    app.command()(demo.demo)
    app.command()(look.stats)
    app.add_typer(look.experiences, name="experiences")
    imports = typer.Typer(cls=WithDefault, help="Take in what other programs wrote.")
    imports.command("file")(exchange.import_experiences)
    imports.command("litellm-config")(migrate.litellm_config)
    imports.command("tensorzero")(migrate.tensorzero)
    app.add_typer(imports, name="import")
    app.command("export")(exchange.export_experiences)
    app.command()(care.check)
    app.command()(care.recover)
    app.command()(care.backup)
    app.command()(care.compact)
    app.add_typer(cost.cost, name="cost")
    app.command()(cost.report)
    app.add_typer(rewards.rewards, name="rewards")
    app.command()(reflect.reflect)
    app.add_typer(lessons.lessons, name="lessons")
    app.command()(lessons.inject)
    app.add_typer(experiment.experiment, name="experiment")
    app.command()(privacy.forget)
    app.command()(privacy.audit)
    app.add_typer(local.local, name="local")
    app.command()(doctor.doctor)
    app.command()(serve.serve)
    app.command()(ui.ui)
    app.add_typer(serve.keys, name="keys")
