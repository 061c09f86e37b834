"""The episodes of a store that something may be learnt from: those that ended, whose outcome is known."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

from relive.experience import Transition
from relive.storage import SqliteStorage
from relive.storage.stored import Stored

TAG = "reflection"
"""The tag of records of what a reflecting model was asked and said; nothing is learnt from them."""

Steps = list[tuple[int, Transition]]
"""An episode's experiences with their ids, in order."""

_PAGE = 500


def finished_episodes(
    store: SqliteStorage,
    *,
    agent: str | None = None,
    distrusted: frozenset[int] = frozenset(),
    newest: int | None = None,
) -> list[Steps]:
    """The episodes whose outcome is known, without calls within their calls and without what reflections left.

    Args:
        store: The store.
        agent: Only this agent's.
        distrusted: Experiences not to be learnt from; episodes that hold one are left out.
        newest: Only so many experiences are looked at, the newest first; ``None``: all, the oldest first.
    """
    steps: dict[tuple[str, str], Steps] = defaultdict(list)
    bad: set[tuple[str, str]] = set()
    for stored in islice(_records(store, agent, newest_first=newest is not None), newest):
        key = stored.agent, stored.episode_id
        if stored.id in distrusted:
            bad.add(key)
        if stored.parent is None and TAG not in stored.outline().tags:
            steps[key].append((stored.id, stored.transition))
    found = (sorted(of, key=lambda one: (one[1].step, one[0])) for key, of in steps.items() if key not in bad)
    return [one for one in found if one[-1][1].outcome != "unknown"]


def _records(store: SqliteStorage, agent: str | None, *, newest_first: bool) -> Iterator[Stored]:
    after: int | None = None
    while page := store.query(agent=agent, after=after, limit=_PAGE, newest_first=newest_first):
        after = page[-1].id
        yield from page
