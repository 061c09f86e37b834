"""Opening a store's file, with the settings of a store, and refusing what is no store before anything is written.

Settings are set one by one and read back: apsw runs a string of several statements lazily, and SQLite answers a
setting that it does not take with silence.
"""

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import apsw

from relive.storage import schema
from relive.storage.errors import (
    DamagedStoreError,
    NewerStoreError,
    NotAStoreError,
    ReadOnlyStoreError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StoragePathError,
)

Durability = Literal["process", "power"]
"""``process``: what was acknowledged survives ``kill -9``; ``power``: it is on the disk, and survives power loss."""

BUSY_TIMEOUT = 60.0
"""Seconds that a writer waits for another process's transaction to end."""

PAGE_SIZE = 8192
CHECKPOINT_PAGES = 8000
WAL_LIMIT = CHECKPOINT_PAGES * PAGE_SIZE  # bytes of side file kept after a checkpoint
_MAGIC = b"SQLite format 3\x00"
_SYNCHRONOUS = {"process": 1, "power": 2}  # NORMAL, FULL
_NETWORK_FILE_SYSTEMS = re.compile(
    "9p|afs|beegfs|ceph|cifs|coda|davfs|glusterfs|gpfs|lustre|ncpfs|nfs4?|pvfs2|smb[23]|smbfs|"
    r"fuse\.(ceph|davfs2|gcsfuse|glusterfs|rclone|s3fs|sshfs)"
)


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Turns SQLite's errors into the store's own, which name the file and the next step."""
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path) from error


def translate(error: apsw.Error, path: Path) -> StorageError:
    """The store's error for one of SQLite's."""
    text = str(error)
    if isinstance(error, apsw.FullError) or "No space left" in text:
        return StorageFullError(f"No room left to write to {path}; free some space, then recording goes on by itself.")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StorageBusyError(f"Another process has been writing to {path} without a pause; try again.")
    if isinstance(error, apsw.NotADBError):
        return NotAStoreError(f"{path} is not a Relive store: it is no database; choose another path.")
    if isinstance(error, apsw.CorruptError):
        return DamagedStoreError(
            f"The database in {path} is damaged ({text}); save what is left with `relive recover`."
        )
    if isinstance(error, apsw.ReadOnlyError):
        return ReadOnlyStoreError(f"{path} cannot be written; check its permissions, or open it with readonly=True.")
    if isinstance(error, apsw.CantOpenError):
        return StoragePathError(f"{path} cannot be opened ({text}); check that the folder exists and can be written.")
    if isinstance(error, apsw.IOError) and _out_of_space(path):
        return StorageFullError(f"No room left to write to {path}; free some space, then recording goes on by itself.")
    return StorageError(f"SQLite failed on {path}: {type(error).__name__}: {text}")


def check_path(path: Path, *, readonly: bool) -> None:
    """Refuses a path that cannot hold a store, or holds something else, without touching it.

    Raises:
        StoragePathError: no such file or folder, not a plain file, no permission, or a network file system.
        NotAStoreError: the file is no database, or another program's.
        NewerStoreError: a newer Relive wrote it.
        DamagedStoreError: the file is shorter than its own header says.
    """
    folder = path.parent
    if not folder.is_dir():
        raise StoragePathError(f"There is no folder {folder}; make it first, or choose another path.")
    try:
        status = path.stat()
    except FileNotFoundError:
        status = None
    except OSError as error:
        raise StoragePathError(f"{path} cannot be read: {error.strerror}.") from error
    if status is None and readonly:
        raise StoragePathError(f"There is no store at {path}; check the name, or open it for writing to make one.")
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise StoragePathError(f"{path} is not a plain file; give the path of a file for the store.")
    kind = file_system(path.resolve().parent)  # a link may lead elsewhere
    if _NETWORK_FILE_SYSTEMS.fullmatch(kind):
        raise StoragePathError(
            f"{path} lies on a network file system ({kind}), where locks do not protect a database; "
            "choose a path on a local disk."
        )
    if not readonly:
        if status is None and not os.access(folder, os.W_OK | os.X_OK):
            raise StoragePathError(f"The folder {folder} cannot be written; choose another path.")
        if status is not None and not os.access(path, os.W_OK):
            raise StoragePathError(f"{path} cannot be written; open it with readonly=True, or change its permissions.")
        if status is not None and not os.access(folder, os.W_OK | os.X_OK):
            raise StoragePathError(f"The folder {folder} cannot be written, but the store keeps side files there.")
    if status is not None and status.st_size:
        _check_header(path, status.st_size)


def connect(
    path: Path,
    *,
    durability: Durability = "process",
    readonly: bool = False,
    writer: bool = False,
    busy_timeout: float = BUSY_TIMEOUT,
    vfs: str | None = None,
) -> apsw.Connection:
    """A connection with the store's settings; the file was checked by `check_path`.

    Raises:
        StorageError: there is no such durability.
    """
    if durability not in _SYNCHRONOUS:
        raise StorageError(f"durability is {durability!r}; it must be one of {', '.join(_SYNCHRONOUS)}.")
    name, flags = str(path), apsw.SQLITE_OPEN_READWRITE
    if not readonly:
        flags |= apsw.SQLITE_OPEN_CREATE
    elif not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        flags = apsw.SQLITE_OPEN_READONLY
        if not Path(f"{path}-wal").exists():
            # Without a place for side files SQLite reads a file only if it is promised that nobody changes it.
            name, flags = f"{path.absolute().as_uri()}?immutable=1", flags | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(name, flags=flags, vfs=vfs)
    try:
        connection.set_busy_handler(Patience(busy_timeout))
        _set(connection, "temp_store", "memory", 2)
        _set(connection, "cache_size", -65536 if writer else -16384)
        _set(connection, "trusted_schema", 0)
        if readonly:  # where it could write, SQLite tidies up its side files at the end, and writes nothing else
            _set(connection, "query_only", 1)
        else:
            _set_wal(connection, busy_timeout)
            _set(connection, "synchronous", _SYNCHRONOUS[durability])
            _set(connection, "journal_size_limit", WAL_LIMIT)
        half_of_memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        if path.stat().st_size < half_of_memory:
            _set(connection, "mmap_size", half_of_memory, None)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: apsw.Connection, path: Path, *, readonly: bool) -> None:
    """Makes the tables of a new store, or brings an older one up to date; each step in one transaction.

    Raises:
        NotAStoreError: the database belongs to another program.
        NewerStoreError: a newer Relive wrote it.
    """
    version = _version(connection, path)
    if readonly:
        if version == 0:
            raise NotAStoreError(
                f"{path} holds no Relive store yet; check the name, or open it for writing to make one."
            )
        if version < schema.SCHEMA_VERSION:
            raise ReadOnlyStoreError(
                f"{path} has schema version {version}, older than this Relive's {schema.SCHEMA_VERSION}; "
                "open it once for writing to bring it up to date."
            )
        return
    changed = False
    while version < schema.SCHEMA_VERSION:
        with immediate(connection):
            version = _version(connection, path)  # another process may have done it meanwhile
            if version < schema.SCHEMA_VERSION:
                schema.MIGRATIONS[version](connection)
                version += 1
                connection.pragma("application_id", schema.APPLICATION_ID)
                connection.pragma("user_version", version)
                changed = True
    if changed:  # so that the header in the file itself tells an older Relive what it is
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        _sync_folder(path.parent)


def look_over(connection: apsw.Connection, path: Path) -> None:
    """Reads the store's own id and the first row of every table, so that damage is named when the store is opened.

    Raises:
        DamagedStoreError: they cannot be read. Damage further inside is found by whoever reads there.
    """
    with errors_of(path):
        for (table,) in fetch(connection, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"):
            fetch(connection, f'SELECT * FROM "{table}" LIMIT 1')  # noqa: S608 - a name from the database itself
        if connection.execute("SELECT value FROM setting WHERE name = 'store_id'").get is None:
            raise DamagedStoreError(f"The store in {path} has lost its id; save what is left with `relive recover`.")


def fetch(connection: apsw.Connection, statement: str, values: Sequence[Any] = ()) -> list[Any]:
    """All rows of a statement, as tuples."""
    return connection.execute(statement, values).fetchall()


def bounded(number: int) -> int:
    """The nearest number that SQLite can hold, which has 64 bits."""
    return max(-(2**63), min(number, 2**63 - 1))


@contextmanager
def immediate(connection: apsw.Connection) -> Iterator[None]:
    """A write transaction that takes the lock at once, and leaves nothing behind if the body fails."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def roll_back(connection: apsw.Connection) -> None:
    """Undoes the transaction that failed, unless SQLite has done so already, as when the disk is full."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def file_system(folder: Path) -> str:
    """Type of the file system that `folder` lies on, as the kernel names it; empty if it does not say."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    wanted, best, kind = str(folder.resolve()), -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4].encode().decode("unicode_escape")
        inside = wanted == point or wanted.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # of two mounts on one point the later hides the earlier
            best, kind = len(point), after.split(" ")[0]
    return kind


class Patience:
    """Waits for a lock that another connection holds, in short naps: SQLite's own are up to a tenth of a second."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = 0.0

    def __call__(self, times: int) -> bool:
        """Whether to try once more, for the `times`-th time after the first failed."""
        now = time.monotonic()
        if times == 0:
            self._began = now
        if now - self._began >= self._seconds:
            return False
        time.sleep(min(0.0001 * (times + 1), 0.002))
        return True


def _check_header(path: Path, size: int) -> None:
    with path.open("rb") as file:
        header = file.read(100)
    if header[:16] != _MAGIC or len(header) < 100:
        raise NotAStoreError(f"{path} is not a Relive store: it is no database; choose another path.")
    application = int.from_bytes(header[68:72], "big")
    if application not in (0, schema.APPLICATION_ID):
        raise NotAStoreError(f"{path} is a database of another program, not a Relive store; choose another path.")
    if application == 0:  # perhaps a store that was killed while it was being made: then it holds no table
        uri = f"{path.absolute().as_uri()}?immutable=1"
        with errors_of(path):
            probe = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
            try:
                _version(probe, path)
            finally:
                probe.close()
    else:
        _refuse_newer(int.from_bytes(header[60:64], "big"), path)
    page_size = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    whole = header[24:28] != header[92:96] or size >= pages * (65536 if page_size == 1 else page_size)
    wal = Path(f"{path}-wal")
    if not whole and not (wal.exists() and wal.stat().st_size):  # a checkpoint under way writes the header first
        raise DamagedStoreError(f"{path} has been cut short; save what is left with `relive recover`.")


def _version(connection: apsw.Connection, path: Path) -> int:
    """The schema version of the database: 0 for one without tables."""
    application = connection.pragma("application_id")
    if application != schema.APPLICATION_ID:
        if connection.execute("SELECT count(*) FROM sqlite_schema").get:
            raise NotAStoreError(f"{path} is a database of another program, not a Relive store; choose another path.")
        return 0
    version = int(connection.pragma("user_version"))
    _refuse_newer(version, path)
    return version


def _refuse_newer(version: int, path: Path) -> None:
    if version > schema.SCHEMA_VERSION:
        raise NewerStoreError(
            f"{path} has schema version {version}, but this Relive knows versions up to {schema.SCHEMA_VERSION}; "
            "install a newer Relive. The file was left untouched."
        )


def _set(connection: apsw.Connection, name: str, value: Any, expected: Any = ...) -> None:
    connection.pragma(name, value)
    if expected is None:
        return
    found = connection.pragma(name)
    if found != (value if expected is ... else expected):
        raise StorageError(f"SQLite did not take the setting {name}={value}: it stayed at {found}.")


def _set_wal(connection: apsw.Connection, busy_timeout: float) -> None:
    """Switches to write-ahead logging; SQLite does not wait for the lock this needs, so this does."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            if connection.pragma("journal_mode") == "wal":
                return
            connection.pragma("page_size", PAGE_SIZE)
            _set(connection, "journal_mode", "wal")
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _out_of_space(path: Path) -> bool:
    try:
        space = os.statvfs(path.parent)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < 1 << 20


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
