"""How the demo shows itself on a terminal: a progress bar with the running accuracy, a table, and what to do next."""

from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from relive.demo.runner import ARMS, NO_LLM, NO_MEMORY, RANDOM_SUCCESSES, RECALL, Answered, Result

WINDOW = 50
"""Messages over which the running accuracy is taken."""

MEANINGS = {
    RECALL: "similar past successes shown, failures ruled out",
    NO_MEMORY: "the same model without a memory",
    RANDOM_SUCCESSES: "the same model with random past successes",
    NO_LLM: "a word-count bandit without an LLM, same rewards",
}


class Bar:
    """The progress bar, to be used in a ``with`` block and given to `relive.demo.run` as ``on_message``.

    Args:
        console: Where to draw.
    """

    def __init__(self, console: Console) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._progress = Progress(
            TextColumn("Routing customers' messages"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("right, last {task.fields[window]}: {task.fields[accuracy]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, window=WINDOW, accuracy="–")

    def __call__(self, answers: list[Answered], messages: int) -> None:
        """Shows new answers of a stream of so many messages; the running accuracy leaves out what was tried out."""
        own = [one for one in answers if one.arm == RECALL]
        self._recent.extend(one.reward for one in own if not one.explored)
        share = f"{sum(self._recent) / len(self._recent):.0%}" if self._recent else "–"
        self._progress.update(self._task, total=messages, advance=len(own), accuracy=share)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def table(result: Result) -> Table:
    """The arms side by side: the share of right answers in the last third."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for column, justify in (("arm", "left"), ("what it is", "left"), ("right", "right"), ("of", "right")):
        shown.add_column(column, justify="right" if justify == "right" else "left")
    for arm in ARMS:
        rewards = result.compared(arm)
        share = f"{sum(rewards) / len(rewards):.0%}" if rewards else "–"
        shown.add_row(arm, MEANINGS[arm], share, str(len(rewards)), style="bold" if arm == RECALL else None)
    return shown


def farewell(result: Result, picture: str | None) -> str:
    """What to look at now, and the one line that puts one's own model in."""
    lines = [
        f"All of it is in {result.file}. Look inside:",
        f"  relive stats {result.file}",
        f"  relive experiences list {result.file}",
        f"  relive experiences show 1 {result.file}",
    ]
    if picture is not None:
        lines.append(f"The learning curve is in {picture}.")
    return "\n".join([*lines, "With a model of your own, change this one line:", f"  {OWN_MODEL}"])


OWN_MODEL = "relive demo --base-url https://api.example.com/v1 --model NAME --api-key-env NAME_OF_THE_VARIABLE"
"""The one line that a user changes to run the demo with a model of their own."""
