"""Reads JSON the way models write it: with talk around it, other quotes, comments, commas too many or too few, no end.

Of what has no end, only what ended within counts: a `CutList` holds its whole elements, an object without its brace
is a `Cut` and must not be taken for a record. Nothing is executed, nesting is bounded, and so is the work for a text.
"""

import re
from collections.abc import Iterator
from typing import Any

_LONGEST = 100_000  # characters that are looked at
_DEEPEST = 20
_WORK = 4  # steps for each character; talk full of braces ends there
_START = re.compile(r"\{(?!\{)|\[")
_QUOTES = {'"': '"', "'": "'", "“": "”", "„": "“", "‘": "’", "`": "`", "«": "»"}
_BLANK = re.compile(r"(?:[\s\u00a0\ufeff\u200b]|//[^\n]*|/\*.{0,200}?\*/)*", re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?=[\s,;}\]]|$)")
_KEY = re.compile(r"[^\W\d][\w-]*")
_BARE = re.compile(r"[^,;\]}\n\[{\"]+")
_WORDS = {"true": True, "false": False, "null": None, "none": None, "undefined": None, "nan": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
# What shows that the quote before it is a closing one: the end, a bracket, a colon, a comma with something after it
# that begins a value or a key, a new line that begins with a key.
_AFTER_STRING = re.compile(
    r"\s*(?:$|[}\]]|[:：=]|(?:[,;，]\s*)*(?://|/\*)|(?:[,;，]\s*)+(?:$|[\"'“„‘`«{\[}\]\d-]|(?:true|false|null|none)\b|"
    r"[^\W\d][\w-]*\s*[:：=])|\n\s*[\"'“„‘`«{\[]|[\"'][\w-]+[\"']\s*:)".replace(r"\s", r"[\s\u200b]"),
    re.IGNORECASE,
)


class Cut(dict[str, Any]):
    """An object whose end is missing."""


class CutList(list[Any]):
    """A list whose end is missing."""


class _NoJson(Exception):  # noqa: N818 - never leaves this file
    """What stands here is not JSON; `at`: where that showed."""

    def __init__(self, at: int) -> None:
        self.at = at


class _End(Exception):  # noqa: N818 - never leaves this file
    """The text ended within a string or word."""


def values(text: str) -> Iterator[Any]:
    """The objects and lists in a text, in order, those within others not by themselves."""
    reader = _Reader(text[:_LONGEST])
    start = _START.search(reader.text)
    while start is not None and reader.work > 0:
        found = start.start()
        try:
            value, at = reader.value(found, 0)
            yield value
        except _NoJson as error:
            run = reader.text[found : error.at]
            at = error.at if error.at > found and not run.strip("{[ \n\t\r") else found + 1  # only brackets: skip all
        except _End:
            at = found + 1
        start = _START.search(reader.text, at)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.work = _WORK * len(text) + 1_000

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """The value that begins here, and where it ends."""
        at = self._blank(at)
        if depth > _DEEPEST or self.work <= 0:
            raise _NoJson(at)
        if at >= len(self.text):
            raise _End
        here = self.text[at]
        if here == "{":
            return self._object(at + 1, depth)
        if here == "[":
            return self._list(at + 1, depth)
        if here in _QUOTES:
            return self._string(at)
        if number := _NUMBER.match(self.text, at):
            digits = number[0].replace("_", "")
            return (int(digits) if re.fullmatch(r"[-+]?\d{1,18}", digits) else float(digits)), number.end()
        if bare := _BARE.match(self.text, at):
            word = bare[0].strip()
            if bare.end() >= len(self.text):
                raise _End
            if word:
                return _WORDS.get(word.lower(), word), bare.end()
        raise _NoJson(at)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        result: dict[str, Any] = {}
        while True:
            at = self._blank(at, ",;，")
            if at >= len(self.text):
                return Cut(result), at
            if self.text[at] == "}":
                return result, at + 1
            if self.text[at] == "]":  # its brace was forgotten
                return result, at
            try:
                key, at = self._key(at)
                at = self._blank(at)
                if at >= len(self.text):
                    return Cut(result), at
                if self.text[at] not in ":：=":
                    raise _NoJson(at)
                value, at = self.value(at + 1, depth + 1)
            except _End:
                return Cut(result), len(self.text)
            result[key] = value
            if isinstance(value, Cut) and at >= len(self.text):
                return Cut(result), at

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        result: list[Any] = []
        while True:
            at = self._blank(at, ",;，")
            if at >= len(self.text):
                return CutList(result), at
            if self.text[at] == "]":
                return result, at + 1
            if self.text[at] == "}":  # its bracket was forgotten
                return result, at
            try:
                value, at = self.value(at, depth + 1)
            except _End:
                return CutList(result), len(self.text)
            result.append(value)

    def _key(self, at: int) -> tuple[str, int]:
        if self.text[at] in _QUOTES:
            return self._string(at)
        if bare := _KEY.match(self.text, at):
            return bare[0], bare.end()
        raise _NoJson(at)

    def _string(self, at: int) -> tuple[str, int]:
        text = self.text
        opening = text[at]
        if text.startswith(opening * 3, at):
            end = text.find(opening * 3, at + 3)
            if end < 0:
                raise _End
            return text[at + 3 : end], end + 3
        closing = _QUOTES[opening]
        stop = re.compile(rf"[\\{closing}]")
        pieces: list[str] = []
        start = at + 1
        while (found := stop.search(text, start)) is not None:
            place = found.start()
            pieces.append(text[start:place])
            self.work -= place - start + 1
            if found[0] == "\\":
                piece, start = _escaped(text, place)
                pieces.append(piece)
            elif _AFTER_STRING.match(text, place + 1) or self.work <= 0:
                return "".join(pieces), place + 1
            else:
                pieces.append(closing)
                start = place + 1
        raise _End

    def _blank(self, at: int, also: str = "") -> int:
        """Behind white space, comments, and any of these characters."""
        while True:
            self.work -= 1
            match = _BLANK.match(self.text, at)
            at = match.end() if match else at
            if at >= len(self.text) or self.text[at] not in also or not also:
                return at
            at += 1


def _escaped(text: str, at: int) -> tuple[str, int]:
    """What a backslash and what follows it stand for; one that is no JSON escape stays as it is."""
    following = text[at + 1 : at + 2]
    if not following:
        raise _End
    if following == "u" and (code := re.compile(r"[0-9a-fA-F]{4}").match(text, at + 2)):
        number = int(code[0], 16)
        low = re.compile(r"\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE).match(text, at + 6)
        if 0xD800 <= number < 0xDC00 and low:
            return chr(0x10000 + ((number - 0xD800) << 10) + int(low[1], 16) - 0xDC00), at + 12
        return ("�" if 0xD800 <= number < 0xE000 else chr(number)), at + 6
    return _ESCAPES.get(following, following), at + 2
