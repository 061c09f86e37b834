"""What tests of several rooms share: a memory, one real small model, and a provider that answers as it is told."""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import relive
from relive import Memory
from relive.llm import LocalServer, Upstream


def completion(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """The body of a chat completion."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    return {
        "id": "c1",
        "model": "m-2026",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
        **fields,
    }


class Provider:
    """A real HTTP server. `answers` are given in turn, the last one again and again.

    An answer is ``(status, body, headers)``; the body is bytes or becomes JSON; ``"reset"`` breaks the connection off
    and ``"hang"`` never answers.
    """

    def __init__(self) -> None:
        self.answers: list[Any] = [(200, completion(), {})]
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.asked = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._listening.wait(10)

    def upstream(self, **options: Any) -> Upstream:
        """A client of this provider."""
        return Upstream(self.base_url, "m", **options)

    def body(self, number: int = -1) -> Any:
        """The JSON of a request."""
        return json.loads(self.requests[number][3])

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        runner = web.ServerRunner(web.Server(self._answer, handler_cancellation=True), shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        self._listening.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs, dict(request.headers), await request.read()))
        self.asked.set()
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        if answer == "hang":
            await asyncio.Event().wait()
        if answer == "reset":
            assert request.transport is not None
            sock: socket.socket = request.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.transport.abort()
            return web.Response()
        status, body, headers = answer
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {} if "Content-Type" in headers else {"Content-Type": "application/json"}
        return web.Response(status=status, body=data, headers={**kind, **headers})


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with relive.open(tmp_path / "agent.db") as opened:
        yield opened


@pytest.fixture(scope="session")
def local_server() -> Iterator[LocalServer]:
    """SmolLM2-135M behind llama.cpp: two slots, one thread, 2,048 tokens each. Use temperature 0 and few tokens."""
    with LocalServer(slots=2, threads=1, context=2048) as server:
        yield server


@pytest.fixture
def provider() -> Iterator[Provider]:
    server = Provider()
    yield server
    server.close()


@pytest.fixture
def answer_of() -> Any:
    """The function `completion`."""
    return completion
