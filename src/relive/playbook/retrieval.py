"""Which lessons are about a situation: by words, by vectors where there are any, fused by rank.

A lesson's *distance* to a situation is from 0 to 1: 1 minus how much of the lesson's condition (or of its text, where
it has none) occurs in the situation, each word weighted by its rarity; with vectors the smaller of that and 1 - cosine.

Fusion is by reciprocal rank, 1 / (60 + rank) summed over the lists (Cormack, Clarke and Büttcher 2009). Of a query's
words only the rarest are looked up: a word that stands in every second lesson tells nothing, and costs the most.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import apsw

from relive.playbook import shelf
from relive.playbook.lesson import STATUSES, Lesson, Status
from relive.storage.connection import fetch
from relive.storage.text import tokens

FUSION = 60
"""The constant of reciprocal-rank fusion."""

WIDER = 4
"""How many times more is looked at than is wanted, by words and by vectors each."""

MOST_WORDS = 8
"""Words of a situation that are looked up."""

_COMMON = 500  # lessons; a word in more of them is looked up only if no rarer one is there
_FEW = 3  # rare words that make looking up common ones unnecessary


class Found(NamedTuple):
    """A lesson that may be about a situation.

    Attributes:
        lesson: The lesson.
        distance: From 0 (all of its condition occurs) to 1.
        rank: Its place among those found, from 0.
    """

    lesson: Lesson
    distance: float
    rank: int


def search(
    connection: apsw.Connection,
    text: str,
    *,
    tenant: str,
    agent: str | None,
    status: Status | None = "active",
    limit: int = 10,
    general: bool = False,
    near: Mapping[int, float] | None = None,
) -> list[Found]:
    """The lessons nearest to a situation, the nearest first.

    Args:
        connection: Any connection to the store.
        text: The situation; never read as a query language.
        tenant: Whose book.
        agent: Lessons of this agent and shared ones; ``None``: of all agents.
        status: Only with this status; ``None``: any.
        limit: At most so many.
        general: Lessons that apply always belong to every situation, at distance 0.
        near: Lessons that are near by their vectors, the nearest first, with their cosine; see `vectors`.
    """
    near, wanted = near or {}, WIDER * limit
    asked = tokens(text)
    counts = _rarity(connection, asked)
    by_words = _by_words(connection, counts, tenant, agent, status, wanted)
    always: list[int] = _general(connection, tenant, agent, status, wanted) if general else []
    order = fuse([by_words, list(near), always])
    words = frozenset(asked)
    found: list[Found] = []
    whole = int(connection.execute("SELECT coalesce(max(id), 0) FROM lesson").get)
    for number in order:
        if len(found) == limit:
            break
        lesson = shelf.read(connection, [number])[0]
        if lesson is None or lesson.tenant != tenant or (status is not None and lesson.status != status):
            continue
        if agent is not None and lesson.agent not in (agent, None):
            continue
        if general and not lesson.text.when:
            found.append(Found(lesson, 0.0, len(found)))
            continue
        distance = min(_lacking(lesson, words, counts, whole), 1.0 - max(near.get(lesson.id, 0.0), 0.0))
        found.append(Found(lesson, distance, len(found)))
    return found


def fuse(lists: Sequence[Sequence[int]]) -> list[int]:
    """Ids of several rankings in one, the best first: reciprocal-rank fusion."""
    score: dict[int, float] = {}
    for ranking in lists:
        for rank, number in enumerate(ranking):
            score[number] = score.get(number, 0.0) + 1.0 / (FUSION + rank + 1)
    return sorted(score, key=lambda number: (-score[number], number))


def _rarity(connection: apsw.Connection, words: Sequence[str]) -> dict[str, int]:
    """In how many lessons each word stands, counted up to `_COMMON`; words that stand in none are left out."""
    counts: dict[str, int] = {}
    for word in dict.fromkeys(words[:200]):
        count = connection.execute(
            "SELECT count(*) FROM (SELECT 1 FROM lesson_text WHERE lesson_text MATCH ? LIMIT ?)",
            (f'"{word}"', _COMMON),
        ).get
        if count:
            counts[word] = count
    return counts


def _by_words(
    connection: apsw.Connection,
    counts: dict[str, int],
    tenant: str,
    agent: str | None,
    status: Status | None,
    wanted: int,
) -> list[int]:
    ranked = sorted(counts, key=lambda word: (counts[word], word))[:MOST_WORDS]
    rare = [word for word in ranked if counts[word] < _COMMON]
    chosen = rare if len(rare) >= _FEW else ranked[: max(_FEW, len(rare))]
    found = _matching(connection, chosen, tenant, agent, status, wanted, "bm25(lesson_text), l.id")
    if len(found) < wanted // WIDER:  # a word that is common among others' lessons may be rare among these
        others = [word for word in counts if word not in chosen]
        found += _matching(connection, others, tenant, agent, status, wanted - len(found), "lesson_text.rowid")
    return list(dict.fromkeys(found))


def _matching(
    connection: apsw.Connection,
    words: Sequence[str],
    tenant: str,
    agent: str | None,
    status: Status | None,
    limit: int,
    order: str,
) -> list[int]:
    """Lessons of this scope that hold one of the words."""
    if not words:
        return []
    match = " OR ".join(f'"{word}"' for word in words)
    terms, values = ["l.tenant = ?"], [tenant]
    if agent is not None:
        terms.append("l.agent IN (?, '')")
        values.append(agent)
    if status is not None:
        terms.append(f"l.status = {STATUSES.index(status)}")
    return [
        row[0]
        for row in fetch(
            connection,
            f"""SELECT lesson_text.rowid FROM lesson_text JOIN lesson l ON l.id = lesson_text.rowid
            AND {" AND ".join(terms)} WHERE lesson_text MATCH ? ORDER BY {order} LIMIT ?""",  # noqa: S608 - own terms
            (*values, match, limit),
        )
    ]


def _general(
    connection: apsw.Connection, tenant: str, agent: str | None, status: Status | None, limit: int
) -> list[int]:
    """Lessons that apply always, the most useful first; nothing without agent and status."""
    if agent is None or status is None:
        return []
    rows: list[tuple[int, int, float]] = []
    for scope in dict.fromkeys((agent, "")):
        rows += fetch(
            connection,
            """SELECT id, proved, effect FROM lesson WHERE tenant = ? AND agent = ? AND status = ?
            AND json_extract(text, '$.when') = '' ORDER BY proved DESC, effect DESC LIMIT ?""",
            (tenant, scope, STATUSES.index(status), limit),
        )
    return [row[0] for row in sorted(rows, key=lambda row: (-row[1], -row[2], row[0]))]


def _lacking(lesson: Lesson, words: frozenset[str], counts: dict[str, int], whole: int) -> float:
    """Which share of a lesson's condition does not occur among the words, by rarity."""
    condition = set(tokens(lesson.text.when or lesson.text.do))
    if not condition:
        return 1.0
    # a word that the situation does not hold was not counted; it is taken as rare as any
    weight = {word: math.log(1.0 + (whole + 1) / (counts.get(word, 0) + 1)) for word in condition}
    return 1.0 - sum(weight[word] for word in condition & words) / sum(weight.values())
