"""Putting a file that was just written in its place: whole or not at all, and with nothing of an older file beside it.

SQLite believes whatever write-ahead log or journal it finds under a file's name. One that was left by an older file,
for instance by a process that was killed, would be worked into the new one.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw

from relive.storage.connection import Patience, connect, errors_of
from relive.storage.errors import DamagedStoreError, StorageBusyError, StoragePathError
from relive.storage.owner import Claim

_SECONDS_FOR_OTHERS = 1.0
_SIDE_FILES = ("-wal", "-shm", "-journal")


@contextmanager
def unfinished(to: Path) -> Iterator[Path]:
    """A path beside `to` where nothing is; what is there in the end is removed."""
    path = to.with_name(f".{to.name}.{os.getpid()}.unfinished")
    _remove(path, *side_files(path))
    try:
        yield path
    finally:
        _remove(path, *side_files(path))


def side_files(path: Path) -> list[Path]:
    """The files that SQLite may have left beside a database, as far as they are there."""
    beside = (Path(f"{path}{suffix}") for suffix in _SIDE_FILES)
    return [file for file in beside if file.exists()]


def refuse_side_files(to: Path) -> None:
    """Refuses a path beside which an older file has left something.

    Raises:
        StoragePathError: there is something; the message names it.
    """
    if left := side_files(to):
        raise StoragePathError(f"{left[0]} is left there from an older file; remove it, or choose another path.")


def put(made: Path, to: Path, experiences: int) -> None:
    """Moves a store that was just written to `to`, in the place of what is there, and looks whether it arrived.

    Args:
        made: The new store's file, in the same folder; nobody has it open.
        to: Where to.
        experiences: How many it holds.

    Raises:
        StorageBusyError: somebody has the store open that is to be replaced; it is as it was.
        IndexOwnedError: so too, and it says who.
        DamagedStoreError: what lies there now is not what was written.
    """
    sync(made)
    with _nobody_else_at(to):
        _remove(*side_files(to))
        made.replace(to)
    sync(to.parent)
    with errors_of(to), closing(connect(to, readonly=True)) as connection:
        found = connection.execute("SELECT count(*) FROM experience").get
    if found != experiences:
        raise DamagedStoreError(
            f"{to} holds {found} experiences, but {experiences} were written; somebody else has changed it meanwhile. "
            "Make it again under another path."
        )


def sync(path: Path) -> None:
    """Returns once a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _nobody_else_at(path: Path) -> Iterator[None]:
    """Nobody else uses the store at `path` meanwhile, if there is one; what its log holds was moved into it."""
    if not path.exists():
        yield
        return
    claim = Claim(path)
    claim.take()
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as old:
            old.set_busy_handler(Patience(_SECONDS_FOR_OTHERS))
            try:
                with suppress(apsw.NotADBError, apsw.CorruptError):  # such a file nobody can have open as a store
                    old.pragma("locking_mode", "exclusive")
                    old.pragma("journal_mode", "delete")
                    old.execute("BEGIN EXCLUSIVE")
            except (apsw.BusyError, apsw.LockedError) as error:
                raise StorageBusyError(
                    f"Another process has {path} open; close it there, or choose another path."
                ) from error
            yield
    finally:
        claim.release()


def _remove(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)
