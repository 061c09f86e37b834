"""The durable store in one SQLite file: what a process does with it. See `protocol` for what every store promises."""

import atexit
import os
import secrets
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from relive.errors import InvalidExperienceError
from relive.experience import Feedback, Outcome, Transition
from relive.storage import feedback as feedback_rule
from relive.storage import record, sampling, schema
from relive.storage.codec import Compressor
from relive.storage.connection import BUSY_TIMEOUT, Durability, check_path, connect, errors_of, prepare
from relive.storage.errors import ReadOnlyStoreError
from relive.storage.owner import Claim
from relive.storage.pool import Forkable, Pool, watch
from relive.storage.protocol import Changes, Stored, StoreStats, WriteView
from relive.storage.reading import Query, Reader, int64
from relive.storage.sampling import SavedIndex
from relive.storage.statistics import collect
from relive.storage.transaction import Transaction, changes_since
from relive.storage.writer import Writer


class SqliteStorage(Forkable):
    """Experiences in one SQLite file; any number of processes may use it at once.

    Args:
        path: The file; made if it does not exist (its folder must).
        durability: ``"process"``: a write that returned survives ``kill -9``; ``"power"``: it survives power loss too.
        readonly: Only read; nothing is written to the file.
        text_index: Whether new experiences can be found by `search` and by a query's `text`.
        redact: Takes out of a transition what must not reach the disk; ``None``: nothing.
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
        redact: record.Redact | None = None,
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
            return connect(
                self.path,
                durability=durability,
                readonly=readonly,
                writer=writer,
                busy_timeout=busy_timeout,
                vfs=vfs,
            )

        with errors_of(self.path):
            connection = open_connection(False)
            try:
                prepare(connection, self.path, readonly=readonly)
            finally:
                connection.close()
        self._pool = Pool(open_connection)
        self._reader = Reader()
        self._compress = Compressor()
        self._claim = Claim(self.path)
        self._origin = secrets.randbits(62)
        self._writer = Writer(self._begin, self.path)
        self._closed = False
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
        return self.append_soon(experiences, priorities=priorities, uids=uids, evict=evict).result()

    def append_soon(
        self,
        experiences: Sequence[Transition],
        *,
        priorities: Sequence[float | None] | None = None,
        uids: Sequence[bytes | None] | None = None,
        evict: Iterable[int] = (),
    ) -> "Future[list[int | None]]":
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

        return self._writer.submit(act, len(rows) or 1)

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
        redact = self._redact
        rows = []
        for experience, priority, uid in zip(experiences, priorities, uids, strict=True):
            if not isinstance(experience, Transition):
                raise InvalidExperienceError(f"A store keeps Transition objects, not {type(experience).__name__}.")
            if priority is not None and not 0 <= priority < float("inf"):
                raise InvalidExperienceError(f"priority is {priority}; it must be finite and not negative.")
            kept = experience if redact is None else redact(experience)
            rows.append(record.encode(kept, priority=priority, uid=uid, with_text=self._text_index))
        return rows

    def write(self, act: Callable[[Transaction], Any], rows: int = 1) -> "Future[Any]":
        """Runs `act` in the writer's thread inside a write transaction; the future has what it returns, once kept.

        While it runs nobody else writes to the store. If it raises, nothing of it is kept.
        """
        self._check_writable()
        return self._writer.submit(act, rows)

    def feedback(self, feedback: Feedback) -> int:
        """Stores feedback and settles what it says of reward and outcome; returns once it is kept.

        It may come before the experience does. The same source and key replaces what it said before.

        Returns:
            How many stored experiences it is about: 0 while none is there yet, or when it was removed.
        """
        return int(self.feedback_soon(feedback).result())

    def feedback_soon(self, feedback: Feedback) -> "Future[int]":
        """Like `feedback`, but returns at once."""
        values = feedback_rule.columns(feedback)
        return self.write(lambda transaction: transaction.feedback(values))

    def delete(self, ids: Iterable[int]) -> int:
        """Removes experiences with all that belongs to them; returns how many were there."""
        wanted = list(ids)
        return int(self.write(lambda transaction: transaction.evict(wanted)).result())

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> list[Stored | None]:
        """Experiences in the order of `ids`, parsed when looked at; ``None`` where there is none."""
        with errors_of(self.path), self._pool.reading() as connection:
            return self._reader.read(connection, ids)

    def get(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> list[Transition | None]:
        """Experiences in the order of `ids`, with what feedback made of them; ``None`` where there is none."""
        return [None if stored is None else stored.transition for stored in self.read(ids)]

    def query(
        self,
        *,
        agent: str | None = None,
        episode_id: str | None = None,
        group_id: str | None = None,
        parent: int | None = None,
        outcome: Outcome | None = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        policy: str | None = None,
        policy_version: int | None = None,
        tag: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error: bool | str | None = None,
        text: str | None = None,
        after: int | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[Stored]:
        """One page of the experiences for which every condition given holds, in the order of ids.

        To page, pass the last id as `after`: what is appended meanwhile neither repeats nor hides anything.

        Args:
            agent: Who acted.
            episode_id: The episode.
            group_id: The group of rollouts.
            parent: The experience they belong under.
            outcome: As it holds now.
            min_reward: At least this; an unknown reward matches no bound.
            max_reward: At most this.
            policy: Name of the policy or model.
            policy_version: Its version.
            tag: One of its tags.
            since: Happened at this time or later.
            until: Happened before this time.
            error: True: with an error; False: without; text: with an error that contains it.
            text: States that share a word with this text.
            after: Only ids above this one (below it, if `newest_first`).
            limit: At most so many.
            newest_first: In falling order of ids.
        """
        query = Query(
            agent=agent,
            episode_id=episode_id,
            group_id=group_id,
            parent=parent,
            outcome=outcome,
            min_reward=min_reward,
            max_reward=max_reward,
            policy=policy,
            policy_version=policy_version,
            tag=tag,
            since=since,
            until=until,
            error=error,
            text=text,
        )
        with errors_of(self.path), self._pool.reading() as connection:
            found = self._reader.query(connection, query, after=after, limit=limit, newest_first=newest_first)
            if found:
                sampling.fill_priorities(connection, found)
            return found

    def count(self, query: Query | None = None) -> int:
        """How many experiences a query finds; without one, how many there are."""
        with errors_of(self.path), self._pool.reading() as connection:
            if query is None:
                return int(connection.execute("SELECT rows FROM total").get)
            return self._reader.count(connection, query)

    def __len__(self) -> int:
        return self.count()

    def search(
        self, text: str, *, outcome: Outcome | None = None, agent: str | None = None, limit: int = 10
    ) -> list[tuple[int, float]]:
        """The experiences whose states are most like a text: (id, BM25 score), the best first.

        Args:
            text: Any text; it is never read as a query language.
            outcome: Only these.
            agent: Only this one's.
            limit: At most so many.
        """
        with errors_of(self.path), self._pool.reading() as connection:
            return self._reader.search(connection, text, outcome, agent, limit)

    def feedback_of(self, id: int) -> list[Feedback]:  # noqa: A002 - the record's own name
        """All that was fed back about an experience and about its episode."""
        with errors_of(self.path), self._pool.reading() as connection:
            return feedback_rule.of_experience(connection, id)

    def changes(self, since: int) -> Changes:
        """What happened after a change number, by anyone."""
        with errors_of(self.path), self._pool.reading() as connection:
            return changes_since(connection, since)

    def change_number(self) -> int:
        """The newest change number: cheap enough to ask before every draw."""
        with errors_of(self.path), self._pool.reading() as connection:
            return int(connection.execute("SELECT coalesce(max(number), 0) FROM change").get)

    def store_id(self) -> str:
        """The store's own id, made with the file: 32 hexadecimal digits. A backup has the same."""
        with errors_of(self.path), self._pool.reading() as connection:
            return str(msgspec.json.decode(connection.execute("SELECT value FROM setting WHERE name = 'store_id'").get))

    def load_index(self) -> SavedIndex:
        """The sampling index as its owner saved it last."""
        with errors_of(self.path), self._pool.reading() as connection:
            return sampling.load(connection)

    def priorities(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids in the sampling index and their raw priorities, as its owner saved them last, in the order of ids."""
        saved = self.load_index()
        taken = np.flatnonzero(saved.ids > 0)
        order = taken[np.argsort(saved.ids[taken], kind="stable")]
        return saved.ids[order], saved.priorities[order]

    def payload_bytes(self) -> int:
        """Size of payloads and tokens in the store, compressed."""
        with errors_of(self.path), self._pool.reading() as connection:
            return int(connection.execute("SELECT bytes FROM total").get)

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

    # -- the sampling index ---------------------------------------------------------------------------------------

    def set_priorities(self, ids: Sequence[int] | npt.NDArray[np.int64], priorities: Sequence[float]) -> int:
        """Sets raw priorities in the saved sampling index, for tools; its owner does it through its own index.

        Returns:
            How many of the ids were in it.
        """
        wanted, values = int64(ids), np.asarray(priorities, np.float32)
        if len(wanted) != len(values) or not (np.isfinite(values) & (values >= 0)).all():
            raise InvalidExperienceError("Give one priority for each id, finite and not negative.")

        def act(transaction: Transaction) -> int:
            saved = transaction.load_index()
            slots = {number: slot for slot, number in enumerate(saved.ids.tolist()) if number}
            pairs = [(slots[n], v) for n, v in zip(wanted.tolist(), values.tolist(), strict=True) if n in slots]
            if pairs:
                places = np.array([slot for slot, _ in pairs], np.int32)
                transaction.save_index(sampling.IndexChange(places, np.array([v for _, v in pairs], np.float32)))
            return len(pairs)

        return int(self.write(act).result())

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
        self._claim.release()

    @property
    def owns_index(self) -> bool:
        """Whether this object owns the sampling index."""
        return self._claim.held

    # -- life -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Returns once everything handed in before is kept."""
        if not self.readonly:
            self._writer.submit(lambda _: None).result()

    def close(self) -> None:
        """Writes what is pending and lets go of the file; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._writer.close()
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

    def before_fork(self) -> None:
        """Waits for the transaction and the reads under way and closes all connections."""
        self._writer.gate.acquire()
        self._pool.pause()

    def after_fork_in_parent(self) -> None:
        """Goes on."""
        self._pool.resume()
        self._writer.gate.release()

    def after_fork_in_child(self) -> None:
        """Starts with an empty queue and no connection; the ownership of the index stays with the parent."""
        self._pool.child()
        self._writer = Writer(self._begin, self.path)
        self._claim.forget()
        self._origin = secrets.randbits(62)
        if self._closed:
            self._writer.close()

    def _begin(self) -> Transaction:
        connection = self._pool.writing()
        connection.execute("BEGIN IMMEDIATE")
        return Transaction(connection, self._reader, self._compress, self._origin)

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
