"""The command line: `relive …`. One file a group of commands; `app.py` holds what they share."""

from relive.cli.app import app, main
from relive.cli.commands import register

register(app)

__all__ = ["main"]
