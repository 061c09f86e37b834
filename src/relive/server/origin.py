"""Whose page in a browser sent a request, as far as the browser says."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from relive.gateway.refusals import RefusalError
from relive.server.build import is_loopback


def from_here(headers: Mapping[str, str]) -> bool:
    """Whether a request without a key comes from this machine, and not from a foreign page in its browser.

    A page of a foreign site can send requests to this machine, either under its own name (``Origin``) or after pointing
    its own name at this machine (``Host``).
    """
    try:
        host = urlsplit(f"//{headers.get('host', 'localhost')}").hostname
        page = urlsplit(headers["origin"]).hostname if "origin" in headers else host
    except ValueError:  # no name that could be
        return False
    return is_loopback(host or "") and is_loopback(page or "")


def from_own_page(headers: Mapping[str, str]) -> bool:
    """Whether the browser says that a request comes from a page of this very server; silence is a no."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return False
    try:
        same = origin is None or urlsplit(origin).netloc == headers.get("host")
    except ValueError:
        return False
    return same and site in (None, "same-origin")


def foreign_page() -> RefusalError:
    """What a request that is not from here is told."""
    return RefusalError(
        "This server answers programs on its own machine only. Make a key (`relive keys create`) and set "
        'server.keys = "required" to let others in.',
        status=403,
        kind="permission_error",
        code="foreign_origin",
    )
