"""Runs the demo in front of somebody: the bar while it runs, then the table, the picture and what to do next."""

from pathlib import Path

import msgspec
from msgspec.structs import replace
from rich.console import Console

import relive.memory
from relive.demo.curve import draw
from relive.demo.runner import Result, run
from relive.demo.settings import Settings, free_file, read_settings
from relive.demo.show import Bar, farewell, table
from relive.errors import ReliveError
from relive.llm import UpstreamError


def present(settings: Settings, *, as_json: bool = False) -> Result:
    """Runs a demo and shows it on the terminal.

    The progress goes to standard error, the outcome to standard output: with `as_json` one line of JSON, otherwise
    the table and what can be done next. The learning curve is written beside the memory's file.

    Args:
        settings: What to run.
        as_json: For a program instead of a person.

    Raises:
        ReliveError: as `run`.
    """
    out, progress = Console(highlight=False), Console(stderr=True, highlight=False)
    if settings.resume is None and settings.file is None:
        settings = replace(settings, file=free_file(Path.cwd()))
    if not as_json:
        out.print(_opening(settings))
    with Bar(progress) as bar:
        try:
            result = run(settings, on_message=bar)
        except (KeyboardInterrupt, UpstreamError):
            file = settings.resume or settings.file
            if file is not None and _holds_demo(file):
                command = settings.resume_command(file)
                progress.print(
                    f"Every message shown as done is kept. Go on with: {command}", markup=False, soft_wrap=True
                )
            raise
    picture = result.file.with_suffix(".png")
    drawn = draw(result, picture)
    if as_json:
        out.file.write(msgspec.json.encode(result.summary()).decode() + "\n")
        return result
    out.print()
    out.print(table(result))
    out.print(f"\n{result.settings.messages} messages in {result.seconds:.0f} s.")
    out.print(farewell(result, str(picture) if drawn else None), markup=False, soft_wrap=True)
    return result


def _holds_demo(file: Path) -> bool:
    """Whether there is anything to go on with; whatever else is wrong with the file is not the matter here."""
    try:
        with relive.memory.open_file(file, readonly=True) as memory:
            return read_settings(memory, file) is not None
    except ReliveError:
        return False


def _opening(settings: Settings) -> str:
    model = settings.model or "a model of 135 million parameters on this machine"
    return (
        f"An agent ({model}) routes what customers of a bank write to one of 16 intents. "
        "It is told only whether it was right, never what would have been.\n"
        "The model reads the message and past successes of its own, but no list of the intents: these stand only in "
        "the JSON schema that its answer must fit, for the agent without those that failed on messages like this one."
    )
