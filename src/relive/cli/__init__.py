"""The command line: `relive …`. One file a group of commands; `app.py` holds what they share."""

from relive.cli.app import app, main, only_doctor

try:
    from relive.cli.commands import register
except ImportError as error:
    only_doctor(error)
else:
    register(app)

__all__ = ["main"]
