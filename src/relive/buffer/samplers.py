"""Samplers that follow an order: `Lifo`, `Highest`, `Lowest`, and `OncePerPass`.

`Fifo`, `Uniform` and `Prioritized`, which the native index serves, are in `native_selectors.py`; samplers made of
others in `composites.py`.
"""

# ruff: noqa: ARG002  (each selector needs only some of what the interface passes)

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from relive.buffer.draws import as_kept
from relive.buffer.rows import NO_IDS, Floats, Ids
from relive.buffer.selector import Selection, Selector


class Lifo(Selector):
    """Chooses the newest first. As a sampler, the freshest batch; as a remover, what came last gives way."""

    follows = False

    def select(self, count: int) -> Selection:
        """The `count` newest that can be drawn, newest first, each with certainty. O(count) without gaps in the ids."""
        ids = self._newest(count, drawable=True)
        return Selection(ids=ids, probabilities=np.ones(len(ids)))

    def victims(self, count: int) -> Ids:
        """The `count` newest."""
        return self._newest(count, drawable=False)

    def _newest(self, count: int, *, drawable: bool) -> Ids:
        index = self.view.index
        count = min(count, index.drawable if drawable else index.size)
        window = 2 * count + 16
        while True:
            low = max(0, index.next_id - window)
            ids = np.arange(index.next_id - 1, low - 1, -1, dtype=np.int64)
            if window > 4 * index.size + 64:  # many ids have left: look only at those that are stored
                ids, low = np.ascontiguousarray(self.view.ids()[::-1]), 0
            leaves = index.leaves(ids)
            found = ids[leaves > 0] if drawable else ids[~np.isnan(leaves)]
            if len(found) >= count or low == 0:
                return np.ascontiguousarray(found[:count])
            window *= 4


class Lowest(Selector):
    """Chooses the lowest raw priority first, the oldest of equal ones. As a remover, it keeps the most valuable.

    As a sampler it takes only experiences with a positive priority. It compares priorities as they are kept, in
    float32, so that a loaded buffer orders them as the saved one did. It holds a heap: O(log N) an insertion or update,
    about 120 bytes an item.
    """

    _sign = 1.0

    def __init__(self) -> None:
        self._priority: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """Remembers the priorities."""
        self._set(ids, priorities)

    def update(self, ids: Ids, priorities: Floats) -> None:
        """Remembers the new priorities; what the heap held before is recognised as outdated."""
        self._set(ids, priorities)

    def delete(self, ids: Ids) -> None:
        """Forgets the ids."""
        for id_ in ids.tolist():
            del self._priority[id_]

    def reset(self) -> None:
        """Forgets everything."""
        self._priority = {}
        self._heap = []

    def select(self, count: int) -> Selection:
        """The `count` first in the order, each with certainty. O(count log N)."""
        ids = self._first(count, drawable=True)
        return Selection(ids=ids, probabilities=np.ones(len(ids)))

    def victims(self, count: int) -> Ids:
        """The `count` first in the order, priorities of 0 included."""
        return self._first(count, drawable=False)

    def _set(self, ids: Ids, priorities: Floats) -> None:
        keys = (self._sign * as_kept(priorities)).tolist()
        for id_, key in zip(ids.tolist(), keys, strict=True):
            self._priority[id_] = key
        if len(keys) > 8 + len(self._heap) // 8 or len(self._heap) + len(keys) > 2 * len(self._priority) + 64:
            self._heap = [(key, id_) for id_, key in self._priority.items()]
            heapq.heapify(self._heap)
            return
        for id_, key in zip(ids.tolist(), keys, strict=True):
            heapq.heappush(self._heap, (key, id_))

    def _first(self, count: int, *, drawable: bool) -> Ids:
        kept: list[tuple[float, int]] = []
        chosen: dict[int, None] = {}
        while self._heap and len(chosen) < count:
            entry = heapq.heappop(self._heap)
            key, id_ = entry
            if self._priority.get(id_) != key or id_ in chosen:
                continue  # outdated, or pushed twice with the same priority
            kept.append(entry)
            if key != 0.0 or not drawable:
                chosen[id_] = None
        for entry in kept:
            heapq.heappush(self._heap, entry)
        return np.fromiter(chosen, dtype=np.int64, count=len(chosen))


class Highest(Lowest):
    """Chooses the highest raw priority first, the oldest of equal ones."""

    _sign = -1.0


class OncePerPass(Selector):
    """Draws every experience once in each pass, in random order, without replacement; weights are 1.

    What is added joins the running pass. A batch that reaches the end of a pass is filled from the next one, with no
    experience twice in one batch. An experience whose priority is 0 when its turn comes is passed over. The rest of the
    pass is part of the saved state, so each comes once a pass across a save point too.
    """

    roles = ("sampler",)

    def __init__(self) -> None:
        self._left: list[int] = []
        self.passes = 0

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """They join the running pass."""
        self._left.extend(ids.tolist())
        if len(self._left) > 2 * len(self.view) + 64:  # most of the pass has left the buffer
            left = np.array(self._left, dtype=np.int64)
            self._left = left[self.view.index.find(left) >= 0].tolist()

    def reset(self) -> None:
        """Forgets the running pass."""
        self._left = []

    def select(self, count: int) -> Selection:
        """The next `count` of the pass. O(count), and O(N) at the start of a pass."""
        count = min(count, self.view.index.drawable)
        drawn = self._take(count, NO_IDS)
        while len(drawn) < count:
            self._left = self.view.ids().tolist()
            self.passes += 1
            drawn = np.concatenate([drawn, self._take(count - len(drawn), drawn)])
        return Selection(ids=drawn, probabilities=np.full(len(drawn), 1 / max(1, self.view.index.drawable)))

    def _take(self, count: int, already: Ids) -> Ids:
        """Up to `count` random ones of what is left, none of `already`, which stay for later."""
        taken: list[int] = []
        back: list[int] = []
        left, drawn = self._left, set(already.tolist())
        while left and len(taken) < count:
            wanted = min(count - len(taken), len(left))
            candidates = []
            for share in self.view.random(wanted).tolist():
                place = int(share * len(left))
                left[place], left[-1] = left[-1], left[place]
                candidates.append(left.pop())
            leaves = self.view.index.leaves(np.array(candidates, dtype=np.int64))
            for id_, drawable in zip(candidates, (leaves > 0).tolist(), strict=True):
                if id_ in drawn:
                    back.append(id_)
                elif drawable:
                    taken.append(id_)
        left.extend(back)
        return np.array(taken, dtype=np.int64)

    def state_dict(self) -> dict[str, Any]:
        """What is left of the running pass."""
        return {"left": np.array(self._left, dtype=np.int64), "passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the running pass back."""
        self._left = np.asarray(state["left"], dtype=np.int64).tolist()
        self.passes = int(state["passes"])
