"""Random streams for worker processes, so that no two train on the same batches.

A forked child holds a copy of every buffer, random state included; left alone, all workers would draw the same. So the
k-th child that is forked after a buffer was made goes over to the buffer's stream k, which depends on the buffer's
random state at the fork and on k alone: no two children share a stream, and a repeated run repeats each child's draws.
A process that was not forked (spawned, or on another machine) calls `ReplayBuffer.worker` with its number.

A fork waits until no thread is in the middle of a call to a buffer, so that no child gets a half-changed one.
"""

import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    """What a fork needs of a buffer."""

    _lock: threading.RLock

    def worker(self, number: int) -> None:
        """Goes over to the random stream of a worker."""
        ...


class Forks:
    """How many children have been forked since a buffer was made; part of its saved state."""

    def __init__(self) -> None:
        self.count = 0


_buffers: "weakref.WeakKeyDictionary[Forkable, Forks]" = weakref.WeakKeyDictionary()
_held: list[tuple[Forkable, Forks]] = []


def watch_forks(buffer: Forkable) -> Forks:
    """From now on each forked child gets a stream of its own; ends with the buffer's life."""
    forks = Forks()
    _buffers[buffer] = forks
    return forks


def leave_forks(buffer: Forkable) -> None:
    """Ends `watch_forks`: the buffer sees to forks itself."""
    _buffers.pop(buffer, None)


def _before() -> None:
    for buffer, forks in list(_buffers.items()):
        buffer._lock.acquire()
        forks.count += 1
        _held.append((buffer, forks))


def _release() -> None:
    while _held:
        _held.pop()[0]._lock.release()


def _in_child() -> None:
    for buffer, forks in _held:
        buffer.worker(forks.count)
    _release()


os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
