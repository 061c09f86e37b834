"""`RemoteMemory`: the memory that a `relive serve` somewhere owns, used as if it were in this process.

Workers anywhere write, a trainer anywhere draws. Arguments are checked here before anything is sent, so a bad priority
changes nothing; what the server refuses raises the class that a memory in this process raises. A request whose answer
was lost is sent again: additions carry ids of their own, so that none is kept twice; draws do not, so one that was lost
on the way is drawn anew.
"""

import operator
import os
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self
from urllib.parse import urlencode

import msgspec
import numpy as np
import numpy.typing as npt

from relive.buffer import Batch, BufferSettingError, BufferStats, InvalidPriorityError, Selection
from relive.buffer.checks import LARGEST_PRIORITY, floats_of, ids_of, refusal
from relive.buffer.rows import NO_IDS, Floats, Ids
from relive.client.connection import Connection
from relive.client.errors import AccessRefusedError, NotThereError
from relive.errors import InvalidExperienceError
from relive.experience import Feedback, Outcome, Transition
from relive.storage.forget import Forgotten
from relive.storage.rows import Experiences
from relive.storage.stored import Stored
from relive.storage.travel import batch_of, new_fields, stored_of

KEY_VARIABLE = "RELIVE_KEY"
"""The environment variable that holds the key, where none is given."""

_PAGE = 1_000
_NOTHING = Selection(ids=NO_IDS, probabilities=np.empty(0), weights=np.empty(0))


class RemoteMemory:
    """The memory of a server; made by `relive.open` of its address.

    Safe to use from many threads. Figures, draws and priorities are the server's: its sampler, its limits, its clock.

    Args:
        url: The server's address, such as ``http://127.0.0.1:8400``.
        key: One of its keys (`relive keys create NAME --scope read --scope write --scope feedback`; `remove` and
            `forget` need the scope admin); ``None``: what the environment variable ``RELIVE_KEY`` holds, if it is set.
        timeout: Seconds for one answer.

    Attributes:
        url: The server's address.

    Raises:
        UnreachableError: nobody answers there.
        AccessRefusedError: the server asks for a key, or does not know this one.
    """

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 30.0) -> None:
        shown = key if key is not None else os.environ.get(KEY_VARIABLE, "").strip() or None
        self._connection = Connection(url, key=shown, timeout=timeout)
        self.url = self._connection.url
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._greet()

    # ---- Adding

    def add(self, experience: Transition, priority: float | None = None) -> int:
        """Adds one experience and returns its id once the server keeps it.

        Args:
            experience: What happened.
            priority: Raw priority, at least 0; ``None``: the server's rule, else the largest one stored.

        Raises:
            InvalidExperienceError: it cannot be stored.
            InvalidPriorityError: the priority is NaN, infinite, negative or too large; nothing was added.
            StorageError: it could not be kept, or the server not be reached.
        """
        return int(self.add_batch([experience], None if priority is None else [priority])[0])

    def add_batch(self, experiences: Sequence[Transition], priorities: npt.ArrayLike | None = None) -> Ids:
        """Adds experiences, all or none.

        Args:
            experiences: What happened.
            priorities: One raw priority for each; ``None``: as in `add`.

        Returns:
            int64 ``[len(experiences)]``, their ids.
        """
        return self._add(*self._checked(experiences, priorities))

    def add_soon(self, experiences: Sequence[Transition], priorities: npt.ArrayLike | None = None) -> "Future[Ids]":
        """Like `add_batch`, but returns at once; the future has the ids when they are kept."""
        body = self._checked(experiences, priorities)
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="relive-remote")
            return self._executor.submit(self._add, *body)

    # ---- Drawing, and what becomes known later

    def sample(self, batch_size: int, *, strict: bool = False) -> Batch:
        """Draws experiences by the server's sampler; see `ReplayBuffer.sample`.

        Raises:
            NotEnoughExperiencesError: `strict`, and there are fewer.
            NotOwnerError: the server does not own its store's sampling index.
        """
        count = operator.index(batch_size)
        if count < 0:
            raise BufferSettingError(f"batch_size is {count}; it must be at least 0.")
        if count == 0:
            return Batch(_NOTHING, Experiences([]), 0, 0)
        return batch_of(self._connection.ask("POST", "/api/sample", {"batch_size": count, "strict": strict}))

    def update_priorities(
        self, ids: npt.ArrayLike, priorities: npt.ArrayLike | None = None, *, td_errors: npt.ArrayLike | None = None
    ) -> int:
        """Sets priorities, as raw values or as signed TD errors; see `ReplayBuffer.update_priorities`.

        Returns:
            How many of the ids were still stored.

        Raises:
            InvalidPriorityError: a value is bad; no priority was changed.
        """
        if (priorities is None) == (td_errors is None):
            raise InvalidPriorityError("Pass exactly one of priorities and td_errors.")
        name = "td_errors" if priorities is None else "priorities"
        wanted, values = ids_of(ids), floats_of(name, td_errors if priorities is None else priorities)
        if len(wanted) != len(values):
            raise InvalidPriorityError(f"There are {len(values)} values for {len(wanted)} ids.")
        bad = _first_bad(np.abs(values) if priorities is None else values)
        if bad is not None:
            raise refusal(f"experience {wanted[bad]}", values[bad])
        return int(self._connection.ask("POST", "/api/priorities", {"ids": wanted, name: values})["changed"])

    def feedback(
        self,
        about: int | str | Feedback,
        reward: float | None = None,
        *,
        source: str = "user",
        key: str = "reward",
        comment: str | None = None,
        demonstration: Any = None,
    ) -> int:
        """Says what became known about an experience or an episode. Kinds of feedback that the server declares hold.

        Args:
            about: The experience's id, or the one that an answer's header ``x-relive-experience-id`` gave, or a whole
                `Feedback`.
            reward: The reward by this source.
            source: Who says so; the same source and key replaces what it said before.
            key: Which aspect.
            comment: Free text for people.
            demonstration: The right action; it becomes an experience of its own too.

        Returns:
            How many stored experiences it is about.
        """
        if isinstance(about, Feedback):
            given = {name: value for name, value in msgspec.structs.asdict(about).items() if value is not None}
        else:
            named = about if isinstance(about, str) else operator.index(about)
            said = {"reward": reward, "comment": comment, "demonstration": demonstration}
            given = {"experience_id": named, "source": source, "key": key, **said}
            if not any(value is not None for value in said.values()):
                raise InvalidExperienceError("Feedback says nothing: give a reward, a comment or a demonstration.")
        try:
            return int(self._connection.ask("POST", "/v1/feedback", given)["experiences"] or 0)
        except NotThereError:
            return 0

    # ---- Taking out; the key needs the scope admin

    def remove(self, ids: npt.ArrayLike) -> int:
        """Takes experiences out for good, and returns how many were still there.

        Raises:
            NotOwnerError: the server does not own its store's sampling index.
        """
        return int(self._connection.ask("POST", "/api/remove", {"ids": ids_of(ids)})["removed"])

    def forget(self, *, agent: str | None = None, episode: str | None = None, match: str | None = None) -> Forgotten:
        """Takes experiences out so that no byte of them is left in the server's file; what is given must all hold.

        The server writes the whole file anew: open the memory of a large one with a longer `timeout`.

        Args:
            agent: All of this agent.
            episode: All of this episode.
            match: All that holds this text anywhere, large and small letters alike.

        Returns:
            How much it was, and which copies of the store, on the server's machine, may hold it still.

        Raises:
            NothingToForgetError: nothing is given.
            StorageBusyError: it is deleted, but another process keeps an older view of the file open.
        """
        asked = {"agent": agent, "episode": episode, "match": match}
        return msgspec.convert(self._connection.ask("POST", "/api/forget", asked), Forgotten)

    # ---- Looking

    def get(self, ids: Sequence[int] | Ids) -> list[Transition | None]:
        """Experiences by id, with reward and outcome as they hold now; ``None`` where there is none."""
        wanted = ids_of(np.asarray(ids, np.int64) if len(ids) else NO_IDS)
        found: list[Transition | None] = []
        for start in range(0, len(wanted), _PAGE):
            answer = self._connection.ask("POST", "/api/get", {"ids": wanted[start : start + _PAGE]})
            found += [None if fields is None else stored_of(fields).transition for fields in answer["experiences"]]
        return found

    def query(
        self, *, after: int | None = None, limit: int = 100, newest_first: bool = False, **conditions: Any
    ) -> list[Stored]:
        """One page of what is stored; see `SqliteStorage.query` for the conditions."""
        found: list[Stored] = []
        while len(found) < limit:
            page = min(_PAGE, limit - len(found))
            asked = {**conditions, "after": after, "limit": page, "newest_first": newest_first}
            answer = self._connection.ask("POST", "/api/query", asked)["experiences"]
            found += map(stored_of, answer)
            if len(answer) < page:
                break
            after = found[-1].id
        return found

    def search(
        self, text: str, *, outcome: Outcome | None = None, agent: str | None = None, limit: int = 10
    ) -> list[tuple[int, float]]:
        """The experiences whose states are most like a text: (id, score), the best first; at most 1,000."""
        given = {"text": text, "outcome": outcome, "agent": agent, "limit": limit}
        query = urlencode({name: value for name, value in given.items() if value is not None}, errors="replace")
        found = self._connection.ask("GET", f"/api/search?{query}")["found"]
        return [(int(one["id"]), float(one["score"])) for one in found]

    def stats(self) -> BufferStats:
        """Counts, rewards and costs of what is stored."""
        return msgspec.convert(self._connection.ask("GET", "/api/stats"), BufferStats)

    def __len__(self) -> int:
        return self.stats().size

    # ---- Life

    def flush(self) -> None:
        """Returns once everything handed in before by `add_soon` is kept."""
        with self._lock:
            executor = self._executor
        if executor is not None:
            executor.submit(_nothing).result()

    def close(self) -> None:
        """Sends what is pending and closes the connections; a second call does nothing."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteMemory({self.url!r})"

    def _greet(self) -> None:
        """Makes sure that a server answers there and knows the key, whatever the key may do."""
        try:
            self._connection.ask("POST", "/api/get", {"ids": NO_IDS})
        except AccessRefusedError as error:
            if "may not" not in str(error):
                self._connection.close()
                raise
        except BaseException:
            self._connection.close()
            raise

    def _checked(
        self, experiences: Sequence[Transition], priorities: npt.ArrayLike | None
    ) -> tuple[list[dict[str, Any]], Floats | None, list[str]]:
        """What is sent for new experiences."""
        for experience in experiences:
            if not isinstance(experience, Transition):
                raise InvalidExperienceError(
                    f"A store keeps relive.Transition(state=…, action=…) objects, not {type(experience).__name__}."
                )
        values = None
        if priorities is not None:
            values = floats_of("priorities", priorities)
            if len(values) != len(experiences):
                raise InvalidPriorityError(f"There are {len(values)} priorities for {len(experiences)} experiences.")
            bad = _first_bad(values)
            if bad is not None:
                raise refusal(f"experience {bad} of the new ones", values[bad])
        return list(map(new_fields, experiences)), values, [secrets.token_hex(16) for _ in experiences]

    def _add(self, experiences: list[dict[str, Any]], priorities: Floats | None, uids: list[str]) -> Ids:
        if not experiences:
            return NO_IDS
        body = {"experiences": experiences, "priorities": priorities, "uids": uids}
        ids: Ids = np.asarray(self._connection.ask("POST", "/api/experiences", body)["ids"], np.int64)
        return ids


def _first_bad(values: Floats) -> int | None:
    """The place of the first value that is no priority."""
    bad = np.flatnonzero(~((values >= 0) & (values <= LARGEST_PRIORITY)))
    return int(bad[0]) if len(bad) else None


def _nothing() -> None:
    """What is waited for by `RemoteMemory.flush`."""
