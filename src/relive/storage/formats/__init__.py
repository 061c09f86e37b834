"""Files of other programs as experiences: one format a file, all of them streamed.

Which format a file has is told by its content, never by its name. To add one, write a module with ``NAME``,
``EXAMPLE``, ``matches`` and ``read``, and list it in `FORMATS`.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from relive.storage.formats import jsontext, openai_chat, otel, relive, sharegpt, tau_bench, tensorzero
from relive.storage.formats.found import Found, Ignored, Item, Problem
from relive.storage.formats.jsontext import BadRecordError
from relive.storage.formats.source import Source, SourceError

__all__ = [
    "FORMATS", "BadRecordError", "Format", "Found", "Ignored", "Item", "Problem", "Source", "SourceError", "detect",
    "read",
]  # fmt: skip

_LOOKED_AT = 100  # records; if none of so many can be read, the file's format is not looked for further


class Format(NamedTuple):
    """One kind of file.

    Attributes:
        name: What `relive import --format` calls it.
        example: How a record of it looks.
        matches: Whether a parsed record looks like one.
        read: Reads a file, one item after another.
    """

    name: str
    example: str
    matches: Callable[[dict[str, Any]], bool]
    read: Callable[[Source], Iterator[Item]]


FORMATS: dict[str, Format] = {
    module.NAME: Format(module.NAME, module.EXAMPLE, module.matches, module.read)
    for module in (relive, openai_chat, sharegpt, tau_bench, otel, tensorzero)
}
"""All formats by name, in the order in which they are tried."""


def detect(source: Source) -> Format | None:
    """The format of a file, by its first record that can be read; ``None`` if the file is empty.

    Raises:
        SourceError: the record looks like none of the formats, or nothing in the file can be read.
    """
    chunk = None
    for chunk in itertools.islice(source.chunks(), _LOOKED_AT):
        try:
            value = jsontext.read(chunk.data or b"", relive.PAYLOAD).value
        except BadRecordError:
            continue
        if isinstance(value, dict):
            for known in FORMATS.values():
                if known.matches(value):
                    return known
            fields = ", ".join(itertools.islice(value, 12)) or "(none)"
            raise _unknown(source, f"the record on line {chunk.line} has the fields {fields}")
    if chunk is None:
        return None
    raise _unknown(source, "no line that was looked at is a JSON object")


def _unknown(source: Source, why: str) -> SourceError:
    examples = "\n".join(f"  {known.name}: {known.example}" for known in FORMATS.values())
    return SourceError(f"{source.name} has none of the known formats: {why}. Known are\n{examples}")


def read(source: Source, name: str | None = None) -> tuple[str, Iterator[Item]]:
    """The name of a file's format and its items; `name` forces a format.

    Raises:
        SourceError: the format is unknown.
    """
    if name is not None:
        if name not in FORMATS:
            raise SourceError(f"There is no format {name!r}; known are {', '.join(FORMATS)}.")
        return name, FORMATS[name].read(source)
    found = detect(source)
    return ("none", iter(())) if found is None else (found.name, found.read(source))
