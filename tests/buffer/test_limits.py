"""Limits on bytes, age, draws and the ratio of samples to inserts."""

import dataclasses
import threading
import time
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relive
import relive.buffer as buffer_module
from relive.buffer import (
    BufferSettingError,
    BufferStateWarning,
    ExperienceTooLargeError,
    NotEnoughExperiencesError,
    OncePerPass,
    RateLimiter,
    RateLimitError,
    Reservoir,
)
from relive.buffer.sizes import estimated_bytes


class Clock:
    """Seconds that go on only when told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def stored(buffer):
    return sorted(buffer.sample(len(buffer) + 1).experiences)


# ---- Bytes


@given(
    sizes=st.lists(st.lists(st.integers(0, 700), min_size=1, max_size=8), max_size=12),
    limit=st.integers(800, 3000),
    remover=st.sampled_from([relive.Fifo, relive.buffer.Lowest, relive.Uniform, Reservoir]),
)
@settings(max_examples=60, deadline=None)
def test_the_limit_on_bytes_holds_after_every_call(sizes, limit, remover):
    buffer = relive.ReplayBuffer(20, remover=remover(), max_bytes=limit, sampler=relive.Uniform())
    newest = None
    for batch in sizes:
        buffer.add_batch([b"x" * size for size in batch])
        newest = b"x" * batch[-1]
        held = buffer.sample(21).experiences
        assert sum(map(estimated_bytes, held)) <= limit
        assert 0 < len(held) <= 20
    if newest is not None and remover is not Reservoir:
        assert newest in held


def test_only_as_many_leave_as_the_bytes_need():
    item = estimated_bytes(b"x" * 100)
    buffer = relive.ReplayBuffer(100, max_bytes=5 * item)
    for _ in range(9):
        buffer.add(b"x" * 100)
    assert len(buffer) == 5
    buffer.add(b"x" * (2 * 100))
    assert len(buffer) == 4


def test_an_experience_larger_than_the_limit_is_refused_and_nothing_of_its_batch_is_added():
    buffer = relive.ReplayBuffer(100, max_bytes=1000)
    buffer.add(b"kept")
    with pytest.raises(ExperienceTooLargeError, match="New experience 1 takes about 5033 bytes and max_bytes is 1000"):
        buffer.add_batch([b"small", b"x" * 5000])
    assert stored(buffer) == [b"kept"]


@dataclasses.dataclass
class Record:
    text: bytes
    parent: "Record | None" = None


class Slotted:
    __slots__ = ("__hidden", "never_set")

    def __init__(self, text):
        self.__hidden = text


class View:
    """Like a tensor: its numbers lie elsewhere."""

    nbytes = 5000


@pytest.mark.parametrize("make", [Record, Slotted, lambda text: [Record(text)], lambda text: deque([text])])
def test_objects_of_any_class_count_with_what_they_hold(make):
    assert 5000 < estimated_bytes(make(b"x" * 5000)) < 6000
    buffer = relive.ReplayBuffer(100, max_bytes=20_000)
    for _ in range(10):
        buffer.add(make(b"x" * 5000))
    assert len(buffer) == 3
    assert buffer.stats().bytes > 15_000


def test_what_an_experience_holds_twice_counts_once_and_a_circle_ends():
    text = b"x" * 5000
    assert estimated_bytes([text, text]) < 6000
    record = Record(text)
    record.parent = record
    assert 5000 < estimated_bytes(record) < 6000
    circle = [text]
    circle.append(circle)
    assert 5000 < estimated_bytes(circle) < 6000


def test_numbers_outside_of_an_object_count_and_code_does_not():
    numbers = np.zeros(2000, np.uint8)
    assert 5000 < estimated_bytes({"obs": View()}) < 6000
    assert 2000 < estimated_bytes(numbers) < 2500
    assert 1000 < estimated_bytes(numbers[:1000]) < 1500
    assert 5000 < estimated_bytes(np.array([b"x" * 5000], dtype=object)) < 6000
    assert estimated_bytes([Record, numpy_function, np, print]) < 10_000


def numpy_function():
    """A function, whose globals are no part of an experience."""


def test_rows_of_arrays_count_what_a_row_takes():
    storage = relive.ArrayStorage({"obs": ("f4", (16,))})
    buffer = relive.ReplayBuffer(100, storage=storage, max_bytes=10 * 64)
    buffer.add_batch({"obs": np.zeros((50, 16), np.float32)})
    assert len(buffer) == 10


# ---- Age


def test_what_is_too_old_leaves_by_elapsed_time():
    clock = Clock()
    buffer = relive.ReplayBuffer(100, max_age=10.0, clock=clock)
    buffer.add_batch(["a", "b"])
    clock.now += 6
    buffer.add("c")
    assert len(buffer) == 3
    clock.now += 5
    assert stored(buffer) == ["c"]
    assert buffer.stats().evicted == 2
    clock.now += 6
    assert len(buffer) == 0
    assert len(buffer.sample(4)) == 0


def test_an_old_record_is_as_old_as_it_says_when_it_comes():
    from datetime import UTC, datetime, timedelta

    clock = Clock()
    buffer = relive.ReplayBuffer(100, max_age=60.0, clock=clock)
    old = relive.Transition(state="old", action="a", created_at=datetime.now(UTC) - timedelta(seconds=50))
    buffer.add_batch([old, relive.Transition(state="new", action="a")])
    clock.now += 20
    assert [t.state for t in buffer.sample(3).experiences] == ["new"]


def test_ages_go_on_across_save_and_load(tmp_path):
    clock = Clock()
    buffer = relive.ReplayBuffer(100, max_age=10.0, clock=clock)
    buffer.add("a")
    clock.now += 6
    buffer.add("b")
    later = Clock()
    later.now = 5000.0
    twin = relive.ReplayBuffer(100, max_age=10.0, clock=later)
    buffer.save(tmp_path / "buffer")
    twin.load(tmp_path / "buffer")
    later.now += 5
    assert stored(twin) == ["b"]


def test_late_priorities_for_what_was_too_old_are_counted_and_ignored():
    clock = Clock()
    buffer = relive.ReplayBuffer(100, max_age=10.0, clock=clock)
    id_ = buffer.add("a")
    clock.now += 11
    assert len(buffer) == 0
    assert buffer.update_priorities([id_], [5.0]) == 0
    assert buffer.stats().stale_updates == 1


# ---- Draws


def test_an_experience_leaves_once_it_was_drawn_often_enough():
    buffer = relive.ReplayBuffer(100, sampler=OncePerPass(), max_times_sampled=2)
    buffer.add_batch(list(range(10)))
    drawn = []
    while len(buffer):
        drawn += buffer.sample(4).experiences
    assert sorted(drawn) == sorted([*range(10), *range(10)])


@pytest.mark.parametrize("sampler", [relive.Prioritized, relive.Uniform, relive.buffer.Highest])
def test_nothing_is_drawn_more_often_than_it_may_or_twice_in_a_batch_and_batches_stay_full(sampler):
    buffer = relive.ReplayBuffer(100, sampler=sampler(), max_times_sampled=3)
    buffer.add_batch(list(range(20)))
    counts = np.zeros(20, int)
    while size := len(buffer):
        batch = buffer.sample(8)
        assert len(set(batch.experiences)) == len(batch) == min(8, size)
        np.add.at(counts, batch.experiences, 1)
        assert counts.max() <= 3
    assert counts.tolist() == [3] * 20


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: buffer_module.NStep(sampler=s)])
def test_weights_of_a_batch_with_a_limit_on_draws_are_on_one_scale(wrap):
    priorities = np.array([100.0, 100.0, *[1.0] * 20, *[0.01] * 20])
    for seed in range(50):
        sampler = relive.Prioritized(1.0, beta=0.5, beta_increment=0.25)
        buffer = relive.ReplayBuffer(42, sampler=wrap(sampler), max_times_sampled=1, seed=seed)
        buffer.add_batch([{"p": p} for p in priorities], priorities)
        batch = buffer.sample(16)
        drawn = np.array([e["p"] for e in batch.experiences])
        # (N P)^-beta with P from the whole buffer and one beta for the whole batch
        assert batch.weights == pytest.approx((drawn / drawn.min()) ** -0.5)
        assert batch.probabilities == pytest.approx(drawn / priorities.sum())
        assert sampler.beta == 0.75


def test_a_mixture_that_chooses_one_too_often_gives_a_shorter_batch():
    mixture = buffer_module.Mixture((buffer_module.Highest(), 1), (relive.Prioritized(1.0), 1))
    buffer = relive.ReplayBuffer(4, sampler=mixture, max_times_sampled=1)
    buffer.add_batch(["a", "b"], [1.0, 0.0])
    batch = buffer.sample(2)
    assert (batch.experiences, batch.shortfall) == (["a"], 1)
    assert buffer.sample(2, strict=False).experiences == []


def test_a_limit_on_draws_counts_whole_sequences_and_refuses_overlapping_ones():
    rows = [
        relive.Transition(state=n, action="a", episode_id=e, step=n, terminated=n == 2) for e in "xy" for n in range(3)
    ]
    buffer = relive.ReplayBuffer(50, sampler=buffer_module.Episodes(), max_times_sampled=1)
    buffer.add_batch(rows)
    batch = buffer.sample(4)
    assert sorted(batch.ids.tolist()) == list(range(6))
    assert len(buffer) == 0
    with pytest.raises(BufferSettingError, match="Slices overlap, so max_times_sampled cannot bound their rows"):
        relive.ReplayBuffer(50, sampler=buffer_module.Filter(buffer_module.Slices(2), agent="a"), max_times_sampled=1)


def test_a_strict_draw_that_is_refused_counts_no_draw():
    rows = [relive.Transition(state=n, action="a", episode_id="e", step=n, terminated=n == 2) for n in range(3)]
    buffer = relive.ReplayBuffer(50, sampler=buffer_module.Episodes(), max_times_sampled=1)
    buffer.add_batch(rows)
    with pytest.raises(NotEnoughExperiencesError, match="2 was asked for, but only 1 sequences can be drawn"):
        buffer.sample(2, strict=True)
    assert buffer.stats().sampled == 0
    assert buffer.sample(1, strict=True).lengths.tolist() == [3]


def test_a_slot_taken_again_counts_from_nothing():
    buffer = relive.ReplayBuffer(2, sampler=relive.Fifo(), max_times_sampled=2)
    for number in range(6):
        buffer.add(number)
        assert buffer.sample(1).experiences


# ---- The ratio of samples to inserts


def test_buf_19_a_loaded_checkpoint_never_brings_back_another_limiter(monkeypatch):
    saved = relive.ReplayBuffer(1000, rate_limiter=RateLimiter(samples_per_insert=1.0, min_size=1, tolerance=10))
    saved.add_batch(list(range(5)))
    state = saved.state_dict()

    off = relive.ReplayBuffer(1000)
    with pytest.warns(BufferStateWarning, match=r"limiter \{'samples_per_insert': 1.0.*\}, this buffer has None"):
        off.load_state_dict(state)
    for number in range(100):
        off.add(number)
    assert len(off) == 105

    on = relive.ReplayBuffer(
        1000, rate_limiter=RateLimiter(samples_per_insert=1.0, min_size=1, tolerance=10, timeout=0.05)
    )
    on.load_state_dict(state)
    for number in range(6):
        on.add(number)  # 11 inserts: 1 for the size, 10 by tolerance
    waits = []
    wait_for = on._changed.wait_for
    monkeypatch.setattr(on._changed, "wait_for", lambda allowed, limit: waits.append(limit) or wait_for(allowed, limit))
    with pytest.raises(RateLimitError, match=r"waited 0\.05 s in vain") as caught:
        on.add("one too many")
    assert waits == [0.05]
    assert (caught.value.inserts, caught.value.samples, caught.value.allowed) == (11, 0, (-9, 11))
    assert "11 inserts and 0 samples" in str(caught.value)
    assert "between -9 and 11" in str(caught.value)
    assert len(on) == 11

    on.rate_limiter = RateLimiter(samples_per_insert=1.0, min_size=1, tolerance=1000)
    for number in range(100):
        on.add(number)
    on.rate_limiter = None
    on.add_batch(list(range(800)))
    assert len(on) == 911


def test_a_limiter_with_other_settings_is_named_beside_the_saved_one():
    saved = relive.ReplayBuffer(10, rate_limiter=RateLimiter(1.0, tolerance=10))
    other = relive.ReplayBuffer(10, rate_limiter=RateLimiter(2.0, tolerance=20))
    with pytest.warns(BufferStateWarning, match=r"'samples_per_insert': 1.0.*'samples_per_insert': 2.0"):
        other.load_state_dict(saved.state_dict())
    same = relive.ReplayBuffer(10, rate_limiter=RateLimiter(1.0, tolerance=10, timeout=1.0))
    same.load_state_dict(saved.state_dict())  # the time limit decides nothing


def test_nothing_is_drawn_before_the_smallest_size():
    buffer = relive.ReplayBuffer(10, rate_limiter=RateLimiter(1.0, min_size=3, tolerance=10, timeout=0))
    buffer.add_batch([1, 2])
    with pytest.raises(RateLimitError, match="2 of at least 3 stored"):
        buffer.sample(1)
    buffer.add(3)
    assert len(buffer.sample(1)) == 1


def test_samplers_wait_for_inserters_and_the_other_way_round():
    buffer = relive.ReplayBuffer(
        1000, sampler=relive.Uniform(), rate_limiter=RateLimiter(4.0, min_size=8, tolerance=32, timeout=20)
    )
    lead = []

    def insert():
        for number in range(200):
            buffer.add(number)
            lead.append(4.0 * buffer.stats().added - buffer.stats().sampled)

    def sample():
        for _ in range(200 * 4 // 16 - 2):
            buffer.sample(16)

    threads = [threading.Thread(target=insert), threading.Thread(target=sample)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert buffer.stats().added == 200
    assert buffer.stats().sampled == 16 * 48
    assert max(lead) <= 4 * 8 + 32


def test_the_limiter_counts_sequences_as_samples():
    buffer = relive.ReplayBuffer(
        1000, sampler=buffer_module.Slices(8), rate_limiter=RateLimiter(1.0, tolerance=32, timeout=0)
    )
    buffer.add_batch([relive.Transition(state=n, action="a", episode_id="e", step=n) for n in range(32)])
    for count in (16, 16, 16, 15):  # 32 inserts, then 63 samples: down to 1 - 32
        assert len(buffer.sample(count).lengths) == count
    with pytest.raises(RateLimitError) as caught:
        buffer.sample(1)
    assert (caught.value.inserts, caught.value.samples, caught.value.allowed) == (32, 63, (-31, 33))


def test_whoever_waits_goes_on_as_soon_as_the_limiter_is_changed():
    buffer = relive.ReplayBuffer(10, rate_limiter=RateLimiter(1.0, min_size=1, tolerance=1, timeout=None))
    buffer.add_batch([1, 2])
    done = threading.Event()
    thread = threading.Thread(target=lambda: (buffer.add(3), done.set()))
    thread.start()
    time.sleep(0.05)
    assert not done.is_set()
    buffer.rate_limiter = None
    thread.join(20)
    assert done.is_set()


def test_a_batch_that_can_never_pass_is_refused_at_once():
    buffer = relive.ReplayBuffer(1000, rate_limiter=RateLimiter(1.0, tolerance=10, timeout=None))
    with pytest.raises(RateLimitError, match=r"Inserting 21 at once can never pass \(20 can\)"):
        buffer.add_batch(list(range(21)))
    buffer.rate_limiter = None
    buffer.add_batch(list(range(100)))
    buffer.rate_limiter = RateLimiter(1.0, tolerance=10, timeout=None)
    with pytest.raises(RateLimitError, match=r"Drawing 21 at once can never pass \(20 can\)"):
        buffer.sample(21)


@pytest.mark.parametrize(
    ("settings_", "named"),
    [
        ({"samples_per_insert": 0.0}, "samples_per_insert is 0.0"),
        ({"samples_per_insert": 1.0, "min_size": 0}, "min_size is 0"),
        ({"samples_per_insert": 8.0, "tolerance": 3.0}, "tolerance is 3.0; it must be at least 4"),
        ({"samples_per_insert": 1.0, "timeout": -1.0}, "timeout is -1.0"),
    ],
)
def test_settings_out_of_range_are_named(settings_, named):
    with pytest.raises(BufferSettingError, match=named):
        RateLimiter(**settings_)


@pytest.mark.parametrize("name", ["max_bytes", "max_age", "max_times_sampled"])
def test_a_limit_of_nothing_is_refused(name):
    with pytest.raises(BufferSettingError, match=f"{name} is 0"):
        relive.ReplayBuffer(10, **{name: 0})


def test_a_batch_that_a_limit_shortens_has_weights_on_its_own_scale():
    class Doubling(relive.Prioritized):
        follows = True

        def select(self, count):
            ids = np.array([0, 1, 1][:count])
            return buffer_module.Selection(
                ids=ids, probabilities=np.ones(len(ids)), weights=np.array([0.25, 0.5, 1.0])[: len(ids)]
            )

    # A selector that says nothing of `never_twice`; the draw of the largest weight is one too many.
    sampler = buffer_module.Filter(Doubling(), where=lambda item: True)
    buffer = relive.ReplayBuffer(3, sampler=sampler, max_times_sampled=1)
    buffer.add_batch("ab")
    assert buffer.sample(3).weights.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("size", [2.5, "3", None, 2**63, 2**70, 2**44])
def test_a_capacity_that_cannot_be_kept_is_refused_in_a_sentence(size):
    with pytest.raises(relive.buffer.BufferSettingError, match=r"capacity (is|of) .*[.]"):
        relive.ReplayBuffer(size)


@pytest.mark.parametrize("name", ["max_bytes", "max_age", "max_times_sampled"])
def test_a_limit_that_is_text_is_refused(name):
    with pytest.raises(relive.buffer.BufferSettingError, match=f"{name} is '5'; it must be a number"):
        relive.ReplayBuffer(3, **{name: "5"})
