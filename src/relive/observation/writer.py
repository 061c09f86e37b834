"""Writes observed steps into their memory, in a thread of its own, so that nothing observed waits long for a record.

A tree of steps is written from its root down, level by level, since each record names the id of the one that it belongs
under. What cannot be written is counted and logged; nothing is raised. Trees that wait are bounded; beyond the bound
new ones are lost, and counted.
"""

import atexit
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from relive.experience import Transition

WAIT = 0.05
"""Seconds that whoever is observed waits for the record to be kept."""

MOST_WAITING = 10_000
"""Trees that wait to be written."""

_AT_EXIT = 10.0  # seconds that the end of the program waits for what is not written yet
_log = logging.getLogger("relive.observation")


class Recording(Protocol):
    """What is needed of a memory: `relive.Memory` and `relive.RemoteMemory` have it."""

    def add_batch(self, experiences: Sequence[Transition]) -> Any:
        """Adds experiences; gives their ids."""


class ObservationStats(msgspec.Struct):
    """Counts of this process since its start.

    Attributes:
        recorded: Steps that are kept.
        late: Trees of steps that were not kept yet when whoever was observed went on.
        failed: Steps that could not be kept.
        lost: Steps that were given up because too many waited.
        unscored: Steps whose reward function failed.
        apart: Steps that were recorded without the one they belong under, which held too many already.
    """

    recorded: int = 0
    late: int = 0
    failed: int = 0
    lost: int = 0
    unscored: int = 0
    apart: int = 0


class Tree:
    """A step that ended, and those that belong under it.

    Args:
        transition: Its record.
        kept: Called with its id once it is kept.
        children: Those under it.
    """

    __slots__ = ("children", "kept", "transition")

    def __init__(self, transition: Transition, kept: Callable[[int], None], children: "list[Tree]") -> None:
        self.transition = transition
        self.kept = kept
        self.children = children

    def __len__(self) -> int:
        return 1 + sum(map(len, self.children))


class _Job(msgspec.Struct):
    tree: Tree
    memory: Callable[[], Recording]
    done: threading.Event


class Writer:
    """One queue and one thread, which starts with the first tree."""

    def __init__(self) -> None:
        self.stats = ObservationStats()
        self._lock = threading.Lock()
        self._queue: queue.Queue[_Job | threading.Event] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None

    def put(self, tree: Tree, memory: Callable[[], Recording]) -> threading.Event:
        """Hands a tree over; the event is set once it is kept, or given up.

        Args:
            tree: What to write.
            memory: Gives where to write it; may raise.
        """
        job = _Job(tree, memory, threading.Event())
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="relive-observation", daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            self.stats.lost += len(tree)
            job.done.set()
        return job.done

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all that was handed over before is kept or given up; whether that came within the time."""
        if self._thread is None:
            return True
        done = threading.Event()
        try:
            self._queue.put(done, timeout=timeout)
        except queue.Full:
            return False
        return done.wait(timeout)

    def after_fork_in_child(self) -> None:
        """Starts anew: the thread is gone, and what waits is the parent's to write."""
        self._lock = threading.Lock()
        self._queue = queue.Queue(MOST_WAITING)
        self._thread = None

    def _work(self) -> None:
        while True:
            self._handle(self._queue.get())  # nothing of it is held on to while the next one is waited for

    def _handle(self, job: _Job | threading.Event) -> None:
        if isinstance(job, threading.Event):
            job.set()
            return
        try:
            self._write([(job.tree, None)], job.memory())
        except Exception as error:  # noqa: BLE001 - a memory that cannot be opened must not end the thread
            self._failed(len(job.tree), error)
        finally:
            job.done.set()

    def _write(self, level: list[tuple[Tree, int | None]], memory: Recording) -> None:
        """Writes trees, each under the record with this id."""
        while level:
            rows = [msgspec.structs.replace(t.transition, parent=id_) if id_ else t.transition for t, id_ in level]
            try:
                ids = [int(number) for number in memory.add_batch(rows)]
            except Exception as error:  # noqa: BLE001 - whatever breaks in the memory
                if len(level) == 1:
                    self._failed(len(level[0][0]), error)
                else:  # one of them may be the reason
                    for one in level:
                        self._write([one], memory)
                return
            self.stats.recorded += len(ids)
            below: list[tuple[Tree, int | None]] = []
            for (tree, _), number in zip(level, ids, strict=True):
                tree.kept(number)
                below += [(child, number) for child in tree.children]
            level = below

    def _failed(self, count: int, error: Exception) -> None:
        self.stats.failed += count
        _log.warning("Observed steps could not be recorded (%d so far): %s", self.stats.failed, error)


WRITER = Writer()
stats = WRITER.stats
os.register_at_fork(after_in_child=WRITER.after_fork_in_child)


def flush(timeout: float | None = None) -> bool:
    """Waits until all steps that ended before are kept or given up.

    Args:
        timeout: Seconds; ``None``: for as long as it takes.

    Returns:
        Whether that came within the time.
    """
    return WRITER.flush(timeout)


atexit.register(flush, _AT_EXIT)
