"""Samplers made of others: `Filter`, `Stratified` and `Mixture`.

Each hands the choice to inner selectors, which see only their part of the buffer. So a filtered draw costs what a plain
one costs, whatever share of the buffer passes the filter.
"""

import copy
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer.choices import check_row_by_row, choose
from relive.buffer.draws import apportion, importance_weights
from relive.buffer.errors import BufferSettingError
from relive.buffer.fields import Key, column, count_of, labels, rows
from relive.buffer.native_selectors import Prioritized
from relive.buffer.rows import NO_FLOATS, NO_IDS, Floats, Ids
from relive.buffer.selector import BufferView, Selection, Selector
from relive.buffer.slot_array import SlotArray
from relive.buffer.subset import Part
from relive.experience import Outcome


class Filter(Selector):
    """Lets another selector choose among the experiences that fit; the others are never chosen as long as they do not.

    Conditions that are given must all hold; each may be one value or several. A reward or outcome that becomes known
    later is taken into account. As a remover it evicts what fits first, then the oldest.

    Args:
        sampler: Chooses among those that fit; ``None``: `Prioritized` with its defaults.
        agent: Name of the agent.
        outcome: ``"success"``, ``"failure"`` or ``"unknown"``.
        policy_version: The version of the policy that acted.
        min_policy_version: The lowest version that fits; an experience without a version does not.
        tag: A label that the experience has; of several, any one.
        where: Any function of one experience.

    Raises:
        BufferSettingError: there is no condition.
    """

    def __init__(
        self,
        sampler: Selector | None = None,
        *,
        agent: str | Collection[str] | None = None,
        outcome: Outcome | Collection[Outcome] | None = None,
        policy_version: int | Collection[int] | None = None,
        min_policy_version: int | None = None,
        tag: str | Collection[str] | None = None,
        where: Callable[[Any], bool] | None = None,
    ) -> None:
        self.sampler: Selector = Prioritized() if sampler is None else sampler
        self.roles = self.sampler.roles
        self.weights = self.sampler.weights
        self.row_by_row = self.sampler.row_by_row
        self._wanted = {
            name: _several(value)
            for name, value in (("agent", agent), ("outcome", outcome), ("policy_version", policy_version))
            if value is not None
        }
        self._min_policy_version = min_policy_version
        self._tags = None if tag is None else _several(tag)
        self._where = where
        if not self._wanted and min_policy_version is None and tag is None and where is None:
            raise BufferSettingError("Filter has no condition; give agent, outcome, policy_version, tag or where.")

    def inner(self) -> Sequence[Selector]:
        """The selector that chooses among those that fit."""
        return (self.sampler,)

    @property
    def epsilon(self) -> float:
        """What the inner selector adds to an absolute TD error."""
        return epsilon_of(self.sampler)

    def bind(self, view: BufferView) -> None:
        """Joins a buffer, once."""
        super().bind(view)
        self._part = Part(view, self.sampler)

    @property
    def settings(self) -> dict[str, Any]:
        """The conditions, as far as they are no function, and the inner sampler's alpha."""
        wanted = {name: sorted(values, key=repr) for name, values in self._wanted.items()}
        tags = None if self._tags is None else sorted(self._tags)
        conditions = {**wanted, "min_policy_version": self._min_policy_version, "tag": tags}
        return {name: value for name, value in conditions.items() if value is not None} | alpha_of(self.sampler)

    def check_new(self, experiences: Sequence[Any]) -> None:
        """Asks the conditions."""
        fits = self._fits(experiences).tolist()
        self.sampler.check_new([item for item, fit in zip(rows(experiences), fits, strict=True) if fit])

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """Those that fit become members."""
        self._insert(ids, priorities, experiences, self._fits(experiences))

    def _insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any], fits: npt.NDArray[np.bool_]) -> None:
        chosen = [item for item, fit in zip(rows(experiences), fits.tolist(), strict=True) if fit]
        self._part.insert(ids[fits], priorities[fits], chosen)

    def delete(self, ids: Ids) -> None:
        """Members leave."""
        self._part.delete(ids)

    def update(self, ids: Ids, priorities: Floats) -> None:
        """Members have new priorities."""
        self._part.update(ids, priorities)

    def change(self, ids: Ids, experiences: Sequence[Any]) -> None:
        """Looks again who fits."""
        fits = self._fits(experiences)
        self._part.delete(ids)
        self._insert(ids, self.view.priorities(ids), experiences, fits)

    def select(self, count: int) -> Selection:
        """Up to `count` of those that fit; fewer where there are fewer."""
        return self._part.select(count)

    def victims(self, count: int) -> Ids:
        """Those that fit first, then the oldest of the others."""
        chosen = self._part.victims(min(count, len(self._part)))
        return _filled_by_oldest(self.view, chosen, count)

    def state_dict(self) -> dict[str, Any]:
        """Who fits, and the inner selector's state."""
        return self._part.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes it back."""
        self._part.load_state_dict(state)

    def reset(self) -> None:
        """Forgets all members."""
        self._part.reset()

    def _fits(self, experiences: Sequence[Any]) -> npt.NDArray[np.bool_]:
        fits = np.ones(count_of(experiences), dtype=np.bool_)
        for name, wanted in self._wanted.items():
            fits &= [value in wanted for value in labels(experiences, name)]
        if self._min_policy_version is not None:
            versions = column(experiences, "policy_version")
            fits &= [version is not None and version >= self._min_policy_version for version in versions]
        if self._tags is not None:
            fits &= [not self._tags.isdisjoint(tags or ()) for tags in column(experiences, "tags")]
        if self._where is not None:
            fits &= [bool(self._where(experience)) for experience in rows(experiences)]
        return fits


class Stratified(Selector):
    """Draws from each group in equal or given shares, and lets another selector choose within each group.

    A group that has fewer experiences than its share gives what it has, and the others share the rest: no experience is
    repeated to fill a group. Importance weights, where the inner selector has them, correct for the priorities within
    the groups and not for the shares, which are wanted.

    Args:
        key: What makes a group: a field (``"agent"``, ``"outcome"``, a tag ``"task:..."`` as ``"task"``) or a function.
        shares: The share of each group, at least 0, any scale; a group that is not named gets none. ``None``: equal.
        sampler: Chooses single rows within a group (each group gets a copy): `Prioritized` with weights over the batch
            (``None``: with its defaults), or one without weights.

    Raises:
        BufferSettingError: a share is negative or all are 0, or the sampler is of another kind.
    """

    roles = ("sampler",)

    def __init__(self, key: Key, shares: Mapping[Any, float] | None = None, *, sampler: Selector | None = None) -> None:
        if shares is not None and not (all(share >= 0 for share in shares.values()) and sum(shares.values()) > 0):
            raise BufferSettingError(f"shares are {dict(shares)}; each must be at least 0, and one must be positive.")
        self.key = key
        self.shares = shares
        self.sampler: Selector = Prioritized() if sampler is None else sampler
        check_row_by_row("Stratified", self.sampler)
        self.weights = self.sampler.weights
        if self.weights is not None and not (isinstance(self.sampler, Prioritized) and self.weights == "batch"):
            raise BufferSettingError(
                f"Stratified weighs its draws over the batch, and cannot bring the weights of {self.sampler.kind} "
                f"(over the {self.weights}) to that scale; give it Prioritized(weights='batch') or a sampler without "
                "weights."
            )
        self._parts: dict[Hashable, Part] = {}
        self._group_of = SlotArray(np.object_, None)

    def inner(self) -> Sequence[Selector]:
        """The selector that chooses within a group."""
        return (self.sampler,)

    @property
    def epsilon(self) -> float:
        """What the inner selector adds to an absolute TD error."""
        return epsilon_of(self.sampler)

    @property
    def settings(self) -> dict[str, Any]:
        """The key, if it is a field, and the inner sampler's alpha."""
        return ({"key": self.key} if isinstance(self.key, str) else {}) | alpha_of(self.sampler)

    def check_new(self, experiences: Sequence[Any]) -> None:
        """Asks for their groups."""
        labels(experiences, self.key)
        self.sampler.check_new(experiences)

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """Each joins its group."""
        self._insert(ids, priorities, experiences, labels(experiences, self.key))

    def _insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any], groups: list[Hashable]) -> None:
        boxed = np.empty(len(groups), dtype=np.object_)
        boxed[:] = groups
        self._group_of[self.view.index.find(ids)] = boxed
        items = rows(experiences)
        for group, places in _places(groups).items():
            part = self._parts.get(group)
            if part is None:
                part = self._parts[group] = Part(self.view, copy.deepcopy(self.sampler))
            part.insert(ids[places], priorities[places], [items[place] for place in places])

    def delete(self, ids: Ids) -> None:
        """Each leaves its group."""
        for group, places in self._groups(ids).items():
            part = self._parts[group]
            part.delete(ids[places])
            if not len(part):
                del self._parts[group]

    def update(self, ids: Ids, priorities: Floats) -> None:
        """Each group learns of its new priorities."""
        for group, places in self._groups(ids).items():
            self._parts[group].update(ids[places], priorities[places])

    def change(self, ids: Ids, experiences: Sequence[Any]) -> None:
        """Each joins the group that it now belongs to."""
        groups = labels(experiences, self.key)
        self.delete(ids)
        self._insert(ids, self.view.priorities(ids), experiences, groups)

    def select(self, count: int) -> Selection:
        """`count` experiences in the groups' shares, or all where there are fewer."""
        parts, targets = self._targets(count)
        if not parts or not count:
            return Selection(ids=NO_IDS, probabilities=NO_FLOATS)
        numbers = apportion(targets, float(self.view.random(1)[0]))
        ids, probabilities, population, betas = [], [], [], []
        for part, number, share in zip(parts, numbers.tolist(), (targets / targets.sum()).tolist(), strict=True):
            if number:
                beta = float(getattr(part.selector, "beta", 0.0))
                selection = part.select(number)
                drawn = len(selection.ids)
                ids.append(selection.ids)
                probabilities.append(selection.probabilities * share)
                population.append(np.full(drawn, part.drawable / share))
                betas.append(np.full(drawn, beta))
        chances = np.concatenate(probabilities)
        weights = None
        if self.weights is not None:
            weights = importance_weights(np.concatenate(population), chances, np.concatenate(betas))
        return Selection(ids=np.concatenate(ids), probabilities=chances, weights=weights)

    def state_dict(self) -> dict[str, Any]:
        """The state of each group; a member tells which group it is."""
        return {"groups": [part.state_dict() for part in self._parts.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them back."""
        parts = {}
        for saved in state["groups"]:
            [group] = self._groups(saved["members"]["real"][:1])
            parts[group] = self._parts[group]
            parts[group].load_state_dict(saved)
        self._parts = parts  # in the saved order, which the draws follow

    def reset(self) -> None:
        """Forgets all groups."""
        self._parts = {}
        self._group_of.clear()

    def _groups(self, ids: Ids) -> dict[Hashable, list[int]]:
        return _places(self._group_of[self.view.index.find(ids)].tolist())

    def _targets(self, count: int) -> tuple[list[Part], Floats]:
        """The groups with something to draw, and how many to expect from each: by share, at most all of it."""
        parts = [
            (part, 1.0 if self.shares is None else float(self.shares.get(group, 0.0)))
            for group, part in self._parts.items()
        ]
        parts = [(part, share) for part, share in parts if share > 0 and part.drawable]
        shares = np.array([share for _, share in parts])
        limits = np.array([part.drawable for part, _ in parts], dtype=np.float64)
        wanted = min(float(count), limits.sum())
        targets = np.zeros(len(parts))
        open_ = np.ones(len(parts), dtype=np.bool_)
        while wanted > 0 and open_.any():
            level = (wanted - targets[~open_].sum()) * shares / shares[open_].sum()
            over = open_ & (level >= limits)
            if not over.any():
                targets[open_] = level[open_]
                break
            targets[over] = limits[over]
            open_ &= ~over
        return [part for part, _ in parts], targets


class Mixture(Selector):
    """Draws each batch from several samplers in given shares, for example half fresh and half valuable experiences.

    A sampler that has fewer than its share gives what it has; no other fills the batch up, so that the shares never
    shift unseen (``batch.shortfall`` tells). One experience may come from two samplers. ``batch.probabilities`` are
    those of the sampler that drew each, times its share, and weights are the sampler's own.

    Args:
        components: Samplers of single rows with their shares, each positive, any scale.

    Raises:
        BufferSettingError: there is no component, a share is not positive, a sampler gives more than rows, or weights
            are on two scales.
    """

    roles = ("sampler",)

    def __init__(self, *components: tuple[Selector, float]) -> None:
        if not components or not all(share > 0 for _, share in components):
            raise BufferSettingError("Mixture needs (sampler, share) pairs with positive shares.")
        self.samplers = [sampler for sampler, _ in components]
        for sampler in self.samplers:
            check_row_by_row("Mixture", sampler)
        scales = {sampler.weights for sampler in self.samplers if sampler.weights is not None}
        if len(scales) > 1:
            raise BufferSettingError(
                "Mixture's samplers scale their weights over the batch and over the buffer, which no batch can hold "
                "together; give all Prioritized the same weights=."
            )
        self.weights = next(iter(scales), None)
        total = sum(share for _, share in components)
        self.shares = [share / total for _, share in components]
        # The index has one alpha, if possible not 0, which would forget the priorities; a sampler that draws with
        # another one gets an index of its own.
        self.alpha = next((sampler.alpha for sampler in self.samplers if sampler.alpha), self.samplers[0].alpha)
        self._parts: list[Part | None] = []

    def inner(self) -> Sequence[Selector]:
        """The samplers."""
        return self.samplers

    @property
    def epsilon(self) -> float:
        """What the first component adds to an absolute TD error."""
        return epsilon_of(self.samplers[0])

    def bind(self, view: BufferView) -> None:
        """Joins a buffer, once."""
        super().bind(view)
        for sampler in self.samplers:
            if sampler.alpha is not None and sampler.alpha != view.index.alpha:
                self._parts.append(Part(view, sampler))
            else:
                sampler.bind(view)
                self._parts.append(None)

    @property
    def settings(self) -> dict[str, Any]:
        """The exponents of the components that have indexes of their own."""
        return {"alphas": [sampler.alpha for sampler in self.samplers]}

    def check_new(self, experiences: Sequence[Any]) -> None:
        """Asks each component."""
        for sampler in self.samplers:
            sampler.check_new(experiences)

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """Tells each component."""
        for component in self._followers():
            component.insert(ids, priorities, experiences)

    def delete(self, ids: Ids) -> None:
        """Tells each component."""
        for component in self._followers():
            component.delete(ids)

    def update(self, ids: Ids, priorities: Floats) -> None:
        """Tells each component."""
        for component in self._followers():
            component.update(ids, priorities)

    def change(self, ids: Ids, experiences: Sequence[Any]) -> None:
        """Tells each component."""
        for component in self._followers():
            component.change(ids, experiences)

    def select(self, count: int) -> Selection:
        """`count` experiences in the components' shares."""
        numbers = apportion(np.array(self.shares) * count, float(self.view.random(1)[0]))
        drawn = [
            part.select(number) if isinstance(part, Part) else choose(part, number)
            for part, number in zip(self._components(), numbers.tolist(), strict=True)
        ]
        return Selection(
            ids=np.concatenate([one.ids for one in drawn]),
            probabilities=np.concatenate([s * one.probabilities for s, one in zip(self.shares, drawn, strict=True)]),
            weights=np.concatenate([np.ones(len(one.ids)) if one.weights is None else one.weights for one in drawn]),
        )

    def state_dict(self) -> dict[str, Any]:
        """The state of each component."""
        return {"components": [component.state_dict() for component in self._components()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them back."""
        for component, saved in zip(self._components(), state["components"], strict=True):
            component.load_state_dict(saved)

    def reset(self) -> None:
        """Forgets all experiences."""
        for component in self._followers():
            component.reset()

    def _components(self) -> list[Selector | Part]:
        return [sampler if part is None else part for sampler, part in zip(self.samplers, self._parts, strict=True)]

    def _followers(self) -> list[Selector | Part]:
        return [component for component in self._components() if isinstance(component, Part) or component.follows]


def epsilon_of(selector: Selector) -> float:
    """What a selector adds to an absolute TD error; 1e-6 where it says nothing."""
    return float(getattr(selector, "epsilon", 1e-6))


def alpha_of(selector: Selector) -> dict[str, Any]:
    """The exponent of a part's index, from which saved leaves came."""
    return {} if selector.alpha is None else {"alpha": selector.alpha}


def _several(value: Any) -> frozenset[Any]:
    if isinstance(value, str) or not isinstance(value, Collection):
        return frozenset([value])
    return frozenset(value)


def _places(groups: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Where each group's members stand."""
    places: dict[Hashable, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group, []).append(place)
    return places


def _filled_by_oldest(view: BufferView, chosen: Ids, count: int) -> Ids:
    if len(chosen) >= count:
        return chosen
    others = view.ids()
    others = others[~np.isin(others, chosen)]
    return np.concatenate([chosen, others[: count - len(chosen)]])
