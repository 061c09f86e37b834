"""Selectors written by users: what they choose is checked before memory is read or anything leaves."""

import numpy as np
import pytest

import relive
from relive.buffer import (
    EpisodeFields,
    Episodes,
    Filter,
    Groups,
    Mixture,
    NStep,
    OfExperience,
    Rarity,
    Selection,
    Selector,
    SelectorError,
    Slices,
    Stratified,
    TaskBalanced,
    TdError,
    TokenBudget,
)


class Chooses(Selector):
    """Gives what it is told to, whatever the buffer holds."""

    follows = False

    def __init__(self, selection=None, victims=None, admitted=None):
        self._selection = selection
        self._victims = victims
        self._admitted = admitted

    def select(self, count):
        return self._selection

    def victims(self, count):
        return self._victims

    def admit(self, experiences, room):
        return self._admitted


def ids(*values):
    return np.array(values, dtype=np.int64)


def selection(chosen, **changes):
    return Selection(**{"ids": chosen, "probabilities": np.ones(len(chosen)), **changes})


@pytest.mark.parametrize("storage", [None, {"x": "f8"}])
@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (selection(ids(1, 99)), "Chooses chose experience 99, which is not stored"),
        (selection(ids(-1)), "Chooses chose experience -1, which is not stored"),
        (selection(ids(10**15)), "which is not stored"),
        (selection(ids(0, 1, 2)), "Chooses was asked for 2 and chose 3"),
        (None, "Chooses must choose a Selection, not None"),
        (selection(np.array([0.0])), "must give ids as an int64 array"),
        (selection(ids(0, 1), probabilities=np.ones(1)), r"chose 2 experiences with \(1,\) probabilities"),
        (selection(ids(0, 1), weights=np.ones(3)), r"chose 2 experiences with \(3,\) weights"),
        (selection(ids(0, 1), lengths=ids(2)), "must say row_by_row = False"),
    ],
)
def test_a_wrong_choice_is_refused_by_the_name_of_its_class(storage, chosen, message):
    rows = None if storage is None else relive.ArrayStorage(storage)
    buffer = relive.ReplayBuffer(4, storage=rows, sampler=Chooses(chosen))
    buffer.add_batch([1.0, 2.0, 3.0] if storage is None else {"x": [1.0, 2.0, 3.0]})
    with pytest.raises(SelectorError, match=message):
        buffer.sample(2)
    assert buffer.stats().sampled == 0


def test_a_wrong_choice_inside_another_selector_is_refused_by_the_name_of_the_inner_class():
    buffer = relive.ReplayBuffer(4, sampler=Filter(Chooses(selection(ids(7))), where=lambda x: x > 0))
    buffer.add_batch([1, 2, 3])
    with pytest.raises(SelectorError, match=r"^Chooses chose experience 7"):
        buffer.sample(2)


def test_a_sequence_must_be_as_long_as_its_rows():
    class Sequences(Chooses):
        row_by_row = False

    for lengths in ([3], [3, -1], [2, 0]):
        buffer = relive.ReplayBuffer(4, sampler=Sequences(selection(ids(0, 1), lengths=ids(*lengths))))
        buffer.add_batch([1, 2])
        with pytest.raises(SelectorError, match=rf"chose 2 rows in sequences of \{lengths}"):
            buffer.sample(2)


@pytest.mark.parametrize(
    ("victims", "message"),
    [
        (ids(), "Chooses was asked for 2 to leave and chose 0"),
        (ids(2), "asked for 2 to leave and chose 1"),
        (ids(2, 2), "let the same experience go twice"),
        (ids(1, 10**9), "let go experience 1000000000, which is not stored"),
        (ids(-1, 1), "let go experience -1, which is not stored"),
    ],
)
@pytest.mark.parametrize("limits", [{}, {"max_bytes": 10**6}])
def test_wrong_victims_are_refused_and_nothing_is_added(victims, message, limits):
    buffer = relive.ReplayBuffer(4, sampler=relive.Uniform(), remover=Chooses(victims=victims), **limits)
    buffer.add_batch(["a", "b", "c", "d"])
    with pytest.raises(SelectorError, match=message):
        buffer.add_batch(["e", "f"])
    assert sorted(buffer.sample(9).experiences) == ["a", "b", "c", "d"]
    assert buffer.stats().added == 4


@pytest.mark.parametrize(
    ("admitted", "message"),
    [
        (([0, 1], ids()), "admitted 2 newcomers into room for 0 and let 0 go"),
        (([1, 0], ids(0, 1)), "must admit increasing places of 2 newcomers"),
        (([0, 2], ids(0, 1)), "must admit increasing places of 2 newcomers"),
        (([0], ids(8)), "let go experience 8, which is not stored"),
    ],
)
def test_a_wrong_admission_is_refused_and_nothing_is_added(admitted, message):
    remover = Chooses(admitted=(range(4), ids()))
    buffer = relive.ReplayBuffer(4, sampler=relive.Uniform(), remover=remover)
    buffer.add_batch(["a", "b", "c", "d"])
    remover._admitted = admitted
    with pytest.raises(SelectorError, match=message):
        buffer.add_batch(["e", "f"])
    assert sorted(buffer.sample(9).experiences) == ["a", "b", "c", "d"]


def test_a_selector_that_asks_for_experiences_that_are_not_stored_is_told_so():
    class Curious(Selector):
        def select(self, count):
            return self.view.experiences(ids(3))

    for sampler in (Curious(), Filter(Curious(), where=lambda row: True)):
        buffer = relive.ReplayBuffer(4, storage=relive.ArrayStorage({"x": "f8"}), sampler=sampler)
        buffer.add({"x": 1.0})
        with pytest.raises(SelectorError, match="Experience 3 was asked for, which is not stored"):
            buffer.sample(1)


def key(experience):
    return experience["key"]


FIELDS = EpisodeFields(episode=key)
LOOK_AT_EACH = {
    "filter": lambda: {"sampler": Filter(where=key)},
    "filter in a mixture": lambda: {"sampler": Mixture((relive.Uniform(), 1), (Filter(where=key), 1))},
    "filter in a budget": lambda: {"sampler": TokenBudget(99, Filter(where=key))},
    "stratified": lambda: {"sampler": Stratified(key)},
    "stratified filters": lambda: {"sampler": Stratified("agent", sampler=Filter(relive.Uniform(), where=key))},
    "n-step": lambda: {"sampler": NStep(fields=FIELDS)},
    "slices": lambda: {"sampler": Slices(2, fields=FIELDS)},
    "episodes": lambda: {"sampler": Episodes(fields=FIELDS)},
    "groups": lambda: {"sampler": Groups(key=key)},
    "remover": lambda: {"remover": Filter(relive.Fifo(), where=key)},
    "balanced": lambda: {"remover": TaskBalanced(key)},
    "rule": lambda: {"priority": OfExperience(key) * TdError()},
    "rarity": lambda: {"priority": Rarity(key=key)},
}


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("name", LOOK_AT_EACH)
def test_an_experience_that_a_function_cannot_judge_changes_nothing(name, by_hand):
    buffer = relive.ReplayBuffer(3, **LOOK_AT_EACH[name]())
    buffer.add_batch([{"key": n} for n in (1, 2, 3)])
    before = buffer.state_dict()
    for new in ([{"other": 1}], [{"key": 4}, {"other": 1}], [*({"key": n} for n in range(4, 9)), {"other": 1}]):
        with pytest.raises(KeyError, match="key"):
            buffer.add_batch(new, [1.0] * len(new) if by_hand else None)
        after = buffer.state_dict()
        assert after["rows"]["experiences"] == before["rows"]["experiences"] == [{"key": n} for n in (1, 2, 3)]
        assert after["counters"] == before["counters"]
        assert after["index"]["leaves"].tolist() == before["index"]["leaves"].tolist()
    buffer.add({"key": 4})
    assert buffer.stats().added == 4
