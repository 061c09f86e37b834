"""`relive.open`: a `ReplayBuffer` over the durable store, in a file or behind the address of a `relive serve`.

One process at a time *owns* the sampling index of a store: it draws, sets priorities and evicts. It follows what others
appended, rewarded or removed before each draw and each write of its own. Invariants:

- Each call that writes is one transaction: rows, evictions, priorities and the state of the draws are kept together or
  not at all.
- The buffer's lock is held until that transaction has ended, so nothing is drawn that is not kept. It is taken inside
  the transaction, never before: whoever holds the lock must not wait for the writer.
- Reopening gives the draws that would have come next after the last write (what was only drawn since then is drawn
  again, unless `Memory.flush` or `Memory.close` kept it).
"""

import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from relive.buffer import Batch, BufferSettingError, BufferStateError, BufferStats, ReplayBuffer, Selector
from relive.buffer.checks import floats_of, ids_of, keepable, refusal
from relive.buffer.priority_rule import PriorityRule
from relive.buffer.rows import Ids
from relive.experience import Feedback, Outcome, Transition
from relive.storage import audit
from relive.storage import forget as forgetting
from relive.storage.connection import Durability
from relive.storage.errors import ClosedStoreError, IndexOwnedError, NotOwnerError
from relive.storage.forget import Forgotten
from relive.storage.owned_buffer import OwnedBuffer
from relive.storage.redaction import DEFAULT as DEFAULT_REDACTOR
from relive.storage.redaction import Redactor
from relive.storage.rows import GoneError
from relive.storage.sqlite import SqliteStorage
from relive.storage.stored import Stored
from relive.storage.transaction import Transaction

if TYPE_CHECKING:
    from relive.client import RemoteMemory

_TRIES = 16  # draws, when each time another process removed something drawn in that very moment


def open(  # noqa: A001 - read as `relive.open`
    path: str | os.PathLike[str],
    *,
    capacity: int | None = None,
    sampler: Selector | None = None,
    remover: Selector | None = None,
    priority: Callable[[Transition], float] | PriorityRule | None = None,
    seed: int | None = 0,
    max_bytes: int | None = None,
    max_age: float | None = None,
    readonly: bool = False,
    follower: bool = False,
    durability: Durability = "process",
    text_index: bool = True,
    redact: Redactor | None = DEFAULT_REDACTOR,
    key: str | None = None,
) -> "Memory | RemoteMemory":
    """Opens the memory in a file, or makes it; or that of a server.

    A file whose sampling index a `relive serve` owns is opened through that server, unless `readonly` or `follower`
    says otherwise: then capacity, limits, seed, durability and redaction are the server's, and no sampler, remover or
    priority rule can be given.

    Args:
        path: The file; its folder must exist. Or a server's address, such as ``http://127.0.0.1:8400``.
        capacity: Most experiences kept; ``None``: as many as when it was last opened, else 1,000,000. If it is
            less than what is stored, the oldest are removed. This and the limits below are written into the file and
            hold for all who record: where another process than this one adds too much, the oldest leave.
        sampler: What is drawn; ``None``: `Prioritized` with its defaults.
        remover: What leaves when it is full; ``None``: the oldest.
        priority: Rule that gives an experience its raw priority, evaluated again when a reward arrives.
        seed: Seed of a new memory's random stream; a stored one goes on where it was.
        max_bytes: Most bytes of payloads and tokens, as compressed in the store; what has to leave leaves in the
            transaction that adds. ``None``: no such limit.
        max_age: Seconds after which an experience leaves, counted from when it was stored, by the computer's clock: it
            is never drawn after that. ``None``: no such limit.
        readonly: Only look: nothing is written to the file, nothing is drawn.
        follower: Record, give feedback and look, but leave the drawing to another process.
        durability: ``"process"``: what was added survives ``kill -9``; ``"power"``: it survives power loss too.
        text_index: Whether `Memory.search` finds what is added.
        redact: Takes out of experiences and feedback what must not reach the disk: secrets, and what it is told to;
            ``None``: nothing.
        key: A key of the server's; ``None``: what the environment variable ``RELIVE_KEY`` holds, if it is set.

    Raises:
        IndexOwnedError: another process (or this one) has it open already as its owner; the error says who.
        StorageError: the path cannot hold a store, or holds something else; each kind has its own class.
        RemoteError: the server cannot be reached, or refuses.
    """
    rules = (sampler, remover, priority)
    if isinstance(path, str) and path.lower().startswith(("http://", "https://")):
        if readonly or any(rule is not None for rule in rules):
            raise BufferSettingError(
                f"What is drawn from {path} is the server's to say; leave out readonly, sampler, remover and priority."
            )
        return _remote(path, key)
    try:
        return open_file(
            path,
            readonly=readonly,
            follower=follower,
            durability=durability,
            text_index=text_index,
            redact=redact,
            capacity=capacity,
            sampler=sampler,
            remover=remover,
            priority=priority,
            seed=seed,
            max_bytes=max_bytes,
            max_age=max_age,
        )
    except IndexOwnedError as error:
        url = _served_at(error.holder)
        if url is None or any(rule is not None for rule in rules):
            raise
        return _remote(url, key)


def open_file(
    path: str | os.PathLike[str],
    *,
    readonly: bool = False,
    follower: bool = False,
    durability: Durability = "process",
    text_index: bool = True,
    redact: Redactor | None = DEFAULT_REDACTOR,
    **buffer: Any,
) -> "Memory":
    """Opens the memory in a file in this process, or not at all; see `open`, also for what `buffer` may hold.

    Raises:
        IndexOwnedError: another process (or this one) has it open already as its owner; the error says who.
        StorageError: the path cannot hold a store, or holds something else; each kind has its own class.
    """
    given = [name for name in ("capacity", "max_bytes", "max_age") if buffer.get(name) is not None]
    if given and (readonly or follower):
        raise BufferSettingError(
            f"{' and '.join(given)} is for whoever draws from {path} to say; leave it out with readonly=True or "
            "follower=True. What its owner set holds for whatever is recorded here too."
        )
    storage = SqliteStorage(path, durability=durability, readonly=readonly, text_index=text_index, redact=redact)
    try:
        if not (readonly or follower):
            storage.claim()
        return Memory(storage, **buffer)
    except BaseException:
        storage.close()
        raise


def _remote(url: str, key: str | None) -> "RemoteMemory":
    from relive.client import RemoteMemory  # a buffer alone need not wait for an HTTP client

    return RemoteMemory(url, key=key)


def _served_at(holder: dict[str, object]) -> str | None:
    """Where the owner of an index serves others; ``None``: nowhere, or in this process, which must not wait for it."""
    url, here = holder.get("url"), (os.getpid(), platform.node())
    return url if isinstance(url, str) and (holder.get("pid"), holder.get("host")) != here else None


class Memory(OwnedBuffer):
    """A `ReplayBuffer` whose experiences are in a store; made by `open`.

    Without the ownership of the sampling index (`storage.owns_index`) it records, takes feedback and looks, but does
    not draw; so also in a forked child of its owner.

    Args:
        storage: The store. If it owns the sampling index, so does the memory.
        capacity: See `open`, as for all others.
        sampler: What is drawn.
        remover: What leaves when it is full.
        priority: Rule for raw priorities.
        seed: Seed of a new memory's random stream.
        max_bytes: Most bytes.
        max_age: Most seconds.

    Attributes:
        storage: The store.
    """

    def __init__(
        self,
        storage: SqliteStorage,
        *,
        capacity: int | None = None,
        sampler: Selector | None = None,
        remover: Selector | None = None,
        priority: Callable[[Transition], float] | PriorityRule | None = None,
        seed: int | None = 0,
        max_bytes: int | None = None,
        max_age: float | None = None,
    ) -> None:
        super().__init__(
            storage,
            capacity=capacity,
            sampler=sampler,
            remover=remover,
            priority=priority,
            seed=seed,
            max_bytes=max_bytes,
            max_age=max_age,
        )
        self._drawing: int | None = None  # the thread that is in the middle of a draw
        if storage.owns_index:
            self.follow()

    # ---- Adding

    def add(self, experience: Transition, priority: float | None = None) -> int:
        """Adds one experience and returns its id once it is kept; what has to leave leaves in the same transaction.

        Args:
            experience: What happened.
            priority: Raw priority, at least 0; ``None``: the rule, else the largest one stored.

        Raises:
            InvalidExperienceError: it cannot be stored.
            InvalidPriorityError: the priority is NaN, infinite, negative or too large; nothing was added.
            StorageError: it could not be kept; nothing was added.
        """
        return int(self.add_batch([experience], None if priority is None else [priority])[0])

    def add_batch(self, experiences: Sequence[Transition], priorities: npt.ArrayLike | None = None) -> Ids:
        """Adds experiences in one transaction, all or none; see `ReplayBuffer.add_batch`."""
        return self.add_soon(experiences, priorities).result()

    def add_soon(self, experiences: Sequence[Transition], priorities: npt.ArrayLike | None = None) -> Future[Ids]:
        """Like `add_batch`, but returns at once; the future has the ids when they are kept."""
        experiences = list(experiences)
        if not self.storage.owns_index:
            given = None if priorities is None else floats_of("priorities", priorities)
            if given is not None and not (fine := keepable(given) == given).all():
                bad = int(np.argmin(fine))
                raise refusal(f"experience {bad} of the new ones", given[bad])
            appended = self.storage.append_soon(experiences, priorities=None if given is None else given.tolist())
            return appended.then(_as_ids)
        encoded = dict(zip(map(id, experiences), self.storage.encode(experiences), strict=True))
        return self._write(lambda _: ReplayBuffer.add_batch(self, experiences, priorities), encoded)

    # ---- Drawing

    def sample(self, batch_size: int, *, strict: bool = False) -> Batch:
        """Draws experiences by the sampler's rule, of all that anyone had added before; see `ReplayBuffer.sample`.

        The batch's experiences are parsed when they are looked at.

        Raises:
            NotOwnerError: this memory does not own the sampling index.
            NotEnoughExperiencesError: `strict`, and there are fewer.
        """
        for _ in range(_TRIES):
            self.follow()
            with self._lock:
                self._drawing = threading.get_ident()
                try:
                    return super().sample(batch_size, strict=strict)
                except GoneError:
                    continue
                finally:
                    self._drawing = None
        raise GoneError("Other processes remove experiences faster than they can be drawn; draw again.")

    def follow(self) -> None:
        """Brings the index up to date with what others did; each draw does so by itself.

        Raises:
            NotOwnerError: this memory does not own the sampling index.
        """
        if self._drawing == threading.get_ident():
            return  # asked for by the draw itself, which holds the lock; it was done before
        self._require_owner()
        expired = self._expiry is not None and time.time_ns() // 1000 > self._expiry
        if expired or self.storage.change_number() != self._followed or self._has_drifted():
            self._write(lambda _: self._refresh()).result()

    # ---- What becomes known later

    def update_priorities(
        self, ids: npt.ArrayLike, priorities: npt.ArrayLike | None = None, *, td_errors: npt.ArrayLike | None = None
    ) -> int:
        """Sets priorities and returns once they are kept; see `ReplayBuffer.update_priorities`.

        Each call with priorities is an entry in the audit, which names a few of them; TD errors are measured, and are
        none. A training loop gives TD errors.

        Raises:
            NotOwnerError: this memory does not own the sampling index.
            InvalidPriorityError: a value is bad; no priority was changed.
        """
        self._require_owner()

        def act(transaction: Transaction) -> int:
            if priorities is None:
                return ReplayBuffer.update_priorities(self, ids, td_errors=td_errors)
            before = self._first_priorities(ids)
            changed = ReplayBuffer.update_priorities(self, ids, priorities)
            if changed:
                after = self._first_priorities(ids)
                transaction.audit("priority", target=f"{changed} experiences", before=before, after=after)
            return changed

        done: Future[int] = self._write(act)
        return done.result()

    def _first_priorities(self, ids: npt.ArrayLike) -> dict[str, float]:
        """The priorities of the first few of some ids, as far as they are stored."""
        first = ids_of(ids)[: audit.MOST_NAMED]
        first = first[self._index.find(first) >= 0]
        return dict(zip(map(str, first.tolist()), self._index.priorities(first).tolist(), strict=True))

    def feedback(
        self,
        about: int | Feedback,
        reward: float | None = None,
        *,
        source: str = "user",
        key: str = "reward",
        comment: str | None = None,
        demonstration: Any = None,
    ) -> int:
        """Says what became known about an experience or an episode; its priority follows from the rule anew.

        Args:
            about: The experience's id, or a whole `Feedback`.
            reward: The reward by this source.
            source: Who says so; the same source and key replaces what it said before.
            key: Which aspect.
            comment: Free text for people.
            demonstration: The right action.

        Returns:
            How many stored experiences it is about.
        """
        if not isinstance(about, Feedback):
            about = Feedback(
                experience_id=int(about),
                reward=reward,
                source=source,
                key=key,
                comment=comment,
                demonstration=demonstration,
            )
        count = self.storage.feedback(about)
        if count and self.storage.owns_index:
            self.follow()
        return count

    def remove(self, ids: npt.ArrayLike) -> int:
        """Takes experiences out for good, and returns how many were still there.

        Raises:
            NotOwnerError: this memory does not own the sampling index.
        """
        self._require_owner()
        done: Future[int] = self._write(lambda _: ReplayBuffer.remove(self, ids))
        return done.result()

    def forget(self, *, agent: str | None = None, episode: str | None = None, match: str | None = None) -> Forgotten:
        """Takes experiences out so that no byte of them is left in the file; what is given must all hold.

        It writes the whole file anew, and others wait meanwhile: for what must not be kept, not for making room.

        Args:
            agent: All of this agent.
            episode: All of this episode.
            match: All that holds this text anywhere, large and small letters alike.

        Returns:
            How much it was, and which copies of the store may hold it still.

        Raises:
            NothingToForgetError: nothing is given.
            StorageBusyError: it is deleted, but another process keeps an older view of the file open.
        """
        report = forgetting.forget(self.storage, forgetting.Selection(agent=agent, episode=episode, match=match))
        if self.storage.owns_index:
            self.follow()
        return report

    # ---- Looking

    def get(self, ids: Sequence[int] | Ids) -> list[Transition | None]:
        """Experiences by id, with reward and outcome as they hold now; ``None`` where there is none."""
        return self.storage.get(ids)

    def query(self, **conditions: Any) -> list[Stored]:
        """One page of what is stored; see `SqliteStorage.query` for the conditions."""
        return self.storage.query(**conditions)

    def search(
        self, text: str, *, outcome: Outcome | None = None, agent: str | None = None, limit: int = 10
    ) -> list[tuple[int, float]]:
        """The experiences whose states are most like a text: (id, score), the best first."""
        return self.storage.search(text, outcome=outcome, agent=agent, limit=limit)

    def __len__(self) -> int:
        return super().__len__() if self.storage.owns_index else len(self.storage)

    def stats(self) -> BufferStats:
        """Counts, rewards and costs of what is stored. O(size)."""
        if self.storage.owns_index:
            return super().stats()
        found = self.storage.stats()
        _, priorities = self.storage.priorities()
        return BufferStats(
            size=found.experiences,
            capacity=self.capacity,
            bytes=found.payload_bytes,
            added=found.experiences + found.evicted,
            evicted=found.evicted,
            sampled=0,
            stale_updates=0,
            mean_priority=float(f"{priorities.mean(dtype=np.float64):.7g}") if len(priorities) else None,
            reward_min=found.reward_min,
            reward_mean=found.reward_mean,
            reward_max=found.reward_max,
            unknown_rewards=found.experiences - found.rewards,
            cost=found.cost,
            experiences_per_dollar=found.experiences / (found.cost * 1e-9) if found.cost else None,
        )

    # ---- Life

    def flush(self) -> None:
        """Returns once everything handed in before, and how far the draws have come, is kept."""
        if self.storage.owns_index:
            self._write(lambda _: None, whole_state=True).result()
        self.storage.flush()

    def close(self) -> None:
        """Keeps what is pending and lets go of the file; a second call does nothing."""
        try:
            if not self.storage.closed and self.storage.owns_index:
                self.flush()
        finally:
            self.storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def load_state_dict(self, state: dict[str, Any]) -> NoReturn:  # noqa: ARG002 - as in `ReplayBuffer`
        """Refused: the store keeps the state.

        Raises:
            BufferStateError: always.
        """
        raise BufferStateError("A memory keeps its state in its file; copy the file with `relive backup` instead.")

    def _has_drifted(self) -> bool:
        with self._lock:
            rule = self._evaluation.rule
            return rule is not None and rule.drifts and rule.stale(self._index.size)

    def _require_owner(self) -> None:
        if self.storage.owns_index:
            return
        if self.storage.closed:
            raise ClosedStoreError(f"The memory in {self.storage.path} is closed; open it again.")
        raise NotOwnerError(
            f"This memory of {self.storage.path} records and looks only: it was opened with readonly=True or "
            "follower=True, or by the process that this one was forked from. Draw where it is open as its owner."
        )


def _as_ids(ids: list[int | None]) -> Ids:
    return np.array(ids, np.int64)
