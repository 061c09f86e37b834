"""A `relive.toml` in the making: tables, and sentences about what could not be carried over."""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from relive.errors import ReliveError
from relive.server.settings import Settings


class MigrationError(ReliveError):
    """A file of settings cannot be read at all, or holds no model that can be called from here."""


class Draft:
    """Settings as they come together.

    Attributes:
        settings: Tables by name, as the TOML file has them.
        notes: What was left out or changed, in sentences.
    """

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.notes: list[str] = []

    def note(self, sentence: str) -> None:
        """Says something once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @property
    def models(self) -> list[dict[str, Any]]:
        """The models so far."""
        models: list[dict[str, Any]] = self.settings.setdefault("models", [])
        return models

    def has_model(self, name: str) -> bool:
        """Whether there is a model of this name."""
        return any(model["name"] == name for model in self.models)

    def tier(self, name: str, members: list[str]) -> None:
        """Adds a list of models that clients may name."""
        self.settings.setdefault("tiers", {})[name] = members

    def finish(self, source: str) -> None:
        """Drops what names models that are not there, and checks all of it.

        Raises:
            MigrationError: there is no model, or the settings are not right.
        """
        if not self.models:
            reasons = " ".join(self.notes)
            raise MigrationError(f"{source} holds no model that can be called from here. {reasons}".rstrip())
        for model in self.models:
            model["fallbacks"] = self._present(model.get("fallbacks", []), f"The model {model['name']!r}")
            if not model["fallbacks"]:
                del model["fallbacks"]
        tiers = self.settings.get("tiers", {})
        for name in list(tiers):
            tiers[name] = self._present(tiers[name], f"The tier {name!r}")
            if not tiers[name]:
                del tiers[name]
        if "fallbacks" in self.settings:
            self.settings["fallbacks"] = self._present(self.settings["fallbacks"], "The list of fallbacks")
        try:
            Settings(**self.settings)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(map(str, problem["loc"]))
            raise MigrationError(f"{source} gives settings that cannot be used: {place}: {problem['msg']}.") from error

    def toml(self, source: str) -> str:
        """The file's text, with what could not be carried over as comments at its top."""
        lines = [f"# Made from {' '.join(source.split())} by `relive import`. Check it with: relive serve --check", ""]
        lines += [f"# - {' '.join(sentence.split())}" for sentence in self.notes]
        if self.notes:
            lines.append("")
        return "\n".join([*lines, *_tables(self.settings)]).rstrip() + "\n"

    def _present(self, names: list[str], whose: str) -> list[str]:
        """The names that stand for models, each once."""
        found: list[str] = []
        for name in names:
            if self.has_model(name):
                found.append(name)
            else:
                self.note(f"{whose} names {name!r}, which could not be carried over.")
        return list(dict.fromkeys(found))


def _tables(settings: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a TOML file: plain values first, then tables, then lists of tables."""
    nested = {name: value for name, value in settings.items() if isinstance(value, dict) or _is_list_of_tables(value)}
    for name, value in settings.items():
        if name not in nested:
            yield f"{_key(name)} = {_value(value)}"
    for name, value in nested.items():
        for table in value if isinstance(value, list) else [value]:
            yield ""
            yield f"[[{_key(name)}]]" if isinstance(value, list) else f"[{_key(name)}]"
            for inner, item in table.items():
                yield f"{_key(inner)} = {_value(item)}"


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return format(value, "f") if isinstance(value, Decimal) else repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    inside = ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items())
    return f"{{ {inside} }}"


def _text(text: str) -> str:
    """A basic string of TOML; JSON's escapes are all among its own."""
    return json.dumps(text.encode(errors="replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")
