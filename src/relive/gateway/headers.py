"""Which headers go on, in either direction, and with whose credentials.

Header names are lower case throughout. What belongs to one connection (RFC 9110, 7.6.1) never goes on; nor do the
gateway's own keys and the headers that only it reads. An answer's length is set anew from the bytes that are sent.
"""

from collections.abc import Iterable, Mapping

from relive.gateway.decoding import READABLE
from relive.gateway.routes import Model
from relive.llm.endpoint import CREDENTIALS

_ONE_CONNECTION = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_CLIENTS_SECRETS = frozenset(name.encode() for name in CREDENTIALS) | {b"cookie"}
_NOT_TO_UPSTREAM = _ONE_CONNECTION | {b"host", b"content-length", b"accept-encoding", b"expect"}
_ABOUT_THE_BODY = ("accept", "content-type")  # the endpoint's are for calls that say nothing themselves
_NOT_TO_CLIENT = _ONE_CONNECTION | {b"content-length"}
_OWN = b"x-relive-"

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
    raw: Headers, headers: Mapping[str, str], model: Model, *, clients_credentials: bool, plain: bool
) -> list[tuple[str, str]]:
    """The headers of a request to an upstream.

    Args:
        raw: The client's.
        headers: The same, read.
        model: Where it goes; its own headers, its key among them, take the place of the client's.
        clients_credentials: Whether the client's own credentials and cookies go on.
        plain: Whether the answer must not be compressed, because the gateway changes it.
    """
    own = {name.lower(): text for name, text in model.endpoint.headers.items()}
    if model.endpoint.key is not None and model.api == "anthropic":
        del own["authorization"]
        own["x-api-key"] = model.endpoint.key
    for name in _ABOUT_THE_BODY:
        if name in headers:
            own.pop(name, None)
    own["accept-encoding"] = "identity" if plain else accepted(headers.get("accept-encoding"))
    left_out = _NOT_TO_UPSTREAM.union(name.encode("latin-1") for name in own)
    if not clients_credentials:
        left_out |= _CLIENTS_SECRETS
    if "connection" in headers:
        left_out |= _named_in(headers["connection"])
    kept = [
        (lower.decode("latin-1"), value.decode("latin-1"))
        for given, value in raw
        if (lower := given.lower()) not in left_out and not lower.startswith(_OWN)
    ]
    return [*kept, *own.items()]


def accepted(encodings: str | None) -> str:
    """The part of a client's ``accept-encoding`` that the gateway can read too."""
    if encodings is None:
        return "identity"
    wanted = [item.strip() for item in encodings.split(",")]
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
    lower = [(name.lower(), value) for name, value in upstream]
    left_out = _NOT_TO_CLIENT
    for name, value in lower:
        if name == b"connection":
            left_out |= _named_in(value.decode("latin-1"))
    headers = [(name, value) for name, value in lower if name not in left_out and not name.startswith(_OWN)]
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (extra or {}).items()]
    return headers


def dollars(cost: int | None) -> str:
    """An exact amount of nano-USD in USD; an unknown one says so."""
    if cost is None:
        return "unknown"
    return f"{cost // 10**9}.{cost % 10**9:09d}".rstrip("0").rstrip(".")


def _named_in(connection: str) -> frozenset[bytes]:
    """The headers that a ``connection`` header says belong to the connection."""
    return frozenset(name.strip().lower().encode("latin-1") for name in connection.split(","))
