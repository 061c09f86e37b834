"""The durable store in one SQLite file: what a process does with it. See `protocol` for what every store promises."""

import atexit
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import apsw
import numpy as np
import numpy.typing as npt

from relive.buffer.checks import LARGEST_PRIORITY, is_priority
from relive.errors import InvalidExperienceError
from relive.experience import Feedback, Transition
from relive.storage import audit, dictionaries, record, sampling, schema
from relive.storage import feedback as feedback_rule
from relive.storage.checkpoint import Checkpointer
from relive.storage.codec import Compressor, clean_text, encode_payload
from relive.storage.connection import (
    BUSY_TIMEOUT,
    Durability,
    bounded,
    check_path,
    connect,
    errors_of,
    immediate,
    look_over,
    prepare,
    roll_back,
)
from relive.storage.dictionaries import Trainer
from relive.storage.errors import ReadOnlyStoreError, StorageError
from relive.storage.owner import Claim
from relive.storage.pool import Forkable, Pool, watch
from relive.storage.protocol import StoreStats, WriteView
from relive.storage.reading import Reader, int64
from relive.storage.reads import StoreReads
from relive.storage.redaction import DEFAULT as DEFAULT_REDACTOR
from relive.storage.redaction import Redactor
from relive.storage.statistics import collect
from relive.storage.transaction import Transaction
from relive.storage.writer import Writer, Written

_YIELD = 8
"""Rows after which the writer's thread, which needs the interpreter for moments only, may go on with what it holds."""


class SqliteStorage(StoreReads, Forkable):
    """Experiences in one SQLite file; any number of processes may use it at once.

    Args:
        path: The file; made if it does not exist (its folder must).
        durability: ``"process"``: a write that returned survives ``kill -9``; ``"power"``: it survives power loss too.
        readonly: Only read; nothing is written to the file.
        text_index: Whether new experiences can be found by `search` and by a query's `text`.
        redact: Takes out of experiences and feedback what must not reach the disk; ``None``: nothing.
        busy_timeout: Seconds to wait for another process's write to end.

    Raises:
        StoragePathError: the path cannot hold a store.
        NotAStoreError: the file is something else.
        NewerStoreError: a newer Relive wrote it.
        DamagedStoreError: the file is damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "process",
        readonly: bool = False,
        text_index: bool = True,
        redact: Redactor | None = DEFAULT_REDACTOR,
        busy_timeout: float = BUSY_TIMEOUT,
        vfs: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.readonly = readonly
        self._text_index = text_index
        self._redact = redact
        check_path(self.path, readonly=readonly)
        self.path = self.path.resolve()

        def open_connection(writer: bool) -> apsw.Connection:
            connection = connect(
                self.path,
                durability=durability,
                readonly=readonly,
                writer=writer,
                busy_timeout=busy_timeout,
                vfs=vfs,
            )
            if writer:
                self._checkpointer.watch(connection)
            return connection

        with errors_of(self.path):
            connection = open_connection(False)
            try:
                prepare(connection, self.path, readonly=readonly)
                look_over(connection, self.path)
            finally:
                connection.close()
        self._pool = Pool(open_connection)
        self._reader = Reader()
        self._compress = Compressor()
        self._dictionary: int | None = None
        self._trainer = Trainer(self._pool.reading, self._keep_dictionary)
        self._busy_timeout = busy_timeout
        self._checkpointer = Checkpointer(self._pool.reading, busy_timeout)
        self._claim = Claim(self.path)
        self._writer = Writer(self._begin, self._pool.writing, self.path)
        self._closed = False
        self._keep_limits: Callable[[Transaction], None] | None = None
        self._locks: list[AbstractContextManager[bool]] = []
        watch(self)
        _open_stores.add(self)

    # -- writing --------------------------------------------------------------------------------------------------

    def append(
        self,
        experiences: Sequence[Transition],
        *,
        priorities: Sequence[float | None] | None = None,
        uids: Sequence[bytes | None] | None = None,
        evict: Iterable[int] = (),
    ) -> list[int | None]:
        """Appends in one transaction, all or none, and returns once it is kept.

        Args:
            experiences: What to append; may be empty.
            priorities: What the owner of the sampling index shall take as each one's priority, in place of its rule.
            uids: Identities (16 bytes); an experience whose uid is stored already is left out.
            evict: Ids to remove in the same transaction.

        Returns:
            Each one's id; ``None`` only where its uid was stored already.

        Raises:
            InvalidExperienceError: one of them cannot be stored; nothing was written.
            StorageFullError: no room left; nothing was written.
            StorageBusyError: another process did not let go of the file in time.
        """
        ids: list[int | None] = self.append_soon(experiences, priorities=priorities, uids=uids, evict=evict).result()
        return ids

    def append_soon(
        self,
        experiences: Sequence[Transition],
        *,
        priorities: Sequence[float | None] | None = None,
        uids: Sequence[bytes | None] | None = None,
        evict: Iterable[int] = (),
    ) -> Written:
        """Like `append`, but returns at once; the future is done when it is kept. Waits only when too much is queued.

        The experiences are encoded before it returns, so the caller may change them afterwards.
        """
        self._check_writable()
        rows = self.encode(experiences, priorities=priorities, uids=uids)
        removed = list(evict)

        def act(transaction: Transaction) -> list[int | None]:
            if removed:
                transaction.evict(removed)
            return transaction.append(rows)

        return self._writer.submit(act, len(rows) or 1, sum(map(record.size, rows)))

    def encode(
        self,
        experiences: Sequence[Transition],
        *,
        priorities: Sequence[float | None] | None = None,
        uids: Sequence[bytes | None] | None = None,
    ) -> list[record.Row]:
        """The rows of experiences, redacted, ready for `Transaction.append`.

        Raises:
            InvalidExperienceError: one of them cannot be stored.
        """
        priorities = priorities if priorities is not None else [None] * len(experiences)
        uids = uids if uids is not None else [None] * len(experiences)
        if not len(experiences) == len(priorities) == len(uids):
            raise InvalidExperienceError(
                f"There are {len(experiences)} experiences, {len(priorities)} priorities and {len(uids)} uids; "
                "give one of each for every experience."
            )
        rows: list[record.Row] = []
        for experience, priority, uid in zip(experiences, priorities, uids, strict=True):
            if rows and len(rows) % _YIELD == 0 and self._writer.pending:
                time.sleep(0)
            if not isinstance(experience, Transition):
                raise InvalidExperienceError(
                    f"A store keeps relive.Transition(state=…, action=…) objects, not {type(experience).__name__}."
                )
            if priority is not None and not is_priority(priority):
                raise InvalidExperienceError(
                    f"priority is {priority}; it must be a finite number from 0 to {LARGEST_PRIORITY:.2g}."
                )
            rows.append(
                record.encode(experience, priority=priority, uid=uid, with_text=self._text_index, redact=self._redact)
            )
        return rows

    def write(self, act: Callable[[Transaction], Any], rows: int = 1, size: int = 0) -> Written:
        """Runs `act` in the writer's thread inside a write transaction; the future has what it returns, once kept.

        While it runs nobody else writes to the store. If it raises, nothing of it is kept. It counts for so many `rows`
        and, in `size`, bytes: where too much is queued, the caller waits.
        """
        self._check_writable()
        return self._writer.submit(act, rows, size)

    def alone(self, act: Callable[[apsw.Connection], Any]) -> Written:
        """Runs `act` in the writer's thread outside any transaction, with no write of this process beside it."""
        self._check_writable()
        return self._writer.submit_alone(act)

    def feedback(self, feedback: Feedback) -> int:
        """Stores feedback and settles what it says of reward and outcome; returns once it is kept.

        It may come before the experience does, and waits for at most 90 days; of more than 100,000 pieces that wait the
        oldest are let go. The same source and key replaces what it said before.

        Returns:
            How many stored experiences it is about: 0 while none is there yet, or when it was removed.
        """
        return int(self.feedback_soon(feedback).result())

    def feedback_soon(self, feedback: Feedback) -> "Future[int]":
        """Like `feedback`, but returns at once."""
        values = self.encode_feedback(feedback)
        return self.write(lambda transaction: transaction.feedback(values))

    def encode_feedback(self, feedback: Feedback) -> tuple[Any, ...]:
        """The columns of a feedback, redacted, ready for `Transaction.feedback`."""
        if self._redact is not None:
            feedback, _ = self._redact.feedback(feedback)
        return feedback_rule.columns(feedback)

    def set_next_state(self, id: int, next_state: Any) -> bool:  # noqa: A002 - the record's own name
        """Keeps what an agent saw next, once, for an experience that was recorded before it was known.

        Args:
            id: The experience.
            next_state: Any JSON value, or its text as `msgspec.Raw`.

        Returns:
            False: the experience is gone, or has a next state already; or content is not kept.
        """
        text = encode_payload(next_state, "next_state")
        if self._redact is not None:
            if not self._redact.content:
                return False
            text, _ = self._redact.json(text)
        return bool(self.write(lambda transaction: transaction.set_next_state(bounded(id), text)).result())

    def identifiers(self, name: str) -> list[str]:
        """The forms in which a name or an id may be stored: as it is, and redacted."""
        redacted = name if self._redact is None else self._redact.identifier(name)
        return list(dict.fromkeys((clean_text(name), clean_text(redacted))))

    def delete(self, ids: Iterable[int]) -> int:
        """Removes experiences with all that belongs to them; returns how many were there."""
        wanted = list(ids)
        return int(self.write(lambda transaction: transaction.evict(wanted)).result())

    def set_reward_rule(self, weights: Mapping[str, float] | None = None, success_at: float | None = None) -> int:
        """Sets how feedback makes the reward (see `relive.storage.feedback`), for all processes, and applies it.

        Args:
            weights: Weight of each key; keys not named have weight 1. ``None``: as they are.
            success_at: The least reward that counts as success. ``None``: as it is.

        Returns:
            How many experiences have feedback, and were settled anew.

        Raises:
            InvalidExperienceError: a number is not finite.
        """
        settings: dict[str, Any] = {}
        if weights is not None:
            settings["reward_weights"] = {key: float(weight) for key, weight in weights.items()}
        if success_at is not None:
            settings["success_at"] = float(success_at)
        if not all(math.isfinite(n) for n in [*settings.get("reward_weights", {}).values(), success_at or 0.0]):
            raise InvalidExperienceError("Weights and success_at must be finite numbers.")
        return int(self.write(lambda transaction: transaction.set_reward_rule(settings)).result())

    # -- the sampling index ---------------------------------------------------------------------------------------

    def set_priorities(self, ids: Sequence[int] | npt.NDArray[np.int64], priorities: Sequence[float]) -> int:
        """Sets raw priorities in the saved sampling index, for tools; its owner does it through its own index.

        Returns:
            How many of the ids were in it.

        Raises:
            InvalidExperienceError: a priority is bad, or there is not one for each id.
            IndexOwnedError: somebody else owns the index, and would not see it.
        """
        self._check_writable()
        wanted, values = int64(ids), np.asarray(priorities, np.float64)
        if len(wanted) != len(values) or not ((values >= 0) & (values <= LARGEST_PRIORITY)).all():
            raise InvalidExperienceError(
                f"Give one priority for each id, a finite number from 0 to {LARGEST_PRIORITY:.2g}."
            )

        def act(transaction: Transaction) -> int:
            saved = transaction.load_index()
            slots = {number: slot for slot, number in enumerate(saved.ids.tolist()) if number}
            pairs = [(slots[n], v) for n, v in zip(wanted.tolist(), values.tolist(), strict=True) if n in slots]
            if pairs:
                places = np.array([slot for slot, _ in pairs], np.int32)
                named = pairs[: audit.MOST_NAMED]
                transaction.audit(
                    "priority",
                    target=f"{len(pairs)} experiences",
                    before={str(saved.ids[slot]): float(saved.priorities[slot]) for slot, _ in named},
                    after={str(saved.ids[slot]): value for slot, value in named},
                )
                transaction.save_index(sampling.IndexChange(places, np.array([v for _, v in pairs], np.float32)))
            return len(pairs)

        with nullcontext() if self.owns_index else self._owning():
            return int(self.write(act).result())

    @contextmanager
    def _owning(self) -> Iterator[None]:
        self.claim()
        try:
            yield
        finally:
            self.release()

    def claim(self, *, url: str | None = None) -> None:
        """Becomes the owner of the sampling index, until `release`, `close` or the end of the process.

        Raises:
            IndexOwnedError: somebody else is; the error says who.
            ReadOnlyStoreError: the store is open for reading only.
        """
        self._check_writable()
        self._claim.take(url=url)

    def release(self) -> None:
        """Gives the ownership of the sampling index back."""
        self._keep_limits = None
        self._claim.release()

    def keep_limits_by(self, call: Callable[[Transaction], None]) -> None:
        """Has `call` say what leaves when this process appends more than the store may hold; for the index's owner."""
        self._keep_limits = call

    @property
    def owns_index(self) -> bool:
        """Whether this object owns the sampling index."""
        return self._claim.held

    def stats(self) -> StoreStats:
        """Figures of the store, in one consistent view."""
        with errors_of(self.path), self._pool.reading() as connection:
            return collect(
                connection,
                self.path,
                schema.SCHEMA_VERSION,
                pending=self._writer.pending,
                connections=self._pool.open_connections,
            )

    # -- life -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Returns once everything handed in before is kept."""
        if not self.readonly:
            self._writer.submit(lambda _: None).result()

    def compact(self) -> int:
        """Gives free pages back to the disk and merges the text index; returns by how many bytes the file shrank.

        Other processes can read meanwhile; writes wait. It needs as much free space as the store takes.
        """
        self._check_writable()

        def act(connection: apsw.Connection) -> int:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            before = self.path.stat().st_size
            with immediate(connection):
                sampling.fold(connection)
                connection.execute("INSERT INTO state_text(state_text) VALUES ('optimize')")
            connection.pragma("temp_store", 1)  # a file: all of the store passes through it
            connection.execute("VACUUM")
            connection.pragma("temp_store", 2)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return before - self.path.stat().st_size

        return int(self._writer.submit_alone(act).result())

    def close(self) -> None:
        """Writes what is pending and lets go of the file; a second call does nothing.

        Raises:
            StorageError: one of the store's own writes wants to close it.
        """
        if self._closed:
            return
        if self._writer.is_here():
            raise StorageError(f"{self.path} cannot be closed by one of its own writes; close it from another thread.")
        self._closed = True
        self._writer.close()
        self._checkpointer.close()
        with errors_of(self.path):
            self._pool.close()
        self._claim.release()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def hold_at_forks(self, lock: AbstractContextManager[bool]) -> None:
        """Has `lock` taken before each fork. It is one that is taken inside transactions, and held while reading."""
        self._locks.append(lock)

    def before_fork(self) -> None:
        """Waits for the transaction and the reads under way and closes all connections."""
        self._writer.gate.acquire()
        for lock in self._locks:
            lock.__enter__()
        self._pool.pause()

    def after_fork_in_parent(self) -> None:
        """Goes on."""
        self._pool.resume()
        self._release_locks()
        self._writer.gate.release()

    def _release_locks(self) -> None:
        for lock in reversed(self._locks):
            lock.__exit__(None, None, None)

    def after_fork_in_child(self) -> None:
        """Starts with an empty queue and no connection; the ownership of the index stays with the parent."""
        self._pool.child()
        self._release_locks()
        self._writer = Writer(self._begin, self._pool.writing, self.path)
        self._trainer = Trainer(self._pool.reading, self._keep_dictionary)
        self._checkpointer = Checkpointer(self._pool.reading, self._busy_timeout)
        self._claim.forget()
        self._keep_limits = None
        if self._closed:
            self._writer.close()

    def _begin(self) -> Transaction:
        connection = self._pool.writing()
        connection.execute("BEGIN IMMEDIATE")
        try:
            transaction = Transaction(connection, self._reader, self._compress)
            if transaction.dictionary != self._dictionary:
                found = dictionaries.newest(connection)
                self._compress = transaction.compress = Compressor(found)
                self._dictionary = None if found is None else found[0]
            if self._keep_limits is not None:
                transaction.keep_limits = self._keep_limits
        except BaseException:  # nobody else ends what nobody was given
            roll_back(connection)
            raise
        if self._dictionary is None and transaction.rows >= dictionaries.TRAIN_AT:
            self._trainer.start()
        return transaction

    def _keep_dictionary(self, body: bytes, forgotten: int) -> None:
        def act(transaction: Transaction) -> None:
            still = dictionaries.forgotten(transaction.connection) == forgotten  # else it may hold what is forgotten
            if transaction.dictionary is None and still:  # else another process was faster
                dictionaries.add(transaction.connection, body, time.time_ns() // 1000)

        self._writer.submit(act)

    def _check_writable(self) -> None:
        if self.readonly:
            raise ReadOnlyStoreError(f"{self.path} was opened with readonly=True; open it again without, to write.")


_open_stores: "weakref.WeakSet[SqliteStorage]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for store in list(_open_stores):
        store.close()


def _is_write_view(transaction: Transaction) -> WriteView:
    return transaction  # the type checker holds `Transaction` to the protocol
