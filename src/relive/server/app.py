"""The whole server as one ASGI application: calls to models go straight to the gateway, the rest to the admin API."""

import asyncio
import logging
from urllib.parse import urlsplit

from relive.errors import ReliveError
from relive.gateway.client import Client
from relive.gateway.proxy import Receive, Scope, Send
from relive.gateway.recovery import recover
from relive.gateway.refusals import RefusalError
from relive.server.api import AdminAPI
from relive.server.build import Parts, is_loopback

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, or the application's life."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            return
        if not self._parts.keys_required and not _from_here(scope):
            await Client(scope, receive, send).refuse(_foreign_page())
            return
        path = scope["path"]
        if path.startswith("/v1/") and path != "/v1/feedback":
            await self._parts.gateway(scope, receive, send)
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


def _from_here(scope: Scope) -> bool:
    """Whether a request without a key comes from a program on this machine, and not from a page in its browser.

    A page of a foreign site can send requests to this machine, either under its own name (``Origin``) or after pointing
    its own name at this machine (``Host``).
    """
    headers = dict(scope["headers"])
    host = urlsplit(f"//{headers.get(b'host', b'localhost').decode('latin-1')}").hostname
    origin = headers.get(b"origin")
    page = None if origin is None else urlsplit(origin.decode("latin-1")).hostname
    return is_loopback(host or "") and (origin is None or is_loopback(page or ""))


def _foreign_page() -> RefusalError:
    return RefusalError(
        "This server answers programs on its own machine only. Make a key (`relive keys create`) and set "
        'server.keys = "required" to let others in.',
        status=403,
        kind="permission_error",
        code="foreign_origin",
    )
