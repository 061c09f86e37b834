"""Samplers of sequences: `Slices` of episodes, whole `Episodes`, and whole `Groups` of rollouts.

``sample(n)`` then draws n sequences. Their rows stand one after the other in the batch, and ``batch.lengths`` tells how
many each has. Probabilities and weights are those of the sequence, repeated for each of its rows.
"""

# ruff: noqa: ARG002  (each sampler needs only some of what the interface passes)

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from relive.buffer.choices import check_row_by_row
from relive.buffer.composites import alpha_of, epsilon_of
from relive.buffer.episodes import EpisodeFields, Links
from relive.buffer.errors import BufferSettingError
from relive.buffer.fields import Key, labels
from relive.buffer.native_selectors import Uniform
from relive.buffer.rows import NO_FLOATS, NO_IDS, Floats, Ids
from relive.buffer.selector import BufferView, Selection, Selector
from relive.buffer.slot_array import SlotArray
from relive.buffer.subset import Part


class _Sequences(Selector):
    """A sampler whose inner sampler chooses one row that stands for a sequence."""

    roles = ("sampler",)
    row_by_row = False

    def __init__(self, sampler: Selector | None) -> None:
        self.sampler: Selector = Uniform() if sampler is None else sampler
        check_row_by_row(type(self).__name__, self.sampler)
        self.weights = self.sampler.weights

    def inner(self) -> Sequence[Selector]:
        """The sampler of the rows that stand for a sequence."""
        return (self.sampler,)

    @property
    def epsilon(self) -> float:
        """What the inner sampler adds to an absolute TD error."""
        return epsilon_of(self.sampler)

    def bind(self, view: BufferView) -> None:
        """Joins a buffer, once."""
        super().bind(view)
        self._part = Part(view, self.sampler)

    @property
    def settings(self) -> dict[str, Any]:
        """The inner sampler's alpha."""
        return alpha_of(self.sampler)

    def check_new(self, experiences: Sequence[Any]) -> None:
        """Looks whether they say what makes a sequence."""
        self._look(experiences)
        self.sampler.check_new(experiences)

    def select(self, count: int) -> Selection:
        """`count` sequences; fewer where there are fewer."""
        heads = self._part.select(count)
        sequences = self._rows(heads.ids)
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        return Selection(
            ids=np.concatenate([NO_IDS, *sequences]),
            probabilities=np.repeat(heads.probabilities, lengths),
            weights=None if heads.weights is None else np.repeat(heads.weights, lengths),
            lengths=lengths,
        )

    def _rows(self, heads: Ids) -> list[Ids]:
        """The rows of each sequence."""
        raise NotImplementedError(f"{type(self).__name__} must override _rows().")

    def _look(self, experiences: Sequence[Any]) -> None:
        """Reads what `insert` will read."""
        raise NotImplementedError(f"{type(self).__name__} must override _look().")

    def _insert_heads(self, heads: Ids, priorities: Floats) -> None:
        experiences: Any = self.view.experiences(heads) if self.sampler.follows and len(heads) else ()
        self._part.insert(heads, priorities, experiences)


class Slices(_Sequences):
    """Draws contiguous parts of episodes, each of the same length.

    A slice never leads over the end of an episode or the write position of a full ring; one that wraps from the last
    slot to the first inside an episode is as good as any. The first row's priority is the slice's.

    Args:
        length: Rows of each slice, at least 1.
        sampler: Chooses the first rows among those that have enough rows after them; ``None``: `Uniform`.
        fields: Where a row says its episode and end.

    Raises:
        BufferSettingError: the length is less than 1.
    """

    def __init__(self, length: int, *, sampler: Selector | None = None, fields: EpisodeFields | None = None) -> None:
        super().__init__(sampler)
        if length < 1:
            raise BufferSettingError(f"length is {length}; it must be at least 1.")
        self.length = length
        self._links = Links(EpisodeFields() if fields is None else fields)

    def never_twice(self) -> None:
        """Refused: slices overlap, and a row is drawn with every slice that holds it.

        Raises:
            BufferSettingError: always.
        """
        raise BufferSettingError("Slices overlap, so max_times_sampled cannot bound their rows; draw Episodes instead.")

    @property
    def settings(self) -> dict[str, Any]:
        """The length, too."""
        return {"length": self.length, **super().settings}

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """Each new row may complete the slice that ends with it."""
        self._links.join(self.view, ids, experiences)
        heads = ids
        for _ in range(self.length - 1):
            heads = self._links.previous(self.view, heads)
        heads = heads[heads >= 0]
        self._insert_heads(heads, self.view.priorities(heads))

    def delete(self, ids: Ids) -> None:
        """No slice that holds one of these rows can be drawn any more."""
        heads = ids
        for _ in range(self.length):
            self._part.delete(heads)
            heads = self._links.previous(self.view, heads)
            heads = heads[heads >= 0]
        self._links.leave(self.view, ids)

    def update(self, ids: Ids, priorities: Floats) -> None:
        """Slices that begin with these rows have new priorities."""
        self._part.update(ids, priorities)

    def change(self, ids: Ids, experiences: Sequence[Any]) -> None:
        """Tells the inner sampler."""
        self._part.change(ids, experiences)

    def _look(self, experiences: Sequence[Any]) -> None:
        self._links.check_new(experiences)

    def _rows(self, heads: Ids) -> list[Ids]:
        columns = [heads]
        for _ in range(self.length - 1):
            columns.append(self._links.next(self.view, columns[-1]))
        return list(np.stack(columns, axis=1))

    def state_dict(self) -> dict[str, Any]:
        """The links, and who can begin a slice."""
        return {"links": self._links.state_dict(self.view), "part": self._part.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them back."""
        self._links.load_state_dict(self.view, state["links"])
        self._part.load_state_dict(state["part"])

    def reset(self) -> None:
        """Forgets everything."""
        self._links.clear()
        self._part.reset()


class _Whole(_Sequences):
    """Sequences that are drawn whole or not at all; their first row stands for them, with their mean priority."""

    def __init__(self, sampler: Selector | None) -> None:
        super().__init__(sampler)
        self._members: dict[int, Ids] = {}  # the rows of each, by its first
        self._head = SlotArray(np.int64, -1)  # by slot of any row: the first of its sequence, -1: in none

    def update(self, ids: Ids, priorities: Floats) -> None:
        """The mean priorities of their sequences change."""
        heads = self._heads(ids)
        self._part.update(heads, self._priorities(heads))

    def change(self, ids: Ids, experiences: Sequence[Any]) -> None:
        """Tells the inner sampler of sequences that begin with these rows."""
        self._part.change(ids, experiences)

    def state_dict(self) -> dict[str, Any]:
        """Which sequences are whole, and the inner sampler's part."""
        members = list(self._members.values())
        return {
            "lengths": np.array([len(rows) for rows in members], dtype=np.int64),
            "rows": np.concatenate([NO_IDS, *members]),
            "part": self._part.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them back."""
        self._members = {}
        self._head.clear()
        ends = np.cumsum(state["lengths"]).tolist()
        rows = np.asarray(state["rows"], dtype=np.int64)
        for start, end in zip([0, *ends[:-1]], ends, strict=True) if ends else ():
            self._keep(rows[start:end])
        self._part.load_state_dict(state["part"])

    def reset(self) -> None:
        """Forgets everything."""
        self._members = {}
        self._head.clear()
        self._part.reset()

    def _rows(self, heads: Ids) -> list[Ids]:
        return [self._members[head] for head in heads.tolist()]

    def _heads(self, ids: Ids) -> Ids:
        heads = np.unique(self._head[self.view.index.find(ids)])
        return heads[heads >= 0]

    def _priorities(self, heads: Ids) -> Floats:
        members = [self._members[head] for head in heads.tolist()]
        if not members:
            return NO_FLOATS
        lengths = np.array([len(rows) for rows in members])
        sums = np.add.reduceat(self.view.priorities(np.concatenate(members)), np.cumsum(lengths) - lengths)
        return np.asarray(sums / lengths, dtype=np.float64)

    def _keep(self, rows: Ids) -> int:
        head = int(rows[0])
        self._members[head] = rows
        self._head[self.view.index.find(rows)] = head
        return head

    def _form(self, sequences: list[Ids]) -> None:
        """These are whole now."""
        heads = np.array([self._keep(rows) for rows in sequences], dtype=np.int64)
        self._insert_heads(heads, self._priorities(heads))

    def _break(self, heads: Ids) -> None:
        """These are not whole any more; all their rows are still stored."""
        self._part.delete(heads)
        for head in heads.tolist():
            self._head[self.view.index.find(self._members.pop(head))] = -1


class Episodes(_Whole):
    """Draws whole episodes: from their first step to their end, with nothing missing.

    Args:
        sampler: Chooses among the episodes that are whole, by their mean priority; ``None``: `Uniform`.
        fields: Where a row says its episode and end.
    """

    def __init__(self, *, sampler: Selector | None = None, fields: EpisodeFields | None = None) -> None:
        super().__init__(sampler)
        self._links = Links(EpisodeFields() if fields is None else fields)

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """An episode whose last row is here is whole if all its rows are."""
        self._links.join(self.view, ids, experiences)
        ended = ids[self._links.ends(self.view, ids) > 0]
        chains = [self._links.back_to_first(self.view, id_) for id_ in ended.tolist()]
        self._form([np.array(chain, dtype=np.int64) for chain in chains if chain])

    def delete(self, ids: Ids) -> None:
        """Their episodes are no longer whole."""
        self._break(self._heads(ids))
        self._links.leave(self.view, ids)

    def state_dict(self) -> dict[str, Any]:
        """The links, and which episodes are whole."""
        return {"links": self._links.state_dict(self.view), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them back."""
        self._links.load_state_dict(self.view, state["links"])
        super().load_state_dict(state)

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self._links.clear()

    def _look(self, experiences: Sequence[Any]) -> None:
        self._links.check_new(experiences)


class Groups(_Whole):
    """Draws whole groups, for example all rollouts of one prompt.

    A group that has lost a row to the remover is not drawn as long as any row of it is stored, not even if more of it
    comes: what is left would be a biased sample of it. Rows without a group are not drawn.

    Args:
        size: Rollouts (different episodes; rows without an episode count each) that make a group whole; ``None``: a
            group may be drawn as it is, and grows as more of it comes.
        key: What makes a group.
        sampler: Chooses among the groups that are whole, by their mean priority; ``None``: `Uniform`.
        episode: What makes a rollout.

    Raises:
        BufferSettingError: the size is less than 1.
    """

    def __init__(
        self,
        size: int | None = None,
        *,
        key: Key = "group_id",
        sampler: Selector | None = None,
        episode: Key = "episode_id",
    ) -> None:
        super().__init__(sampler)
        if size is not None and size < 1:
            raise BufferSettingError(f"size is {size}; it must be at least 1, or None for any.")
        self.size = size
        self._key = key
        self._episode = episode
        self._group = SlotArray(np.object_, None)  # by slot
        self._stored: dict[Hashable, list[int]] = {}
        self._rollouts: dict[Hashable, set[Hashable]] = {}
        self._broken: set[Hashable] = set()

    @property
    def settings(self) -> dict[str, Any]:
        """The size, and the key if it is a field."""
        return {"size": self.size, **({"key": self._key} if isinstance(self._key, str) else {}), **super().settings}

    def _look(self, experiences: Sequence[Any]) -> None:
        labels(experiences, self._key)
        labels(experiences, self._episode)

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """Groups grow, and may become whole."""
        groups = labels(experiences, self._key)
        boxed = np.empty(len(groups), dtype=np.object_)
        boxed[:] = groups
        self._group[self.view.index.find(ids)] = boxed
        rows = zip(ids.tolist(), groups, labels(experiences, self._episode), strict=True)
        touched: dict[Hashable, None] = {}
        for id_, group, episode in rows:
            if group is not None:
                self._stored.setdefault(group, []).append(id_)
                self._rollouts.setdefault(group, set()).add(("row", id_) if episode is None else episode)
                touched[group] = None
        self._rebuild(touched)

    def delete(self, ids: Ids) -> None:
        """Their groups are broken for as long as anything of them is stored."""
        self._break(self._heads(ids))
        for id_, group in zip(ids.tolist(), self._group[self.view.index.find(ids)].tolist(), strict=True):
            if group is not None:
                self._stored[group].remove(id_)
                self._broken.add(group)
                if not self._stored[group]:
                    del self._stored[group], self._rollouts[group]
                    self._broken.discard(group)

    def state_dict(self) -> dict[str, Any]:
        """Which groups are whole, and a row of each broken one."""
        broken = sorted(self._stored[group][0] for group in self._broken)
        return {"broken": np.array(broken, dtype=np.int64), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them back."""
        self._broken = set(self._group[self.view.index.find(np.asarray(state["broken"], dtype=np.int64))].tolist())
        super().load_state_dict(state)

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self._stored = {}
        self._rollouts = {}
        self._broken = set()

    def _rebuild(self, groups: dict[Hashable, None]) -> None:
        whole = [
            group
            for group in groups
            if group not in self._broken and (self.size is None or len(self._rollouts[group]) == self.size)
        ]
        grown = [self._stored[group][0] for group in groups if self._stored[group][0] in self._members]
        self._break(np.array(grown, dtype=np.int64))
        self._form([np.array(self._stored[group], dtype=np.int64) for group in whole])
