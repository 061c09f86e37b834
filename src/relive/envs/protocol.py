"""What an agent acts in: Gymnasium's `reset` and `step`, with JSON values for what is seen and done.

A single answer is an episode of length one. What an environment does not know yet it says later, and never guesses:

- A reward of ``None`` means: not known yet. The environment names the episode at its reset (``info["episode_id"]``),
  and when the reward becomes known, the ``info`` of any later `reset` or `step` holds ``info["late_rewards"]``: episode
  id to reward.
- Whether an episode succeeded, where its reward does not tell, stands in the ``info`` of its last step as
  ``info["is_success"]``, as in some environments of Gymnasium's.
- The right action, where the environment knows it, is never part of an observation or an ``info``.
"""

from typing import Any, Protocol, runtime_checkable

from relive.errors import ReliveError

Info = dict[str, Any]
"""Whatever else there is to say; ``episode_id``, ``late_rewards`` and ``is_success`` have the meaning above."""


class EnvironmentUseError(ReliveError):
    """An environment was used in a way that it cannot follow; the message says how."""


@runtime_checkable
class Environment(Protocol):
    """One task after another, each an episode of one step or more.

    Attributes:
        actions: The actions that are allowed, JSON values; ``None``: they cannot be listed (free text, real numbers).
    """

    @property
    def actions(self) -> tuple[Any, ...] | None:
        """The actions that are allowed; ``None``: they cannot be listed."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begins the next episode; returns its first observation (for an LLM: chat messages) and info."""

    def step(self, action: Any) -> tuple[Any, float | None, bool, bool, Info]:
        """Acts; returns observation, reward, terminated, truncated and info, as Gymnasium does."""
