"""Who calls: the owner of a gateway key, or anybody on this machine where no keys are asked for."""

from collections.abc import Mapping

import msgspec

from relive.gateway.keys import PREFIX, Keys, Scope
from relive.gateway.refusals import RefusalError


class Caller(msgspec.Struct, frozen=True):
    """Who calls.

    Attributes:
        name: What tells callers apart: the key's number, or nothing.
        agent: Whose calls they are unless they say otherwise; ``None``: not known.
        own_credentials: Whether the credentials in its request are its own for the provider, and not a gateway key.
    """

    name: str = ""
    agent: str | None = None
    own_credentials: bool = False


class Access:
    """Lets callers in.

    Args:
        keys: The gateway's keys.
        required: Whether a key must be shown; where not, one that is shown must still be right.
    """

    def __init__(self, keys: Keys, *, required: bool) -> None:
        self._keys = keys
        self.required = required

    def admit(self, headers: Mapping[str, str], scope: Scope) -> Caller:
        """Who calls.

        Raises:
            RefusalError: no key is shown where one is needed, it does not work, or it may not do this.
        """
        shown = credentials(headers)
        ours = shown is not None and shown.startswith(PREFIX)
        if not self.required and not ours:
            return Caller(own_credentials=True)
        key = self._keys.find(shown) if shown is not None and ours else None
        if key is None:
            raise RefusalError(
                "This gateway asks for one of its own keys (they begin with rlv_). Make one with `relive keys create`.",
                status=401,
                kind="authentication_error",
                code="invalid_api_key",
            )
        if not key.may(scope):
            raise RefusalError(
                f"The key {key.shown} may not {scope}; make one with that scope.",
                status=403,
                kind="permission_error",
                code="scope",
            )
        return Caller(name=str(key.id), agent=key.agent or key.name)


def credentials(headers: Mapping[str, str]) -> str | None:
    """The key that a request shows; ``None``: none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key", "").strip() or headers.get("api-key", "").strip() or None
