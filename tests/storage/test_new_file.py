"""What lies beside a file that is replaced or made never gets into the new one."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from relive import Transition
from relive.storage import IndexOwnedError, SqliteStorage, StorageBusyError, StoragePathError
from relive.storage.backup import backup
from relive.storage.check import check
from relive.storage.new_file import side_files
from relive.storage.recover import recover


def add(path: Path, count: int) -> None:
    with SqliteStorage(path) as storage:
        storage.append([Transition(state="word " * 300, action=n) for n in range(count)])


def count(path: Path) -> int:
    with SqliteStorage(path) as storage:
        return len(storage)


def add_and_be_killed(path: Path, number: int) -> None:
    """Leaves the write-ahead log where it is."""
    code = """
        import os, signal, sys
        from relive import Transition
        from relive.storage import SqliteStorage
        storage = SqliteStorage(sys.argv[1])
        storage.append([Transition(state="late " * 300, action=n) for n in range(int(sys.argv[2]))])
        os.kill(os.getpid(), signal.SIGKILL)
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path), str(number)], check=False)
    assert Path(f"{path}-wal").stat().st_size


def nothing_else_lies_beside(path: Path) -> bool:
    return not side_files(path) and not [file for file in path.parent.iterdir() if "unfinished" in file.name]


def test_a_backup_that_a_killed_process_had_open_is_replaced_whole(tmp_path: Path) -> None:
    store, copy = tmp_path / "s.db", tmp_path / "b.db"
    add(store, 200)
    backup(store, copy)
    add_and_be_killed(copy, 50)
    add(store, 151)
    assert backup(store, copy, force=True).experiences == 351
    assert nothing_else_lies_beside(copy)
    assert count(copy) == 351
    assert check(copy).problems == []


def test_the_log_of_a_backup_that_is_gone_gets_into_no_new_one(tmp_path: Path) -> None:
    store, copy = tmp_path / "s.db", tmp_path / "b.db"
    add(store, 200)
    backup(store, copy)
    add_and_be_killed(copy, 50)
    copy.unlink()
    with pytest.raises(StoragePathError, match=r"b\.db-wal is left there from an older file; remove it"):
        backup(store, copy)
    assert not copy.exists()
    assert backup(store, copy, force=True).experiences == 200
    assert count(copy) == 200
    assert check(copy).problems == []


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_nothing_is_recovered_to_where_an_older_file_has_left_something(tmp_path: Path, suffix: str) -> None:
    store, new = tmp_path / "s.db", tmp_path / "d.db"
    add(store, 20)
    left = Path(f"{new}{suffix}")
    left.write_bytes(b"old")
    with pytest.raises(StoragePathError, match=f"{suffix} is left there from an older file"):
        recover(store, new)
    assert left.read_bytes() == b"old"
    left.unlink()
    assert recover(store, new).saved == 20
    assert nothing_else_lies_beside(new)
    assert count(new) == 20


def test_a_backup_that_is_open_is_not_replaced(tmp_path: Path) -> None:
    store, copy = tmp_path / "s.db", tmp_path / "b.db"
    add(store, 30)
    backup(store, copy)
    with SqliteStorage(copy) as opened:
        opened.append([Transition(state=1, action=2)])
        with pytest.raises(StorageBusyError, match=r"has .*b\.db open; close it there"):
            backup(store, copy, force=True)
        opened.append([Transition(state=1, action=2)])
    assert count(copy) == 32
    with SqliteStorage(copy) as idle:  # without a connection, but it will draw and write
        idle.claim()
        with pytest.raises(IndexOwnedError):
            backup(store, copy, force=True)
    assert backup(store, copy, force=True).experiences == 30
    assert count(copy) == 30


def test_a_damaged_backup_can_be_replaced(tmp_path: Path) -> None:
    store, copy = tmp_path / "s.db", tmp_path / "b.db"
    add(store, 30)
    backup(store, copy)
    copy.write_bytes(copy.read_bytes()[:4096] + os.urandom(50_000))
    assert backup(store, copy, force=True).experiences == 30
    assert check(copy).problems == []


def test_what_an_earlier_attempt_left_unfinished_is_not_taken_up(tmp_path: Path) -> None:
    store, new = tmp_path / "s.db", tmp_path / "d.db"
    add(store, 20)
    other = tmp_path / f".d.db.{os.getpid()}.unfinished"
    add(other, 7)
    assert recover(store, new).saved == 20
    shutil.copyfile(new, other)
    assert backup(store, new, force=True).experiences == 20
    assert count(new) == 20
