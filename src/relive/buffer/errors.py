"""What can go wrong with a replay buffer. A refused call has changed nothing."""

from relive.errors import ReliveError


class InvalidPriorityError(ReliveError, ValueError):
    """A priority is NaN, infinite, negative or too large; the message names the experience."""


class NotEnoughExperiencesError(ReliveError, LookupError):
    """A strict draw asked for more experiences than can be drawn."""


class SchemaError(ReliveError, ValueError):
    """Values do not have the fields of the buffer's rows; the message names the field."""


class BufferSettingError(ReliveError, ValueError):
    """A setting or argument of a buffer or sampler is outside its range; the message names it."""


class BufferStateError(ReliveError, ValueError):
    """A saved state does not fit the buffer that should take it."""


class SelectorError(ReliveError, RuntimeError):
    """A selector chose what it may not, for example an experience that is not stored; the message names its class."""


class ExperienceTooLargeError(ReliveError, ValueError):
    """One experience is larger than the buffer's whole limit on bytes."""


class RateLimitError(ReliveError, TimeoutError):
    """The rate limiter held a call back for longer than its time limit.

    Attributes:
        inserts: Inserts counted since the limiter was set.
        samples: Samples counted since the limiter was set.
        allowed: The range that inserts * samples_per_insert - samples must stay in.
    """

    def __init__(self, message: str, *, inserts: float, samples: float, allowed: tuple[float, float]) -> None:
        super().__init__(message)
        self.inserts = inserts
        self.samples = samples
        self.allowed = allowed


class StaleExperienceError(ReliveError, ValueError):
    """An experience is of an older policy version than its bound allows, or of an unknown one."""


class BufferStateWarning(UserWarning):
    """A saved state was taken with other settings than the buffer has; the message names both."""
