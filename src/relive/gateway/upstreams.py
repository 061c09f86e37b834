"""One attempt to get an answer from an upstream: its head, its bytes, and the one way it fails.

A failure before the first byte of the answer is an `UpstreamError`, whatever form it came in: a refused connection, a
time limit, a status of 400 and above, or an error as the first event of a stream that began with 200.
"""

import ssl
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from relive.gateway.capture import Upstream
from relive.gateway.decoding import BodyDecoder
from relive.gateway.routes import Model
from relive.llm.call import CONNECT_LIMIT
from relive.llm.errors import (
    BadAnswerError,
    UnreachableError,
    UpstreamError,
    UpstreamTimeoutError,
    classify,
    describe,
    shown_url,
)
from relive.llm.retry import retry_hint

LARGEST_ERROR = 1 << 20
"""Bytes of an error that are read."""


def new_session(connections: int = 0) -> aiohttp.ClientSession:
    """Connections to upstreams: kept open, never redirected, bodies as they come; at most so many, 0 for no limit."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, ttl_dns_cache=60, keepalive_timeout=60),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    )


def address(model: Model, path: str, query: str) -> URL:
    """Where a request goes: the model's endpoint with the rest of the path, its own query and the client's."""
    key = (model.endpoint.url, path, query)
    address = _addresses.get(key)
    if address is None:
        url = model.endpoint.at(path.removeprefix("/v1"))
        if query:
            url += ("&" if "?" in url else "?") + query
        if len(_addresses) >= _MOST_ADDRESSES:
            _addresses.clear()
        address = _addresses[key] = URL(url, encoded=True)
    return address


_MOST_ADDRESSES = 256
_addresses: dict[tuple[str, str, str], URL] = {}  # making one takes as long as all else that is done for a call


def described(model: Model, *, with_key: bool = True) -> Upstream:
    """Whom a call goes to, for its record; the key only to be blanked out."""
    at = model.endpoint
    return Upstream(
        name=model.name,
        model=model.model,
        base_url=at.url,
        shown=at.shown,
        key=at.key if with_key else None,
        price=model.price,
    )


class Attempt:
    """An answer under way; use it as a context manager, which lets go of the connection.

    Attributes:
        status: The HTTP status.
        headers: The answer's headers.
    """

    def __init__(self, model: Model, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers = response.raw_headers
        self._response = response
        self._model = model

    @classmethod
    async def start(
        cls,
        session: aiohttp.ClientSession,
        model: Model,
        method: str,
        url: URL,
        headers: list[tuple[str, str]],
        body: bytes,
    ) -> Self:
        """Sends a request and waits for the head of its answer.

        Raises:
            UpstreamError: no answer came, or one that refuses.
        """
        try:
            response = await session.request(
                method,
                url,
                headers=headers,
                data=body or None,
                proxy=model.endpoint.proxy,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError) as error:
            raise failure(model, error) from error
        attempt = cls(model, response)
        if attempt.status >= 300:
            try:
                raise await attempt._refusal()
            finally:
                response.release()
        return attempt

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._response.release()
        else:
            self._response.close()

    @property
    def content_type(self) -> str | None:
        """The type of the body."""
        return self._response.headers.get("content-type")

    @property
    def length(self) -> int | None:
        """How long its body is said to be; ``None``: it is not said."""
        text = self._response.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None

    @property
    def content_encoding(self) -> str | None:
        """How the body is packed."""
        return self._response.headers.get("content-encoding")

    @property
    def request_id(self) -> str | None:
        """The provider's id of the request."""
        return self._response.headers.get("x-request-id") or self._response.headers.get("request-id")

    async def read(self) -> bytes:
        """The next bytes of the answer; nothing at its end.

        Raises:
            UpstreamError: the connection broke off.
        """
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise failure(self._model, error) from error

    async def _refusal(self) -> UpstreamError:
        """The error that an answer of status 300 and above is."""
        body = b""
        try:
            async for piece in self._response.content.iter_any():
                body += piece
                if len(body) > LARGEST_ERROR:
                    break
        except (aiohttp.ClientError, OSError):
            pass  # its status says enough
        headers: Mapping[str, str] = self._response.headers
        text = _readable(body, self.content_encoding)
        if self.status < 400:
            kind: type[UpstreamError] = BadAnswerError
            words = f"it redirects to {shown_url(headers.get('location', '')) or 'elsewhere'}"
        else:
            kind, words = classify(self.status, text)
        return kind(
            message(self._model, kind, words, self.status),
            status=self.status,
            body=text,
            content_type=self.content_type,
            retry_after=retry_hint(headers, time.time()),
            request_id=self.request_id,
        )


def failure(model: Model, error: BaseException) -> UpstreamError:
    """The error that a broken connection is."""
    words = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ServerTimeoutError):
        words = f"no connection within {CONNECT_LIMIT:.0f} s"
    elif isinstance(error, aiohttp.ClientConnectorDNSError):
        words = "the host's name is not known"
    elif isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        words = "the connection broke off"
    made = UnreachableError(message(model, UnreachableError, words, None))
    made.permanent = isinstance(error, aiohttp.ClientSSLError | ssl.SSLError)
    return made


def timed_out(model: Model) -> UpstreamError:
    """The error that a time limit is."""
    error = UpstreamTimeoutError(message(model, UpstreamTimeoutError, f"time limit of {model.timeout:g} s", None))
    error.permanent = True  # the limit is the whole call's
    return error


def failed_answer(model: Model, body: bytes) -> UpstreamError:
    """The error that an answer with the status 200 turned out to be."""
    kind, words = classify(500, body)
    return kind(message(model, kind, words, None), body=body, content_type="application/json")


def message(model: Model, kind: type[UpstreamError], words: str, status: int | None) -> str:
    """An error's message, without secrets."""
    endpoint = model.endpoint
    return describe(kind, endpoint.shown, model.model or model.name, status=status, words=words, key=endpoint.key)


def _readable(body: bytes, encoding: str | None) -> bytes:
    decoder = BodyDecoder(encoding)
    text = decoder.decode(body)
    return text if decoder.readable else body
