"""`relive serve`: listen, say so, and stop gracefully."""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from relive.errors import ReliveError
from relive.server import logs
from relive.server.app import App
from relive.server.build import Parts, build
from relive.server.settings import Settings

_log = logging.getLogger("relive.server")


class AddressError(ReliveError):
    """The address cannot be listened on."""


def serve(settings: Settings, *, on_ready: Callable[[str, Parts], None] | None = None) -> None:
    """Serves until SIGTERM or SIGINT; then calls under way may end, for as long as the settings allow.

    Args:
        settings: The settings.
        on_ready: Called with the address and the parts when requests are taken.

    Raises:
        ReliveError: it cannot start; the message says why and what to do.
    """
    listening = listen(settings.server.host, settings.server.port)
    try:
        url = address(listening)
        parts = build(settings, url=address(listening, near=True))
        try:
            logs.set_up(settings.server.log_level, settings.server.log_format)
            for note in parts.notes:
                _log.warning(note)
            stop_seconds = settings.server.stop_seconds
            run(App(parts), listening, lambda: on_ready(url, parts) if on_ready is not None else None, stop_seconds)
        finally:
            parts.close()
    finally:
        listening.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        AddressError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listening.bind((host, port))
        listening.listen(2_048)
    except OSError as error:
        listening.close()
        raise AddressError(
            f"Cannot listen on {host}:{port} ({error.strerror or error}). Name another port with --port."
        ) from error
    return listening


def address(listening: socket.socket, *, near: bool = False) -> str:
    """The URL at which clients reach a listening socket.

    Args:
        listening: The socket.
        near: Only programs on this machine, where its name need not be known to any server of names.
    """
    host, port = listening.getsockname()[:2]
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
    if host in everywhere:
        host = everywhere[host] if near else socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Says when it takes requests."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _spare_the_collector()
            self._on_ready()


def _spare_the_collector() -> None:
    """Leaves what was loaded at the start out of garbage collection, which then takes a fraction of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def run(app: Any, listening: socket.socket, on_ready: Callable[[], None], stop_seconds: float) -> None:
    """Serves an ASGI application until SIGTERM or SIGINT.

    Args:
        app: The application.
        listening: Where requests come in.
        on_ready: Called when they are taken.
        stop_seconds: How long those under way may go on after that.
    """
    options: dict[str, Any] = {
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "date_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": int(stop_seconds),
    }
    config = uvicorn.Config(app, **options)
    server = _Server(config, on_ready)
    for number in (signal.SIGTERM, signal.SIGINT):
        # the server raises the signal again once it has stopped; by then it has done its work
        signal.signal(number, lambda *_: None)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listening]))
