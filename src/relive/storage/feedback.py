"""What feedback does to an experience: the rule by which late rewards become its reward and its outcome.

Each key is a component of the reward. A component's value is the mean over the sources that gave a reward under that
key; what one source says of the experience itself goes before what it says of the whole episode. The component
``"reward"`` falls back to the reward the experience was recorded with.

    reward = Σ weight[key] · value[key]      over the components that have a value; none: the reward is not known

Weights are 1 unless the store was given others. Once any reward was fed back, the outcome is success if that reward is
at least `SUCCESS_AT`, else failure; before, it is the recorded one. A demonstration or a comment changes neither.
"""

from collections import defaultdict
from typing import Any

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from relive.experience import Feedback
from relive.storage import checks
from relive.storage.codec import decode_json, encode_payload
from relive.storage.connection import fetch
from relive.storage.damage import damage_to
from relive.storage.record import OUTCOME_NUMBERS

SUCCESS_AT = 0.5
"""The least reward that counts as success, unless the store was given another."""

MAIN_KEY = "reward"

MOST_WAITING = 100_000
"""Pieces of feedback kept for experiences and episodes that are not there yet; of more, the oldest are let go."""

LONGEST_WAIT = 90 * 86_400_000_000  # microseconds
LOOK_EVERY = 4096
"""New pieces of feedback between two looks at what waits, which reads all feedback."""

_WAITING = """FROM feedback f WHERE coalesce(f.experience_id >= (SELECT next_id FROM total), 1)
    AND NOT EXISTS (SELECT 1 FROM experience e WHERE e.episode_id = f.episode_id)"""
_UPSERT = """INSERT INTO feedback(experience_id, episode_id, source, key, reward, comment, demonstration, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT({column}, source, key) WHERE {column} IS NOT NULL DO UPDATE SET reward = excluded.reward,
    comment = excluded.comment, demonstration = excluded.demonstration, created_at = excluded.created_at"""
_UPSERT_EXPERIENCE = _UPSERT.format(column="experience_id")
_UPSERT_EPISODE = _UPSERT.format(column="episode_id")

_COLUMNS = "f.source, f.key, f.reward, f.comment, f.demonstration"


def columns(feedback: Feedback) -> tuple[Any, ...]:
    """What is written of a feedback, all but its time.

    Raises:
        InvalidExperienceError: a field has a value that the store cannot hold; the message names it.
    """
    f = feedback
    return (
        None if f.experience_id is None else checks.integer(f.experience_id, "experience_id", 1),
        None if f.episode_id is None else checks.text(f.episode_id, "episode_id"),
        checks.text(f.source, "source"),
        checks.text(f.key, "key"),
        None if f.reward is None else checks.number(f.reward, "reward"),
        None if f.comment is None else checks.text(f.comment, "comment"),
        None if f.demonstration is None else encode_payload(f.demonstration, "demonstration"),
    )


def write(connection: apsw.Connection, values: tuple[Any, ...], created_at: int) -> list[int]:
    """Writes one feedback (its `columns`), replacing what the same source said under the same key.

    Returns:
        Ids of the stored experiences it is about.
    """
    experience_id, episode_id = values[:2]
    last = connection.last_insert_rowid()
    if episode_id is not None:
        connection.execute(_UPSERT_EPISODE, (*values, created_at))
        rows = fetch(connection, "SELECT id FROM experience WHERE episode_id = ? ORDER BY id", (episode_id,))
        about = [row[0] for row in rows]
    else:
        next_id = connection.execute("SELECT next_id FROM total").get
        stored = connection.execute("SELECT 1 FROM experience WHERE id = ?", (experience_id,)).get
        if stored is None and experience_id < next_id:
            return []  # evicted or forgotten: nothing may hang on it
        connection.execute(_UPSERT_EXPERIENCE, (*values, created_at))
        about = [experience_id] if stored is not None else []
    added = connection.last_insert_rowid()
    if not about and added != last and added % LOOK_EVERY == 0:
        _let_go_of_forlorn(connection, created_at)
    return about


def waiting(connection: apsw.Connection) -> int:
    """How many pieces of feedback wait for an experience or an episode still to come."""
    return int(connection.execute(f"SELECT count(*) {_WAITING}").get)


def _let_go_of_forlorn(connection: apsw.Connection, now: int) -> None:
    """Deletes what has waited too long, and the oldest of what is too much."""
    connection.execute(
        f"DELETE FROM feedback WHERE id IN (SELECT f.id {_WAITING} AND f.created_at < ?)",  # noqa: S608 - own text
        (now - LONGEST_WAIT,),
    )
    connection.execute(
        f"""DELETE FROM feedback WHERE id IN
        (SELECT f.id {_WAITING} ORDER BY f.created_at DESC, f.id DESC LIMIT -1 OFFSET ?)""",  # noqa: S608 - own text
        (MOST_WAITING,),
    )


def said(connection: apsw.Connection, values: tuple[Any, ...]) -> dict[str, Any] | None:
    """What the source of a feedback (its `columns`) says now under the same key, without the words of it.

    Returns:
        ``reward``, and whether there is a ``comment`` and a ``demonstration``; ``None``: it says nothing.
    """
    column = "experience_id" if values[0] is not None else "episode_id"
    rows = fetch(
        connection,
        f"""SELECT reward, comment IS NOT NULL, demonstration IS NOT NULL FROM feedback
        WHERE {column} = ? AND source = ? AND key = ?""",  # noqa: S608 - one of two names
        (values[0] if values[0] is not None else values[1], values[2], values[3]),
    )
    if not rows:
        return None
    reward, comment, demonstration = rows[0]
    return {"reward": reward, "comment": bool(comment), "demonstration": bool(demonstration)}


def waiting_for(connection: apsw.Connection, first: int, last: int) -> list[int]:
    """Which of the experiences first..last, just added, had feedback waiting for them."""
    ids = [r[0] for r in fetch(
        connection,
        "SELECT DISTINCT experience_id FROM feedback WHERE experience_id BETWEEN ? AND ?", (first, last)
    )]  # fmt: skip
    if _any_for_episodes(connection):
        rows = fetch(
            connection,
            """SELECT id FROM experience e WHERE id BETWEEN ? AND ?
            AND EXISTS (SELECT 1 FROM feedback f WHERE f.episode_id = e.episode_id)""",
            (first, last),
        )
        ids.extend(row[0] for row in rows)
    return sorted(set(ids))


def all_with_feedback(connection: apsw.Connection) -> list[int]:
    """Ids of all stored experiences that anything was fed back about, increasing."""
    rows = fetch(
        connection,
        """SELECT e.id FROM feedback f JOIN experience e ON e.id = f.experience_id
        UNION SELECT e.id FROM feedback f JOIN experience e ON e.episode_id = f.episode_id ORDER BY 1""",
    )
    return [row[0] for row in rows]


def settle(connection: apsw.Connection, ids: list[int]) -> None:
    """Brings reward and outcome of these experiences in line with the feedback now stored."""
    if not ids:
        return
    weights, success_at = reward_rule(connection)
    wanted = np.array(ids, np.int64)
    given: dict[int, dict[tuple[str, str], float]] = defaultdict(dict)
    for number, source, key, reward in _rewards(connection, wanted):
        given[number][source, key] = reward
    recorded = fetch(
        connection,
        "SELECT e.id, e.recorded_reward, e.recorded_outcome FROM carray(?) c JOIN experience e ON e.id = c.value",
        (apsw.carray(wanted),),
    )
    settled = []
    for number, recorded_reward, recorded_outcome in recorded:
        rewards = given.get(number)
        if not rewards:
            settled.append((recorded_reward, recorded_outcome, number))
            continue
        reward = combine(rewards, recorded_reward, weights)
        settled.append((reward, OUTCOME_NUMBERS["success" if reward >= success_at else "failure"], number))
    connection.executemany("UPDATE experience SET reward = ?, outcome = ? WHERE id = ?", settled)


def combine(given: dict[tuple[str, str], float], recorded: float | None, weights: dict[str, float]) -> float:
    """The reward by the module's rule, of what each (source, key) gave."""
    components: dict[str, list[float]] = defaultdict(list)
    for (_source, key), reward in sorted(given.items()):  # sorted: sums of floats depend on the order
        components[key].append(reward)
    if MAIN_KEY not in components and recorded is not None:
        components[MAIN_KEY].append(recorded)
    return sum(weights.get(key, 1.0) * sum(values) / len(values) for key, values in sorted(components.items()))


def reward_rule(connection: apsw.Connection) -> tuple[dict[str, float], float]:
    """The store's weights by key, and the least reward that counts as success."""
    kept = dict(fetch(connection, "SELECT name, value FROM setting WHERE name IN ('reward_weights', 'success_at')"))
    with damage_to("The rule for rewards"):
        weights = msgspec.json.decode(kept.get("reward_weights", "{}"), type=dict[str, float])
        return weights, msgspec.json.decode(kept.get("success_at", str(SUCCESS_AT)), type=float)


def of_experience(connection: apsw.Connection, number: int) -> list[Feedback]:
    """All that was fed back about one experience: what is about its episode first, the oldest first."""
    rows = fetch(
        connection,
        f"""SELECT {_COLUMNS}, NULL, f.episode_id FROM feedback f JOIN experience e ON e.episode_id = f.episode_id
        WHERE e.id = ?1 UNION ALL SELECT {_COLUMNS}, f.experience_id, NULL FROM feedback f
        WHERE f.experience_id = ?1""",  # noqa: S608 - column names from this module
        (number,),
    )
    with damage_to(f"What was fed back about experience {number}"):
        return [
            Feedback(
                experience_id=experience_id,
                episode_id=episode_id,
                source=source,
                key=key,
                reward=reward,
                comment=comment,
                demonstration=None if demonstration is None else decode_json(demonstration),
            )
            for source, key, reward, comment, demonstration, experience_id, episode_id in rows
        ]


def remove(connection: apsw.Connection, ids: npt.NDArray[np.int64], episodes: set[str]) -> None:
    """Deletes the feedback of experiences that were just removed, and of episodes nothing of which is left."""
    connection.execute("DELETE FROM feedback WHERE experience_id IN (SELECT value FROM carray(?))", (apsw.carray(ids),))
    if _any_for_episodes(connection):
        connection.executemany(
            """DELETE FROM feedback WHERE episode_id = ?1
            AND NOT EXISTS (SELECT 1 FROM experience WHERE episode_id = ?1)""",
            [(episode,) for episode in episodes],
        )


def _any_for_episodes(connection: apsw.Connection) -> bool:
    return connection.execute("SELECT 1 FROM feedback WHERE episode_id IS NOT NULL LIMIT 1").get is not None


def _rewards(connection: apsw.Connection, ids: npt.NDArray[np.int64]) -> list[tuple[int, str, str, float]]:
    """(id, source, key, reward): episodes' first, so that what is about the experience itself replaces it."""
    rows: list[tuple[int, str, str, float]] = fetch(
        connection,
        """SELECT e.id, f.source, f.key, f.reward FROM carray(?) c JOIN experience e ON e.id = c.value
        JOIN feedback f ON f.episode_id = e.episode_id WHERE f.reward IS NOT NULL""",
        (apsw.carray(ids),),
    )
    rows += fetch(
        connection,
        """SELECT f.experience_id, f.source, f.key, f.reward FROM carray(?) c
        JOIN feedback f ON f.experience_id = c.value WHERE f.reward IS NOT NULL""",
        (apsw.carray(ids),),
    )
    return rows
