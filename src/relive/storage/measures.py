"""What of a record's ``info`` is kept where no content is: what was measured and how the call went, but no text.

Fields are kept by name; a new one is dropped until it is added here. In those kept, numbers, true, false and short
words stay (a status, a model's name, a provider's id of an answer), and all else is dropped.
"""

import re
from typing import Any

_FIELDS = frozenset(
    [
        "api",
        "attempts",
        "cached",
        "error_kind",
        "estimated_usage",
        "finish_reason",
        "first_piece_ms",
        "http_status",
        "injected",  # which lessons and experiences the prompt held, by number
        "observed",
        "recalled",
        "recorded_bytes",
        "recovered_at",
        "requested_model",
        "response_id",
        "route",
        "snapshot",
        "status",
        "stream",
    ]
)
_SHORT_WORD = re.compile(r"[\w.:/@+#-]{1,64}", re.ASCII)
_MOST_DEEP = 8
_DROPPED = object()


def is_short_word(text: str) -> bool:
    """Whether a text is one word of at most 64 letters, digits and signs such as names have, all of them ASCII."""
    return _SHORT_WORD.fullmatch(text) is not None


def measures(info: Any) -> dict[str, Any] | None:
    """The part of an ``info`` (JSON values) that holds no text; ``None``: nothing is left."""
    if not isinstance(info, dict):
        return None
    kept = {name: value for name in info if name in _FIELDS and (value := _kept(info[name])) is not _DROPPED}
    return kept or None


def _kept(value: Any, deep: int = 0) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if is_short_word(value) else _DROPPED
    if deep == _MOST_DEEP:
        return _DROPPED
    if isinstance(value, list | tuple):
        items = [_kept(item, deep + 1) for item in value]
        return [None if item is _DROPPED else item for item in items]  # places have a meaning
    if isinstance(value, dict):
        kept = ((key, _kept(item, deep + 1)) for key, item in value.items() if is_short_word(str(key)))
        return {key: item for key, item in kept if item is not _DROPPED}
    return _DROPPED
