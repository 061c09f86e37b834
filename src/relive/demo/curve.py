"""The learning curve as a picture: the share of right answers over the stream, and the arms over its last third."""

from pathlib import Path

from relive.demo.runner import ARMS, NO_LLM, RECALL, Result

_WINDOW = 50
_COLOURS = {"recall": "#0b6e4f", "no_memory": "#8d99ae", "random_successes": "#d98324", "no_llm": "#5e60ce"}


def draw(result: Result, path: Path) -> bool:
    """Draws the learning curve into a PNG file.

    Returns:
        Whether it was drawn: matplotlib belongs to the extra ``local`` and may be missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")  # no pyplot: nothing global, no display
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for arm in (RECALL, NO_LLM):
        points = [one for one in result.answers if one.arm == arm and not one.explored]
        axes.plot([one.index + 1 for one in points], _running([one.reward for one in points]), color=_COLOURS[arm])
    settings = result.settings
    for arm in ARMS:
        rewards = result.compared(arm)
        if rewards:
            share = sum(rewards) / len(rewards)
            third = [settings.last_third + 1, settings.messages]
            axes.plot(third, [share, share], linestyle="--", color=_COLOURS[arm], label=f"{arm}: {share:.0%}")
    axes.axvspan(settings.last_third + 1, settings.messages, color="0.5", alpha=0.08)
    axes.set(
        title="An agent that is told only whether it was right",
        xlabel="message",
        ylabel=f"right answers (mean of {_WINDOW})",
        xlim=(1, settings.messages),
        ylim=(0, 1),
    )
    axes.legend(title="last third", loc="upper left", frameon=False)
    figure.savefig(path)
    return True


def _running(rewards: list[float]) -> list[float]:
    """The mean of the last `_WINDOW` rewards at each point; of fewer at the start."""
    means = []
    for end in range(1, len(rewards) + 1):
        recent = rewards[max(0, end - _WINDOW) : end]
        means.append(sum(recent) / len(recent))
    return means
