"""The program `relive`: how it starts, how it fails.

Exit codes: 0 success, 1 failure (one sentence on standard error, never a stack trace), 2 wrong usage, 130 interrupted,
141 when the reader of its output stopped early (what a shell reports for a program that a closed pipe ended).
"""

import os
import sys
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup

import relive
from relive.errors import ReliveError

BROKEN_PIPE = 141
_NOT_LOADED = "A part of Relive does not load ({}); `relive doctor` says what to do."


class _Program(TyperGroup):
    """The root of all commands: turns what went wrong into one sentence and an exit code."""

    broken: ClassVar[ImportError | None] = None  # why the commands could not be loaded

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self.broken is not None and cmd_name != "doctor":
            _fail(_NOT_LOADED.format(self.broken))
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # here, so that a full device is an error and not a warning after the fact
        except BrokenPipeError:
            _discard_output()
            raise SystemExit(BROKEN_PIPE) from None
        except ReliveError as error:
            _fail(str(error))
        except ImportError as error:
            if not str(error.name).startswith("relive."):
                raise
            _fail(_NOT_LOADED.format(error))
        except OSError as error:
            _discard_output()
            where = f" ({error.filename})" if error.filename else ""
            _fail(f"{error.strerror or error}{where}.")
        return result


def _fail(sentence: str) -> None:
    typer.echo(f"relive: {sentence}", err=True)
    raise SystemExit(1)


def _discard_output() -> None:
    """Points standard output at nothing, so that Python's last flush cannot fail a second time."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


app = typer.Typer(
    cls=_Program,
    name="relive",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"relive {relive.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Experience replay and continual learning for LLM agents."""


def only_doctor(error: ImportError) -> None:
    """Leaves the doctor as the only command, where an import failed."""
    from relive.cli.doctor import doctor

    _Program.broken = error
    app.command()(doctor)


def main() -> None:
    """Entry point of the program."""
    app(prog_name="relive")
