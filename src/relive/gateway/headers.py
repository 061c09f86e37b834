"""Which headers go on, in either direction, and with whose credentials.

Header names are lower case throughout. What belongs to one connection (RFC 9110, 7.6.1) never goes on; nor do the
gateway's own keys and the headers that only it reads. An answer's length is set anew from the bytes that are sent.
"""

from collections.abc import Iterable, Mapping

from relive.gateway.decoding import READABLE
from relive.gateway.routes import Model

_ONE_CONNECTION = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_REQUEST_ONLY = frozenset({"host", "content-length", "accept-encoding", "expect"})
_CREDENTIALS = frozenset({"authorization", "x-api-key", "api-key"})
_OWN = "x-relive-"

Headers = list[tuple[bytes, bytes]]
"""As ASGI has them."""


def read_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name; of several with one name all, with commas between."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def to_upstream(
    raw: Iterable[tuple[bytes, bytes]], model: Model, *, clients_credentials: bool, plain: bool
) -> list[tuple[str, str]]:
    """The headers of a request to an upstream.

    Args:
        raw: The client's.
        model: Where it goes; its key, if it has one, takes the place of the client's.
        clients_credentials: Whether the client's own credentials may go on: they are not the gateway's.
        plain: Whether the answer must not be compressed, because the gateway changes it.
    """
    raw = list(raw)
    left_out = _ONE_CONNECTION | _REQUEST_ONLY | _named_by_connection(read_headers(raw))
    key = model.endpoint.key
    if key is not None or not clients_credentials:
        left_out |= _CREDENTIALS
    headers = [
        (name, value.decode("latin-1"))
        for raw_name, value in raw
        if (name := raw_name.decode("latin-1").lower()) not in left_out and not name.startswith(_OWN)
    ]
    if key is not None:
        headers.append(("x-api-key", key) if model.api == "anthropic" else ("authorization", f"Bearer {key}"))
    given = dict(headers)
    own = {name.lower(): value for name, value in model.endpoint.headers.items()}
    headers += [(name, value) for name, value in own.items() if name not in given and name not in _CREDENTIALS]
    headers.append(("accept-encoding", "identity" if plain else accepted(read_headers(raw).get("accept-encoding"))))
    return headers


def accepted(encodings: str | None) -> str:
    """The part of a client's ``accept-encoding`` that the gateway can read too."""
    wanted = [item.strip() for item in (encodings or "").split(",")]
    kept = [item for item in wanted if item.partition(";")[0].strip().lower() in READABLE]
    return ", ".join(kept) or "identity"


def to_client(
    upstream: Iterable[tuple[bytes, bytes]], *, length: int | None = None, extra: Mapping[str, str] | None = None
) -> Headers:
    """The headers of an answer to a client.

    Args:
        upstream: The upstream's.
        length: How many bytes are sent; ``None``: not known yet.
        extra: The gateway's own.
    """
    raw = list(upstream)
    left_out = _ONE_CONNECTION | {"content-length"} | _named_by_connection(read_headers(raw))
    headers = [
        (name.lower(), value)
        for name, value in raw
        if (text := name.decode("latin-1").lower()) not in left_out and not text.startswith(_OWN)
    ]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (extra or {}).items()]
    return headers


def _named_by_connection(headers: Mapping[str, str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in headers.get("connection", "").split(","))
