"""Which stored row follows which: the links that n-step returns and slices walk along.

A row follows another of the same episode when it is the next step. Links are cut when a row leaves, so they never lead
over the end of an episode, over the write position of a full ring, or to what has left.
"""

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer.fields import Key, column, count_of, flags, labels, numbers
from relive.buffer.rows import Floats, Ids
from relive.buffer.selector import BufferView
from relive.buffer.slot_array import SlotArray

TERMINATED = 1
TRUNCATED = 2


class EpisodeFields:
    """Where a row says which episode it belongs to and how it ended.

    Args:
        reward: The field that holds the reward.
        terminated: The episode came to an end of its own.
        truncated: It was cut off from outside.
        episode: Rows with the same value belong to one episode; ``None`` where they have no such field: each row
            follows the one added before it, until one has ended.
        step: Position in the episode; where rows have it, only the next number follows.
    """

    def __init__(
        self,
        *,
        reward: Key = "reward",
        terminated: Key = "terminated",
        truncated: Key = "truncated",
        episode: Key = "episode_id",
        step: Key = "step",
    ) -> None:
        self.reward = reward
        self.terminated = terminated
        self.truncated = truncated
        self.episode = episode
        self.step = step


class Links:
    """Successors and predecessors of stored rows, their rewards and how they ended; all by slot."""

    def __init__(self, fields: EpisodeFields) -> None:
        self._fields = fields
        self._next = SlotArray(np.int64, -1)
        self._previous = SlotArray(np.int64, -1)
        self._end = SlotArray(np.uint8, 0)
        self._reward = SlotArray(np.float64, np.nan)
        self._first = SlotArray(np.bool_, False)
        self._newest: dict[Hashable, tuple[int, int]] = {}  # the last row of each episode that goes on, and its step
        self._episode_of: dict[int, Hashable] = {}  # and the other way round

    def check_new(self, experiences: Any) -> None:
        """Raises whatever `join` would raise for these rows."""
        self._read(experiences)

    def _read(self, experiences: Any) -> tuple[list[Hashable], Ids, npt.NDArray[np.uint8], Floats]:
        """Episodes, steps, how each ended, and rewards."""
        fields = self._fields
        ends = TERMINATED * flags(experiences, fields.terminated) | TRUNCATED * flags(experiences, fields.truncated)
        rewards = numbers(experiences, fields.reward)
        return labels(experiences, fields.episode), self._steps(experiences), ends.astype(np.uint8), rewards

    def join(self, view: BufferView, ids: Ids, experiences: Any) -> None:
        """Rows are in; each may follow the newest one of its episode."""
        slots = view.index.find(ids)
        episodes, steps, ends, rewards = self._read(experiences)
        self._next[slots] = -1
        self._previous[slots] = -1
        self._end[slots] = ends
        self._reward[slots] = rewards
        first = steps == 0
        followed: list[int] = []
        following: list[int] = []
        rows = zip(ids.tolist(), episodes, steps.tolist(), ends.tolist(), strict=True)
        for place, (id_, episode, step, ended) in enumerate(rows):
            newest = self._newest.pop(episode, None)
            if newest is not None:
                before, its_step = newest
                del self._episode_of[before]
                if step < 0 or its_step + 1 == step:  # else a step between them was never recorded
                    followed.append(before)
                    following.append(id_)
            elif step < 0:
                first[place] = True
            if not ended:
                self._newest[episode] = id_, step
                self._episode_of[id_] = episode
        self._first[slots] = first
        befores, afters = np.array(followed, dtype=np.int64), np.array(following, dtype=np.int64)
        self._next[view.index.find(befores)] = afters
        self._previous[view.index.find(afters)] = befores

    def leave(self, view: BufferView, ids: Ids) -> None:
        """Rows leave; what followed them has no predecessor any more."""
        slots = view.index.find(ids)
        for neighbours, back in ((self._next[slots], self._previous), (self._previous[slots], self._next)):
            places = view.index.find(neighbours)
            back[places[places >= 0]] = -1
        for id_ in ids.tolist():
            self._close(id_)

    def change(self, view: BufferView, ids: Ids, experiences: Any) -> None:
        """The rewards of these rows have become known."""
        self._reward[view.index.find(ids)] = numbers(experiences, self._fields.reward)

    def clear(self) -> None:
        """Forgets everything."""
        self._newest = {}
        self._episode_of = {}

    def next(self, view: BufferView, ids: Ids) -> Ids:
        """The row after each, -1 where there is none (yet, or any more); -1 stays -1."""
        return self._follow(view, ids, self._next)

    def previous(self, view: BufferView, ids: Ids) -> Ids:
        """The row before each, -1 where there is none; -1 stays -1."""
        return self._follow(view, ids, self._previous)

    def ends(self, view: BufferView, ids: Ids) -> npt.NDArray[np.uint8]:
        """How each row ended: 0 not, 1 terminated, 2 truncated, 3 both."""
        ends: npt.NDArray[np.uint8] = self._end[view.index.find(ids)]
        return ends

    def rewards(self, view: BufferView, ids: Ids) -> Floats:
        """The reward of each row; NaN where it is not known."""
        rewards: Floats = self._reward[view.index.find(ids)]
        return rewards

    def firsts(self, view: BufferView, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which rows began their episode."""
        firsts: npt.NDArray[np.bool_] = self._first[view.index.find(ids)]
        return firsts

    def back_to_first(self, view: BufferView, id_: int) -> list[int]:
        """The rows of an episode up to this one, in order; empty where its beginning is not stored."""
        chain = [id_]
        while (before := int(self.previous(view, np.array(chain[-1:]))[0])) >= 0:
            chain.append(before)
        return chain[::-1] if self.firsts(view, np.array(chain[-1:]))[0] else []

    def state_dict(self, view: BufferView) -> dict[str, Any]:
        """The links of all rows, by increasing id, and which rows may still be followed."""
        ids = view.ids()
        return {
            "next": self._next[view.index.find(ids)],
            "first": self.firsts(view, ids),
            "open": np.array(sorted(self._episode_of), dtype=np.int64),
        }

    def load_state_dict(self, view: BufferView, state: dict[str, Any]) -> None:
        """Takes them back; called when all rows have joined anew."""
        ids = view.ids()
        slots = view.index.find(ids)
        following = np.asarray(state["next"], dtype=np.int64)
        self._next[slots] = following
        self._first[slots] = state["first"]
        self._previous[slots] = -1
        self._previous[view.index.find(following[following >= 0])] = ids[following >= 0]
        still_open = set(np.asarray(state["open"]).tolist())
        for id_ in [id_ for id_ in self._episode_of if id_ not in still_open]:
            self._close(id_)

    def _close(self, id_: int) -> None:
        """Nothing will follow this row."""
        if id_ in self._episode_of:
            del self._newest[self._episode_of.pop(id_)]

    def _follow(self, view: BufferView, ids: Ids, links: SlotArray) -> Ids:
        slots = view.index.find(ids)
        there = slots >= 0
        result = np.full(len(ids), -1, dtype=np.int64)
        result[there] = links[slots[there]]
        return result

    def _steps(self, experiences: Any) -> Ids:
        steps = column(experiences, self._fields.step)
        if isinstance(steps, np.ndarray):
            return steps.astype(np.int64)
        none = [-1] * count_of(experiences)
        return np.array([-1 if step is None else int(step) for step in steps] or none, dtype=np.int64)
