"""Recording that never holds up an answer for long, and never loses a record it can keep.

A record goes to the store, and the answer waits for it, but at most `WAIT` seconds; then the answer goes out and the
record is *pending*. While something has been pending for longer than that the store counts as stuck: nothing waits for
it, and new records go to the spool on disk; only if that fails too are they kept in memory, bounded, and beyond the
bound they are lost, counted and said. When the store takes writes again the spool is stored.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple

import msgspec

from relive.errors import ReliveError
from relive.experience import Feedback, Transition
from relive.gateway.capture import failed_attempts
from relive.gateway.spool import NextState, Spool, Waiting, decode_record, encode_record
from relive.storage.codec import encode_json
from relive.storage.redaction import Redactor
from relive.storage.sqlite import SqliteStorage
from relive.storage.transaction import Transaction

WAIT = 0.05
"""Seconds that an answer waits for its record."""

STUCK = 4
"""So many times that wait without an acknowledgement, and the store counts as stuck."""

MOST_OUTSTANDING = 2_048
"""Records given to the store and not yet acknowledged; beyond, new ones go to the spool."""

MOST_MEMORY = 16 << 20
"""Bytes of records kept in memory while neither store nor spool takes them."""

RETRY = 1.0
"""Seconds between attempts to store what waits."""

_BATCH = 64

Kept = Literal["stored", "pending"]
Safe = Callable[[int | None], None]
Stored = Callable[[Transition, int], None]
Item = Transition | Feedback | NextState
_log = logging.getLogger("relive.gateway")


class RecorderStats(msgspec.Struct):
    """Counts since the start.

    Attributes:
        stored: Records that the store acknowledged.
        pending: Answers that went out before their record was acknowledged.
        spooled: Records and feedback that went through the spool.
        lost: Records that neither store, spool nor memory could take.
        refused: Records that the store cannot hold; they are lost too.
    """

    stored: int = 0
    pending: int = 0
    spooled: int = 0
    lost: int = 0
    refused: int = 0


class _Record:
    """A record on its way to the store, and what its answer waits for."""

    __slots__ = ("kept", "safe", "transition", "uid")

    def __init__(self, uid: bytes, transition: Transition, safe: Safe, kept: "asyncio.Future[Kept]") -> None:
        self.uid = uid
        self.transition = transition
        self.safe = safe
        self.kept = kept

    def tell(self, kept: Kept) -> None:
        """Lets the answer go."""
        if not self.kept.done():
            self.kept.set_result(kept)


class _Held(NamedTuple):
    """Something kept in memory; a record as its JSON text, which takes a fraction of the room."""

    uid: bytes
    item: bytes | Feedback | NextState
    size: int
    safe: Safe

    def waiting(self) -> Waiting:
        """As it waits in a spool."""
        return Waiting(self.uid, decode_record(self.item) if isinstance(self.item, bytes) else self.item)


class Recorder:
    """Records into one store.

    Args:
        storage: The store.
        spool: Where records wait when the store does not take them.
        redact: Takes secrets out of what goes to the spool; the store's own.
        wait: Seconds that an answer waits for its record.
        sleep: Waits between attempts.

    Attributes:
        stats: What became of records so far.
        stored: Called with each record that the store took, at once or later, and its id; ``None``: nothing follows.
    """

    def __init__(
        self,
        storage: SqliteStorage,
        spool: Spool,
        *,
        redact: Redactor | None,
        wait: float = WAIT,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        self.stats = RecorderStats()
        self.stored: Stored | None = None
        self._storage = storage
        self._spool = spool
        self._redact = redact
        self._wait = wait
        self._sleep = sleep
        self._outstanding: dict[_Record, float] = {}  # in the order they were given to the store
        self._held: deque[_Held] = deque()
        self._held_bytes = 0
        self._failing = False
        self._draining: asyncio.Task[None] | None = None
        self._gathered: list[_Record] = []  # what the next write holds
        self._writes = 0  # under way

    @property
    def waiting(self) -> int:
        """Records and feedback that wait in the spool or in memory."""
        return self._spool.waiting + len(self._held)

    @property
    def outstanding(self) -> int:
        """Records that were given to the store and not yet acknowledged."""
        return len(self._outstanding)

    @property
    def stuck(self) -> bool:
        """Whether the store does not take writes at the moment."""
        if self._failing or not self._outstanding:
            return self._failing
        oldest = next(iter(self._outstanding.values()))
        late = asyncio.get_running_loop().time() - oldest > STUCK * self._wait
        return late or len(self._outstanding) >= MOST_OUTSTANDING

    async def record(self, transition: Transition, uid: bytes, safe: Safe) -> Kept:
        """Records a call.

        Args:
            transition: The record.
            uid: Its identity.
            safe: Called once nothing more needs to be kept for it: it is stored (then with its id, unless its uid was
                stored before), on the disk, or lost for good.

        Returns:
            Whether it was acknowledged within the time that an answer waits.
        """
        if self.stuck:
            self._put_aside(uid, transition, safe)
            self.stats.pending += 1
            return "pending"
        loop = asyncio.get_running_loop()
        record = _Record(uid, transition, safe, loop.create_future())
        self._outstanding[record] = loop.time()
        if not (self._gathered or self._writes):
            loop.call_soon(self._hand_over)
        self._gathered.append(record)
        loop.call_later(self._wait, record.tell, "pending")
        kept = await record.kept
        if kept == "pending":
            self.stats.pending += 1
        return kept

    async def next_state(self, uid: bytes, value: Any) -> None:
        """Keeps what an agent saw after a recorded step; nothing if the step is not stored."""
        item = NextState(encode_json(value))
        if not self.stuck:
            try:
                if await self._keep_next_state(uid, item) or not self.waiting:
                    return  # else its record may be one of those that wait
            except (ReliveError, OSError) as error:
                if not _transient(error):
                    raise
        self._put_aside(uid, item, _nothing)

    async def feedback(self, feedback: Feedback, *, patience: float = 5.0) -> int | None:
        """Keeps feedback.

        Returns:
            How many experiences it is about; ``None``: the store takes it later.

        Raises:
            InvalidExperienceError: the store cannot hold it.
        """
        if not self.stuck:
            storing = asyncio.wrap_future(self._storage.feedback_soon(feedback))
            await asyncio.wait((storing,), timeout=patience)
            if not storing.done():
                storing.add_done_callback(_seen)  # it may fail yet; should it succeed, the same once more is harmless
                self._put_aside(bytes(16), feedback, _nothing)
                return None
            if storing.exception() is None or not _transient(storing.exception()):
                return int(storing.result())
        self._put_aside(bytes(16), feedback, _nothing)
        return None

    async def recover(self, calls: list[Waiting]) -> None:
        """Stores what a dead process left behind; what is stored already stays as it is.

        Raises:
            StorageError: the store does not take it now.
        """
        for start in range(0, len(calls), _BATCH):
            await self._store(calls[start : start + _BATCH])

    async def recover_spool(self) -> int:
        """Stores what dead processes left in the spool; gives how many.

        Raises:
            StorageError: the store does not take it now.
        """
        count = 0
        for batch in self._spool.left_behind(_BATCH):
            await self._store(batch)
            count += len(batch)
        return count

    async def close(self, patience: float = 10.0) -> None:
        """Waits for what was given to the store; what the store does not take is in the spool, for the next start."""
        end = asyncio.get_running_loop().time() + patience
        while self._outstanding and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.001)
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)
        if self.waiting and not self.stuck:
            with contextlib.suppress(ReliveError, OSError, TimeoutError):
                async with asyncio.timeout(patience):
                    await self._store_waiting()
        while self._held:
            held = self._held.popleft()
            try:
                self._spool.put(held.uid, held.waiting().item)
            except OSError:
                if isinstance(held.item, bytes):
                    continue  # its call stays in the journal, for the next start
                self._lose()
            held.safe(None)
        self._spool.close()

    def _hand_over(self) -> None:
        """Gives the store, as one write, all records that came while the last one was under way.

        Each write wakes another thread, which is not free: the more there is to do, the more goes into one.
        """
        if self._writes or not self._gathered:
            return
        gathered, self._gathered = self._gathered, []
        if self._failing:
            self._postpone(gathered)
        else:
            self._give(gathered)

    def _give(self, gathered: list[_Record]) -> None:
        loop = asyncio.get_running_loop()
        rows, uids = [record.transition for record in gathered], [record.uid for record in gathered]

        def taken(write: "Future[list[int | None]]") -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed; nobody waits
                loop.call_soon_threadsafe(self._acknowledge, gathered, write)

        try:
            write = self._storage.write(lambda t: self._append(t, rows, uids), len(rows))
        except ReliveError as error:
            self._refuse(gathered, error)
            return
        self._writes += 1
        write.add_done_callback(taken)

    def _acknowledge(self, gathered: list[_Record], write: "Future[list[int | None]]") -> None:
        self._writes -= 1
        error = write.exception()
        if error is not None:
            self._refuse(gathered, error)
        else:
            for record, number in zip(gathered, write.result(), strict=True):
                del self._outstanding[record]
                self.stats.stored += 1
                record.tell("stored")
                record.safe(number)
                self._follow(record.transition, number)
        self._hand_over()

    def _refuse(self, gathered: list[_Record], error: BaseException) -> None:
        """The store did not take records: one by one if one of them may be the reason, else all of them later."""
        if _transient(error):
            self._failing = True
            self._postpone(gathered)
        elif len(gathered) > 1:
            for record in gathered:
                self._give([record])
        else:
            (record,) = gathered
            del self._outstanding[record]
            record.tell("pending")
            self._refused(error)
            record.safe(None)

    def _postpone(self, gathered: list[_Record]) -> None:
        """Keeps records until the store takes them; their answers go out."""
        for record in gathered:
            del self._outstanding[record]
            record.tell("pending")
            self._put_aside(record.uid, record.transition, record.safe)

    def _append(self, transaction: Transaction, rows: list[Transition], uids: list[bytes]) -> list[int | None]:
        """Writes records, and under each the failed tries of its call, which are never drawn.

        Runs in the writer's thread, so that encoding holds up no other call.
        """
        numbers = transaction.append(self._storage.encode(rows, uids=uids))
        attempts = [
            msgspec.structs.replace(attempt, parent=number)
            for row, number in zip(rows, numbers, strict=True)
            if number is not None
            for attempt in failed_attempts(row)
        ]
        if attempts:
            transaction.append(self._storage.encode(attempts, priorities=[0.0] * len(attempts)))
        return numbers

    def _put_aside(self, uid: bytes, item: Item, safe: Safe) -> None:
        """Keeps something until the store takes it: on the disk, else in memory, else not at all."""
        try:
            item = self._redacted(item)
            self._spool.put(uid, item)
            self.stats.spooled += 1
            safe(None)
        except OSError:
            held = encode_record(item) if isinstance(item, Transition) else item
            size = len(held) if isinstance(held, bytes) else 1_000
            if self._held_bytes + size > MOST_MEMORY:
                self._lose()
                safe(None)
            else:
                self._held.append(_Held(uid, held, size, safe))
                self._held_bytes += size
        except ReliveError as error:
            self._refused(error)
            safe(None)
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())

    def _redacted(self, item: Item) -> Item:
        redact = self._redact
        if redact is None:
            return item
        if isinstance(item, Transition):
            return redact.transition(item)[0]
        if isinstance(item, Feedback):
            return redact.feedback(item)[0]
        return NextState(redact.json(item.text)[0])

    def _follow(self, transition: Transition, number: int | None) -> None:
        if number is not None and self.stored is not None:
            self.stored(transition, number)

    def _refused(self, error: BaseException | None) -> None:
        self.stats.refused += 1
        _log.error("A call cannot be recorded: %s", error)

    def _lose(self) -> None:
        self.stats.lost += 1
        if self.stats.lost in {1, 10, 100} or self.stats.lost % 1_000 == 0:
            _log.error("%d records are lost: neither the store nor the spool can be written.", self.stats.lost)

    async def _drain(self) -> None:
        """Stores what waits, as soon as the store takes it."""
        while self.waiting or self._failing:
            await self._sleep(RETRY)
            try:
                await self._store_waiting()
                self._failing = False
            except (ReliveError, OSError) as error:
                _log.warning("%d records wait for the store: %s", self.waiting, error)

    async def _store_waiting(self) -> None:
        """Stores all that waits, after a write that shows whether the store takes any."""
        await asyncio.wrap_future(self._storage.write(lambda _: None))
        while self._held:
            held = self._held[0]
            await self._store([held.waiting()])
            self._held.popleft()
            self._held_bytes -= held.size
            held.safe(None)
        for batch in self._spool.batches(_BATCH):
            await self._store(batch)

    async def _store(self, batch: list[Waiting]) -> None:
        """Stores some of what waits; what no store can hold is left out, and counted."""
        records = [(waiting.uid, waiting.item) for waiting in batch if isinstance(waiting.item, Transition)]
        try:
            if records:
                uids, rows = [uid for uid, _ in records], [item for _, item in records]
                numbers = await asyncio.wrap_future(
                    self._storage.write(lambda t: self._append(t, rows, uids), len(rows))
                )
                self.stats.stored += len(rows)
                for row, number in zip(rows, numbers, strict=True):
                    self._follow(row, number)
            for waiting in batch:
                if isinstance(waiting.item, Feedback):
                    await asyncio.wrap_future(self._storage.feedback_soon(waiting.item))
                elif isinstance(waiting.item, NextState):
                    await self._keep_next_state(waiting.uid, waiting.item)
        except Exception as error:
            if _transient(error):
                raise
            if len(batch) == 1:
                self._refused(error)
                return
            for waiting in batch:  # what was stored before the error is there already
                await self._store([waiting])

    async def _keep_next_state(self, uid: bytes, item: NextState) -> bool:
        """Stores a late next state; False: its record is not stored."""
        redact = self._redact
        if redact is not None and not redact.content:
            return True
        text = item.text if redact is None else redact.json(item.text)[0]

        def keep(transaction: Transaction) -> bool:
            number = transaction.id_of(uid)
            if number is not None:
                transaction.set_next_state(number, text)
            return number is not None

        return bool(await asyncio.wrap_future(self._storage.write(keep)))


def _transient(error: BaseException | None) -> bool:
    """Whether the same write may succeed later: the store was in the way, not what was to be written."""
    return error is None or (isinstance(error, ReliveError | OSError) and not isinstance(error, ValueError))


def _seen(future: "asyncio.Future[Any]") -> None:
    """Looks at how a write ended that nobody waits for any more; what it was to write is in the spool."""
    if not future.cancelled() and future.exception() is not None:
        _log.warning("Feedback waits for the store: %s", future.exception())


def _nothing(_: int | None) -> None:
    """What has to be done for feedback and next states once they are safe."""
