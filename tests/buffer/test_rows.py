"""The `Rows` protocol: a store with ids of its own, that others write to as well."""

import numpy as np
import pytest

from relive.buffer import Changes, Prioritized, ReplayBuffer, Summary

NAN = float("nan")


class Store:
    """A small store in the place of a database: ids with gaps, appends that can fail, a list of what others did."""

    keeps_priorities = True
    has_own_ids = True

    def __init__(self):
        self.rows = {}
        self.next_id = 10
        self.pending = []
        self.broken = False

    def _insert(self, experience, priority):
        id_ = self.next_id
        self.next_id += 3
        self.rows[id_] = (experience, priority)
        return id_

    def append(self, experiences, priorities, victims, slots):
        if self.broken:
            raise OSError("the disk is full")
        for id_ in victims.tolist():
            del self.rows[id_]
        new = [self._insert(*pair) for pair in zip(experiences, priorities.tolist(), strict=True)]
        return np.array(new, dtype=np.int64)

    def evict(self, ids, slots):
        for id_ in ids.tolist():
            del self.rows[id_]

    def get(self, ids, slots):
        return [self.rows[id_][0] for id_ in ids.tolist()]

    def set_priorities(self, ids, priorities):
        if self.broken:
            raise OSError("the disk is full")
        for id_, priority in zip(ids.tolist(), priorities.tolist(), strict=True):
            self.rows[id_] = (self.rows[id_][0], priority)

    def changes(self):
        return self.pending.pop(0) if self.pending else None

    def summary(self, ids, slots):
        return Summary()

    def nbytes(self):
        return 0

    def state_dict(self, ids, slots):
        return {}

    def load_state_dict(self, state, ids, slots):
        pass


def make(capacity=4, **settings):
    store = Store()
    return store, ReplayBuffer(capacity, storage=store, sampler=Prioritized(alpha=0.6), **settings)


def test_the_store_gives_the_ids_and_keeps_raw_priorities():
    store, buffer = make()
    assert buffer.add("a", priority=0.75) == 10
    assert buffer.add_batch("bc").tolist() == [13, 16]
    assert store.rows == {10: ("a", 0.75), 13: ("b", 0.75), 16: ("c", 0.75)}
    assert buffer.update_priorities([13, 13, 99], [2.0, 5.0, 1.0]) == 2
    assert store.rows[13] == ("b", 5.0)
    assert buffer.priorities([10, 13]).tolist() == [0.75, 5.0]
    assert buffer.sample(9).experiences == ["a", "b", "c"]


def test_victims_leave_in_the_step_that_appends():
    store, buffer = make(capacity=3)
    buffer.add_batch("abc")
    buffer.add_batch("de")
    assert sorted(store.rows) == [16, 19, 22]
    assert buffer.sample(9).ids.tolist() == [16, 19, 22]


def test_a_failed_write_changes_nothing():
    store, buffer = make(capacity=3)
    buffer.add_batch("abc", [1, 2, 3])
    before, state = dict(store.rows), buffer.state_dict()
    store.broken = True
    with pytest.raises(OSError, match="disk is full"):
        buffer.add_batch("de")
    with pytest.raises(OSError, match="disk is full"):
        buffer.update_priorities([10], [9.0])
    assert store.rows == before
    after = buffer.state_dict()
    assert after["index"]["ids"].tolist() == state["index"]["ids"].tolist()
    assert after["index"]["leaves"].tolist() == state["index"]["leaves"].tolist()
    store.broken = False
    assert buffer.add("f") == 19


def test_the_default_priority_does_not_count_what_leaves():
    store, buffer = make(capacity=3)
    buffer.add_batch("abc", [1e6, 0.25, 0.5])
    buffer.add("d")  # a, the largest, leaves in the same step
    assert store.rows[19] == ("d", 0.5)


def test_a_draw_follows_what_others_did():
    store, buffer = make(capacity=4, priority=len)
    buffer.add_batch(["a", "bb"])
    by_others = [store._insert(each, NAN) for each in ("cccc", "ddddd")]
    del store.rows[10]
    store.pending.append(
        Changes(
            evicted=np.array([10, 777]),
            inserted=np.array(by_others),
            inserted_priorities=np.array([NAN, 0.5]),
            updated=np.array([13, 888]),
            updated_priorities=np.array([8.0, 1.0]),
        )
    )
    assert buffer.sample(9).experiences == ["bb", "cccc", "ddddd"]
    assert buffer.priorities([13, *by_others]).tolist() == [8.0, 4.0, 0.5]
    store.pending.append(Changes(rewarded=np.array(by_others)))
    buffer.follow()
    assert buffer.priorities(by_others).tolist() == [4.0, 5.0]
    assert store.rows[by_others[1]] == ("ddddd", 5.0)


def test_what_others_insert_beyond_the_capacity_is_evicted():
    store, buffer = make(capacity=4)
    buffer.add_batch("abc")
    others = np.array([store._insert(each, 1.0) for each in "defghi"])
    store.pending.append(Changes(inserted=others[:2], inserted_priorities=np.ones(2)))
    assert buffer.sample(9).experiences == ["b", "c", "d", "e"]
    store.pending.append(Changes(inserted=others[2:], inserted_priorities=np.ones(4)))
    assert buffer.sample(9).experiences == ["f", "g", "h", "i"]
    more = np.array([store._insert(each, 1.0) for each in "jklmno"])
    store.pending.append(Changes(inserted=more, inserted_priorities=np.ones(6)))
    assert buffer.sample(9).experiences == ["l", "m", "n", "o"]
    assert sorted(store.rows) == more[2:].tolist()
