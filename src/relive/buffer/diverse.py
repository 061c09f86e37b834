"""`Diverse`: batches that weigh priority against being different from what is already in the batch."""

# ruff: noqa: ARG002  (the interface passes more than it needs)

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from relive.buffer.draws import chances, distinct
from relive.buffer.errors import BufferSettingError
from relive.buffer.fields import Key, labels
from relive.buffer.rows import NO_FLOATS, NO_IDS, Ids
from relive.buffer.selector import Selection, Selector
from relive.buffer.signatures import distances, of_experiences
from relive.buffer.slot_array import SlotArray

POOL = 16
"""Candidates drawn for each place in the batch."""

SMALLEST_POOL = 1024
"""Candidates drawn at least."""


class Diverse(Selector):
    """Draws different experiences: near-copies of what is in the batch already stand back.

    First a pool of candidates is drawn by priority^alpha without replacement. Then the batch is filled greedily, as in
    maximal marginal relevance (Carbonell and Goldstein 1998): next comes the candidate with the largest

        (1 - weight) * q + weight * d,

    where q, between 0 and 1, falls with the order in which the pool was drawn (a random order that favours high
    priorities), and d, between 0 and 1, is the distance to the nearest one in the batch (1 where 32 or more of the 64
    bits of the signatures differ). Weight 0 is a draw without replacement by priority, weight 1 the most different
    batch. Signatures are made when an experience first becomes a candidate, and kept. Importance weights are 1.

    Args:
        weight: How much being different counts, 0 to 1.
        alpha: How far priorities count in the draw of the pool, at least 0.
        features: What is compared: a function of one experience that gives a text, a vector, a JSON value or a ready
            64-bit number; ``None``: state and action, or the observation.
        limit: Most experiences of one `key` in a batch; ``None``: any number.
        key: What is limited: a field or a function, for example ``"episode_id"``.

    Raises:
        BufferSettingError: a setting is out of range, or only one of `limit` and `key` is given.
    """

    roles = ("sampler",)

    def __init__(
        self,
        weight: float = 0.3,
        *,
        alpha: float = 0.6,
        features: Callable[[Any], Any] | None = None,
        limit: int | None = None,
        key: Key | None = None,
    ) -> None:
        if not 0.0 <= weight <= 1.0:
            raise BufferSettingError(f"weight is {weight}; it must be between 0 and 1.")
        if not 0.0 <= alpha < np.inf:
            raise BufferSettingError(f"alpha is {alpha}; it must be finite and at least 0.")
        if (limit is None) != (key is None):
            raise BufferSettingError("Give limit and key together: at most `limit` experiences of one `key`.")
        if limit is not None and limit < 1:
            raise BufferSettingError(f"limit is {limit}; it must be at least 1.")
        self.weight = weight
        self.alpha = float(alpha)
        self.follows = features is not None or key is not None  # either may look at the reward
        self._features = features
        self._limit = limit
        self._key = key
        self._known_id = SlotArray(np.int64, -1)  # whose signature and label a slot holds
        self._signature = SlotArray(np.uint64, 0)
        self._label = SlotArray(np.object_, None)

    def change(self, ids: Ids, experiences: Sequence[Any]) -> None:
        """Looks at them again when they are candidates next."""
        self._known_id[self.view.index.find(ids)] = -1

    def select(self, count: int) -> Selection:
        """Up to `count` different experiences; fewer where there are fewer, or where the limit allows no more."""
        pool = distinct(self.view, max(POOL * count, SMALLEST_POOL))
        chosen = self._greedy(pool, count)
        if len(chosen) < count and len(pool) < self.view.index.drawable:
            # Only the limit can end the batch early while something is left: now look at everything, once.
            chosen = self._greedy(distinct(self.view, self.view.index.drawable), count)
        if not len(chosen):
            return Selection(ids=NO_IDS, probabilities=NO_FLOATS)
        return Selection(ids=chosen, probabilities=chances(self.view, chosen))

    def _greedy(self, pool: Ids, count: int) -> Ids:
        self._learn(pool)
        slots = self.view.index.find(pool)
        signatures = self._signature[slots]
        names = self._label[slots].tolist()
        used: Counter[Hashable] = Counter()
        order = (1.0 - self.weight) * (1.0 - np.arange(len(pool)) / max(1, len(pool)))
        nearest = np.ones(len(pool))
        chosen: list[int] = []
        while len(chosen) < count:
            score = order + self.weight * nearest
            best = int(score.argmax()) if len(score) else 0
            if not len(score) or score[best] == -np.inf:
                break
            order[best] = -np.inf
            if self._limit is not None:
                if used[names[best]] == self._limit:
                    order[[place for place, name in enumerate(names) if name == names[best]]] = -np.inf
                    continue
                used[names[best]] += 1
            chosen.append(best)
            nearest = np.minimum(nearest, distances(signatures, signatures[best]))
        return pool[np.array(chosen, dtype=np.int64)]

    def _learn(self, ids: Ids) -> None:
        """Makes signatures and labels of those that have none yet."""
        unknown = ids[self._known_id[self.view.index.find(ids)] != ids]
        if not len(unknown):
            return
        slots = self.view.index.find(unknown)
        experiences = self.view.experiences(unknown)
        self._signature[slots] = of_experiences(experiences, self._features)
        if self._key is not None:
            boxed = np.empty(len(unknown), dtype=np.object_)
            boxed[:] = labels(experiences, self._key)
            self._label[slots] = boxed
        self._known_id[slots] = unknown

    def reset(self) -> None:
        """Forgets signatures and labels."""
        self._known_id.clear()
