"""A choice among allowed actions: asked for by a JSON schema, shown in demonstrations in that form, and read back."""

import json
import re
from collections.abc import Sequence
from typing import Any

_JSON_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}
_FENCED = re.compile(r"\s*```\w*\s*\n?(?P<inside>.*?)```\s*", re.DOTALL)
_THOUGHT = re.compile(r"\s*(?:<think>)?(?:(?!<think>).)*?</think>", re.DOTALL)
_NEGATION = re.compile(
    r"\b(?:not|no|none|never|neither|nor|cannot|without|except|nicht|kein\w*|weder|pas|jamais|nunca|n[aã]o|không)\b"
    r"|n['’]t\b|[不没沒无無]|ない|ません",
    re.IGNORECASE,
)
_SHORT = 4  # ASCII letters; a shorter word ("no", "ask") stands in sentences that choose nothing


def choice_format(key: str, actions: Sequence[Any]) -> dict[str, Any]:
    """The ``response_format`` under which an answer is ``{key: one of the actions}``.

    Endpoints that hold an answer to a schema strictly want a type beside each list of values. Actions of one plain JSON
    type have one; other actions (objects, lists, several types) are asked for without `strict`, which such endpoints
    follow as well as they can and llama.cpp follows exactly.

    Args:
        key: The field's name.
        actions: JSON values.
    """
    types = {_JSON_TYPES.get(type(action)) for action in actions}
    if types == {"integer", "number"}:
        types = {"number"}
    kind = types.pop() if len(types) == 1 else None
    values: dict[str, Any] = {"enum": list(actions)}
    schema = {
        "type": "object",
        "properties": {key: values if kind is None else {"type": kind, **values}},
        "required": [key],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "choice", "strict": kind is not None, "schema": schema}}


def choice_text(key: str, action: Any) -> str:
    """A chosen action as the model writes it."""
    return json.dumps({key: action}, ensure_ascii=False)


def read_choice(text: str, key: str, actions: Sequence[Any]) -> Any:
    """The action that an answer chooses; ``None`` if it chooses none of `actions`.

    An endpoint that does not know JSON schemas may think aloud first, put the JSON into a code fence, or answer in
    plain words: then the only action that is named counts, unless anything is negated. A short one must be all that is
    said: "no" in "no idea" chooses nothing.

    Args:
        text: The answer.
        key: The field's name.
        actions: What was allowed.
    """
    thought = _THOUGHT.match(text)
    if thought is not None:
        text = text[thought.end() :]
    fenced = _FENCED.fullmatch(text)
    if fenced is not None:
        text = fenced["inside"]
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return _named(text, [action for action in actions if isinstance(action, str) and action])
    chosen = answer.get(key) if isinstance(answer, dict) else answer
    return _among(chosen, actions)


def shown_choice(key: str, actions: Sequence[Any], action: Any) -> str:
    """A past action as the model writes a choice among `actions`; empty if it is none of them."""
    return "" if _among(action, actions) is None else choice_text(key, action)


def _among(value: Any, actions: Sequence[Any]) -> Any:
    """The action that equals a value; ``None``: none does. 1 is not true."""
    return next((a for a in actions if a == value and isinstance(a, bool) == isinstance(value, bool)), None)


def _named(text: str, actions: list[str]) -> str | None:
    """The only action that plain words name; of two of which one is part of the other, the longer."""
    said = text.strip(" \t\r\n.!\"'`*").casefold()
    alone = [action for action in actions if action.casefold() == said]
    if len(alone) == 1:
        return alone[0]
    named = [action for action in actions if len(action) >= _SHORT or not action.isascii()]
    named = [action for action in named if re.search(_as_word(action), text)]
    longest = max(named, key=len, default=None)
    if longest is None or not all(action in longest for action in named):
        return None
    return None if _NEGATION.search(text.replace(longest, " ")) else longest


def _as_word(action: str) -> str:
    """A pattern of an action as whole words; of one in a script without spaces, anywhere."""
    pattern = re.escape(action)
    return rf"(?<![\w-]){pattern}(?![\w-])" if action.isascii() else pattern
