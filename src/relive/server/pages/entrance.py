"""Who may see the pages: whoever the gateway lets in.

Where it asks for a key, a browser shows one in a form, once, and gets a cookie that stands for it here: 256 random
bits, out of reach of scripts, never sent by other sites' pages. The key is looked up anew each time, so that one which
is revoked opens nothing. Sessions live in memory and end with the server.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from relive.gateway.access import Access, Caller
from relive.gateway.headers import read_headers
from relive.gateway.keys import Scope

LASTS = 12 * 3600
"""Seconds after which a session ends."""

_MOST = 1_000


class Entrance:
    """Lets people in.

    Args:
        access: The gateway's; ``None``: there is no gateway, and whoever asks is let in.
        now: A clock in seconds.
    """

    def __init__(self, access: Access | None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._now = now
        self._sessions: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def admit(self, request: Request, scope: Scope) -> Caller:
        """Who asks.

        Raises:
            RefusalError: a key is needed that was not shown, or it may not do this.
        """
        if self._access is None:
            return Caller()
        headers = read_headers(request.scope["headers"])
        key, ends = self._sessions.get(request.cookies.get(_cookie(request), ""), ("", 0.0))
        if self._now() < ends:
            headers["authorization"] = f"Bearer {key}"
        return self._access.admit(headers, scope)

    def log_in(self, request: Request, response: Response, key: str) -> None:
        """Takes a key and has the browser keep what stands for it.

        Raises:
            RefusalError: the key does not work, or may not see the pages.
        """
        if self._access is None:
            return
        self._access.admit({"authorization": f"Bearer {key}"}, "read")
        token = secrets.token_urlsafe(32)
        self._sessions[token] = (key, self._now() + LASTS)
        if len(self._sessions) > _MOST:
            self._sessions.popitem(last=False)
        safe = request.headers.get("origin", "").startswith("https://")  # a proxy in front of this server speaks TLS
        response.set_cookie(_cookie(request), token, max_age=LASTS, httponly=True, samesite="strict", secure=safe)

    def log_out(self, request: Request, response: Response) -> None:
        """Ends the session of a browser."""
        self._sessions.pop(request.cookies.get(_cookie(request), ""), None)
        response.delete_cookie(_cookie(request), httponly=True, samesite="strict")


def _cookie(request: Request) -> str:
    """The cookie's name; with the port, since browsers give all servers of one machine the same cookies."""
    server = request.scope.get("server") or ("", 0)
    return f"relive-{server[1]}"
