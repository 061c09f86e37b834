"""The gateway's own small database beside the store: keys, budgets, snapshots of settings.

It is a file apart, so that a store that is locked or full stops neither keys nor budgets, and any number of gateways
beside one store share it. Every access is one transaction. The schema's version is the database's ``user_version``; a
newer one is refused untouched.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw

from relive.errors import ReliveError

T = TypeVar("T")

MIGRATIONS = (
    (
        # amounts in nano-USD; period: a local day (2026-05-04) or month (2026-05)
        """CREATE TABLE spend(scope TEXT NOT NULL, period TEXT NOT NULL, amount INTEGER,
            PRIMARY KEY (scope, period)) WITHOUT ROWID, STRICT""",
        # one row for each scope and period that a call in flight is counted in; expires: seconds since 1970
        """CREATE TABLE reservation(call TEXT NOT NULL, scope TEXT NOT NULL, period TEXT NOT NULL,
            amount INTEGER NOT NULL, expires REAL NOT NULL, PRIMARY KEY (call, scope, period)) WITHOUT ROWID, STRICT""",
        "CREATE INDEX reservation_scope ON reservation(scope, period)",
        # hash: keyed; the key itself is shown once and never stored. Times: seconds since 1970
        """CREATE TABLE key(id INTEGER PRIMARY KEY, name TEXT NOT NULL, shown TEXT NOT NULL, hash BLOB NOT NULL UNIQUE,
            scopes TEXT NOT NULL, agent TEXT, created REAL NOT NULL, expires REAL, revoked REAL) STRICT""",
        "CREATE TABLE snapshot(hash TEXT PRIMARY KEY, created REAL NOT NULL, body TEXT NOT NULL) WITHOUT ROWID, STRICT",
    ),
)
"""Entry n brings a file from version n to n + 1."""


class LedgerError(ReliveError):
    """The gateway's own database cannot be used."""


class Ledger:
    """The database; any thread may use it, one at a time.

    Args:
        path: The file; made if it is not there, readable by its owner alone.

    Raises:
        LedgerError: the file is damaged, made by a newer Relive, or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._connection = apsw.Connection(str(path))
            self._connection.set_busy_timeout(1_000)
            for pragma in ("journal_mode = wal", "synchronous = normal"):
                self._connection.execute(f"PRAGMA {pragma}").fetchall()
            self._migrate()
        except (apsw.Error, OSError) as error:
            raise LedgerError(f"{path} cannot be used as the gateway's own database: {error}. Move it away.") from error

    def transaction(self, act: Callable[[apsw.Connection], T]) -> T:
        """What `act` gives, done as one transaction; an exception from it undoes everything.

        Raises:
            LedgerError: the database cannot be written or read.
        """
        try:
            with self._lock, self._begun():
                return act(self._connection)
        except apsw.Error as error:
            raise LedgerError(f"{self.path} cannot be used: {error}.") from error

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query.

        Raises:
            LedgerError: the database cannot be read.
        """
        try:
            with self._lock:  # outside a transaction: whoever writes does not hold up those who read
                return list(self._connection.execute(query, values))
        except apsw.Error as error:
            raise LedgerError(f"{self.path} cannot be used: {error}.") from error

    def close(self) -> None:
        """Lets go of the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _begun(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _migrate(self) -> None:
        with self._begun():
            version: int = self._connection.execute("PRAGMA user_version").get
            if version > len(MIGRATIONS):
                raise LedgerError(f"{self.path} was made by a newer Relive; use that one.")
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
