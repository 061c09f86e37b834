"""What every store can do, whatever holds the rows: the `Storage` protocol and what it answers with.

A store serialises writers of any number of threads and processes. A write that returned is kept (see the store's
durability); a write that raised left nothing. Ids are given out in the order of commits, increasing, never reused.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt

from relive.experience import Feedback, Outcome, Transition
from relive.storage.sampling import IndexChange, SavedIndex
from relive.storage.stored import Stored


class Changes(msgspec.Struct, frozen=True):
    """What happened in a store after a change number, by anyone, in one consistent view.

    Attributes:
        number: The newest change number; pass it next time.
        added: Ids of experiences appended and still there, increasing.
        rewarded: Ids of experiences that feedback reached, increasing.
        removed: Ids of experiences evicted or forgotten, increasing.
        complete: False: the store no longer knows all that happened since; look at everything again.
    """

    number: int
    added: list[int]
    rewarded: list[int]
    removed: list[int]
    complete: bool = True


class StoreStats(msgspec.Struct, frozen=True):
    """Figures of a store.

    Attributes:
        path: Where it is.
        schema_version: Version of its tables.
        experiences: How many are stored.
        episodes: How many different episodes they belong to.
        payload_bytes: Their size in the store, payloads and tokens, compressed.
        file_bytes: Size of the file.
        wal_bytes: Size of the write-ahead log beside it.
        wal_alarm: True: the log is above 256 MB; something keeps an old read open.
        evicted: How many were removed so far.
        feedback: How many pieces of feedback are stored.
        rewards: How many experiences have a known reward.
        reward_min: ``None``: no reward is known; so for the next two.
        reward_mean: Mean of the known rewards.
        reward_max: Largest known reward.
        outcomes: Experiences by outcome.
        agents: Experiences by agent.
        cost: Sum of the known costs in nano-USD; ``None``: no cost is known.
        unknown_costs: Experiences without a known cost.
        pending: Writes of this process not yet committed.
        connections: Connections this process holds open.
        feedback_waiting: How much of the feedback waits for experiences that are not there yet.
    """

    path: str
    schema_version: int
    experiences: int
    episodes: int
    payload_bytes: int
    file_bytes: int
    wal_bytes: int
    wal_alarm: bool
    evicted: int
    feedback: int
    rewards: int
    reward_min: float | None
    reward_mean: float | None
    reward_max: float | None
    outcomes: dict[str, int]
    agents: dict[str, int]
    cost: int | None
    unknown_costs: int
    pending: int
    connections: int
    feedback_waiting: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {field: getattr(self, field) for field in self.__struct_fields__}


class WriteView(Protocol):
    """What the owner of the sampling index sees inside a write transaction, where nobody else can write."""

    def changes(self, since: int) -> Changes:
        """What happened since, what this transaction did so far included."""

    def read(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> list[Stored | None]:
        """Experiences by id; ``None`` where there is none."""

    def evict(self, ids: Iterable[int]) -> int:
        """Removes experiences; returns how many were there."""

    def load_index(self) -> SavedIndex:
        """The sampling index as saved last."""

    def save_index(self, change: IndexChange | None, state: bytes | None = None) -> None:
        """Saves changed slots, and the sampler's own state."""

    def on_end(self, call: Callable[[bool], None]) -> None:
        """Has `call` called with True after the commit, with False after a rollback."""


class Storage(Protocol):
    """A durable store of experiences."""

    def append(
        self,
        experiences: Sequence[Transition],
        *,
        priorities: Sequence[float | None] | None = None,
        uids: Sequence[bytes | None] | None = None,
        evict: Iterable[int] = (),
    ) -> list[int | None]:
        """Appends in one transaction and returns once it is kept."""

    def append_soon(
        self,
        experiences: Sequence[Transition],
        *,
        priorities: Sequence[float | None] | None = None,
        uids: Sequence[bytes | None] | None = None,
        evict: Iterable[int] = (),
    ) -> "Future[list[int | None]]":
        """Like `append`, for callers that keep several in flight."""

    def write(self, act: Callable[[WriteView], Any]) -> "Future[Any]":
        """Runs `act` inside a write transaction."""

    def read(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> list[Stored | None]:
        """Experiences by id, undecoded; ``None`` where there is none."""

    def get(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> list[Transition | None]:
        """Experiences by id; ``None`` where there is none."""

    def feedback(self, feedback: Feedback) -> int:
        """Stores feedback; returns how many stored experiences it is about."""

    def feedback_of(self, id: int) -> list[Feedback]:  # noqa: A002 - the record's own name
        """All that was fed back about an experience and its episode."""

    def search(
        self, text: str, *, outcome: Outcome | None = None, agent: str | None = None, limit: int = 10
    ) -> list[tuple[int, float]]:
        """The experiences whose states are most like a text, the best first, with their scores."""

    def changes(self, since: int) -> Changes:
        """What happened since a change number."""

    def stats(self) -> StoreStats:
        """Figures of the store."""

    def flush(self) -> None:
        """Returns once everything handed in before is kept."""

    def close(self) -> None:
        """Writes what is pending and lets go of the file."""

    def __enter__(self) -> Self:
        """The store itself; leaving closes it."""

    def __exit__(self, *exception: object) -> None:
        """Closes the store."""
