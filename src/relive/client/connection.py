"""Requests to a server: msgpack over HTTP connections that stay open, one a thread at a time.

A request that never got an answer is sent again, on a new connection, and at most `TRIES` times: all that is sent here
may be repeated without harm. One that got none in time is not, since the server may still be at work on it.
"""

import contextlib
import http.client
import os
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from relive.client.errors import RemoteError, UnreachableError, refusal
from relive.storage.wire import MSGPACK, form_of, pack, unpack

TRIES = 3
_WAITS = (0.0, 0.3)  # seconds; the first failure may only be a connection that the server had closed
_MOST_KEPT = 8  # open connections


class Connection:
    """A server.

    Args:
        url: Its address, such as ``http://127.0.0.1:8400``; one that ends in ``/v1`` will do too.
        key: One of its keys; ``None``: none is shown.
        timeout: Seconds for one answer.

    Attributes:
        url: Its address without a path.

    Raises:
        RemoteError: the address is none.
    """

    def __init__(self, url: str, *, key: str | None, timeout: float) -> None:
        parts = urlsplit(url.strip())
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise RemoteError("The address of a server looks like http://127.0.0.1:8400.")
        if parts.username is not None:
            raise RemoteError("Leave the name and password out of the server's address; give a key as key= instead.")
        self._host, self._port, self._tls = parts.hostname, port, parts.scheme == "https"
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.url = f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{self._prefix}"
        self._headers = {"content-type": MSGPACK, "accept": MSGPACK}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._timeout = timeout
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._process = os.getpid()
        self._closed = False

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The parsed answer to a request.

        Args:
            method: ``GET`` or ``POST``.
            path: With its query.
            body: Any value that `pack` takes; ``None``: none.

        Raises:
            UnreachableError: there was no answer.
            ReliveError: the server refused; the class is the one that a local memory raises.
        """
        data = None if body is None else pack(body, MSGPACK)
        status, kind, answer = self._send(method, self._prefix + path, data)
        parsed: Any = None
        if kind is not None and ("json" in kind or form_of(kind) == MSGPACK):
            parsed = unpack(answer, form_of(kind))
        if status != 200 or parsed is None:
            raise refusal(status, parsed, self.url)
        return parsed

    def close(self) -> None:
        """Closes the connections; a later request is refused."""
        self._closed = True
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _send(self, method: str, path: str, data: bytes | None) -> tuple[int, str | None, bytes]:
        if self._closed:
            raise UnreachableError(f"The memory at {self.url} is closed; open it again.")
        for number in range(TRIES):
            connection = self._take()
            try:
                connection.request(method, path, body=data, headers=self._headers)
                answer = connection.getresponse()
                body = answer.read()
            except TimeoutError as error:
                connection.close()
                raise UnreachableError(f"{self.url} gave no answer within {self._timeout:g} s.") from error
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if number == TRIES - 1:
                    raise UnreachableError(
                        f"{self.url} cannot be reached ({_reason(error)}). Is `relive serve` running there?"
                    ) from error
                time.sleep(_WAITS[number])
                continue
            except BaseException:  # interrupted in the middle: what comes next on it would be the wrong answer
                connection.close()
                raise
            self._give_back(connection, answer)
            return answer.status, answer.headers.get("content-type"), body
        raise AssertionError("the last try returns or raises")

    def _take(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._process != os.getpid():  # in a forked child they are the parent's
                self._idle, self._process = [], os.getpid()
            if self._idle:
                return self._idle.pop()
        make = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        return make(self._host, self._port, timeout=self._timeout)

    def _give_back(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        with self._lock:
            if not answer.will_close and not self._closed and len(self._idle) < _MOST_KEPT:
                self._idle.append(connection)
                return
        with contextlib.suppress(OSError):
            connection.close()


def _reason(error: Exception) -> str:
    """Why, in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
