"""What an agent acts in: the environment protocol, real tasks, and an adapter for Gymnasium."""

from relive.envs.banking import Banking77
from relive.envs.gymnasium import GymnasiumEnvironment
from relive.envs.protocol import Environment, EnvironmentUseError
from relive.envs.single import SingleAnswer

__all__ = ["Banking77", "Environment", "EnvironmentUseError", "GymnasiumEnvironment", "SingleAnswer"]
