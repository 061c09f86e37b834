"""`relive ui`: a look at a store in the browser."""

from typing import Annotated

import typer

from relive.cli.arguments import DEFAULT_FILE, StoreFile
from relive.cli.cost import Zone, time_zone_of
from relive.cli.lessons import Tenant
from relive.cli.output import console
from relive.playbook.lesson import DEFAULT_TENANT


def ui(
    file: StoreFile = DEFAULT_FILE,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes any free one.")] = 8401,
    tenant: Tenant = DEFAULT_TENANT,
    time_zone: Zone = "UTC",
) -> None:
    """Look at a store in the browser: experiences, lessons and costs. Nothing is changed; others may record on."""
    from relive.server.view import view  # here: other commands start faster without it

    view(file, port=port, tenant=tenant, zone=time_zone_of(time_zone), on_ready=_ready)


def _ready(url: str) -> None:
    console().print(f"Look at {url} (Ctrl-C ends it).", soft_wrap=True)
