"""`relive ui`: the pages over one store that is only read, whoever else has it open, for people on this machine."""

from collections.abc import Callable
from datetime import tzinfo
from pathlib import Path
from typing import Any

from relive.gateway.client import Client
from relive.gateway.headers import read_headers
from relive.server.origin import foreign_page, from_here
from relive.server.pages.app import Pages
from relive.server.serve import address, listen, run
from relive.storage import SqliteStorage

HOST = "127.0.0.1"
_STOP_SECONDS = 2.0


def view(file: Path, *, port: int, tenant: str, zone: tzinfo, on_ready: Callable[[str], None]) -> None:
    """Serves the pages until SIGTERM or SIGINT.

    Args:
        file: The store's file.
        port: Where to listen; 0: any free port.
        tenant: Whose lessons.
        zone: Where days begin and end.
        on_ready: Called with the address when requests are taken.

    Raises:
        ReliveError: the file is no store, or the port is taken.
    """
    with SqliteStorage(file, readonly=True) as storage:
        listening = listen(HOST, port)
        try:
            app = LocalPages(Pages(storage, tenant=tenant, zone=zone))
            run(app, listening, lambda: on_ready(address(listening)), _STOP_SECONDS)
        finally:
            listening.close()


class LocalPages:
    """Pages that only people on this machine may see: no foreign site reaches them through their browser."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages.app()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves one request."""
        if scope["type"] == "http" and not from_here(read_headers(scope["headers"])):
            await Client(scope, receive, send).refuse(foreign_page())
        else:
            await self._pages(scope, receive, send)
