"""Ids and slots of the native index against a plain dictionary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.buffer import ArrayStorage, _core
from relive.buffer.rows import NO_IDS


def ids(*values):
    return np.array(values, dtype=np.int64)


class Model:
    """The index as a dictionary, and the index beside it."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.stored = {}  # id: priority
        self.next_id = 0
        self.index = _core.Index(capacity, 1.0, 0)

    def replace(self, victims, new):
        priorities = np.array([float(id_ % 7 + 1) for id_ in new])
        proposed = self.index.propose(ids(*victims), len(new)).tolist()
        gaps = any(id_ != self.next_id + i for i, id_ in enumerate(new))
        self.index.replace(ids(*victims), ids(*new), priorities)
        for id_ in victims:
            del self.stored[id_]
        self.stored.update(zip(new, priorities.tolist(), strict=True))
        if new:
            self.next_id = new[-1] + 1
        if not gaps:
            assert self.index.find(ids(*new)).tolist() == proposed

    def check(self):
        index = self.index
        assert index.size == len(self.stored)
        assert index.next_id == self.next_id
        assert index.ids().tolist() == sorted(self.stored)
        slots = index.find(index.ids()).tolist()
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < self.capacity for slot in slots)
        assert index.priorities(index.ids()).tolist() == [self.stored[id_] for id_ in sorted(self.stored)]
        gone = [id_ for id_ in range(self.next_id + 2) if id_ not in self.stored]
        assert (index.find(ids(*gone)) == -1).all()
        assert index.oldest(3).tolist() == sorted(self.stored)[:3]
        if self.stored:
            assert set(index.locate(np.linspace(0, 1, 50)).tolist()) <= set(self.stored)


@given(capacity=st.integers(1, 40), data=st.data())
@settings(max_examples=150, deadline=None)
def test_ids_and_slots_agree_with_a_dictionary(capacity, data):
    model = Model(capacity)
    orderly = data.draw(st.booleans(), label="first in, first out only")
    for _ in range(data.draw(st.integers(1, 25))):
        stored = sorted(model.stored)
        count = data.draw(st.integers(0, len(stored)))
        victims = stored[:count] if orderly else data.draw(st.permutations(stored))[:count]
        room = capacity - len(stored) + len(victims)
        new = list(range(model.next_id, model.next_id + data.draw(st.integers(0, room))))
        if not orderly and new and data.draw(st.booleans(), label="skip ids"):
            gap = data.draw(st.integers(1, 5))
            model.index.skip_to(new[0] + gap)
            model.next_id += gap
            new = [id_ + gap for id_ in new]
        model.replace(victims, new)
        model.check()
    assert model.index.is_ring or not orderly


@given(capacity=st.integers(1, 30), data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_restored_index_goes_on_like_the_original(capacity, data):
    model = Model(capacity)
    for _ in range(data.draw(st.integers(1, 8))):
        stored = sorted(model.stored)
        victims = data.draw(st.permutations(stored))[: data.draw(st.integers(0, len(stored)))]
        room = capacity - len(stored) + len(victims)
        model.replace(victims, list(range(model.next_id, model.next_id + data.draw(st.integers(0, room)))))
    index = model.index
    twin = _core.Index(capacity, 1.0, 0)
    stored = index.ids()
    twin.restore(stored, index.find(stored), index.leaves(stored), index.free_slots(), index.is_ring)
    twin.skip_to(index.next_id)
    twin.random_state = index.random_state
    for _ in range(capacity + 3):
        assert index.push(2.0) == twin.push(2.0)
        assert index.find(index.ids()).tolist() == twin.find(twin.ids()).tolist()
        assert index.total == twin.total
        blocks = [each.draw(8, _core.Drawing.STRATIFIED, 0.5) for each in (index, twin)]
        assert bytes(blocks[0]) == bytes(blocks[1])


@pytest.mark.parametrize("gap", [False, True])
def test_the_index_refuses_ids_that_are_not_stored_not_new_or_too_many(gap):
    index = _core.Index(4, 1.0, 0)
    index.replace(NO_IDS, np.arange(4), None)
    if gap:
        index.replace(np.array([1]), NO_IDS, None)
    before = index.ids().tolist()
    for victims, new, message in (
        ([7], [], "not stored"),
        ([-1], [], "not stored"),
        ([2, 0, 2], [], "leaves twice"),
        ([], [4, 5], "no room"),
        ([2], [3], "must increase"),
        ([2, 3], [5, 4], "must increase"),
    ):
        with pytest.raises(ValueError, match=message):
            index.replace(np.array(victims, dtype=np.int64), np.array(new, dtype=np.int64), None)
        assert index.ids().tolist() == before
    with pytest.raises(ValueError, match="not stored"):
        index.default_priority(np.array([7]))
    assert index.total == len(before)


def test_rows_refuse_slots_beyond_their_capacity():
    storage = ArrayStorage({"x": "f8"})
    storage.allocate(4)
    for slot in (-1, 4, 10**12):
        with pytest.raises(IndexError, match="slot out of range"):
            storage.native.gather(np.array([0, slot]))
        with pytest.raises(IndexError, match="slot out of range"):
            storage.native.put({"x": np.ones(2)}, np.array([0, slot]))
    assert storage.get(np.arange(4), np.arange(4))["x"].tolist() == [0.0] * 4


def test_a_ring_costs_nothing_for_each_id():
    index = _core.Index(2**16, 1.0, 0)
    for _ in range(2**17):
        index.push(1.0)
    assert index.is_ring
    assert index.nbytes / 2**16 <= 5
