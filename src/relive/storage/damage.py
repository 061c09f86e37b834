"""Bytes of a store that are not what was written: whatever reading them raises becomes the store's own error.

They may be damaged, or made to harm; they are only ever read as JSON, text, numbers or zstandard frames.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import zstandard

from relive.errors import ReliveError
from relive.storage.errors import DamagedStoreError

UNREADABLE = (
    *(msgspec.DecodeError, zstandard.ZstdError, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(OverflowError, RecursionError, MemoryError),
)
"""What reading bytes that are not what was written may raise."""


def damaged(what: str) -> DamagedStoreError:
    """The error that says what cannot be read."""
    return DamagedStoreError(f"{what} cannot be read, it is not what was written; `relive check` says what else is.")


@contextmanager
def damage_to(what: str) -> Iterator[None]:
    """Turns what reading raises into the store's own error.

    Args:
        what: What is read, for the message.
    """
    try:
        yield
    except ReliveError:
        raise
    except UNREADABLE as error:
        raise damaged(what) from error
