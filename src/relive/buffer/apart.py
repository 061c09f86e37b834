"""`Apart`: a selector at work on an index of its own, with its own alpha."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from relive.buffer.composites import alpha_of
from relive.buffer.rows import Floats, Ids
from relive.buffer.selector import BufferView, Selection, Selector
from relive.buffer.subset import Part


class Apart(Selector):
    """Gives a selector an index of its own over the whole buffer, with its own alpha.

    A remover that draws needs one where the sampler's alpha is another. For alpha 0 all priorities count as 1, so that
    what is never drawn can still be chosen.
    """

    def __init__(self, selector: Selector) -> None:
        self.selector = selector

    def inner(self) -> Sequence[Selector]:
        """The selector."""
        return (self.selector,)

    @property
    def settings(self) -> dict[str, Any]:
        """The selector's alpha."""
        return alpha_of(self.selector)

    def bind(self, view: BufferView) -> None:
        """Joins a buffer, once."""
        super().bind(view)
        self._part = Part(view, self.selector)

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """Takes them in."""
        self._part.insert(ids, self._seen(priorities), experiences)

    def delete(self, ids: Ids) -> None:
        """Lets them go."""
        self._part.delete(ids)

    def update(self, ids: Ids, priorities: Floats) -> None:
        """They have new priorities."""
        self._part.update(ids, self._seen(priorities))

    def select(self, count: int) -> Selection:
        """What the selector chooses."""
        return self._part.select(count)

    def victims(self, count: int) -> Ids:
        """What the selector lets go."""
        return self._part.victims(count)

    def state_dict(self) -> dict[str, Any]:
        """The index and the selector's state."""
        return self._part.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them back."""
        self._part.load_state_dict(state)

    def reset(self) -> None:
        """Forgets everything."""
        self._part.reset()

    def _seen(self, priorities: Floats) -> Floats:
        return np.ones(len(priorities)) if self.selector.alpha == 0.0 else priorities


def remover_for(remover: Selector, sampler: Selector) -> Selector:
    """The remover as it can work beside this sampler."""
    return remover if remover is sampler or remover.alpha is None else Apart(remover)
