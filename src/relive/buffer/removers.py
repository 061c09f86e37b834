"""Removers that keep a fair sample of a whole stream: `Reservoir` and `TaskBalanced`.

Each experience gets a random number when it comes, and those with the largest stay (bottom-k sampling). That is a
uniform sample without replacement of all that ever came, at every moment, and a newcomer may be the one that is not
kept: it then gets an id that is gone at once.

This holds as long as the capacity alone decides how many stay. What another limit (bytes, age, draws, staleness) or
`ReplayBuffer.remove` takes out leaves room that the next newcomers fill, so that the newest are then over-represented.

`Fifo`, `Lifo`, `Lowest`, `Highest`, `Uniform` and `Prioritized` serve as removers too.
"""

# ruff: noqa: ARG002  (each remover needs only some of what the interface passes)

import heapq
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from relive.buffer.errors import BufferSettingError
from relive.buffer.fields import Key, count_of, labels
from relive.buffer.rows import Floats, Ids
from relive.buffer.selector import Selector
from relive.buffer.slot_array import SlotArray


class TaskBalanced(Selector):
    """Keeps as many experiences of each task as of any other, each a uniform sample of that task's whole stream.

    A task that has had fewer than its quota keeps all, and the others share the rest. So when a task begins, the others
    give way evenly; how much is in the newest task's stream does not matter. The sample is uniform while only the
    capacity binds; where other limits take experiences out, the newest are over-represented.

    Args:
        key: What makes a task: a field (``"agent"``, a tag ``"task:..."`` as ``"task"``) or a function.
        shares: How much of the buffer each task is worth, positive, any scale; tasks not named have 1. ``None``: equal.

    Raises:
        BufferSettingError: a share is not positive.
    """

    roles = ("remover",)

    def __init__(self, key: Key = "task", shares: Mapping[Any, float] | None = None) -> None:
        if shares is not None and not all(0 < share < math.inf for share in shares.values()):
            raise BufferSettingError(f"shares are {dict(shares)}; each must be positive.")
        self.key = key
        self.shares = shares
        self._lot = SlotArray(np.float64, np.nan)  # the random number of what a slot holds
        self._task = SlotArray(np.object_, None)
        self._size: dict[Hashable, int] = {}
        self._heaps: dict[Hashable, list[tuple[float, int]]] = {}  # with ids that have left, recognised when met
        self._admitted: list[float] = []

    @property
    def settings(self) -> dict[str, Any]:
        """The key, if it is a field."""
        return {"key": self.key} if isinstance(self.key, str) else {}

    def check_new(self, experiences: Sequence[Any]) -> None:
        """Asks for their tasks."""
        self._tasks(experiences)

    def admit(self, experiences: Sequence[Any], room: int) -> tuple[list[int], Ids]:
        """Decides who of the newcomers stays and who leaves for them.

        Args:
            experiences: Newcomers, in order.
            room: How many may be added without anybody leaving.

        Returns:
            The places of those that are to be added, increasing, and the stored ids that leave.
        """
        tasks = self._tasks(experiences)
        lots = self.view.random(len(tasks)).tolist()
        size = dict(self._size)
        newcomers: dict[Hashable, list[tuple[float, int]]] = {}  # with the ids -1, -2, ... for now
        taken: list[tuple[Hashable, tuple[float, int]]] = []
        leaving: set[int] = set()
        for place, (task, lot) in enumerate(zip(tasks, lots, strict=True)):
            size[task] = size.get(task, 0) + 1
            heapq.heappush(newcomers.setdefault(task, []), (lot, -1 - place))
            if place >= room:
                largest = self._largest(size, task)
                leaving.add(self._take_lowest(largest, newcomers.setdefault(largest, []), taken))
                size[largest] -= 1
                if not size[largest]:
                    del size[largest]
        self._put_back(taken)  # they leave only if the whole addition succeeds
        stay = [place for place in range(len(tasks)) if -1 - place not in leaving]
        self._admitted = [lots[place] for place in stay]
        return stay, np.array(sorted(id_ for id_ in leaving if id_ >= 0), dtype=np.int64)

    def insert(self, ids: Ids, priorities: Floats, experiences: Sequence[Any]) -> None:
        """They have joined; what `admit` has drawn for them stays with them."""
        lots = self._admitted if len(self._admitted) == len(ids) else self.view.random(len(ids)).tolist()
        self._admitted = []
        self._remember(ids, lots, self._tasks(experiences))

    def delete(self, ids: Ids) -> None:
        """They leave."""
        for task in self._task[self.view.index.find(ids)].tolist():
            self._size[task] -= 1
            if not self._size[task]:
                del self._size[task], self._heaps[task]

    def victims(self, count: int) -> Ids:
        """The lowest numbers of whichever task has most."""
        size = dict(self._size)
        taken: list[tuple[Hashable, tuple[float, int]]] = []
        leaving: list[int] = []
        for _ in range(count):
            largest = self._largest(size, None)
            leaving.append(self._take_lowest(largest, [], taken))
            size[largest] -= 1
        self._put_back(taken)
        return np.array(leaving, dtype=np.int64)

    def state_dict(self) -> dict[str, Any]:
        """The random numbers of all that is stored, by increasing id."""
        return {"lots": self._lot[self.view.index.find(self.view.ids())], "tasks_by_first": self._order()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them back."""
        ids = self.view.ids()
        tasks = self._task[self.view.index.find(ids)].tolist()
        self.reset()
        self._remember(ids, np.asarray(state["lots"]).tolist(), tasks)
        # Of equally large tasks the one seen first gives way first.
        order = {tasks[int(place)]: None for place in state["tasks_by_first"]}
        self._size = {task: self._size[task] for task in [*order, *self._size]}

    def reset(self) -> None:
        """Forgets everything."""
        self._size = {}
        self._heaps = {}
        self._admitted = []

    def _order(self) -> Ids:
        """Of each task, in the order in which they are looked at, the place of one member among all ids."""
        places = {task: place for place, task in enumerate(self._task[self.view.index.find(self.view.ids())].tolist())}
        return np.array([places[task] for task in self._size], dtype=np.int64)

    def _tasks(self, experiences: Sequence[Any]) -> list[Hashable]:
        return labels(experiences, self.key)

    def _largest(self, size: Mapping[Hashable, int], newcomer: Hashable) -> Hashable:
        """The fullest task; of equal ones the newcomer's own, so that no quota ever grows at another's cost."""
        shares = self.shares or {}
        return max(size, key=lambda task: (size[task] / shares.get(task, 1.0), task == newcomer))

    def _remember(self, ids: Ids, lots: Sequence[float], tasks: Sequence[Hashable]) -> None:
        slots = self.view.index.find(ids)
        boxed = np.empty(len(tasks), dtype=np.object_)
        boxed[:] = tasks
        self._lot[slots] = lots
        self._task[slots] = boxed
        for id_, lot, task in zip(ids.tolist(), lots, tasks, strict=True):
            self._size[task] = self._size.get(task, 0) + 1
            heap = self._heaps.setdefault(task, [])
            heapq.heappush(heap, (lot, id_))
            if len(heap) > 2 * self._size[task] + 64:  # mostly of those that have left
                self._heaps[task] = [entry for entry in heap if self.view.index.slot(entry[1]) >= 0]
                heapq.heapify(self._heaps[task])

    def _take_lowest(
        self, task: Hashable, newcomers: list[tuple[float, int]], taken: list[tuple[Hashable, tuple[float, int]]]
    ) -> int:
        """Who of a task has the lowest number; it is taken off the heap, and noted if it is stored."""
        heap = self._heaps.get(task, [])
        while heap and self.view.index.slot(heap[0][1]) < 0:
            heapq.heappop(heap)
        if newcomers and (not heap or newcomers[0] < heap[0]):
            return heapq.heappop(newcomers)[1]
        lowest = heapq.heappop(heap)
        taken.append((task, lowest))
        return lowest[1]

    def _put_back(self, taken: list[tuple[Hashable, tuple[float, int]]]) -> None:
        for task, entry in taken:
            heapq.heappush(self._heaps[task], entry)


class Reservoir(TaskBalanced):
    """Keeps a uniform sample of all that ever came (Vitter 1985, "Random sampling with a reservoir").

    It is uniform while only the capacity binds; where other limits take experiences out, the newest are
    over-represented.
    """

    def __init__(self) -> None:
        super().__init__()

    def _tasks(self, experiences: Sequence[Any]) -> list[Hashable]:
        return [None] * count_of(experiences)
