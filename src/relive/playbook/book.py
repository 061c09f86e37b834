"""`Playbook`: the lessons of a store, what they are worth, and every change to them.

The lessons are in the same file as the experiences. All writes go through the store's one writer, each call is one
transaction. Any number of processes may use the book; what one changes the next look of another sees.
"""

import logging
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from relive.errors import ReliveError
from relive.memory import Memory
from relive.playbook import changes, exchange, exposures, retrieval, rollback, shelf, uplift, vectors
from relive.playbook.changes import Applied, Author
from relive.playbook.experiment import Experiments
from relive.playbook.exposures import BOOK, Followed
from relive.playbook.lesson import (
    DEFAULT_TENANT,
    STATUSES,
    Add,
    Approve,
    Delta,
    Lesson,
    LessonText,
    Retire,
    Source,
    Status,
)
from relive.playbook.retrieval import Found
from relive.playbook.rollback import Origins, RolledBack
from relive.playbook.shelf import Version
from relive.playbook.trust import Trust
from relive.playbook.uplift import Evidence, Interval, Rules, Shrunk
from relive.playbook.vectors import Embed, Vectors
from relive.storage import SqliteStorage, playbook_tables
from relive.storage.audit import system_user
from relive.storage.connection import fetch
from relive.storage.transaction import Transaction

CAPACITY = 200_000
"""Most lessons of a book, whatever their status."""

_KEY = "playbook_key"
_EMBEDDED = 256  # lessons embedded together
_log = logging.getLogger("relive.playbook")


class Playbook:
    """The lessons of one tenant in a store.

    Args:
        memory: The memory, or the store, that holds them.
        tenant: Whose lessons; lessons of different tenants never meet.
        trust: When lessons are used without a person's approval; by default a person approves each.
        rules: When lessons are settled and retired for what they are worth.
        capacity: Most lessons kept; beyond, the least useful leave: retired ones first, proved ones in use last.
        embed: Makes vectors of texts, so that lessons are found by meaning too; ``None``: by words only.
        author: Who makes changes; ``None``: the user of the operating system.

    Attributes:
        experiments: Whole variants of agents that are compared.

    Raises:
        ValueError: `capacity` is below 1.
    """

    def __init__(
        self,
        memory: Memory | SqliteStorage,
        *,
        tenant: str = DEFAULT_TENANT,
        trust: Trust | None = None,
        rules: Rules | None = None,
        capacity: int = CAPACITY,
        embed: Embed | None = None,
        author: str | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1.")
        self.storage = memory.storage if isinstance(memory, Memory) else memory
        self.tenant = tenant
        self.trust = trust or Trust()
        self.rules = rules or Rules()
        self.capacity = capacity
        self._embed = embed
        self.author = author or system_user()
        self.experiments = Experiments(self)
        self._vectors: Vectors | None = None
        self._key: bytes | None = None

    # ---- Changing

    def add(
        self,
        do: str,
        *,
        when: str = "",
        when_not: str = "",
        why: str = "",
        title: str = "",
        agent: str | None = None,
        evidence: Sequence[int] = (),
    ) -> Applied:
        """Writes a lesson by hand, as a candidate; `approve` puts it into use.

        Args:
            do: What to do.
            when: In which situations; empty: always.
            when_not: Where it must not be applied.
            why: What it rests on.
            title: A few words to recognise it by.
            agent: Whose; ``None``: shared by all.
            evidence: Ids of experiences that speak for it.
        """
        text = LessonText(do=do, when=when, when_not=when_not, why=why, title=title)
        sources = tuple(Source(ref=f"experience:{n}", experience_id=int(n)) for n in evidence)
        if not sources:
            sources = (Source(ref=f"person:{self.author}", by=self.author),)
        return self.apply([Add(text=text, agent=agent, sources=sources, origin="person")], person=True)[0]

    def apply(self, deltas: Sequence[Delta], *, person: bool = False, who: str | None = None) -> list[Applied]:
        """Applies changes in one transaction, all or none, and returns what became of each.

        Args:
            deltas: The changes, in order.
            person: They are a person's: only people approve and bring back. What a program or a model proposes is
                never a person's.
            who: Who makes them; ``None``: this book's author.

        Raises:
            InvalidLessonError: one of them names a lesson that is not there; nothing was done.
        """
        author = Author(who or self.author, person)

        def act(transaction: Transaction) -> list[Applied]:
            applied = changes.apply(transaction, deltas, tenant=self.tenant, author=author, trusted=self.trust)
            self._make_room(transaction, author)
            return applied

        done: list[Applied] = self.storage.write(act, max(len(deltas), 1)).result()
        return done

    def approve(self, lesson: int) -> Applied:
        """Puts a lesson into use, whatever its status; for people."""
        return self.apply([Approve(lesson=lesson)], person=True)[0]

    def retire(self, lesson: int, reason: str = "") -> Applied:
        """Takes a lesson out of use; it stays in the book, so that it is not learnt again."""
        reason = reason or f"Retired by {self.author}."
        return self.apply([Retire(lesson=lesson, reason=reason)], person=True)[0]

    def rollback(
        self,
        *,
        experience: int | None = None,
        agent: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> RolledBack:
        """Takes back all that came from an experience, an agent or a time span, through prompts already given.

        Raises:
            InvalidLessonError: nothing is given.
        """
        self.follow()
        origins = Origins(experience=experience, agent=agent, since=since, until=until)
        author = Author(self.author, person=True)
        done: RolledBack = self.storage.write(
            lambda transaction: rollback.roll_back(transaction, origins, author, self.rules)
        ).result()
        return done

    def follow(self) -> Followed:
        """Takes in what calls came to since the last time; settles or retires lessons, and reviews the experiment."""
        whole = Followed()
        while True:
            part: Followed = self.storage.write(lambda transaction: exposures.follow(transaction, self.rules)).result()
            whole = Followed(
                whole.experiences + part.experiences,
                whole.exposures + part.exposures,
                whole.settled + part.settled,
                whole.reviewed + part.reviewed,
                whole.proved + part.proved,
                whole.retired + part.retired,
            )
            if part.complete:
                self.storage.write(self.experiments.review).result()
                return whole

    # ---- Looking

    def __len__(self) -> int:
        """How many lessons there are, whatever their status."""
        return sum(self.counts().values())

    def counts(self) -> dict[str, int]:
        """Lessons by status."""
        rows = self.storage.view(
            lambda c: fetch(c, "SELECT status, count(*) FROM lesson WHERE tenant = ? GROUP BY status", (self.tenant,))
        )
        return {status: dict(rows).get(number, 0) for number, status in enumerate(STATUSES)}

    def get(self, lesson: int) -> Lesson:
        """A lesson by its id.

        Raises:
            InvalidLessonError: there is none.
        """
        return self.storage.view(lambda connection: shelf.require(connection, lesson, self.tenant))

    def lessons(
        self,
        *,
        status: Status | None = None,
        agent: str | None = None,
        after: int | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[Lesson]:
        """One page of lessons in the order of their ids; `agent`: what this agent may be shown."""
        return self.storage.view(
            lambda c: shelf.listing(
                c, self.tenant, status=status, agent=agent, after=after, limit=limit, newest_first=newest_first
            )
        )

    def most_useful(self, limit: int = 5) -> list[Lesson]:
        """The lessons in use that helped most for sure: those whose interval begins highest, the highest first."""
        return self.storage.view(lambda connection: shelf.most_useful(connection, self.tenant, limit))

    def history(self, lesson: int, *, limit: int = -1) -> list[Version]:
        """What happened to a lesson, the oldest first; `limit`: only the newest so many entries, -1: all."""
        self.get(lesson)
        return self.storage.view(lambda connection: shelf.history(connection, lesson, limit=limit))

    def sources(self, lesson: int, *, limit: int = -1) -> list[tuple[Source, bool]]:
        """What speaks for a lesson (True) and against it (False); `limit`: the first so many, -1: all."""
        self.get(lesson)
        return self.storage.view(lambda connection: shelf.sources(connection, lesson, limit=limit))

    def search(
        self,
        text: str,
        *,
        agent: str | None = None,
        status: Status | None = "active",
        limit: int = 10,
        general: bool = False,
    ) -> list[Found]:
        """The lessons nearest to a situation, the nearest first.

        Args:
            text: The situation; never read as a query language.
            agent: Of this agent and shared; ``None``: of all.
            status: Only with this status; ``None``: any.
            limit: At most so many.
            general: Lessons that apply always are found too, whatever the situation.
        """
        near = self._near(text, agent, retrieval.WIDER * limit)
        return self.storage.view(
            lambda c: retrieval.search(
                c,
                text,
                tenant=self.tenant,
                agent=agent,
                status=status,
                limit=limit,
                general=general,
                near=near,
            )
        )

    def evidence(self, agent: str | None = None) -> Evidence:
        """How episodes went that used the book, and those that were held out from all of it."""
        return self.storage.view(lambda c: exposures.evidence_of(c, BOOK, 0, tenant=self.tenant, agent=agent))

    def worth(self, agent: str | None = None) -> Interval:
        """What the whole book is worth: success of episodes that used it against those held out from all of it."""
        return uplift.interval(self.evidence(agent), alpha=self.rules.alpha)

    def shrunk(self, lessons: Sequence[Lesson]) -> Shrunk:
        """The lessons' uplifts drawn together, for ranking; see `uplift.shrink`."""
        known = [one for one in lessons if one.calls]
        found = uplift.shrink([one.uplift.estimate for one in known], [one.uplift.error for one in known])
        place = {one.id: at for at, one in enumerate(known)}
        means = [found.means[place[one.id]] if one.id in place else found.prior_mean for one in lessons]
        errors = [found.errors[place[one.id]] if one.id in place else found.prior_error for one in lessons]
        return Shrunk(np.array(means), np.array(errors), found.prior_mean, found.prior_error)

    def distrusted(self, ids: Sequence[int]) -> set[int]:
        """Which of these experiences a rollback reached: nothing may be learnt from them, nor may they be shown."""
        return self.storage.view(lambda connection: playbook_tables.distrusted(connection, ids))

    def all_distrusted(self) -> frozenset[int]:
        """All experiences that nothing may be learnt from."""
        rows = self.storage.view(lambda connection: fetch(connection, "SELECT experience_id FROM distrusted"))
        return frozenset(row[0] for row in rows)

    def key(self) -> bytes:
        """The secret by which episodes are assigned; made with the book, the same for all processes."""
        if self._key is None:

            def act(transaction: Transaction) -> str:
                known: str | None = exposures.remembered(transaction.connection, _KEY)
                if known is None:
                    known = secrets.token_hex(32)
                    exposures.remember(transaction.connection, _KEY, known)
                return known

            known = self.storage.view(lambda connection: exposures.remembered(connection, _KEY))
            self._key = bytes.fromhex(known or self.storage.write(act).result())
        return self._key

    # ---- To and from files

    def export(self, *, status: Status | None = None) -> Iterable[dict[str, Any]]:
        """The lessons as JSON objects that `take_in` reads, with their sources."""
        after = 0
        while page := self.lessons(status=status, after=after):
            after = page[-1].id
            for lesson in page:
                yield exchange.to_json(lesson, self.sources(lesson.id))

    def take_in(self, records: Iterable[object], *, source: str) -> list[Applied]:
        """Adds lessons from JSON objects, as candidates; doing so twice adds nothing.

        Args:
            records: The objects.
            source: Where they come from, for their provenance.

        Raises:
            InvalidLessonError: one of them is no lesson; nothing was added.
        """
        adds = [exchange.from_json(record, source) for record in records]
        return self.apply(adds, person=True, who=f"import of {source}"[:200])

    # ---- Within

    def _make_room(self, transaction: Transaction, author: Author) -> None:
        """Removes the lessons that are worth least where there are more than `capacity`."""
        connection = transaction.connection
        count = connection.execute("SELECT count(*) FROM lesson WHERE tenant = ?", (self.tenant,)).get
        if count <= self.capacity:
            return
        # retired ones first, those in use last, so that no flood of candidates drives them out; then by uplift and use
        gone = fetch(
            connection,
            """SELECT id FROM lesson WHERE tenant = ?
            ORDER BY status != ?, status = ?, proved, effect > 0, effect, uses, support, id LIMIT ?""",
            (self.tenant, STATUSES.index("retired"), STATUSES.index("active"), count - self.capacity),
        )
        playbook_tables.remove(connection, [row[0] for row in gone])
        transaction.audit("lesson", who=author.name, target="room", before={"removed": [row[0] for row in gone][:100]})

    def _near(self, text: str, agent: str | None, limit: int) -> dict[int, float]:
        """The lessons whose vectors are nearest to a situation's; none where there are no vectors."""
        embed = self._embed
        if embed is None or limit < 1:
            return {}
        try:
            stamp = self.storage.view(vectors.stamp)
            if self._vectors is None or self._vectors.stamp != stamp:
                whole = self._embed_missing(embed)
                self._vectors = self.storage.view(lambda c: vectors.load(c, self.tenant))
                if not whole:
                    self._vectors = self._vectors._replace(stamp=None)  # the others' turn comes with the next search
            return vectors.nearest(self._vectors, vectors.checked(embed([text]), 1)[0], agent, limit)
        except ReliveError as error:
            _log.warning("Lessons are found by words alone: %s", error)
            return {}

    def _embed_missing(self, embed: Embed) -> bool:
        """Makes vectors of some lessons that have none; returns whether all of them have one now."""
        missing = self.storage.view(lambda c: vectors.missing(c, self.tenant, _EMBEDDED))
        if missing:
            made = vectors.checked(embed([f"{one.text.when} {one.text.do}" for one in missing]), len(missing))
            numbers = [(one.id, one.version) for one in missing]
            self.storage.write(lambda t: vectors.save(t.connection, numbers, made), len(missing)).result()
        return len(missing) < _EMBEDDED
