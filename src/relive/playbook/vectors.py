"""Vectors of lessons: made where there is something that makes them, kept in the store, compared all at once.

Only active lessons have one. They are read again when the book changed, which its newest history entry and a counter of
vectors tell, in whatever process it happened.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import apsw
import numpy as np
import numpy.typing as npt

from relive.playbook import shelf
from relive.playbook.exposures import remember, remembered
from relive.playbook.lesson import STATUSES, InvalidLessonError, Lesson
from relive.storage.connection import fetch

Embed: TypeAlias = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Makes vectors of texts: float32 ``[texts, dimensions]``; `relive.llm.Upstream.embed` is one."""

_SAVED = "playbook_vectors"
_ACTIVE = STATUSES.index("active")


class Vectors(NamedTuple):
    """The vectors of a tenant's active lessons.

    Attributes:
        stamp: What the book was like when they were read.
        ids: int64 ``[n]``.
        agents: Whose each lesson is, ``[n]``; empty: shared by all.
        matrix: float32 ``[n, dimensions]``, of length 1 each.
    """

    stamp: tuple[int, int] | None
    ids: npt.NDArray[np.int64]
    agents: npt.NDArray[np.str_]
    matrix: npt.NDArray[np.float32]


def stamp(connection: apsw.Connection) -> tuple[int, int]:
    """What changes whenever a lesson or a vector does."""
    newest = connection.execute("SELECT coalesce(max(id), 0) FROM lesson_version").get
    return newest, remembered(connection, _SAVED) or 0


def load(connection: apsw.Connection, tenant: str) -> Vectors:
    """The vectors there are; only those as long as the newest, for another model's cannot be compared with its."""
    rows = fetch(
        connection,
        """SELECT v.id, l.agent, v.body FROM lesson_vector v JOIN lesson l ON l.id = v.id
        WHERE l.tenant = ? AND l.status = ? ORDER BY v.id""",
        (tenant, _ACTIVE),
    )
    length = len(rows[-1][2]) if rows else 0
    rows = [row for row in rows if len(row[2]) == length]
    ids, agents, bodies = zip(*rows, strict=True) if rows else ((), (), ())
    matrix = np.frombuffer(b"".join(bodies), "<f4").reshape(len(rows), length // 4)
    return Vectors(stamp(connection), np.array(ids, np.int64), np.array(agents, np.str_), matrix)


def nearest(known: Vectors, situation: npt.NDArray[np.float32], agent: str | None, limit: int) -> dict[int, float]:
    """Cosines of the lessons nearest to a situation, the nearest first.

    Args:
        known: The vectors.
        situation: float32 ``[dimensions]``.
        agent: Only this agent's lessons and the shared ones; ``None``: of all.
        limit: At most so many.

    Raises:
        InvalidLessonError: the situation's vector has another length than the lessons'.
    """
    if not len(known.ids):
        return {}
    if len(situation) != known.matrix.shape[1]:
        raise InvalidLessonError(
            f"Vectors now have {len(situation)} numbers, those kept have {known.matrix.shape[1]}: another model made "
            "them. Name the model that made them, or edit the lessons to have them made anew."
        )
    cosine = known.matrix @ (situation / max(float(np.linalg.norm(situation)), 1e-12))
    if agent is not None:
        cosine[(known.agents != agent) & (known.agents != "")] = -np.inf
    best = np.argpartition(-cosine, min(limit, len(cosine)) - 1)[:limit]
    best = best[np.argsort(-cosine[best], kind="stable")]
    return {int(known.ids[at]): float(cosine[at]) for at in best if np.isfinite(cosine[at])}


def missing(connection: apsw.Connection, tenant: str, limit: int) -> list[Lesson]:
    """Active lessons that have no vector yet."""
    rows = fetch(
        connection,
        """SELECT id FROM lesson WHERE tenant = ? AND status = ? AND id NOT IN (SELECT id FROM lesson_vector)
        ORDER BY id LIMIT ?""",
        (tenant, _ACTIVE, limit),
    )
    return [lesson for lesson in shelf.read(connection, [row[0] for row in rows]) if lesson is not None]


def save(connection: apsw.Connection, lessons: Sequence[tuple[int, int]], made: npt.NDArray[np.float32]) -> None:
    """Keeps vectors of lessons, given by id and version, scaled to length 1; of a text that changed since, it does not.

    Their number is counted, so that other processes read them.
    """
    unit = made / np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-12)
    connection.executemany(
        "INSERT OR REPLACE INTO lesson_vector SELECT id, ? FROM lesson WHERE id = ? AND version = ?",
        [(row.astype("<f4").tobytes(), *one) for one, row in zip(lessons, unit, strict=True)],
    )
    remember(connection, _SAVED, (remembered(connection, _SAVED) or 0) + len(lessons))


def checked(made: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
    """Vectors in the right shape.

    Raises:
        InvalidLessonError: there is not one finite row for each text.
    """
    array = np.asarray(made, np.float32)
    if array.ndim != 2 or len(array) != count or not np.isfinite(array).all():
        raise InvalidLessonError(
            f"embed gave an array of shape {array.shape} for {count} texts; it must give one finite row each."
        )
    return array
