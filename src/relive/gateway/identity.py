"""Who made a call and where it belongs, as far as the client says so.

Headers come first (``x-relive-agent``, ``-episode``, ``-step``, ``-group``, ``-tags``), then the body's
``metadata.session_id`` and ``user``. What is not said is ``None``, for `relive.gateway.conversations` to infer. Names
are outside text: they are cut short, and what cannot be a name is refused.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from relive.errors import ReliveError

LONGEST_NAME = 200
MOST_TAGS = 20


class IdentityError(ReliveError, ValueError):
    """A header that says where a call belongs has a value that cannot be used; it is named."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says of itself.

    Attributes:
        agent: Who acts; ``None``: not said.
        episode_id: The episode; ``None``: not said.
        step: The position in it; ``None``: not said.
        group_id: The group of rollouts of one prompt; ``None``: none.
        tags: Free labels.
        previous_response: The answer that this call goes on from, by the provider's id; ``None``: none is named.
    """

    agent: str | None = None
    episode_id: str | None = None
    step: int | None = None
    group_id: str | None = None
    tags: tuple[str, ...] = ()
    previous_response: str | None = None


def read_identity(
    headers: Mapping[str, str], *, metadata: Any = None, user: Any = None, previous_response: Any = None
) -> Identity:
    """Reads a call's identity.

    Args:
        headers: By name in lower case.
        metadata: The body's ``metadata``, whatever it is.
        user: The body's ``user``.
        previous_response: The body's ``previous_response_id``.

    Raises:
        IdentityError: a header has a value that cannot be used.
    """
    metadata = metadata if isinstance(metadata, dict) else {}
    if not any(name.startswith("x-relive-") for name in headers):
        return Identity(
            agent=_said(user),
            episode_id=_said(metadata.get("session_id")) or _session_in(metadata),
            previous_response=_said(previous_response),
        )
    return Identity(
        agent=_name(headers, "x-relive-agent") or _said(user),
        episode_id=_name(headers, "x-relive-episode") or _said(metadata.get("session_id")) or _session_in(metadata),
        step=_step(headers),
        group_id=_name(headers, "x-relive-group"),
        tags=_tags(headers),
        previous_response=_said(previous_response),
    )


def _name(headers: Mapping[str, str], header: str) -> str | None:
    text = headers.get(header, "").strip()
    if not text:
        return None
    if len(text) > LONGEST_NAME or not text.isprintable():
        raise IdentityError(f"The header {header} must be printable text of at most {LONGEST_NAME} characters.")
    return text


def _step(headers: Mapping[str, str]) -> int | None:
    text = headers.get("x-relive-step", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise IdentityError("The header x-relive-step must be a whole number from 0.")
    return int(text)


def _tags(headers: Mapping[str, str]) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(t for tag in headers.get("x-relive-tags", "").split(",") if (t := tag.strip())))
    if len(tags) > MOST_TAGS or any(len(tag) > LONGEST_NAME or not tag.isprintable() for tag in tags):
        raise IdentityError(
            f"The header x-relive-tags must hold at most {MOST_TAGS} printable tags of at most {LONGEST_NAME} "
            "characters, with commas between."
        )
    return tags


def _said(value: Any) -> str | None:
    """A name in the body; clients put all kinds of values there, so what is no name is left alone."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        return None
    return value.strip()[:LONGEST_NAME]


def _session_in(metadata: Mapping[str, Any]) -> str | None:
    """The session that coding agents hide in Anthropic's ``metadata.user_id``: ``user_…_account_…_session_ID``."""
    user = metadata.get("user_id")
    _, mark, session = user.rpartition("_session_") if isinstance(user, str) else ("", "", "")
    return _said(session) if mark else None
