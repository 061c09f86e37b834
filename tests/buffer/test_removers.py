"""Removers that keep a fair sample of a stream."""

import collections

import numpy as np
import pytest

import relive
from relive.buffer import BufferSettingError, Reservoir, TaskBalanced

STREAM = [("A", n) for n in range(1000)] + [("B", n) for n in range(1000)] + [("C", n) for n in range(10)]


def kept(buffer):
    """Everything stored, each once."""
    return buffer.sample(len(buffer) + 1).experiences


def streamed(remover, seed, *, batch=64, capacity=100):
    buffer = relive.ReplayBuffer(capacity, sampler=relive.Uniform(), remover=remover, seed=seed)
    for start in range(0, len(STREAM), batch):
        buffer.add_batch(STREAM[start : start + batch])
    return buffer


def test_buf_21_a_memory_balanced_by_task_keeps_45_45_10():
    means = []
    for seed in range(200):
        items = kept(streamed(TaskBalanced(lambda pair: pair[0]), seed))
        assert collections.Counter(task for task, _ in items) == {"A": 45, "B": 45, "C": 10}
        means.append(np.mean([n for task, n in items if task == "A"]))
    assert np.mean(means) == pytest.approx(499.5, abs=12)


def test_buf_21_a_reservoir_keeps_a_uniform_sample_of_the_stream():
    counts = collections.Counter()
    for seed in range(200):
        items = kept(streamed(Reservoir(), seed))
        assert len(items) == 100
        counts.update(task for task, _ in items)
    assert counts["A"] / 200 == pytest.approx(49.75, rel=0.05)
    assert counts["B"] / 200 == pytest.approx(49.75, rel=0.05)
    assert counts["C"] / 200 == pytest.approx(0.5, abs=0.2)


def test_one_by_one_and_in_batches_the_balance_is_the_same():
    for batch in (1, 7, 1000):
        items = kept(streamed(TaskBalanced(lambda pair: pair[0]), 0, batch=batch))
        assert collections.Counter(task for task, _ in items) == {"A": 45, "B": 45, "C": 10}


def test_every_item_of_a_stream_is_as_likely_to_stay_in_a_reservoir():
    counts = np.zeros(40)
    for seed in range(2000):
        buffer = relive.ReplayBuffer(10, sampler=relive.Uniform(), remover=Reservoir(), seed=seed)
        buffer.add_batch(list(range(25)))
        buffer.add_batch(list(range(25, 40)))
        counts[kept(buffer)] += 1
    # Each with probability 1/4: within 4.5 standard deviations.
    assert np.abs(counts - 500).max() < 4.5 * (2000 * 0.25 * 0.75) ** 0.5


def test_a_refused_newcomer_gets_an_id_that_is_gone_at_once():
    buffer = relive.ReplayBuffer(5, sampler=relive.Uniform(), remover=Reservoir())
    ids = buffer.add_batch(list(range(100)))
    assert ids.tolist() == list(range(100))
    stats = buffer.stats()
    assert (stats.size, stats.added, stats.evicted) == (5, 100, 95)
    assert buffer.update_priorities(ids, np.ones(100)) == 5
    assert buffer.add("next") == 100


def test_shares_make_a_task_worth_more():
    remover = TaskBalanced(lambda pair: pair[0], shares={"A": 3.0})
    assert collections.Counter(task for task, _ in kept(streamed(remover, 0))) == {"A": 68, "B": 22, "C": 10}


def test_tasks_are_found_in_tags():
    buffer = relive.ReplayBuffer(4, remover=TaskBalanced("task"))
    buffer.add_batch([relive.Transition(state=n, action=n, tags=("task:old",)) for n in range(8)])
    buffer.add_batch([relive.Transition(state=n, action=n, tags=("task:new",)) for n in range(8)])
    assert collections.Counter(t.tags for t in kept(buffer)) == {("task:old",): 2, ("task:new",): 2}


def test_a_task_that_was_removed_by_hand_makes_room():
    buffer = streamed(TaskBalanced(lambda pair: pair[0]), 0)
    batch = buffer.sample(101)
    gone = [id_ for id_, (task, _) in zip(batch.ids, batch.experiences, strict=True) if task == "B"]
    assert buffer.remove(gone) == 45
    buffer.add_batch([("D", n) for n in range(45)])
    assert collections.Counter(task for task, _ in kept(buffer)) == {"A": 45, "C": 10, "D": 45}


@pytest.mark.parametrize("remover", [Reservoir, lambda: TaskBalanced(lambda pair: pair[0])])
def test_a_saved_state_goes_on_with_the_same_choices(remover, tmp_path):
    buffer = streamed(remover(), 1)
    twin = relive.ReplayBuffer(100, sampler=relive.Uniform(), remover=remover(), seed=2)
    buffer.save(tmp_path / "buffer")
    twin.load(tmp_path / "buffer")
    for start in range(0, 500, 9):
        for each in (buffer, twin):
            each.add_batch([("D", n) for n in range(start, start + 9)])
        assert buffer.sample(101).ids.tolist() == twin.sample(101).ids.tolist()


def test_a_failed_write_leaves_a_task_balanced_memory_as_it_was():
    class Failing(relive.buffer.ObjectRows):
        fails = False

        def append(self, *args):
            if self.fails:
                raise OSError("disk full")
            super().append(*args)

    rows = Failing()
    buffer = relive.ReplayBuffer(10, storage=rows, remover=TaskBalanced(lambda pair: pair[0]))
    buffer.add_batch([("A", n) for n in range(20)])
    before = sorted(kept(buffer))
    rows.fails = True
    with pytest.raises(OSError, match="full"):
        buffer.add_batch([("B", n) for n in range(5)])
    rows.fails = False
    assert sorted(kept(buffer)) == before
    buffer.add_batch([("B", n) for n in range(5)])
    assert collections.Counter(task for task, _ in kept(buffer)) == {"A": 5, "B": 5}


def test_a_share_must_be_positive():
    with pytest.raises(BufferSettingError, match="positive"):
        TaskBalanced("task", shares={"A": 0.0})


def test_rows_of_arrays_are_kept_in_balance_too():
    storage = relive.ArrayStorage({"task": "i8", "n": "i8"})
    buffer = relive.ReplayBuffer(30, storage=storage, sampler=relive.Uniform(), remover=TaskBalanced("task"))
    for task, count in ((0, 100), (1, 100), (2, 4)):
        ids = buffer.add_batch({"task": np.full(count, task), "n": np.arange(count)})
        assert len(ids) == count
    batch = buffer.sample(31)
    assert np.bincount(batch["task"]).tolist() == [13, 13, 4]
    assert len(set(zip(batch["task"].tolist(), batch["n"].tolist(), strict=True))) == 30
