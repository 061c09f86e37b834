"""`ReplayBuffer.save` and `load`: exact, whole or not at all, and nothing that is read can run."""

import datetime
import hashlib
import pickle  # noqa: TID251  (to show that a pickle is refused)
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.buffer import (
    AbsReward,
    ArrayStorage,
    BufferStateError,
    Filter,
    Groups,
    Lowest,
    OncePerPass,
    Prioritized,
    Recency,
    ReplayBuffer,
    Reservoir,
    Slices,
    Stratified,
    TaskBalanced,
    TdError,
    TokenBudget,
)
from relive.buffer.state_file import read_state, write_state
from relive.experience import TokenTrace, Transition

texts = st.text(st.characters())  # halves of surrogate pairs too, as a cut emoji leaves them
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats()
    | texts
    | st.binary()
    | st.builds(lambda items: np.array(items, dtype=np.float32), st.lists(st.floats(width=32), max_size=5))
    | st.builds(np.int16, st.integers(-100, 100))
    | st.builds(lambda items: np.array(items, dtype=">i4").reshape(1, -1), st.lists(st.integers(-5, 5), max_size=4)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts | st.integers() | st.none() | st.tuples(st.integers()), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(a, b):
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.shape == b.shape and a.astype(b.dtype).tobytes() == b.tobytes()
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


@given(value=values)
@settings(max_examples=200, deadline=None)
def test_every_value_comes_back_as_it_was(value, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "state"
    write_state(path, {"value": value, "array": np.arange(3)})
    back = read_state(path)
    assert same(back["value"], value)
    assert back["array"].tolist() == [0, 1, 2]


def test_transitions_come_back_whole(tmp_path):
    trace = TokenTrace(token_ids=[1, 2], mask=[0, 1], logprobs=[0.0, -0.5], versions=[3, 3])
    buffer = ReplayBuffer(5)
    first = Transition(state={"messages": ["hello"]}, action="hi", reward=0.5, tags=("a", "b"), tokens=trace)
    buffer.add(first)
    buffer.add({"obs": np.ones(3), "at": (1, 2)})
    buffer.save(tmp_path / "buffer")
    twin = ReplayBuffer(5)
    twin.load(tmp_path / "buffer")
    back = twin.sample(5).experiences
    assert back[0] == first
    assert back[1]["at"] == (1, 2)
    assert back[1]["obs"].tolist() == [1, 1, 1]


def test_what_a_file_cannot_hold_is_refused_by_place_and_the_old_file_stays(tmp_path):
    buffer = ReplayBuffer(5)
    buffer.add({"fine": 1})
    path = tmp_path / "buffer"
    buffer.save(path)
    before = path.read_bytes()
    buffer.add({"when": datetime.date(2026, 1, 1)})
    with pytest.raises(BufferStateError, match=r"\['rows'\]\['experiences'\]\[1\]\['when'\] is a datetime.date"):
        buffer.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_file_is_refused_untouched(tmp_path):
    buffer = ReplayBuffer(50)
    buffer.add_batch(range(40))
    path = tmp_path / "buffer"
    buffer.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in [8, 9, len(whole) - 1, *rng.integers(8, len(whole), 60)]:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(BufferStateError, match="is damaged"):
            buffer.load(path)
    for length in (8, 12, 30, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(BufferStateError, match="is damaged"):
            buffer.load(path)
    for content in (b"", b"x", pickle.dumps({"version": 1})):
        path.write_bytes(content)
        with pytest.raises(BufferStateError, match="is not a saved buffer"):
            buffer.load(path)
    with pytest.raises(FileNotFoundError):
        buffer.load(tmp_path / "absent")
    assert buffer.sample(50).experiences == list(range(40))


def test_a_contradictory_state_is_refused_untouched():
    buffer = ReplayBuffer(5)
    buffer.add_batch(range(7))
    good = buffer.state_dict()

    def broken(**changes):
        return {**good, "index": {**good["index"], **changes}}

    for changes in (
        {"slots": np.array([2, 3, 4, 0, 0])},
        {"slots": np.array([2, 3, 4, 0, 5])},
        {"slots": np.array([2, 3, 4, 1, 0])},
        {"ids": np.array([2, 3, 4, 5, 5])},
        {"ids": np.array([2, 3, 4, 5, 7])},
        {"ids": np.array([2, 3, 4, 5])},
        {"leaves": np.array([1, 1, 1, 1, np.nan], np.float32)},
        {"leaves": np.array([1, 1, 1, 1, -1], np.float32)},
        {"ring": False, "free_slots": np.array([1])},
    ):
        with pytest.raises(BufferStateError, match="contradict"):
            buffer.load_state_dict(broken(**changes))
    assert buffer.sample(9).experiences == [2, 3, 4, 5, 6]


KINDS = {
    "sampler": (
        lambda: {"sampler": Prioritized(1.0)},
        lambda: {"sampler": OncePerPass()},
        "sampler Prioritized, this one has OncePer",
    ),
    "inner sampler": (
        lambda: {"sampler": Filter(Prioritized(), where=bool)},
        lambda: {"sampler": Filter(OncePerPass(), where=bool)},
        r"sampler Filter\(Prioritized\), this one has Filter\(OncePerPass\)",
    ),
    "remover": (dict, lambda: {"remover": Reservoir()}, "remover Fifo, this one has Reservoir"),
    "rule": (
        lambda: {"priority": Recency()},
        lambda: {"priority": TdError() * 2.0},
        r"rule Recency, this one has TdError \* OfExp",
    ),
    "no rule": (lambda: {"priority": Recency()}, dict, "rule Recency, this one has None"),
    "storage": (dict, lambda: {"storage": ArrayStorage({"x": "i8"})}, "storage ObjectRows, this one has ArrayStorage"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_another_kind_of_buffer_is_refused_untouched(kind, tmp_path):
    theirs, ours, message = KINDS[kind]
    saved, other = ReplayBuffer(5, **theirs()), ReplayBuffer(5, **ours())
    saved.add_batch(range(1, 5))
    saved.save(tmp_path / "buffer")
    other.add_batch({"x": range(6, 9)} if kind == "storage" else range(6, 9))
    with pytest.raises(BufferStateError, match=message):
        other.load(tmp_path / "buffer")
    batch = other.sample(5)
    held = batch["x"].tolist() if kind == "storage" else list(batch.experiences)
    assert sorted(held) == [6, 7, 8]
    assert other.stats().added == 3


def test_a_state_without_a_rule_fits_a_buffer_with_one():
    saved = ReplayBuffer(5)
    saved.add_batch([{"reward": 1.0}, {"reward": 2.0}], [3.0, 4.0])
    other = ReplayBuffer(5, priority=AbsReward(offset=0.0))
    other.load_state_dict(saved.state_dict())
    assert other.priorities([0, 1]).tolist() == [3.0, 4.0]
    other.set_rewards([0], [7.0])
    assert other.priorities([0, 1]).tolist() == [7.0, 4.0]


def test_priorities_that_do_not_fit_the_ids_are_refused_untouched():
    buffer = ReplayBuffer(5, remover=Lowest())
    buffer.add_batch(range(3), [3.0, 1.0, 2.0])
    good = buffer.state_dict()
    for bad in ([1.0, 2.0], [1.0, 2.0, np.nan], [1.0, 2.0, -1.0]):
        state = {**good, "index": {**good["index"], "priorities": np.array(bad)}}
        with pytest.raises(BufferStateError, match="contradict"):
            buffer.load_state_dict(state)
    assert buffer.priorities([0, 1, 2]).tolist() == [3.0, 1.0, 2.0]


def test_texts_with_half_an_emoji_are_saved(tmp_path):
    buffer = ReplayBuffer(5)
    half = "an answer cut off at \ud83d"
    buffer.add_batch([{half: [half]}, Transition(state=half, action="a", tags=(half,))])
    buffer.save(tmp_path / "buffer")
    twin = ReplayBuffer(5)
    twin.load(tmp_path / "buffer")
    first, second = twin.sample(2).experiences
    assert (first, second.state, second.tags) == ({half: [half]}, half, (half,))


SCRIPT = """
import sys
from relive.buffer import Prioritized, ReplayBuffer
from relive.buffer.samplers import OncePerPass
kind, path, second = sys.argv[1:]
sampler = {"prioritized": Prioritized, "once": OncePerPass, "distinct": lambda: Prioritized(replacement=False)}[kind]()
buffer = ReplayBuffer(100, sampler=sampler, seed=12345)
buffer.load(path)
buffer.save(second)
for _ in range(5):
    batch = buffer.sample(8)
    print(batch.ids.tolist(), batch.weights.tolist())
"""


@pytest.mark.parametrize("kind", ["prioritized", "once", "distinct"])
def test_buf_15_a_restored_run_draws_what_the_undisturbed_one_does(kind, tmp_path):
    """Draws are made when they are asked for, so that no prefetched batch can be lost."""
    samplers = {"prioritized": Prioritized, "once": OncePerPass, "distinct": lambda: Prioritized(replacement=False)}
    buffer = ReplayBuffer(100, sampler=samplers[kind](), seed=7)
    buffer.add_batch(range(100), np.linspace(0.1, 2, 100))
    seen = [buffer.sample(8).ids.tolist() for _ in range(3)]
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    buffer.save(first)
    batches = [buffer.sample(8) for _ in range(5)]
    expected = [f"{batch.ids.tolist()} {batch.weights.tolist()}" for batch in batches]

    def resume(path, into):
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT, kind, path, into], check=True, capture_output=True, text=True
        )
        return run.stdout.splitlines()

    assert resume(first, second) == expected
    first.unlink()  # the second checkpoint stands alone
    assert resume(second, third) == expected
    if kind == "once":
        drawn = [id_ for batch in seen for id_ in batch] + [id_ for batch in batches for id_ in batch.ids.tolist()]
        rest = [buffer.sample(8).ids.tolist() for _ in range(5)]
        one_pass = (drawn + [id_ for batch in rest for id_ in batch])[:100]
        assert sorted(one_pass) == list(range(100))
    if kind == "distinct":
        assert all(len(set(batch.ids.tolist())) == 8 for batch in batches)


def test_a_large_buffer_of_arrays_is_saved_exactly(tmp_path):
    fields = {"obs": ("f4", (16,)), "act": "i8", "done": "?"}
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(50_000, storage=ArrayStorage(fields), seed=3)
    buffer.add_batch(
        {
            "obs": rng.normal(size=(70_000, 16)).astype(np.float32),
            "act": np.arange(70_000),
            "done": np.zeros(70_000, bool),
        }
    )
    buffer.update_priorities(np.arange(20_000, 70_000), rng.uniform(0, 3, 50_000))
    buffer.save(tmp_path / "buffer")
    twin = ReplayBuffer(50_000, storage=ArrayStorage(fields), seed=99)
    twin.load(tmp_path / "buffer")

    def fingerprint(each):
        digest = hashlib.sha256()
        for _ in range(50):
            batch = each.sample(300)
            for array in (batch.ids, batch.weights, batch["obs"], batch["act"], batch["done"]):
                digest.update(array.tobytes())
        return digest.hexdigest()

    assert fingerprint(buffer) == fingerprint(twin)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("created_at", datetime.datetime(2020, 1, 1)),
        ("created_at", "2020-01-01"),
        ("step", -1),
        ("cost", True),
        ("tags", "text"),
        ("outcome", "good"),
        ("terminated", 1),
        ("latency_ms", -1.0),
        ("state", object()),
    ],
)
def test_a_transition_that_could_not_be_loaded_is_refused_when_it_is_saved(field, value, tmp_path):
    buffer = ReplayBuffer(4, seed=0)
    buffer.add({"within": [Transition(state=1, action=2)]})
    buffer.save(tmp_path / "kept")
    before = (tmp_path / "kept").read_bytes()
    for wrap in (lambda one: one, lambda one: {"within": [one]}):
        buffer = ReplayBuffer(4, seed=0)
        buffer.add(wrap(Transition(**{"state": 1, "action": 2, field: value})))
        with pytest.raises(
            BufferStateError, match=rf"state\['rows'\]\['experiences'\].*{'object' if field == 'state' else field}"
        ):
            buffer.save(tmp_path / "kept")
    assert (tmp_path / "kept").read_bytes() == before


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}, lambda v: {1: v}])
def test_what_is_nested_is_saved_if_it_can_be_loaded_and_refused_else(wrap, tmp_path):
    def nested(levels):
        value = 1
        for _ in range(levels):
            value = wrap(value)
        return value

    for levels, kept in ((200, True), (1000, False), (100_000, False)):
        buffer = ReplayBuffer(4, seed=0)
        buffer.add(nested(levels))
        if kept:
            buffer.save(tmp_path / "b")
            ReplayBuffer(4, seed=0).load(tmp_path / "b")
        else:
            with pytest.raises(BufferStateError, match="nested too deeply"):
                buffer.save(tmp_path / "b")


def test_an_integer_of_any_length_is_kept(tmp_path):
    buffer = ReplayBuffer(4, seed=0)
    buffer.add({"n": -(10**5000)})
    buffer.save(tmp_path / "b")
    other = ReplayBuffer(4, seed=0)
    other.load(tmp_path / "b")
    assert other.sample(1).experiences == [{"n": -(10**5000)}]


SETTINGS = {
    "conditions": (lambda: Filter(agent="a"), lambda: Filter(agent="b"), r"Filter\(agent=\['a'\]"),
    "inner alpha": (lambda: Filter(Prioritized(0.3), agent="a"), lambda: Filter(Prioritized(), agent="a"), "alpha=0.3"),
    "nested": (
        lambda: TokenBudget(9, Filter(agent="a")),
        lambda: TokenBudget(9, Filter(agent=["a", "b"])),
        r"TokenBudget\(Filter\(agent=\['a'\]",
    ),
    "key": (lambda: Stratified("agent"), lambda: Stratified("outcome"), "Stratified.key='agent'"),
    "length": (lambda: Slices(2), lambda: Slices(3), "Slices.length=2"),
    "size": (lambda: Groups(2), lambda: Groups(3), "Groups.size=2"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_state_that_other_settings_would_misread_is_refused_untouched(name):
    theirs, ours, message = SETTINGS[name]
    saved, other = ReplayBuffer(9, sampler=theirs()), ReplayBuffer(9, sampler=ours())
    saved.add_batch([Transition(state=n, action="a", agent="ab"[n % 2], episode_id="e", step=n) for n in range(6)])
    other.add(Transition(state="mine", action="a", agent="b"))
    with pytest.raises(BufferStateError, match=f"sampler with settings .*{message}"):
        other.load_state_dict(saved.state_dict())
    assert [t["state"] for t in other.state_dict()["rows"]["experiences"]] == ["mine"]
    same = ReplayBuffer(9, sampler=theirs())
    same.load_state_dict(saved.state_dict())
    assert same.sample(4).ids.tolist() == saved.sample(4).ids.tolist()


@pytest.mark.parametrize(
    "part", ["capacity", "kinds", "index", "rows", "sampler", "remover", "rule", "limits", "counters"]
)
@pytest.mark.parametrize("instead", [None, {}, "lacks it"])
def test_a_state_that_lacks_a_part_is_refused_untouched(part, instead):
    def make():
        return ReplayBuffer(
            3, sampler=OncePerPass(), remover=Reservoir(), priority=Recency(clock=lambda: 1.0), max_age=9
        )

    saved, other = make(), make()
    saved.add_batch("abc")
    other.add_batch("xy")
    first = other.sample(1).ids.tolist()
    state = saved.state_dict()
    if instead == "lacks it":
        del state[part]
    else:
        state[part] = instead
    if (part, instead) in (("rule", None), ("limits", None)):
        other.load_state_dict(state)  # what has no such part fits any
        assert sorted(other.sample(3).experiences) == ["a", "b", "c"]
        return
    with pytest.raises(BufferStateError):
        other.load_state_dict(state)
    assert first + other.sample(1).ids.tolist() in ([0, 1], [1, 0])  # the pass goes on where it was
    assert other.stats().added == 2


def test_a_state_of_a_balanced_memory_with_another_function_for_a_key_is_sorted_anew():
    saved = ReplayBuffer(6, remover=TaskBalanced(lambda item: item % 2))
    saved.add_batch(range(6))
    other = ReplayBuffer(6, remover=TaskBalanced(lambda item: item % 3))
    other.load_state_dict(saved.state_dict())
    other.add_batch(range(6, 60))
    assert sorted(item % 3 for item in other.sample(7).experiences) == [0, 0, 1, 1, 2, 2]
