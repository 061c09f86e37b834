"""What can go wrong, said so that the reader knows what to do next.

Each message is one clear sentence that names the thing, and where there is one, the next step. The command line prints
it and ends with exit code 1; it never shows a stack trace for a `ReliveError`.
"""


class ReliveError(Exception):
    """The base of every error that Relive raises on purpose."""


class InvalidExperienceError(ReliveError, ValueError):
    """A record made from outside data does not have the right shape; the message names the field."""
