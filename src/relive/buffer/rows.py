"""Where a buffer's experiences are kept: the `Rows` protocol, and the list of Python objects that serves by default.

A `ReplayBuffer` is an index (ids, priorities, draws) over *rows* (the experiences). The index never looks into a row,
the rows know nothing about drawing. To add experiences the buffer

1. checks every priority,
2. asks its remover which stored ids have to leave,
3. calls ``rows.append(experiences, priorities, victims, slots)``, which stores the new and drops the victims in one
   step, or raises and changes nothing,
4. tells the index, which cannot fail.

So a row store that is durable makes one transaction of each addition, and a failed write leaves the index as it was.
Every call is made while the buffer holds its lock, and never two at a time.

Two kinds of rows fit:

- *local* rows: the buffer counts the ids (0, 1, 2, ...), and says in which slot (0 to capacity - 1) each row lives;
  ``append`` returns None.
- rows with *ids of their own* (a database): ``append`` ignores the slots and returns the new ids, larger than any
  before, gaps allowed. When other processes write to the same store, ``changes`` tells what they did; it is asked
  before every draw.
"""

# ruff: noqa: ARG002  (each kind of rows needs only some of what the protocol passes)

import math
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from relive.buffer._core import Index, push_object, take
from relive.buffer.errors import BufferSettingError, BufferStateError
from relive.buffer.sizes import estimated_bytes
from relive.buffer.state_file import transition_fields
from relive.experience import Transition

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

Experiences = Any
"""Many experiences: a sequence, or for rows of arrays a mapping from each field to an array ``[B, ...]``."""

NO_IDS: Ids = np.empty(0, dtype=np.int64)
NO_FLOATS: Floats = np.empty(0, dtype=np.float64)


class Changes(msgspec.Struct, kw_only=True):
    """What others did to the rows since the last question; applied in the order of the fields.

    Attributes:
        evicted: Ids that are gone. Ids that the buffer does not know are ignored.
        inserted: New ids, increasing, larger than every id before.
        inserted_priorities: The raw priority of each inserted id; NaN where none was given (the buffer's rule decides,
            else the largest live priority).
        updated: Ids whose priority somebody set.
        updated_priorities: The new raw priorities.
        rewarded: Ids whose reward or outcome became known; the buffer's priority rule is evaluated again for them.
    """

    evicted: Ids = NO_IDS
    inserted: Ids = NO_IDS
    inserted_priorities: Floats = NO_FLOATS
    updated: Ids = NO_IDS
    updated_priorities: Floats = NO_FLOATS
    rewarded: Ids = NO_IDS


class Summary(msgspec.Struct, kw_only=True):
    """What the rows add to a buffer's statistics.

    Attributes:
        reward_min: Smallest known reward; ``None``: none is known.
        reward_mean: Mean of the known rewards; ``None``: none is known.
        reward_max: Largest known reward; ``None``: none is known.
        unknown_rewards: How many rows have no known reward.
        cost: Sum of the known costs in nano-USD; ``None``: no row has a known cost.
    """

    reward_min: float | None = None
    reward_mean: float | None = None
    reward_max: float | None = None
    unknown_rewards: int = 0
    cost: int | None = None


class Rows(Protocol):
    """Keeps the experiences of a buffer; see the module's text for the order of calls."""

    keeps_priorities: bool
    """Whether `append` needs the priorities and `set_priorities` is to be called."""

    has_own_ids: bool
    """Whether `append` returns ids, and `changes` is asked before every draw."""

    def append(self, experiences: Experiences, priorities: Floats | None, victims: Ids, slots: Ids) -> Ids | None:
        """Stores the experiences and drops the victims, or raises and changes nothing.

        Args:
            experiences: At most as many as the buffer's capacity.
            priorities: The raw priority of each; ``None`` unless `keeps_priorities`.
            victims: Stored ids that leave, no id twice; may be empty, and may be more than the new ones.
            slots: For local rows, where each new row lives from now on. A victim's slot may be among them.

        Returns:
            The new ids, increasing; ``None`` for local rows.
        """
        ...

    def evict(self, ids: Ids, slots: Ids) -> None:
        """Drops rows without adding any (a limit on age or bytes, `ReplayBuffer.remove`)."""
        ...

    def get(self, ids: Ids, slots: Ids) -> Experiences:
        """The experiences with these ids (all stored; an id may come twice), in this order."""
        ...

    def set_priorities(self, ids: Ids, priorities: Floats) -> None:
        """Keeps new raw priorities of stored ids, or raises and changes nothing. Of equal ids the last counts."""
        ...

    def changes(self) -> Changes | None:
        """What others did since the last call; ``None``: nothing. The first call may report all that is stored."""
        ...

    def summary(self, ids: Ids, slots: Ids) -> Summary:
        """Rewards and costs of these rows, which are all that are stored."""
        ...

    def nbytes(self) -> int:
        """How much memory the rows take (an estimate where they are Python objects)."""
        ...

    def state_dict(self, ids: Ids, slots: Ids) -> dict[str, Any]:
        """The rows as NumPy arrays and JSON values, in this order; empty when they are kept elsewhere."""
        ...

    def load_state_dict(self, state: dict[str, Any], ids: Ids, slots: Ids) -> None:
        """Replaces all rows by those of a state, in the given slots."""
        ...


class ObjectRows:
    """Rows that are any Python objects, held in a list."""

    keeps_priorities = False
    has_own_ids = False

    def __init__(self) -> None:
        self._items: list[Any] = []

    def put(self, slot: int, experience: Any) -> None:
        """Keeps one experience in a slot; what was there is dropped."""
        items = self._items
        if slot == len(items):
            items.append(experience)
            return
        if slot > len(items):
            items.extend([None] * (slot + 1 - len(items)))
        items[slot] = experience

    def push(self, index: Index, experience: Any, priority: float | None) -> int:
        """Adds one experience in place of the oldest, and returns its id, or -1 where the priority is bad."""
        return push_object(self._items, index, experience, priority)

    def append(self, experiences: Experiences, priorities: Floats | None, victims: Ids, slots: Ids) -> None:
        """Puts each experience into its slot. Victims whose slot is not taken again are dropped by `evict`."""
        for slot, experience in zip(slots.tolist(), experiences, strict=True):
            self.put(slot, experience)

    def evict(self, ids: Ids, slots: Ids) -> None:
        """Lets go of the objects in these slots."""
        for slot in slots.tolist():
            self._items[slot] = None

    def get(self, ids: Ids, slots: Ids) -> list[Any]:
        """The objects in these slots."""
        return take(self._items, slots)

    def with_rewards(self, slots: Ids, rewards: Floats) -> list[Any]:
        """Copies of records and dicts with new rewards; what is stored stays as it is.

        Raises:
            BufferSettingError: something is neither.
        """
        pairs = zip(slots.tolist(), rewards.tolist(), strict=True)
        return [with_reward(self._items[slot], reward) for slot, reward in pairs]

    def rewrite(self, slots: Ids, experiences: list[Any]) -> None:
        """Puts these in the place of what lives in the slots."""
        for slot, experience in zip(slots.tolist(), experiences, strict=True):
            self._items[slot] = experience

    def set_priorities(self, ids: Ids, priorities: Floats) -> None:
        """Nothing to do: the index keeps the priorities."""

    def changes(self) -> None:
        """Nobody else writes here."""
        return

    def summary(self, ids: Ids, slots: Ids) -> Summary:
        """Rewards and costs of objects that have them, as attributes or under these keys."""
        items = [self._items[slot] for slot in slots.tolist()]
        return summarize([_field(item, "reward") for item in items], [_field(item, "cost") for item in items])

    def nbytes(self) -> int:
        """Estimated from at most 256 objects, evenly spaced; what several of them share is counted each time."""
        items = self._items
        if not items:
            return 0
        sample = items[:: max(1, len(items) // 256)]
        return sys.getsizeof(items) + round(sum(map(estimated_bytes, sample)) / len(sample) * len(items))

    def state_dict(self, ids: Ids, slots: Ids) -> dict[str, Any]:
        """Transitions as JSON values; other objects as they are (which not every file format can hold).

        Raises:
            BufferStateError: a transition has a value that could not be loaded.
        """
        items = [self._items[slot] for slot in slots.tolist()]
        transitions = [position for position, item in enumerate(items) if isinstance(item, Transition)]
        for position in transitions:
            items[position] = transition_fields(items[position], f"['rows']['experiences'][{position}]")
        return {"experiences": items, "transitions": np.array(transitions, dtype=np.int64)}

    def load_state_dict(self, state: dict[str, Any], ids: Ids, slots: Ids) -> None:
        """Takes the objects of a state.

        Raises:
            BufferStateError: there is not one object for each id.
        """
        items = list(state["experiences"])
        if len(items) != len(ids):
            raise BufferStateError(f"The state has {len(items)} experiences for {len(ids)} ids; it is damaged.")
        for position in state["transitions"].tolist():
            items[position] = Transition.from_dict(items[position])
        self._items = []
        for slot, item in zip(slots.tolist(), items, strict=True):
            self.put(slot, item)


def with_reward(experience: Any, reward: float) -> Any:
    """A copy of an experience with another reward.

    Raises:
        BufferSettingError: it is no struct and no dict.
    """
    if isinstance(experience, msgspec.Struct) and "reward" in experience.__struct_fields__:
        return msgspec.structs.replace(experience, reward=reward)
    if isinstance(experience, dict):
        return {**experience, "reward": reward}
    raise BufferSettingError(
        f"An experience of type {type(experience).__name__} cannot take a reward; keep a Transition or a dict."
    )


def summarize(rewards: Sequence[Any], costs: Sequence[Any]) -> Summary:
    """Summary of rewards and costs; an entry that is not a number (or is NaN) is not known."""
    known = [float(reward) for reward in rewards if _is_number(reward)]
    known_costs = [int(cost) for cost in costs if _is_number(cost)]
    return Summary(
        reward_min=min(known, default=None),
        reward_mean=sum(known) / len(known) if known else None,
        reward_max=max(known, default=None),
        unknown_rewards=len(rewards) - len(known),
        cost=sum(known_costs) if known_costs else None,
    )


def _field(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, dict) else getattr(item, name, None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and not math.isnan(value)
