"""A whole server on this machine's loopback: in the test's own event loop, or as a process of its own."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
from loopback import Upstream

from relive.server.app import App
from relive.server.build import Parts, build
from relive.server.settings import load
from relive.storage.wire import JSON, MSGPACK, Form, pack, unpack


class Served:
    """A server, its upstream, and a client."""

    def __init__(self, url: str, parts: Parts, upstream: Upstream, client: aiohttp.ClientSession) -> None:
        self.url = url
        self.parts = parts
        self.upstream = upstream
        self.client = client

    async def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        form: Form = JSON,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """The status and the parsed body of an answer."""
        sent = {"content-type": form, "accept": form, **(headers or {})}
        data = body if isinstance(body, bytes) or body is None else pack(body, form)
        verb = method or ("GET" if body is None else "POST")
        async with self.client.request(verb, self.url + path, data=data, headers=sent) as answer:
            got = await answer.read()
            kind = answer.headers.get("content-type", "")
            return answer.status, unpack(got, form) if kind in (JSON, MSGPACK) else got


@asynccontextmanager
async def served(folder: Path, **over: Any) -> AsyncIterator[Served]:
    """Starts a server in this event loop; ends it."""
    upstream = Upstream()
    await upstream.start()
    store = {"path": folder / "store.db", **over.pop("store", {})}
    models = over.pop("models", [{"name": "m", "upstream": upstream.base_url}])
    models = models(upstream.base_url) if callable(models) else models
    parts = build(load(None, store=store, models=models, **over))
    server = uvicorn.Server(uvicorn.Config(App(parts), port=0, log_level="critical", lifespan="on"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - the server sets a flag and no event
        await asyncio.sleep(0.005)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with aiohttp.ClientSession() as client:
        try:
            yield Served(url, parts, upstream, client)
        finally:
            server.should_exit = True
            await serving
            parts.close()
            await upstream.stop()


def run(folder: Path, body: Any, **over: Any) -> None:
    """Runs a test's body with a server."""

    async def all_of_it() -> None:
        async with served(folder, **over) as made:
            await asyncio.wait_for(body(made), 60)

    asyncio.run(all_of_it())


@contextmanager
def upstream_thread() -> Iterator[Upstream]:
    """An upstream in a thread of its own, for servers in processes of their own."""
    upstream, loop = Upstream(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(upstream.start(), loop).result()
    try:
        yield upstream
    finally:
        asyncio.run_coroutine_threadsafe(upstream.stop(), loop).result()

        async def end() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


STARTED: list["Process"] = []
"""Every process of this test; what still runs at its end is killed."""


class Process:
    """`relive serve` as a process of its own."""

    def __init__(self, folder: Path, *options: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-c", "from relive.cli import main; main()", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "COLUMNS": "500", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = ""
        STARTED.append(self)

    def ready(self) -> str:
        """Its address, once it takes requests."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "base_url at " in line:
                self.url = line.partition("base_url at ")[2].split("/v1")[0]
                threading.Thread(target=self._drain, daemon=True).start()
                return self.url
        raise AssertionError(f"It did not start: {self.process.communicate()[1]}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends it; its exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(timeout=120)
        finally:
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()

    def _drain(self) -> None:
        for pipe in (self.process.stderr,):
            assert pipe is not None
            try:
                for _ in pipe:
                    pass
            except ValueError:
                return  # closed
