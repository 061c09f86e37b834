"""Moves what is in the write-ahead log into the file, in a thread of its own, so that no write waits for it.

A log that is only ever moved while others write to it never starts again from its beginning. So the bulk is moved
beside the writers, and the little that came meanwhile with the lock held, for an instant.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import apsw

from relive.storage.connection import CHECKPOINT_PAGES, Patience
from relive.storage.errors import StorageError

INLINE_PAGES = 4 * CHECKPOINT_PAGES
"""A log so long is moved by the write that made it so: then the thread does not keep up."""


_SECONDS_FOR_READERS = 0.02
_PAUSE = 0.05  # seconds


class Checkpointer:
    """Empties the log of one store whenever it has grown to `CHECKPOINT_PAGES`.

    Args:
        reading: Gives a connection that no other thread uses meanwhile.
        patience: Seconds that such a connection waits for locks otherwise.
    """

    def __init__(self, reading: Callable[[], AbstractContextManager[apsw.Connection]], patience: float) -> None:
        self._reading = reading
        self._patience = patience
        self._wanted = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, connection: apsw.Connection) -> None:
        """Looks at the log after each commit of a connection; this takes the place of SQLite's own checkpoints."""
        connection.set_wal_hook(self._committed)

    def close(self) -> None:
        """Ends the thread, after the checkpoint that is under way."""
        self._closed = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _committed(self, connection: apsw.Connection, _name: str, pages: int) -> int:
        with suppress(Exception):  # the commit has happened: it must not look as if it failed
            if pages >= INLINE_PAGES:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            elif pages >= CHECKPOINT_PAGES and not self._closed:
                self._start()
                self._wanted.set()
        return apsw.SQLITE_OK

    def _start(self) -> None:
        """Starts the thread unless it runs; if the system has no room for one, the next commit tries again."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="relive-checkpoint", daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._closed:
                return
            try:
                with self._reading() as connection:
                    connection.execute("COMMIT")  # a checkpoint must not run inside a transaction
                    try:
                        self._move(connection)
                    finally:
                        connection.set_busy_handler(Patience(self._patience))
            except apsw.Error:
                time.sleep(_PAUSE)  # another process is at it, somebody reads what is old, or the disk is full: later
            except StorageError:
                return  # the store was closed meanwhile

    def _move(self, connection: apsw.Connection) -> None:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        connection.set_busy_handler(Patience(_SECONDS_FOR_READERS))  # writers wait meanwhile
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
