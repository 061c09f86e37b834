"""How pages are made from their templates: every text is escaped, and what nobody sees in it is named first."""

import hashlib
from importlib import resources
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from relive.playbook.uplift import Numbers
from relive.server import words
from relive.server.pages.figures import tokens_a_use
from relive.server.pages.text import seen

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
_WIDEST = 0.5
"""Uplift at the edge of a drawing; what lies beyond is drawn there."""


class Asset(NamedTuple):
    """A file that pages are served with."""

    content: bytes
    media_type: str


def render(template: str, **values: Any) -> str:
    """A page."""
    return _ENVIRONMENT.get_template(f"{template}.html").render(**values)


def _assets() -> dict[str, Asset]:
    folder = resources.files("relive.server.pages") / "assets"
    return {
        file.name: Asset(file.read_bytes(), f"{_TYPES[file.name.rpartition('.')[2]]}; charset=utf-8")
        for file in folder.iterdir()
    }


ASSETS = _assets()


def _address(name: str) -> str:
    """Where an asset is, with its content's hash, so that browsers may keep it for ever."""
    return f"/assets/{name}?{hashlib.blake2b(ASSETS[name].content, digest_size=6).hexdigest()}"


def _place(uplift: Numbers) -> float:
    """Where an uplift stands in a drawing from 0 to 200 with nothing in the middle."""
    return round(100.0 + 100.0 * max(-_WIDEST, min(_WIDEST, float(uplift))) / _WIDEST, 1)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("relive.server.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=seen,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        number=words.number,
        count=words.count,
        dollars=words.dollars,
        share=words.share,
        points=words.points,
        line=lambda value, width=90: words.one_line(words.gist(value), width),
        when=lambda moment, zone: f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S}",
        tokens=tokens_a_use,
        place=_place,
    )
    environment.globals["asset"] = _address
    return environment


_ENVIRONMENT = _environment()
