"""The one thread of a process that writes to a store.

It commits at once when idle, and takes into one transaction whatever was queued while it was busy (at most `MOST_ROWS`
rows; it never waits for company). If one of its writes fails, each is tried again alone, so that a bad write fails by
itself; if the file cannot be written, all fail together, so that a lock is waited for once. What is committed is never
tried again and never reported as failed. What is queued is bounded: beyond `MOST_PENDING` rows or
`MOST_PENDING_BYTES` a caller waits for room.
"""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from relive.storage.connection import roll_back, translate
from relive.storage.errors import ClosedStoreError, StorageError
from relive.storage.transaction import Transaction

MOST_ROWS = 2048
MOST_PENDING = 16_384
MOST_PENDING_BYTES = 256 << 20  # of payloads and tokens

_log = logging.getLogger("relive.storage")


class Written(Future[Any]):
    """What a write returns, once it is kept. Who waits for it in the writer's own thread is told, instead of for ever.

    Args:
        is_here: Whether the present thread is the writer's.
    """

    def __init__(self, is_here: Callable[[], bool]) -> None:
        super().__init__()
        self._is_here = is_here

    def result(self, timeout: float | None = None) -> Any:
        """What the write returned.

        Raises:
            StorageError: the writer's own thread would wait for itself.
        """
        self._check()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why it failed; ``None``: it did not. Raises as `result` does."""
        self._check()
        return super().exception(timeout)

    def then(self, convert: Callable[[Any], Any]) -> "Written":
        """The same with another result."""
        following = Written(self._is_here)

        def finish(done: Future[Any]) -> None:
            error = done.exception()
            if error is not None:
                following.set_exception(error)
            else:
                following.set_result(convert(done.result()))

        self.add_done_callback(finish)
        return following

    def _check(self) -> None:
        if not self.done() and self._is_here():
            self.cancel()  # what is reported as failed is not written
            raise StorageError(
                "A write waits for another one of the same store, which can only come after it; "
                "write through the transaction, or from another thread."
            )


class Write(NamedTuple):
    """One thing to do inside a transaction.

    Attributes:
        act: Does it; what it returns is the future's result.
        rows: How many rows it counts for.
        size: Bytes of payloads and tokens that it holds.
        future: Gets the result once it is committed.
        alone: Given in place of `act` by what must run outside any transaction, with nobody else's writes.
    """

    act: Callable[[Transaction], Any] | None
    rows: int
    size: int
    future: Written
    alone: Callable[[apsw.Connection], Any] | None = None


class _WriteFailedError(Exception):
    """One of the writes of a transaction failed; its cause is the error."""


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
        self._pending_bytes = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self.gate = threading.Lock()  # held while a transaction runs; taken before a fork

    @property
    def pending(self) -> int:
        """Rows handed in and not yet committed."""
        return self._pending

    def is_here(self) -> bool:
        """Whether the present thread is the one that writes."""
        return threading.current_thread() is self._thread

    def submit(self, act: Callable[[Transaction], Any], rows: int = 1, size: int = 0) -> Written:
        """Queues a write of so many rows and bytes; waits while too much is queued already.

        Raises:
            ClosedStoreError: the store is closed.
            StorageError: the thread cannot be started.
        """
        return self._put(Write(act, rows, size, Written(self.is_here)))

    def submit_alone(self, call: Callable[[apsw.Connection], Any]) -> Written:
        """Queues something that SQLite does outside transactions only, such as VACUUM."""
        return self._put(Write(None, 1, 0, Written(self.is_here), call))

    def _put(self, write: Write) -> Written:
        with self._room:
            while not (self._closed or self._has_room(write) or self.is_here()):
                self._room.wait()
            if self._closed:
                raise ClosedStoreError("The store is closed; open it again to write.")
            if self._thread is None:
                self._thread = self._started()
            self._pending += write.rows
            self._pending_bytes += write.size
            self._queue.put(write)
        return write.future

    def _has_room(self, write: Write) -> bool:
        """Whether a write may be queued; one that alone is too large may be once nothing else is there."""
        fits = self._pending_bytes + write.size <= MOST_PENDING_BYTES or not self._pending
        return fits and self._pending < MOST_PENDING

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="relive-writer", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no room for another thread
            raise StorageError(
                f"Nothing was written to {self._path}: {error}; end other threads or processes, then try again."
            ) from error
        return thread

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
                self._pending_bytes -= sum(write.size for write in taken)
                self._room.notify_all()

    def _commit(self, batch: list[Write]) -> None:
        """One transaction for all; if one of them fails, one for each."""
        try:
            results = self._attempt(batch)
        except _WriteFailedError as failed:
            if len(batch) > 1:
                for write in batch:
                    self._commit([write])
            else:
                self._fail(batch, failed.__cause__ or failed)
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the callers who wait for the futures
            self._fail(batch, error)
        else:
            for write, result in zip(batch, results, strict=True):
                write.future.set_result(result)

    def _fail(self, batch: list[Write], error: BaseException) -> None:
        for write in batch:
            write.future.set_exception(translate(error, self._path) if isinstance(error, apsw.Error) else error)

    def _attempt(self, batch: list[Write]) -> list[Any]:
        """What the writes of one transaction return, once it is committed.

        Raises:
            _WriteFailedError: one of them failed; the others may succeed without it.
            Exception: the file cannot be written.
        """
        if batch[0].alone is not None:
            return [batch[0].alone(self._connection())]
        transaction = self._begin()
        committed = False
        try:
            results = [_do(write, transaction) for write in batch]
            transaction.finish()
            try:
                transaction.connection.execute("COMMIT")
            except apsw.FullError as error:  # there may be room for some of them
                raise _WriteFailedError from error
            committed = True
        finally:
            if not committed:
                roll_back(transaction.connection)
            self._end(transaction, committed)
        return results

    def _end(self, transaction: Transaction, committed: bool) -> None:
        """Tells those who asked how it ended; what one of them raises changes nothing of that."""
        while True:
            try:
                transaction.end(committed=committed)
                return
            except Exception:  # noqa: BLE001 - logged; `end` goes on with those who were not told yet
                _log.exception("Something failed after a write to %s, which %s.", self._path, _ENDED[committed])


_ENDED = {True: "is kept", False: "was undone"}


def _do(write: Write, transaction: Transaction) -> Any:
    """What one write returns.

    Raises:
        _WriteFailedError: it failed by itself.
        apsw.BusyError: the file could not be written, and so for `apsw.IOError`.
    """
    if write.act is None:
        return None
    try:
        return write.act(transaction)
    except (apsw.BusyError, apsw.IOError):
        raise
    except BaseException as error:
        raise _WriteFailedError from error
