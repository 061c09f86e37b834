r"""Reading one JSON record strictly, with a reason for each refusal that a person can act on.

What strict means here: NaN and Infinity are not JSON, a key may not occur twice in one object (which of the two was
meant?), text must be UTF-8. Two things are let through that other strict readers refuse, because refusing would lose a
record over nothing: an integer of any length, and a number beyond a double such as ``1e400`` (its digits are kept).

A lone half of a surrogate pair (``\ud83d`` without its second half), which no UTF-8 can hold, becomes U+FFFD, as
everywhere in Relive.
"""

import json
import math
import re
from typing import Any, NamedTuple

import msgspec

from relive.storage.codec import whole_escapes
from relive.storage.errors import StorageError

_LINE_BREAK = re.compile(rb"[ \t]*[\r\n][ \t\r\n]*")
_WORDS = {"NaN": "null", "Infinity": "null", "-Infinity": "null"}


class BadRecordError(StorageError, ValueError):
    """One record of a file cannot be taken; the message says why, and the rest of the file can."""


class RepeatedKeyError(BadRecordError):
    """A key occurs twice in one object."""


class Json(NamedTuple):
    """One JSON record.

    Attributes:
        text: Its bytes as they were in the file, without line breaks between tokens; always valid UTF-8.
        value: What it means, as Python objects.
    """

    text: bytes
    value: Any


def read(data: bytes, unread: frozenset[str] = frozenset()) -> Json:
    """The one JSON value in `data`.

    Args:
        data: Its bytes.
        unread: Fields of the record that are kept as text. What they hold may repeat keys; they are None in the value
            if it does.

    Raises:
        BadRecordError: it is not valid; the message says where and why.
    """
    text = data.strip(b" \t\r\n")
    if b"\n" in text or b"\r" in text:
        text = _LINE_BREAK.sub(b" ", text)  # inside strings JSON has no raw line break
    text = whole_escapes(text)
    try:
        characters = text.decode()
    except UnicodeDecodeError as error:
        raise BadRecordError(f"it is not valid UTF-8 at byte {error.start + 1}") from error
    try:
        try:
            return Json(text, _decode(characters))
        except RepeatedKeyError:
            return Json(text, _without(unread, text, characters))
    except json.JSONDecodeError as error:
        raise BadRecordError(_reason(characters, error)) from error
    except RecursionError as error:
        raise BadRecordError("it is nested too deeply") from error


def _decode(characters: str) -> Any:
    try:
        return _DECODER.decode(characters)
    except (json.JSONDecodeError, BadRecordError):
        raise
    except ValueError:  # an integer of more digits than Python converts
        return _LENIENT.decode(characters)


def _without(unread: frozenset[str], text: bytes, characters: str) -> Any:
    """The value with None in fields that are not read.

    Raises:
        RepeatedKeyError: a key occurs twice somewhere else.
    """
    if not unread or not characters.startswith("{"):
        return _decode(characters)
    _unique(_PAIRS.decode(characters))
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return {name: None if name in unread else _decode(bytes(raw).decode()) for name, raw in fields.items()}


def _reason(characters: str, error: json.JSONDecodeError) -> str:
    """Why `characters` is no JSON; a record that ends too early is named as cut."""
    rest = characters[error.pos :]
    ends_early = not rest or any(word.startswith(rest) for word in ("true", "false", "null"))
    if ends_early or error.msg.startswith("Unterminated") or not characters.endswith(("}", "]")):
        return f"it is cut off after {len(characters.encode())} bytes, in the middle of a JSON value"
    return f"it is not valid JSON: {error.msg[0].lower()}{error.msg[1:]} at character {error.pos + 1}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RepeatedKeyError(f"the key {json.dumps(key, ensure_ascii=False)} occurs twice in one object")
            seen.add(key)
    return result


def _no_constant(word: str) -> Any:
    raise BadRecordError(f"{word} is not JSON; write {_WORDS[word]} for a number that is not known")


def _long_integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        return math.inf  # only its text is kept; as a field of a record it is out of range


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
_PAIRS = json.JSONDecoder(object_pairs_hook=list, parse_int=str)
_LENIENT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_long_integer)
