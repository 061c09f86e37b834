"""Copies of a store made while it is in use, and its file made as small as its content.

Where copies were put is written down in the store's audit, so that `relive forget` can name those that still hold what
was forgotten.

A backup is taken in one step, from one view of the store: page-wise steps begin anew whenever somebody writes, and
under a steady writer never end. Writers go on meanwhile; their log grows until the copy is done.
"""

import time
from contextlib import closing, suppress
from pathlib import Path

import apsw
import msgspec

from relive.storage import audit
from relive.storage.connection import check_path, connect, errors_of, immediate, prepare
from relive.storage.errors import DamagedStoreError, ReadOnlyStoreError, StoragePathError
from relive.storage.new_file import put, refuse_side_files, unfinished
from relive.storage.sqlite import SqliteStorage


class BackupReport(msgspec.Struct):
    """What was copied.

    Attributes:
        path: The backup.
        experiences: How many it holds.
        bytes: Size of its file.
    """

    path: str
    experiences: int
    bytes: int


class CompactReport(msgspec.Struct):
    """What compacting did.

    Attributes:
        bytes_before: Size of the store's file and its log before, in bytes.
        bytes_after: And after.
    """

    bytes_before: int
    bytes_after: int


def backup(path: Path, to: Path, *, force: bool = False) -> BackupReport:
    """Copies a store to another file, as it is at one moment; others may go on using it.

    The copy is a store like any other, with the same `store_id`. It is there whole once this returns, or not at all;
    a backup that it replaces is there until then.

    Args:
        path: The store.
        to: The file to make.
        force: Replace a file that is there, and what an older one has left beside it.

    Raises:
        StoragePathError: there is no store at `path`, or `to` cannot be written, or is there already.
        StorageBusyError: somebody has the backup open that is to be replaced.
        DamagedStoreError: the store is damaged; a backup made before is left alone.
        StorageFullError: no room left for the copy.
    """
    check_path(path, readonly=True)
    if to.exists() and (to.samefile(path) or not force):
        same = to.samefile(path)
        raise StoragePathError(f"{to} is {'the store itself' if same else 'there already'}; choose another path.")
    if not to.parent.is_dir() or to.is_dir():
        raise StoragePathError(f"{to} cannot be made; give the path of a file in a folder that exists.")
    if not force:
        refuse_side_files(to)
    with errors_of(path), closing(connect(path, readonly=True)) as source, unfinished(to) as copy:
        prepare(source, path, readonly=True)
        with errors_of(to), closing(apsw.Connection(str(copy))) as target:
            with target.backup("main", source, "main") as step:
                step.step(-1)
            damage = target.execute("PRAGMA quick_check(1)").get
            if damage != "ok":
                raise DamagedStoreError(f"The database in {path} is damaged ({damage}); nothing was backed up.")
            count = int(target.execute("SELECT count(*) FROM experience").get)
            target.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        put(copy, to, count)
    note_copy(path, "backup", to, count)
    return BackupReport(str(to), count, to.stat().st_size)


def compact(path: Path) -> CompactReport:
    """Makes a store's file as small as its content; it needs as much free space as the store takes.

    Others wait while it runs; it may take a minute for every few gigabytes.

    Raises:
        StoragePathError: there is no store at `path`.
        StorageBusyError: others were using the store all the time.
        StorageFullError: not enough room; the store is as it was.
    """
    check_path(path, readonly=True)  # one that is not there is not made
    before = _size(path)
    with SqliteStorage(path) as storage:
        storage.compact()
    return CompactReport(before, _size(path))


def note_copy(path: Path, action: str, to: Path, experiences: int) -> None:
    """Writes down in a store's audit where a copy of its content was put; a store that cannot be written is left alone.

    Args:
        path: The store.
        action: ``backup`` or ``export``.
        to: The copy.
        experiences: How many it holds.
    """
    with suppress(ReadOnlyStoreError, StoragePathError), errors_of(path):
        check_path(path, readonly=False)
        with closing(connect(path)) as connection, immediate(connection):
            target = str(to.absolute())
            audit.add(connection, action, at=time.time_ns() // 1000, target=target, after={"experiences": experiences})


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, Path(f"{path}-wal")) if file.exists())
