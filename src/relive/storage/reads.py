"""What can be asked of a store, by id or by a query; each answer is one consistent view."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from relive.experience import Feedback, Outcome, Transition
from relive.storage import audit, sampling
from relive.storage import feedback as feedback_rule
from relive.storage.audit import AuditEntry
from relive.storage.connection import bounded, errors_of
from relive.storage.pool import Pool
from relive.storage.protocol import Changes
from relive.storage.reading import Query, Reader
from relive.storage.sampling import SavedIndex
from relive.storage.stored import Stored
from relive.storage.transaction import changes_since
from relive.storage.usage_report import By, UsageRow, usage_rows

T = TypeVar("T")


class StoreReads:
    """The reading half of `SqliteStorage`."""

    path: Path
    _pool: Pool
    _reader: Reader

    def read(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> list[Stored | None]:
        """Experiences in the order of `ids`, parsed when looked at; ``None`` where there is none."""
        with errors_of(self.path), self._pool.reading() as connection:
            return self._reader.read(connection, ids)

    def view(self, look: Callable[[apsw.Connection], T]) -> T:
        """What `look` makes of the store, in one consistent view; it must only read."""
        with errors_of(self.path), self._pool.reading() as connection:
            return look(connection)

    def ids_of(self, uids: Sequence[bytes]) -> list[int | None]:
        """The id of each uid that was given to `append`; ``None`` where there is none."""
        with errors_of(self.path), self._pool.reading() as connection:
            return [connection.execute("SELECT id FROM experience WHERE uid = ?", (uid,)).get for uid in uids]

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
            return feedback_rule.of_experience(connection, bounded(id))

    def audit(
        self,
        *,
        action: str | None = None,
        who: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: int | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[AuditEntry]:
        """One page of what was done to the store, by whom and when; see `audit.entries`."""
        with errors_of(self.path), self._pool.reading() as connection:
            return audit.entries(
                connection,
                action=action,
                who=who,
                since=since,
                until=until,
                after=after,
                limit=limit,
                newest_first=newest_first,
            )

    def changes(self, since: int) -> Changes:
        """What happened after a change number, by anyone."""
        with errors_of(self.path), self._pool.reading() as connection:
            return changes_since(connection, bounded(since))

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

    def usage(
        self,
        *,
        by: Sequence[By] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        agent: str | None = None,
        zone: tzinfo = UTC,
    ) -> list[UsageRow]:
        """What recorded calls used and cost, grouped by day, model, agent or outcome; see `usage_report`."""
        with errors_of(self.path), self._pool.reading() as connection:
            return usage_rows(connection, by=by, since=since, until=until, agent=agent, zone=zone)

    def payload_bytes(self) -> int:
        """Size of payloads and tokens in the store, compressed."""
        with errors_of(self.path), self._pool.reading() as connection:
            return int(connection.execute("SELECT bytes FROM total").get)
