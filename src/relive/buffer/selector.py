"""One small interface for choosing experiences, which serves to draw them and to evict them.

A selector follows the buffer (`insert`, `delete`, `update`) and chooses (`select`). Given as ``sampler=`` it says what
is drawn, given as ``remover=`` what leaves. Its calls come under the buffer's lock. Randomness comes from the buffer's
own stream (`BufferView.random`), so that a seed and a checkpoint fix every choice.
"""

# ruff: noqa: ARG002  (the base class passes what only some selectors need)

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from relive.buffer._core import Index
from relive.buffer.errors import BufferSettingError, SelectorError
from relive.buffer.rows import Experiences, Floats, Ids, Rows


class Selection(msgspec.Struct):
    """What a selector chose.

    Attributes:
        ids: int64 ``[B]``, all stored.
        probabilities: float64 ``[B]``, how likely one draw was to choose each.
        weights: float64 ``[B]``, importance weights; ``None``: 1 for all.
        lengths: int64 ``[S]``, how many rows each chosen sequence has, one after the other in `ids`; ``None``: the rows
            were chosen one by one.
        n_step: What the following steps add to each row (`NStep` makes it); ``None``: nothing.
    """

    ids: Ids
    probabilities: Floats
    weights: Floats | None = None
    lengths: Ids | None = None
    n_step: "NStepReturns | None" = None

    @property
    def count(self) -> int:
        """How many were chosen: rows, or of sequences, sequences."""
        return len(self.ids if self.lengths is None else self.lengths)

    def part(self, keep: npt.NDArray[Any], scale: Literal["batch", "buffer"] | None) -> "Selection":
        """Some of rows that were chosen one by one, given by a mask or by places.

        Weights that are scaled by the largest of the batch are by the largest of what remains of it.
        """
        weights = None if self.weights is None else self.weights[keep]
        if weights is not None and len(weights) and scale == "batch":
            weights = weights / weights.max()
        return Selection(
            ids=self.ids[keep],
            probabilities=self.probabilities[keep],
            weights=weights,
            n_step=None if self.n_step is None else self.n_step.part(keep),
        )


class NStepReturns(msgspec.Struct, kw_only=True):
    """Rewards of several steps in one, for bootstrapping: target = rewards + discounts * V(next state of the last row).

    Attributes:
        rewards: float64 ``[B]``, sum of gamma^k r_k over the steps; NaN where a reward is not known.
        discounts: float64 ``[B]``, gamma^steps, or 0 where the episode terminated and nothing is bootstrapped.
        steps: int64 ``[B]``, how many steps were summed.
        last_ids: int64 ``[B]``, the row whose next state is bootstrapped from.
        last: That row's experiences ``[B]``; ``None`` until the buffer has fetched them.
    """

    rewards: Floats
    discounts: Floats
    steps: Ids
    last_ids: Ids
    last: Sequence[Any] | None = None

    def part(self, keep: npt.NDArray[Any]) -> "NStepReturns":
        """The same for some of the rows, before the last ones are fetched."""
        return NStepReturns(
            rewards=self.rewards[keep],
            discounts=self.discounts[keep],
            steps=self.steps[keep],
            last_ids=self.last_ids[keep],
        )


class BufferView:
    """What a selector may ask of the buffer it is bound to.

    Attributes:
        index: Ids and leaves (priority^alpha).
        raw: The same ids with their raw priorities as leaves; ``None``: `index` has them, or nobody needs them.
        rows: The experiences.
    """

    def __init__(self, index: Index, rows: Rows) -> None:
        self.index = index
        self.raw: Index | None = None
        self.rows = rows

    def __len__(self) -> int:
        return self.index.size

    def ids(self) -> Ids:
        """All stored ids, oldest first."""
        return self.index.ids()

    def priorities(self, ids: Ids) -> Floats:
        """The raw priority of each id as it is kept, in float32; NaN where it is not stored."""
        index = self.index if self.raw is None else self.raw
        leaves = index.leaves(ids).astype(np.float64)
        return leaves if index.alpha in (0.0, 1.0) else np.asarray(leaves ** (1.0 / index.alpha))

    def experiences(self, ids: Ids) -> Experiences:
        """The experiences with these ids.

        Raises:
            SelectorError: one is not stored.
        """
        slots = self.index.find(ids)
        if (slots < 0).any():
            raise SelectorError(f"Experience {ids[slots < 0][0]} was asked for, which is not stored.")
        return self.rows.get(ids, slots)

    def random(self, count: int) -> Floats:
        """Uniform numbers in [0, 1) from the buffer's own stream."""
        return self.index.random(count)


class Selector:
    """Chooses among a buffer's experiences. Subclasses override `select`, and the rest where they keep state.

    Attributes:
        alpha: The exponent that the index it chooses from applies to raw priorities; ``None``: it does not go by the
            index's leaves, and any exponent will do.
        weights: What its importance weights are scaled by, the largest of the ``"batch"`` or of the ``"buffer"``;
            ``None``: it gives none.
        row_by_row: Whether its choices are rows one by one, without `Selection.lengths` and `Selection.n_step`.
        follows: Whether `insert`, `delete`, `update` and `change` are to be called; False saves their cost.
        roles: What it can be given as, ``"sampler"`` and ``"remover"``.
    """

    alpha: float | None = None
    weights: Literal["batch", "buffer"] | None = None
    row_by_row: bool = True
    roles: tuple[str, ...] = ("sampler", "remover")
    follows: bool = True
    _view: BufferView | None = None

    @property
    def kind(self) -> str:
        """Its class, and in brackets those of the selectors inside it."""
        inside = ", ".join(selector.kind for selector in self.inner())
        return f"{type(self).__name__}({inside})" if inside else type(self).__name__

    @property
    def settings(self) -> dict[str, Any]:
        """What decides what a saved state means, beside its class."""
        return {}

    @property
    def saved_as(self) -> str:
        """Its kind, and the settings of all in it. A saved state fits only what is saved as the same."""
        own = [f"{name}={value!r}" for name, value in self.settings.items()]
        inside = [*own, *(selector.saved_as for selector in self.inner())]
        return f"{type(self).__name__}({', '.join(inside)})" if inside else type(self).__name__

    def inner(self) -> "Sequence[Selector]":
        """The selectors that it lets choose."""
        return ()

    def never_twice(self) -> None:
        """From now on no batch may hold an experience twice: a limit on draws asks for it before anything is drawn.

        Raises:
            BufferSettingError: it cannot see to that.
        """
        for selector in self.inner():
            selector.never_twice()

    @property
    def view(self) -> BufferView:
        """The buffer it is bound to.

        Raises:
            BufferSettingError: it is not part of a buffer yet.
        """
        if self._view is None:
            raise BufferSettingError(f"This {type(self).__name__} is not part of a buffer; pass it to a ReplayBuffer.")
        return self._view

    def bind(self, view: BufferView) -> None:
        """Joins a buffer, once.

        Raises:
            BufferSettingError: it belongs to another buffer, whose state it would mix up.
        """
        if self._view is not None:
            raise BufferSettingError(f"This {type(self).__name__} already serves another buffer; make one for each.")
        self._view = view

    def check_new(self, experiences: Sequence[Any]) -> None:
        """Raises whatever `insert` would raise for these experiences: it is asked before anything is written."""

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """New experiences are in, with these raw priorities."""

    def delete(self, ids: Ids) -> None:
        """These leave; each is still stored during the call, and none has come twice."""

    def update(self, ids: Ids, priorities: Floats) -> None:
        """These stored ids have new raw priorities; of equal ids the last counts."""

    def change(self, ids: Ids, experiences: Sequence[Any]) -> None:
        """The reward or outcome of these stored ids has become known, or another one."""

    def select(self, count: int) -> Selection:
        """Chooses `count` experiences, or fewer where there are not enough, never endlessly."""
        raise NotImplementedError(f"{type(self).__name__} must override select().")

    def victims(self, count: int) -> Ids:
        """Chooses `count` different stored ids to leave; `count` is at most the number stored.

        Asks `select` until enough different ones have come, then takes the oldest for the rest.
        """
        chosen: dict[int, None] = {}
        for _ in range(8):
            for id_ in np.asarray(self.select(count - len(chosen)).ids).tolist():
                chosen[id_] = None
            if len(chosen) == count:
                break
        else:
            for id_ in self.view.ids().tolist():
                if len(chosen) == count:
                    break
                chosen.setdefault(id_)
        return np.fromiter(chosen, dtype=np.int64, count=len(chosen))

    def admit(self, experiences: Sequence[Any], room: int) -> tuple[list[int], Ids] | None:
        """As a remover, decides who of the newcomers is added at all and who leaves for them.

        Args:
            experiences: Newcomers, in order, at most the buffer's capacity.
            room: How many may be added without anybody leaving.

        Returns:
            The places of those that are to be added, increasing, and the stored ids that leave. ``None`` (the default):
            all are added, and `victims` says who leaves.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Its own state as JSON values and NumPy arrays, beyond what `insert` tells it again."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes a state back; called after all stored experiences have been inserted anew."""

    def reset(self) -> None:
        """Forgets all experiences, as before the first `insert`."""
