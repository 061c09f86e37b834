"""Any Gymnasium environment as one of ours: what is seen and done become JSON values.

Gymnasium itself is not imported: an environment that someone made brings its own spaces along.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relive.envs.protocol import Info


class GymnasiumEnvironment:
    """Wraps a Gymnasium environment, for example ``gymnasium.make("CliffWalking-v1")``.

    Observations become numbers, lists and objects; an action given as such is turned into what the environment takes.
    The actions of a `Discrete` space can be listed, so that an ε-greedy learner or an LLM can choose among them.

    Args:
        env: The environment; it stays yours to close.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        space = env.action_space
        discrete = hasattr(space, "n") and space.shape == ()  # MultiBinary has an n too
        self._actions = tuple(range(int(space.start), int(space.start) + int(space.n))) if discrete else None

    @property
    def actions(self) -> tuple[int, ...] | None:
        """The numbers of the actions of a `Discrete` space; ``None`` for any other space."""
        return self._actions

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begins an episode; see `gymnasium.Env.reset`."""
        observation, info = self.env.reset(seed=seed, options=options)
        return to_json(observation), to_json(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Acts; see `gymnasium.Env.step`."""
        observation, reward, terminated, truncated, info = self.env.step(from_json(self.env.action_space, action))
        return to_json(observation), float(reward), bool(terminated), bool(truncated), to_json(info)


def to_json(value: Any) -> Any:
    """A JSON value of what a Gymnasium space or info holds; what JSON has no form for becomes text."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def from_json(space: Any, value: Any) -> Any:
    """The action that `to_json` made `value` of, in the form that `space` takes."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {key: from_json(part, value[str(key)]) for key, part in parts.items()}
    if parts is not None:
        return tuple(from_json(part, entry) for part, entry in zip(parts, value, strict=True))
    shape = getattr(space, "shape", None)
    return np.asarray(value, dtype=space.dtype).reshape(shape) if shape else value
