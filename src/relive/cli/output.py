"""What the commands print: tables for people, strict JSON for programs."""

import math
import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relive.server.words import one_line


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the program decides the exit code, not the console


def console() -> Console:
    """A console on standard output as it is now (tests and pipes may have changed it)."""
    return _Console(file=sys.stdout, highlight=False)


def say(sentence: str) -> None:
    """Prints a sentence, never read as markup; a pipe gets it as one line."""
    console().print(sentence, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Prints one line of JSON that any strict parser reads: NaN and infinities become null."""
    sys.stdout.write(msgspec.json.encode(_finite(msgspec.to_builtins(value, enc_hook=str))).decode() + "\n")


def table(*columns: str, right: tuple[str, ...] = (), title: str | None = None) -> Table:
    """An empty table; the columns named in `right` are set flush right."""
    result = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        result.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return result


def short(value: Any, width: int) -> Text:
    """A value on one line of at most `width` characters; never read as markup, control characters shown as spaces."""
    return Text(one_line(value, width))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
