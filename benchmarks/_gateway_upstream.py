"""The upstream of the gateway's benchmark: a chat completion after 20 ms, whole or in 20 pieces 2 ms apart.

python benchmarks/_gateway_upstream.py PORT
"""

import asyncio
import json
import sys

LATENCY = 0.020
PIECES = 20
GAP = 0.002
USAGE = {"prompt_tokens": 400, "completion_tokens": 120, "total_tokens": 520}
TEXT = "The card is on its way and will be with you on Thursday. " * 8
WHOLE = json.dumps(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "model": "bench-1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
).encode()


def _event(value: object) -> bytes:
    data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _delta(content: dict[str, str], finish_reason: str | None = None) -> dict[str, object]:
    choice = {"index": 0, "delta": content, "finish_reason": finish_reason}
    return {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "model": "bench-1", "choices": [choice]}


DELTA = _event(_delta({"content": "The card is on its way. "}))
END = b"".join(
    [
        _event(_delta({}, "stop")),
        _event({**_delta({}), "choices": [], "usage": USAGE}),
        _event(b"[DONE]"),
        b"0\r\n\r\n",
    ]
)
HEAD_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(WHOLE)
HEAD_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Upstream(asyncio.Protocol):
    """One connection: requests one after another, as bare as can be."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the connection."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        """Answers each whole request."""
        self.buffer += data
        while True:
            head, mark, rest = self.buffer.partition(b"\r\n\r\n")
            if not mark:
                return
            length = 0
            for line in head.split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if len(rest) < length:
                return
            body, self.buffer = rest[:length], rest[length:]
            flat = body.replace(b" ", b"")
            loop = asyncio.get_running_loop()
            loop.call_later(LATENCY, self.stream if b'"stream":true' in flat else self.whole)

    def whole(self) -> None:
        """The answer in one body."""
        self.transport.write(HEAD_WHOLE + WHOLE)

    def stream(self) -> None:
        """The answer in pieces."""
        self.transport.write(HEAD_STREAM + DELTA)
        self.piece(1)

    def piece(self, number: int) -> None:
        """The next piece."""
        loop = asyncio.get_running_loop()
        if number == PIECES:
            self.transport.write(END)
        else:
            self.transport.write(DELTA)
            loop.call_later(GAP, self.piece, number + 1)


async def main(port: int) -> None:
    """Serves until it is killed."""
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
