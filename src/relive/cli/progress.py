"""Progress on standard error while something long runs; nothing where standard error is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar that is gone when the body ends.

    The body calls what it is given with what is being done, how much of it is done, and of how much (0: not known).
    """
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(what, total=None)

        def update(description: str, done: int, total: int) -> None:
            progress.update(task, description=description, completed=done, total=total or None)

        yield update
