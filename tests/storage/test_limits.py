"""A store holds no more than it may, whoever appends and whether or not anybody draws."""

import os
from pathlib import Path

import pytest

import relive
from relive import Transition
from relive.buffer import BufferSettingError, Lifo
from relive.storage import DamagedStoreError, SqliteStorage
from relive.storage.connection import connect


def some(count: int, size: int = 10) -> list[Transition]:
    return [Transition(state=os.urandom(size).hex(), action=n) for n in range(count)]


def ids(storage: SqliteStorage) -> list[int]:
    return [stored.id for stored in storage.query(limit=10_000)]


def test_a_followers_additions_keep_the_owners_capacity_with_the_owner_idle_and_away(path: Path) -> None:
    with relive.open(path, follower=True) as other:
        with relive.open(path, capacity=10) as owner:
            for batch in (1, 7, 2_500):
                other.add_batch(some(batch))
                assert len(other) <= 10
            assert ids(other.storage) == list(range(2_499, 2_509))
            assert set(owner.sample(300).ids.tolist()) == set(range(2_499, 2_509))
            assert len(owner) == 10
        for _ in range(15):
            other.add_batch(some(1))
        assert ids(other.storage) == list(range(2_514, 2_524))
    with relive.open(path) as owner:
        assert owner.capacity == 10
        assert set(owner.sample(300).ids.tolist()) == set(range(2_514, 2_524))


def test_a_followers_additions_keep_the_limit_on_bytes(path: Path) -> None:
    with relive.open(path, max_bytes=20_000), SqliteStorage(path) as other:
        for number in range(40):
            other.append(some(1 + number % 3, size=400))
            assert other.payload_bytes() <= 20_000
        assert 15 < len(other) < 60
        assert ids(other)[-1] == 79
        other.append(some(1, size=30_000))
        assert len(other) == 0


def test_a_followers_additions_let_go_of_what_is_too_old(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000 * 10**9
    monkeypatch.setattr("time.time_ns", lambda: now)
    with relive.open(path, max_age=60), SqliteStorage(path) as other:
        other.append(some(3))
        now += 61 * 10**9
        other.append(some(2))
        assert ids(other) == [4, 5]


def test_what_the_owners_own_process_records_leaves_by_its_remover(path: Path) -> None:
    with relive.open(path, capacity=5, remover=Lifo()) as memory:
        memory.add_batch(some(5))
        memory.storage.append(some(1))  # as a gateway does
        assert 1 in ids(memory.storage)
        assert len(memory.storage) == len(memory) == 5
        with SqliteStorage(path) as other:
            other.append(some(1))
        assert 1 not in ids(memory.storage)
        assert len(memory.storage) == 5
        assert set(memory.sample(100).ids.tolist()) == set(ids(memory.storage))


def test_limits_are_the_owners_to_set(path: Path) -> None:
    relive.open(path, capacity=3).close()
    for setting in ({"capacity": 9}, {"max_bytes": 9}, {"max_age": 9.0}):
        for role in ({"follower": True}, {"readonly": True}):
            with pytest.raises(BufferSettingError, match=f"{next(iter(setting))} is for whoever draws"):
                relive.open(path, **setting, **role)
    with relive.open(path, follower=True) as other:
        other.add_batch(some(5))
        assert len(other) == 3


def test_a_store_that_nobody_ever_drew_from_has_no_limits(path: Path) -> None:
    with SqliteStorage(path) as storage:
        storage.append(some(50))
        assert len(storage) == 50


def test_a_damaged_setting_of_limits_is_named(path: Path) -> None:
    relive.open(path, capacity=3).close()
    connection = connect(path)
    connection.execute("UPDATE setting SET value = '[' WHERE name = 'limits'")
    connection.close()
    with SqliteStorage(path) as storage, pytest.raises(DamagedStoreError, match="limits"):
        storage.append(some(1))
