"""Rows of arrays: what comes back is what went in, and an error names the field."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.buffer import (
    ArrayStorage,
    BufferSettingError,
    BufferStateError,
    InvalidPriorityError,
    Prioritized,
    ReplayBuffer,
    SchemaError,
    Selection,
    Selector,
    Uniform,
)

FIELDS = {"obs": ("f4", (3,)), "act": ("i8", ()), "rew": "f4", "done": "?"}


def make(capacity=8, fields=FIELDS, **settings):
    return ReplayBuffer(capacity, storage=ArrayStorage(fields), **settings)


def row(n, **changes):
    return {"obs": np.full(3, n, np.float32), "act": n, "rew": n / 2, "done": n % 2 == 0, **changes}


def columns(numbers):
    numbers = np.asarray(numbers)
    return {
        "obs": np.repeat(numbers[:, None], 3, axis=1).astype(np.float32),
        "act": numbers.astype(np.int64),
        "rew": (numbers / 2).astype(np.float32),
        "done": numbers % 2 == 0,
    }


def assert_rows(batch, numbers):
    for name, expected in columns(numbers).items():
        assert batch[name].dtype == expected.dtype
        np.testing.assert_array_equal(batch[name], expected)


def test_rows_come_back_as_they_went_in():
    buffer = make()
    assert [buffer.add(row(n)) for n in range(5)] == [0, 1, 2, 3, 4]
    assert buffer.add_batch(columns([5, 6, 7, 8, 9])).tolist() == [5, 6, 7, 8, 9]
    assert buffer.add_batch([row(10), row(11)]).tolist() == [10, 11]
    batch = buffer.sample(100)
    assert batch.ids.tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    assert_rows(batch, batch.ids)
    assert batch.ages.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert len(batch.experiences) == 8
    assert batch.experiences[2]["act"] == 6
    assert [row["rew"] for row in batch.experiences[:2]] == [2.0, 2.5]
    assert set(batch.columns) == set(FIELDS)
    assert (buffer.stats().evicted, buffer.stats().reward_min, buffer.stats().reward_max) == (4, 2.0, 5.5)


@pytest.mark.parametrize("sampler", [Prioritized, Uniform])
def test_drawn_rows_belong_to_their_ids(sampler):
    buffer = make(1000, sampler=sampler())
    buffer.add_batch(columns(np.arange(1700)))
    for _ in range(20):
        batch = buffer.sample(64)
        assert len(set(batch.ids.tolist())) > 1
        assert_rows(batch, batch.ids)
        buffer.update_priorities(batch.ids, td_errors=np.linspace(-3, 3, 64))


def test_a_batch_is_a_snapshot():
    buffer = make(2)
    buffer.add_batch(columns([0, 1]))
    batch = buffer.sample(5)
    buffer.add_batch(columns([7, 8]))
    assert_rows(batch, [0, 1])
    batch["act"][0] = 99
    assert batch["act"][0] == 99
    assert_rows(buffer.sample(5), [7, 8])


class EveryOther(Selector):
    """A sampler of the slow kind: every other id, oldest first."""

    def select(self, count):
        ids = self.view.ids()[::2][:count]
        return Selection(ids=ids, probabilities=np.ones(len(ids)))


def test_any_sampler_and_remover_works_on_rows_of_arrays():
    buffer = make(5, sampler=EveryOther(), remover=EveryOther())
    buffer.add_batch(columns(range(5)))
    buffer.add_batch(columns([5, 6]))  # 0 and 2 leave
    batch = buffer.sample(9)
    assert batch.ids.tolist() == [1, 4, 6]
    assert_rows(batch, [1, 4, 6])
    assert batch.weights.tolist() == [1, 1, 1]
    assert buffer.add(row(7)) == 7
    assert buffer.sample(9).ids.tolist() == [3, 5, 7]


def test_more_columns_than_the_capacity_keep_the_last():
    buffer = make(3)
    assert len(buffer.add_batch(columns(range(11)))) == 11
    assert_rows(buffer.sample(9), [8, 9, 10])
    assert buffer.stats().evicted == 8


def test_priorities_and_rules_work_on_columns():
    buffer = make(8, sampler=Prioritized(alpha=1.0), priority=lambda experience: experience["rew"] + 1)
    buffer.add_batch(columns([0, 2]))
    buffer.add(row(4))
    buffer.add_batch(columns([1, 3]), [9.0, 0.0])
    assert buffer.priorities(range(5)).tolist() == [1.0, 2.0, 3.0, 9.0, 0.0]
    assert_rows(buffer.sample(9), [0, 2, 4, 1])
    with pytest.raises(InvalidPriorityError, match="experience 1 of the new"):
        buffer.add_batch(columns([1, 3]), [1.0, float("nan")])
    assert len(buffer) == 5


def test_other_types_are_taken_where_nothing_is_lost():
    buffer = make()
    buffer.add({"obs": [1, 2, 3], "act": np.int32(7), "rew": np.float64(0.5), "done": 1})
    buffer.add({"obs": (1.5, 2.5, 3.5), "act": np.uint8(8), "rew": 2, "done": np.bool_(False)})
    buffer.add({"obs": np.array([[1.0, 2.0, 3.0]]).T[:, 0], "act": True, "rew": np.float32(3), "done": 0.0})
    buffer.add_batch({"obs": np.ones((2, 3)), "act": [1, 2], "rew": [1, 2], "done": [0, 1]})
    batch = buffer.sample(9)
    assert batch["obs"].tolist() == [[1, 2, 3], [1.5, 2.5, 3.5], [1, 2, 3], [1, 1, 1], [1, 1, 1]]
    assert batch["act"].tolist() == [7, 8, 1, 1, 2]
    assert batch["rew"].tolist() == [0.5, 2, 3, 1, 2]
    assert batch["done"].tolist() == [True, False, False, False, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs": np.zeros(4, np.float32)}, r"Field 'obs' has shape \(3,\); the value has \(4,\)"),
        ({"obs": np.zeros((3, 1), np.float32)}, r"Field 'obs' has shape \(3,\); the value has \(3, 1\)"),
        ({"obs": 1.0}, r"Field 'obs' has shape \(3,\); the value has \(\)"),
        ({"obs": "abc"}, "Field 'obs' is float32; values of type <U3"),
        ({"obs": [1e300, 0, 0]}, "Field 'obs' is float32; a value lies outside its range"),
        ({"rew": 1e300}, "Field 'rew' is float32; a value lies outside its range"),
        ({"rew": np.ma.masked}, "Field 'rew' has masked values"),
        ({"obs": np.ma.masked_less(np.float32([1, 2, 3]), 2)}, "Field 'obs' has masked values"),
        ({"obs": [1.0, np.ma.masked, 2.0]}, "Field 'obs' has masked values"),
        ({"rew": None}, "Field 'rew' is float32; values of type object"),
        ({"rew": 1j}, "Field 'rew' is float32; values of type complex128"),
        ({"act": 1.5}, "Field 'act' is int64; values of type float64"),
        ({"act": 2**63}, "Field 'act' is int64; a value lies outside its range"),
        ({"act": [1]}, r"Field 'act' has shape \(\); the value has \(1,\)"),
        ({"done": 2}, "Field 'done' is bool; values of type int64"),
        ({"extra": 1}, "Field 'extra' is not one of this buffer's fields; it has 'obs', 'act', 'rew', 'done'"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_the_name_of_its_field(changes, message):
    buffer = make()
    buffer.add(row(1))
    with pytest.raises(SchemaError, match=message):
        buffer.add(row(2, **changes))
    with pytest.raises(SchemaError, match="Field"):
        buffer.add_batch([row(2), row(3, **changes)])
    assert len(buffer) == 1
    assert buffer.add(row(4)) == 1


def test_masked_columns_are_refused_and_unmasked_ones_taken():
    buffer = make()
    for field, values in columns([1, 2]).items():
        with pytest.raises(SchemaError, match=f"Field '{field}' has masked values, which rows cannot hold"):
            buffer.add_batch({**columns([1, 2]), field: np.ma.array(values, mask=values == values[0])})
    assert len(buffer) == 0
    buffer.add_batch({field: np.ma.array(values) for field, values in columns([1, 2]).items()})
    assert_rows(buffer.sample(9), [1, 2])


def test_masked_priorities_and_ids_are_refused():
    buffer = make(sampler=Prioritized())
    ids = buffer.add_batch(columns([1, 2]))
    hidden = np.ma.array([5.0, 7.0], mask=[True, False])
    with pytest.raises(InvalidPriorityError, match="priorities has masked values"):
        buffer.update_priorities(ids, hidden)
    with pytest.raises(InvalidPriorityError, match="priorities has masked values"):
        buffer.add_batch(columns([3, 4]), hidden)
    with pytest.raises(BufferSettingError, match="ids has masked values"):
        buffer.remove(np.ma.array(ids, mask=[True, False]))
    assert len(buffer) == 2


def test_a_whole_number_beyond_a_small_float_is_refused():
    buffer = make(4, {"x": "f2"})
    for values in (70_000, np.int32(70_000)):
        with pytest.raises(SchemaError, match="Field 'x' is float16; a value lies outside its range"):
            buffer.add({"x": values})


def test_missing_fields_and_unequal_columns_are_refused():
    buffer = make()
    for experience, some_columns in (({}, {}), ({"obs": np.zeros(3)}, {"obs": np.zeros((2, 3))})):
        with pytest.raises(SchemaError, match="is missing; an experience has 'obs', 'act', 'rew', 'done'"):
            buffer.add(experience)
        with pytest.raises(SchemaError, match="is missing"):
            buffer.add_batch(some_columns)
    with pytest.raises(SchemaError, match="different numbers of rows: 'obs' 2, 'act' 3, 'rew' 2, 'done' 2"):
        buffer.add_batch({**columns([1, 2]), "act": np.arange(3)})
    with pytest.raises(SchemaError, match="An experience of type int has no fields"):
        buffer.add(3)
    assert len(buffer) == 0


def test_asking_for_an_unknown_field_says_which_there_are():
    buffer = make()
    buffer.add(row(1))
    with pytest.raises(SchemaError, match="no field 'reward'; there are 'obs', 'act', 'rew', 'done'"):
        buffer.sample(1)["reward"]
    plain = ReplayBuffer(3)
    plain.add(row(1))
    with pytest.raises(SchemaError, match="keeps Python objects"):
        plain.sample(1)["obs"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "at least one field"),
        ({"a": object}, "Field 'a' is of type object; arrays hold bool, integers, floats and complex numbers"),
        *(({"a": kind}, "Field 'a' is of type .*; arrays hold") for kind in ("U", "U3", "S3", "V4", "M8[ns]", "m8[s]")),
        ({"a": [("x", "f4")]}, "Field 'a' is of type .*; arrays hold"),
        ({"a": ("f4", (0,))}, r"Field 'a' has shape \(0,\)"),
        ({"a": "no type"}, "Field 'a' is 'no type'"),
        ({"weights": "f4"}, "A field cannot be called 'weights'"),
        ({3: "f4"}, "A field's name is 3"),
    ],
)
def test_a_schema_that_cannot_keep_every_value_is_refused(fields, message):
    with pytest.raises(BufferSettingError, match=message):
        ArrayStorage(fields)


def test_a_storage_serves_one_buffer_only():
    storage = ArrayStorage(FIELDS)
    ReplayBuffer(3, storage=storage)
    with pytest.raises(BufferSettingError, match="already serves another buffer"):
        ReplayBuffer(3, storage=storage)


KINDS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@given(
    fields=st.dictionaries(
        st.text(min_size=1, max_size=5).filter(lambda name: name not in ("ids", "slots", "weights", "probabilities")),
        st.tuples(st.sampled_from(KINDS), st.lists(st.integers(1, 4), max_size=3).map(tuple)),
        min_size=1,
        max_size=6,
    ),
    capacity=st.integers(1, 20),
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_any_schema_keeps_every_bit(fields, capacity, counts, seed):
    rng = np.random.default_rng(seed)
    buffer = make(capacity, fields)

    def random_columns(count):
        made = {}
        for name, (kind, shape) in fields.items():
            dtype = np.dtype(kind)
            if dtype.kind == "b":
                made[name] = rng.integers(0, 2, (count, *shape)).astype(dtype)
            else:
                bits = rng.integers(0, 256, (count, *shape, dtype.itemsize), dtype=np.uint8)
                made[name] = bits.view(dtype).reshape(count, *shape)
        return made

    all_rows = {name: np.empty((0, *shape), kind) for name, (kind, shape) in fields.items()}
    for count in counts:
        new = random_columns(count)
        if count == 1:
            buffer.add({name: array[0] for name, array in new.items()})
        else:
            buffer.add_batch(new)
        all_rows = {name: np.concatenate([all_rows[name], new[name]]) for name in fields}
    batch = buffer.sample(capacity + 1)
    for name in fields:
        assert batch[name].tobytes() == all_rows[name][-capacity:].tobytes()


def test_a_state_restores_rows_and_refuses_other_fields():
    buffer = make(5)
    buffer.add_batch(columns(range(8)))
    buffer.remove([5])
    state = buffer.state_dict()
    twin = make(5)
    twin.load_state_dict(state)
    first, second = buffer.sample(3), twin.sample(3)
    assert first.ids.tolist() == second.ids.tolist()
    assert_rows(second, second.ids)
    assert buffer.add(row(8)) == twin.add(row(8))
    assert_rows(twin.sample(9), [3, 4, 6, 7, 8])
    other = make(5, {**FIELDS, "more": "f4"})
    other.add(row(1, more=1.0))
    with pytest.raises(BufferStateError, match="'more' is missing"):
        other.load_state_dict(state)
    assert other.sample(2)["act"].tolist() == [1]


def test_memory_is_little_more_than_the_rows():
    fields = {"obs": ("f4", (16,)), "act": "i8", "rew": "f4", "next_obs": ("f4", (16,)), "done": "?"}
    buffer = make(2**16, fields)
    raw = 2**16 * (64 + 8 + 4 + 64 + 1)
    assert buffer.stats().bytes / raw <= 1.06
    assert buffer._index.nbytes / 2**16 <= 5


def test_a_buffer_of_arrays_ends_with_its_last_reference():
    buffer = make()
    buffer.add(row(1))
    batch = buffer.sample(1)
    native = weakref.ref(buffer._arrays)
    del buffer
    gc.collect()
    assert native() is None
    assert_rows(batch, [1])


def test_tensors_share_the_memory_of_the_batch():
    torch = pytest.importorskip("torch")
    buffer = make()
    buffer.add_batch(columns(range(4)))
    batch = buffer.sample(9)
    tensors = batch.to_torch()
    assert set(tensors) == {*FIELDS, "ids", "weights", "probabilities"}
    assert tensors["obs"].dtype == torch.float32
    assert tensors["done"].dtype == torch.bool
    tensors["obs"][0, 0] = 42.0
    assert batch["obs"][0, 0] == 42.0
    long = make(2, {"x": np.longdouble})
    long.add({"x": 1.0})
    with pytest.raises(SchemaError, match="'x' is float128, which torch does not know"):
        long.sample(1).to_torch()


@pytest.mark.parametrize("shape", [(2**62,), (2**31, 2**33), (2**70,), (2**45,), ("a",), (1.5,), "ab"])
def test_a_shape_that_no_machine_can_hold_is_refused(shape):
    with pytest.raises(BufferSettingError, match="Field 'x'"):
        make(4, {"x": ("f4", shape)})


def test_more_rows_than_a_machine_can_address_are_refused():
    with pytest.raises(BufferSettingError, match="choose a smaller capacity"):
        make(2**62, {"x": ("f4", (4,))})
    with pytest.raises(BufferSettingError, match="choose a smaller capacity"):
        make(4, {"x": ("f4", (2**43,)), "y": ("f4", (2**43,))})
