"""A choice among allowed actions: asked for by a JSON schema, shown in demonstrations in that form, and read back."""

import json
from collections.abc import Sequence
from typing import Any


def choice_format(key: str, actions: Sequence[Any]) -> dict[str, Any]:
    """The ``response_format`` under which an answer is ``{key: one of the actions}``.

    Args:
        key: The field's name.
        actions: JSON values.
    """
    schema = {
        "type": "object",
        "properties": {key: {"enum": list(actions)}},
        "required": [key],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "choice", "strict": True, "schema": schema}}


def choice_text(key: str, action: Any) -> str:
    """A chosen action as the model writes it."""
    return json.dumps({key: action}, ensure_ascii=False)


def read_choice(text: str, key: str, actions: Sequence[Any]) -> Any:
    """The action that an answer chooses; ``None`` if it chooses none of `actions`.

    An endpoint that does not know JSON schemas may answer in plain words: the only action that is named counts.

    Args:
        text: The answer.
        key: The field's name.
        actions: What was allowed.
    """
    try:
        answer = json.loads(text)
    except ValueError:
        named = [a for a in actions if isinstance(a, str) and a in text]
        longest = max(named, key=len, default=None)
        return longest if all(a in str(longest) for a in named) else None
    chosen = answer.get(key) if isinstance(answer, dict) else answer
    return next((a for a in actions if a == chosen and isinstance(a, bool) == isinstance(chosen, bool)), None)
