"""A command that has subcommands and yet does something by itself: `relive cost`, `relive import`."""

from typing import Any

from typer.core import TyperGroup


class WithDefault(TyperGroup):
    """A group whose first command runs where none is named: ``relive cost FILE`` is ``relive cost show FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts the first command's name in front, unless a command or help is named."""
        first = next(iter(self.commands))
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [first, *args]
        return super().parse_args(ctx, args)
