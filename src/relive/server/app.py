"""The whole server as one ASGI application: calls to models go straight to the gateway, the rest to API and pages."""

import asyncio
import logging
from zoneinfo import ZoneInfo

from relive.errors import ReliveError
from relive.gateway.client import Client
from relive.gateway.headers import read_headers
from relive.gateway.proxy import Receive, Scope, Send
from relive.gateway.recovery import recover
from relive.server.api import AdminAPI
from relive.server.build import Parts
from relive.server.origin import foreign_page, from_here
from relive.server.pages.app import PATHS, Pages

FOLLOWS_EVERY = 5.0
"""Seconds after which calls recorded meanwhile count for the store's limits, and for what lessons are worth."""

_log = logging.getLogger("relive.server")


class App:
    """The application over a server's parts; it closes the gateway when it ends.

    Args:
        parts: The server's parts.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._api = AdminAPI(parts).app()
        zone = ZoneInfo(parts.settings.time_zone)
        pages = Pages(parts.memory.storage, access=parts.gateway.access, can_change=True, zone=zone)
        self._pages = pages.app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, or the application's life."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            return
        if not self._parts.keys_required and not from_here(read_headers(scope["headers"])):
            await Client(scope, receive, send).refuse(foreign_page())
            return
        path = scope["path"]
        if path.startswith("/v1/") and path != "/v1/feedback":
            await self._parts.gateway(scope, receive, send)
        elif path.lstrip("/").partition("/")[0] in PATHS:
            await self._pages(scope, receive, send)  # type: ignore[arg-type]
        else:
            await self._api(scope, receive, send)  # type: ignore[arg-type]

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        gateway = self._parts.gateway
        found = await recover(gateway.journal, gateway.recorder, gateway.prices)
        if found:
            _log.warning("An earlier gateway was cut off; what it left is recorded.", extra={"found": found})
        await send({"type": "lifespan.startup.complete"})
        following = asyncio.create_task(self._follow())
        await receive()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await gateway.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _follow(self) -> None:
        """Has what is too much or too old leave the store even while nobody draws from it, and reviews lessons."""
        memory, lessons = self._parts.memory, self._parts.lessons
        while True:
            await asyncio.sleep(FOLLOWS_EVERY)
            try:
                if memory.storage.owns_index:
                    await asyncio.to_thread(memory.follow)
                if lessons is not None:
                    await asyncio.to_thread(lessons.book.follow)
            except ReliveError as error:
                _log.warning("The store could not be followed: %s", error)
