"""The connections of one process to one file: one for writing, a bounded number for reading, none across a fork.

SQLite keeps its locks and its view of the write-ahead log per process, in memory that a fork copies. A child that used
its parent's connection, or even opened the same file while its memory still says "this process holds the lock", would
damage the file. So before a fork all reading and writing pauses and every connection is closed; parent and child
open new ones when they next need them.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw

from relive.storage.errors import ClosedStoreError

READERS = 8
"""Reading connections of one process to one file, at most."""


class Pool:
    """Connections to one file.

    Args:
        connect: Opens a connection; its argument says whether it is for writing.
    """

    def __init__(self, connect: Callable[[bool], apsw.Connection]) -> None:
        self._connect = connect
        self._closed = False
        self._writing: apsw.Connection | None = None
        self._fresh()

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return self._reading + (self._writing is not None)

    def writing(self) -> apsw.Connection:
        """The connection for writing; one thread uses it."""
        self._check()
        if self._writing is None:
            self._writing = self._connect(True)
        return self._writing

    @contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """A connection for reading, all within one consistent view of the store."""
        self._check()
        with self._slots:
            try:
                connection = self._idle.pop()
            except IndexError:
                self._check()
                connection = self._connect(False)
                with self._lock:
                    self._reading += 1
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("COMMIT")
                self._idle.append(connection)

    def close(self) -> None:
        """Waits for reads under way and closes every connection; the pool cannot be used again."""
        self.pause()
        self._closed = True
        self.resume()

    def pause(self) -> None:
        """Waits for reads under way, closes every connection and holds new reads back until `resume`."""
        for _ in range(READERS):
            self._slots.acquire()
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        self._reading = 0
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    def resume(self) -> None:
        """Lets reads go on after `pause`."""
        for _ in range(READERS):
            self._slots.release()

    def child(self) -> None:
        """In a forked child: starts without connections."""
        self._fresh()

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._slots = threading.Semaphore(READERS)
        self._lock = threading.Lock()
        self._idle: list[apsw.Connection] = []
        self._writing = None
        self._reading = 0

    def _check(self) -> None:
        if self._closed:
            raise ClosedStoreError("The store is closed; open it again.")
        if os.getpid() != self._pid:  # forked without Python's hooks: what was inherited must never be touched again
            for connection in [*self._idle, *([] if self._writing is None else [self._writing])]:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
            self._fresh()


class Forkable:
    """Something that must be quiet during a fork; register it with `watch`."""

    def before_fork(self) -> None:
        """Pauses; called in the thread that forks."""
        raise NotImplementedError(f"{type(self).__name__} must say how it pauses.")

    def after_fork_in_parent(self) -> None:
        """Goes on."""
        raise NotImplementedError(f"{type(self).__name__} must say how it goes on.")

    def after_fork_in_child(self) -> None:
        """Starts anew, without what belongs to the parent."""
        raise NotImplementedError(f"{type(self).__name__} must say how it starts anew.")


_watched: "weakref.WeakSet[Forkable]" = weakref.WeakSet()
_paused: list[Forkable] = []
_one_fork_at_a_time = threading.Lock()


def watch(item: Forkable) -> None:
    """Has `item` paused at every fork from now on, for as long as it lives."""
    _watched.add(item)


def _before() -> None:
    _one_fork_at_a_time.acquire()
    _paused.extend(_watched)
    for item in _paused:
        item.before_fork()


def _in_parent() -> None:
    while _paused:
        _paused.pop().after_fork_in_parent()
    _one_fork_at_a_time.release()


def _in_child() -> None:
    while _paused:
        _paused.pop().after_fork_in_child()
    _one_fork_at_a_time.release()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
