"""A gateway and an upstream on this machine's loopback, in one event loop, for tests of whole calls."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from relive.experience import Transition
from relive.gateway.access import Access
from relive.gateway.budget import Budget, Budgets
from relive.gateway.journal import Journal
from relive.gateway.keys import Keys
from relive.gateway.ledger import Ledger
from relive.gateway.proxy import Gateway, Limits
from relive.gateway.recorder import Recorder
from relive.gateway.recovery import recover
from relive.gateway.routes import Model, Routes
from relive.gateway.spool import Spool
from relive.llm.endpoint import Endpoint
from relive.llm.pricing import PriceTable
from relive.llm.retry import RetryPolicy
from relive.storage import SqliteStorage
from relive.storage.redaction import Redactor

FAST = RetryPolicy(max_attempts=3, min_wait=0.01, max_wait=0.02)
QUESTION: dict[str, Any] = {"model": "m-1", "messages": [{"role": "user", "content": "Where is my card?"}]}
ANSWER = {
    "id": "c1",
    "object": "chat.completion",
    "model": "m-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "In Leeds."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 50, "completion_tokens": 200, "total_tokens": 250},
}


class Request:
    """What an upstream was sent."""

    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = first.split(" ", 2)
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.body = body

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


Script = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


class Upstream:
    """A server that answers with the bytes it is told to, as rudely as it likes."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.scripts: list[Script] = []
        self.cut_off = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def answers(self, *scripts: Script) -> None:
        """The next requests get these answers, all further ones the last."""
        self.scripts = list(scripts)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n")
                request = Request(head, b"")
                request.body = await reader.readexactly(int(request.headers.get("content-length", 0)))
                self.requests.append(request)
                script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
                await script(request, writer)
                await writer.drain()
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.cut_off += 1
        finally:
            self._open.discard(writer)
            writer.close()


def reply(
    body: bytes | dict[str, Any],
    status: int = 200,
    headers: dict[str, str] | None = None,
    *,
    content_type: str = "application/json",
) -> Script:
    """An answer in one body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        given = {"content-type": content_type, "content-length": str(len(data)), **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
        writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + (b"" if request.method == "HEAD" else data))

    return script


def stream(
    pieces: Iterable[bytes], *, pause: float = 0.0, break_off: bool = False, headers: dict[str, str] | None = None
) -> Script:
    """An answer in pieces, with pauses between; at the end it may break the connection off."""

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        given = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        writer.write(f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode())
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(pause)
        if break_off:
            writer.close()
        else:
            writer.write(b"0\r\n\r\n")

    return script


async def reset(request: Request, writer: asyncio.StreamWriter) -> None:
    """No answer: the connection is closed."""
    writer.close()


async def silence(request: Request, writer: asyncio.StreamWriter) -> None:
    """No answer at all, for a long time."""
    await asyncio.sleep(30)


class Rig:
    """A gateway between a client and an upstream."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.upstream = Upstream()
        self.second = Upstream()
        self.url = ""
        self.client: aiohttp.ClientSession
        self.storage: SqliteStorage
        self.gateway: Gateway
        self.keys: Keys
        self.ledger: Ledger
        self.found: dict[str, int] = {}

    def rows(self) -> list[Transition]:
        """The records, without those of single attempts."""
        stored = [row.transition for row in self.storage.query(limit=1_000)]
        return [transition for transition in stored if transition.parent is None]

    async def until_recorded(self, count: int = 1) -> list[Transition]:
        """The records, once there are so many."""
        return await so_many(self.rows, count)

    async def post(
        self, path: str, body: Any, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """What a client gets."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        async with self.client.post(self.url + path, data=data, headers=sent) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.read()


@asynccontextmanager
async def rig(
    folder: Path,
    *,
    models: Callable[[Rig], list[Model]] | None = None,
    tiers: dict[str, list[str]] | None = None,
    policy: RetryPolicy = FAST,
    limits: Limits | None = None,
    keys_required: bool = False,
    budgets: Callable[[Ledger], Budgets] | None = None,
    prices: PriceTable | None = None,
    redact: Redactor | None = None,
    wait: float = 10.0,  # this machine may be busy; how long an answer waits is tested elsewhere
    **more: Any,
) -> AsyncIterator[Rig]:
    """Starts all of it; ends all of it."""
    made = Rig(folder)
    await made.upstream.start()
    await made.second.start()
    beside = folder / "store.db.gateway"
    made.ledger = Ledger(beside / "ledger.db")
    made.keys = Keys(made.ledger, beside / "secret")
    made.storage = SqliteStorage(folder / "store.db", redact=redact)
    routes = Routes(models(made) if models else [model("m", made.upstream)], tiers=tiers)
    prices = prices or PriceTable(known=False)
    recorder = Recorder(made.storage, Spool(beside / "spool"), redact=redact, wait=wait)
    (folder / "memory").mkdir(exist_ok=True)
    made.gateway = Gateway(
        routes=routes,
        access=Access(made.keys, required=keys_required),
        recorder=recorder,
        journal=Journal(beside, in_memory=folder / "memory"),
        prices=prices,
        budgets=budgets(made.ledger) if budgets else None,
        policy=policy,
        limits=limits or Limits(),
        **more,
    )
    made.found = await recover(made.gateway.journal, recorder, prices)
    config = uvicorn.Config(made.gateway, port=0, lifespan="off", log_level="error", access_log=False)
    server = uvicorn.Server(config)
    config.load()
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - the server sets a flag and no event
        await asyncio.sleep(0.005)
    made.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    made.client = aiohttp.ClientSession()
    try:
        yield made
    finally:
        await made.client.close()
        server.should_exit = True
        await serving
        await made.gateway.close()
        await made.upstream.stop()
        await made.second.stop()
        made.storage.close()
        made.ledger.close()


def model(name: str, upstream: Upstream, *fallbacks: str, key: str | None = None, **fields: Any) -> Model:
    """A model at a loopback upstream; it takes any name unless it has one."""
    endpoint = Endpoint.of(upstream.base_url, key)
    return Model(**{"name": name, "endpoint": endpoint, "fallbacks": fallbacks, **fields})


def one_dollar(ledger: Ledger) -> Budgets:
    """A budget of a dollar a day."""
    return Budgets(ledger, [Budget(day=10**9)], zone=UTC, now=lambda: datetime.now(UTC))


def two_models(rig: Rig) -> list[Model]:
    """Models that take over for each other."""
    return [model("a", rig.upstream, "b", model="a-1"), model("b", rig.second, "a", model="b-1")]


async def raw(rig: Rig, method: str, target: str, body: bytes = b"") -> bytes:
    """The first line of the answer to a request whose target is sent as it is."""
    host, port = rig.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n")[0]


async def until(condition: Callable[[], bool]) -> None:
    """Waits until it holds."""
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about")


async def so_many(read: Callable[[], list[Any]], count: int) -> list[Any]:
    """What is read, once there is so much of it."""
    await until(lambda: len(read()) >= count)
    return read()


def run(folder: Path, body: Callable[[Rig], Awaitable[None]], **options: Any) -> None:
    """Runs a test's body with a rig."""

    async def all_of_it() -> None:
        async with rig(folder, **options) as made:
            await asyncio.wait_for(body(made), 60)

    asyncio.run(all_of_it())
