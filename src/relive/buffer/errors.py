"""What can go wrong with a replay buffer. A refused call has changed nothing."""

from relive.errors import ReliveError


class InvalidPriorityError(ReliveError, ValueError):
    """A priority is NaN, infinite, negative or too large; the message names the experience."""


class NotEnoughExperiencesError(ReliveError, LookupError):
    """A strict draw asked for more experiences than can be drawn."""


class BufferSettingError(ReliveError, ValueError):
    """A setting or argument of a buffer or sampler is outside its range; the message names it."""


class BufferStateError(ReliveError, ValueError):
    """A saved state does not fit the buffer that should take it."""
