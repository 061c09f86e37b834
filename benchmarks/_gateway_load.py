"""The clients of the gateway's benchmark: so many at a time, each calling again as soon as it has its answer.

    python benchmarks/_gateway_load.py URL CLIENTS SECONDS stream|whole [KEY [MODEL]]

Prints one line of JSON: calls a second, and in milliseconds the latencies (whole answer) and the times to the first
byte of the body; how many calls were answered, how many of them were marked pending, and how many failed. The clients
are as bare as can be, so that they take little of the two cores.
"""

import asyncio
import json
import statistics
import sys
import time
from urllib.parse import urlsplit

MESSAGES = [
    {"role": "system", "content": "You answer customers of a bank. " * 10},
    {"role": "user", "content": "My card has not arrived yet, and it has been two weeks now. What can I do? " * 10},
]


class Client(asyncio.Protocol):
    """One connection; `call` waits for a whole answer."""

    def __init__(self) -> None:
        self.buffer = b""
        self.first = 0.0
        self.pending = False
        self.done: asyncio.Future[bool] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the connection."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Looks whether the answer is whole."""
        self.buffer += data
        head, mark, body = self.buffer.partition(b"\r\n\r\n")
        if not mark:
            return
        if body and not self.first:
            self.first = time.perf_counter()
        lower = head.lower()
        if b"transfer-encoding: chunked" in lower:
            whole = body.endswith(b"0\r\n\r\n")
        else:
            whole = len(body) >= int(lower.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if whole and self.done is not None and not self.done.done():
            self.pending = b"x-relive-recorded: pending" in lower
            self.done.set_result(head.startswith(b"HTTP/1.1 200"))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The call failed."""
        if self.done is not None and not self.done.done():
            self.done.set_result(False)

    async def call(self, request: bytes) -> tuple[bool, float, float]:
        """Whether it was answered, its latency and its time to the first byte, in milliseconds."""
        self.buffer, self.first = b"", 0.0
        self.done = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        self.transport.write(request)
        good = await self.done
        end = time.perf_counter()
        return good, (end - start) * 1000, (self.first - start) * 1000


async def main(url: str, clients: int, seconds: float, form: str, key: str = "none", model: str = "bench-1") -> None:
    """Calls for so long, and prints what came of it."""
    parts = urlsplit(url)
    body = json.dumps({"model": model, "messages": MESSAGES, "stream": form == "stream"}).encode()
    request = (
        f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body
    latencies: list[float] = []
    firsts: list[float] = []
    failed = answered = pending = 0
    loop = asyncio.get_running_loop()
    begin = time.perf_counter()
    warm, end = begin + min(1.0, seconds / 4), begin + seconds

    async def client() -> None:
        nonlocal failed, answered, pending
        _, protocol = await loop.create_connection(Client, parts.hostname, parts.port)
        while time.perf_counter() < end:
            good, latency, first = await protocol.call(request)
            if not good:
                failed += 1
                _, protocol = await loop.create_connection(Client, parts.hostname, parts.port)
                await asyncio.sleep(0.05)
                continue
            answered += 1
            pending += protocol.pending
            if time.perf_counter() > warm:
                latencies.append(latency)
                firsts.append(first)
        protocol.transport.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    latencies.sort()
    print(
        json.dumps(
            {
                "rate": len(latencies) / (end - warm),
                "p50": statistics.median(latencies) if latencies else float("nan"),
                "p99": latencies[int(len(latencies) * 0.99)] if latencies else float("nan"),
                "first": statistics.median(firsts) if firsts else float("nan"),
                "answered": answered,
                "pending": pending,
                "failed": failed,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], *sys.argv[5:]))
