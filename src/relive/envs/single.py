"""Tasks that one answer ends: a list of questions becomes an environment."""

from collections.abc import Callable, Sequence
from typing import Any

from relive.envs.protocol import EnvironmentUseError, Info


class SingleAnswer:
    """An environment in which each question is an episode of one step. After the last question the first comes again.

    Args:
        questions: What is seen in each episode, in this order; JSON values, for an LLM chat messages.
        reward: From the question's position and the action to the reward; ``None``: it is not known yet.
        actions: The actions that are allowed; ``None``: any.
        start: Position of the first question shown, to go on after an interruption.

    Raises:
        ValueError: there is no question, there is none at `start`, or an action is listed twice.
    """

    def __init__(
        self,
        questions: Sequence[Any],
        reward: Callable[[int, Any], float | None],
        *,
        actions: Sequence[Any] | None = None,
        start: int = 0,
    ) -> None:
        if not questions:
            raise ValueError("There is no question; give at least one.")
        if not 0 <= start < len(questions):
            raise ValueError(f"start is {start}; it must be from 0 to {len(questions) - 1}.")
        if actions is not None and any(action in actions[:i] for i, action in enumerate(actions)):
            raise ValueError("An action is listed twice; list each once.")
        self._questions = questions
        self._reward = reward
        self._actions = None if actions is None else tuple(actions)
        self._next = start
        self._open: int | None = None

    @property
    def actions(self) -> tuple[Any, ...] | None:
        """The actions that are allowed; ``None``: any."""
        return self._actions

    def __len__(self) -> int:
        return len(self._questions)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:  # noqa: ARG002
        """Shows the next question.

        Args:
            seed: Not used: the order is given.
            options: ``{"index": n}`` goes on with question n, for example after an interruption; ``None``: the next.

        Returns:
            The question, and its position as ``{"index": n}``.
        """
        index = self._next if options is None else int(options["index"])
        if not 0 <= index < len(self._questions):
            raise EnvironmentUseError(f"There is no question {index}; the last one is {len(self._questions) - 1}.")
        self._open, self._next = index, (index + 1) % len(self._questions)
        return self._questions[index], {"index": index}

    def step(self, action: Any) -> tuple[Any, float | None, bool, bool, Info]:
        """Takes the answer and ends the episode.

        Raises:
            EnvironmentUseError: there is no open question, or the action is not allowed.
        """
        if self._open is None:
            raise EnvironmentUseError("No question is open; call reset() before each answer.")
        if self._actions is not None and action not in self._actions:
            raise EnvironmentUseError(f"{action!r} is not an allowed action; choose one of {list(self._actions)}.")
        index, self._open = self._open, None
        return None, self._reward(index, action), True, False, {"index": index}
