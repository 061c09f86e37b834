"""Where calls go: an API's address and what is sent with each request, checked once."""

import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from relive.errors import ReliveError
from relive.llm.errors import BadRequestError, shown_url

CREDENTIALS = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key"})
"""Headers that hold a key, in lower case."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An API.

    Attributes:
        url: Its base address; never shown, for its query may hold a secret.
        shown: The same without secrets, for messages and records.
        key: The API key; ``None``: none.
        headers: What is sent with each request, the key included.
        proxy: The proxy to go through; ``None``: straight.
    """

    url: str
    shown: str
    key: str | None
    headers: dict[str, str]
    proxy: str | None

    @classmethod
    def of(cls, base_url: str, api_key: str | None = None, headers: Mapping[str, str] | None = None) -> "Endpoint":
        """An endpoint from what a user gives; blanks around it, a last slash and ``/chat/completions`` are dropped.

        A user and password in the address are sent as such, unless there is a key.

        Raises:
            BadRequestError: the address is not one.
            ReliveError: the key holds characters that cannot be sent.
        """
        url, key = _checked_url(base_url), _checked_key(api_key)
        user, _, host = urlsplit(url).netloc.rpartition("@")
        url = urlunsplit(urlsplit(url)._replace(netloc=host))
        given = {name: text for name, text in (headers or {}).items() if key is None or name.lower() != "authorization"}
        sent = {"Accept": "application/json", "Content-Type": "application/json", **given}
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        elif user and not any(name.lower() == "authorization" for name in given):
            sent["Authorization"] = f"Basic {b64encode(unquote(user).encode()).decode()}"
        return cls(url=url, shown=shown_url(url), key=key, headers=sent, proxy=_proxy_for(url))

    @property
    def authenticated(self) -> bool:
        """Whether it has credentials of its own."""
        return any(name.lower() in CREDENTIALS for name in self.headers)

    @property
    def origin(self) -> tuple[str, str | None, int | None]:
        """Scheme, host and port: whoever is there may know what was meant for it."""
        parts = urlsplit(self.url)
        return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)

    def at(self, path: str) -> str:
        """The full address of a path under the API; a query in the base address is kept."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc, parts.path + path, parts.query, ""))


def is_this_machine(url: str) -> bool:
    """Whether an address is on the loopback interface."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _checked_url(base_url: str) -> str:
    url = base_url.strip()
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")  # an empty label, or one of more than 63 characters
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        given = shown_url(url) if "://" in url else repr(url)
        raise BadRequestError(
            f"{given} is not the address of an endpoint. Give one such as http://127.0.0.1:8080/v1.", status=400
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _checked_key(api_key: str | None) -> str | None:
    key = (api_key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ReliveError("The API key holds characters that no key has. Check the variable or file it comes from.")
    return key or None


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for an address; never one for this machine itself."""
    parts = urlsplit(url)
    if is_this_machine(url) or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)
