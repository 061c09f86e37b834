"""What the gateway itself says no to, in the words of the API that the client speaks."""

from typing import Literal

import msgspec

from relive.errors import ReliveError

Kind = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
]


class RefusalError(ReliveError):
    """A request that the gateway does not forward.

    Attributes:
        status: The HTTP status of the answer.
        kind: The error's type.
        code: A short name of the reason.
        retry: Whether the client may try the same again by itself.
        headers: What else the answer says.
    """

    def __init__(self, message: str, *, status: int, kind: Kind, code: str, retry: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.retry = retry
        self.headers: dict[str, str] = {}


def refusal_body(path: str, message: str, kind: str, code: str) -> bytes:
    """The JSON body of an error, as the client of this path understands it."""
    if path == "/v1/messages":
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message, "code": code}})
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})
