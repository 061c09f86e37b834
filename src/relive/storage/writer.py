"""The one thread of a process that writes to a store.

It commits at once when idle, and takes into one transaction whatever was queued while it was busy (at most `MOST_ROWS`
rows; it never waits for company). If a transaction fails, each of its writes is tried again alone, so that one bad
write fails by itself. What is queued is bounded: beyond `MOST_PENDING` rows a caller waits for room.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from relive.storage.connection import translate
from relive.storage.errors import ClosedStoreError
from relive.storage.transaction import Transaction

MOST_ROWS = 2048
MOST_PENDING = 16_384


class Write(NamedTuple):
    """One thing to do inside a transaction.

    Attributes:
        act: Does it; what it returns is the future's result.
        rows: How many rows it counts for.
        future: Gets the result once it is committed.
        alone: Given in place of `act` by what must run outside any transaction, with nobody else's writes.
    """

    act: Callable[[Transaction], Any] | None
    rows: int
    future: "Future[Any]"
    alone: Callable[[apsw.Connection], Any] | None = None


class Writer:
    """Takes writes from any thread of this process, in order.

    Args:
        begin: Starts a write transaction, waiting for the lock; called in the writer's thread.
        connection: Gives the connection for writing; called in the writer's thread.
        path: Of the store, for error messages.
    """

    def __init__(self, begin: Callable[[], Transaction], connection: Callable[[], apsw.Connection], path: Path) -> None:
        self._begin = begin
        self._connection = connection
        self._path = path
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._pending = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self.gate = threading.Lock()  # held while a transaction runs; taken before a fork

    @property
    def pending(self) -> int:
        """Rows handed in and not yet committed."""
        return self._pending

    def submit(self, act: Callable[[Transaction], Any], rows: int = 1) -> "Future[Any]":
        """Queues a write; waits while too much is queued already.

        Raises:
            ClosedStoreError: the store is closed.
        """
        return self._put(Write(act, rows, Future()))

    def submit_alone(self, call: Callable[[apsw.Connection], Any]) -> "Future[Any]":
        """Queues something that SQLite does outside transactions only, such as VACUUM."""
        return self._put(Write(None, 1, Future(), call))

    def _put(self, write: Write) -> "Future[Any]":
        with self._room:
            while self._pending >= MOST_PENDING and not self._closed:
                self._room.wait()
            if self._closed:
                raise ClosedStoreError("The store is closed; open it again to write.")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="relive-writer", daemon=True)
                self._thread.start()
            self._pending += write.rows
            self._queue.put(write)
        return write.future

    def close(self) -> None:
        """Writes what is queued and ends the thread; a second call does nothing."""
        with self._room:
            self._closed = True
            self._room.notify_all()
            thread = self._thread
            if thread is not None:
                self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        following: Write | None = None  # taken from the queue already, to be done next
        last = False
        while not last:
            first = following or self._queue.get()
            following = None
            if first is None:
                return
            taken, rows = [first], first.rows
            while rows < MOST_ROWS and first.alone is None:
                try:
                    write = self._queue.get_nowait()
                except queue.Empty:
                    break
                if write is None:
                    last = True
                    break
                if write.alone is not None:
                    following = write
                    break
                taken.append(write)
                rows += write.rows
            batch = [write for write in taken if write.future.set_running_or_notify_cancel()]
            if batch:
                with self.gate:
                    self._commit(batch)
            with self._room:
                self._pending -= rows
                self._room.notify_all()

    def _commit(self, batch: list[Write]) -> None:
        """One transaction for all; if it fails, one for each."""
        try:
            results = self._attempt(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to the caller who waits for the future
            if len(batch) > 1:
                for write in batch:
                    self._commit([write])
                return
            batch[0].future.set_exception(translate(error, self._path) if isinstance(error, apsw.Error) else error)
            return
        for write, result in zip(batch, results, strict=True):
            write.future.set_result(result)

    def _attempt(self, batch: list[Write]) -> list[Any]:
        if batch[0].alone is not None:
            return [batch[0].alone(self._connection())]
        transaction = self._begin()
        committed = False
        try:
            results = [write.act(transaction) for write in batch if write.act is not None]
            transaction.finish()
            transaction.connection.execute("COMMIT")
            committed = True
        finally:
            if not committed and transaction.connection.in_transaction:  # a full disk has rolled back already
                transaction.connection.execute("ROLLBACK")
            transaction.end(committed=committed)
        return results
