"""The client's side of a call: its request in, the answer's head and bytes out, and whether it is still there."""

from typing import TYPE_CHECKING
from urllib.parse import quote

from relive.gateway.dialects import DIALECTS, meant_path
from relive.gateway.headers import Headers, read_headers, to_client
from relive.gateway.refusals import RefusalError, refusal_body

if TYPE_CHECKING:
    from relive.gateway.proxy import Receive, Scope, Send


_IN_PATHS = "/%:@!$&'()*+,;=~"


class Taken:
    """What a client was given, taken down for the cache; too much of it is given up."""

    MOST = 4 << 20

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.pieces: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        """The next bytes."""
        self._size += len(data)
        if self.whole:
            self.pieces.append(data)
        else:
            self.pieces.clear()

    @property
    def whole(self) -> bool:
        """Whether all of it is here."""
        return self._size <= self.MOST

    def header(self, name: bytes) -> str | None:
        """One header; ``None``: there is none."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), None)


class Client:
    """The client's side of a call: what it sends, what it gets, and whether it is still there.

    Args:
        scope: ASGI's.
        receive: ASGI's.
        send: ASGI's.

    Attributes:
        path: The path, decoded: for looking at.
        sent_path: The path for sending on: as the client wrote it, where it is not of an API that is understood.
        left: The client is gone.
        begun: The head of the answer was sent.
    """

    def __init__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        self.path: str = meant_path(scope["path"])
        written = scope.get("raw_path") or self.path.encode()
        self.sent_path = self.path if self.path in DIALECTS else quote(written, safe=_IN_PATHS)
        self.method: str = scope["method"]
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        self.raw_headers: Headers = scope["headers"]
        self.headers = read_headers(self.raw_headers)
        self.left = False
        self.begun = False
        self.taken: Taken | None = None
        self._receive = receive
        self._send = send

    async def body(self, limit: int) -> bytes:
        """The whole request.

        Raises:
            RefusalError: it is larger than the limit, or the client left before its end.
        """
        announced = self.headers.get("content-length", "")
        parts: list[bytes] = []
        size = int(announced) if announced.isdecimal() and len(announced) < 16 else 0
        more = size <= limit
        size = size if size > limit else 0
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.left = True
                raise RefusalError(
                    "The client left before its request was whole.",
                    status=400,
                    kind="invalid_request_error",
                    code="incomplete_request",
                )
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False) and size <= limit
        if size > limit:
            raise RefusalError(
                f"The request is larger than {limit:,} bytes. Send less, or raise limits.request_bytes.",
                status=413,
                kind="request_too_large",
                code="request_too_large",
            )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def gone(self) -> None:
        """Returns when the client has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True

    async def begin(self, status: int, headers: Headers) -> None:
        """Sends the head of the answer."""
        self.begun = True
        if self.taken is not None:
            self.taken.status, self.taken.headers = status, headers
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def pass_on(self, data: bytes, *, last: bool = False) -> None:
        """Sends the next bytes of the answer; nothing to a client that has left."""
        if not self.left and (data or last):
            if self.taken is not None:
                self.taken.add(data)
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def refuse(self, refusal: RefusalError) -> None:
        """Answers with an error of the gateway's own."""
        body = refusal_body(self.path, str(refusal), refusal.kind, refusal.code)
        extra = {"content-type": "application/json", **refusal.headers}
        extra |= {"retry-after": "1"} if refusal.retry else {"x-should-retry": "false"}
        await self.begin(refusal.status, to_client([], length=len(body), extra=extra))
        await self.pass_on(body, last=True)
