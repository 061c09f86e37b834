"""The gateway's own keys: 256 random bits, shown once, kept as a keyed hash.

Whoever reads the database learns no key: the hash is keyed by a secret in a file of its own, readable by its owner
alone. A key has scopes, may belong to an agent, may expire and can be revoked; a revoked or expired key stops working
within `CACHE_SECONDS` in every gateway beside the store.
"""

import base64
import hashlib
import os
import secrets
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, get_args

import apsw
import msgspec

from relive.errors import ReliveError
from relive.gateway.ledger import Ledger, LedgerError

Scope = Literal["call", "feedback", "read", "write", "admin"]
"""``call`` models; give ``feedback``; ``read`` experiences and figures; ``write`` experiences, priorities and samples
(what a worker or trainer needs); ``admin``: all of it, and keys."""

PREFIX = "rlv_"
CACHE_SECONDS = 10.0
_MOST_CACHED = 4_096


class AccessKeyError(ReliveError):
    """A key cannot be made, or is not there."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key, without what it takes to use it.

    Attributes:
        id: Its number.
        name: What its owner calls it.
        shown: Its first and last characters, to tell it by.
        scopes: What it may do.
        agent: Whose calls it makes, unless a call says otherwise; ``None``: nobody's in particular.
        created: When it was made, seconds since 1970.
        expires: When it stops working; ``None``: never.
        revoked: When it was revoked; ``None``: it was not.
    """

    id: int
    name: str
    shown: str
    scopes: tuple[Scope, ...]
    agent: str | None
    created: float
    expires: float | None
    revoked: float | None

    def may(self, scope: Scope) -> bool:
        """Whether it may do this."""
        return scope in self.scopes or "admin" in self.scopes

    def works(self, now: float) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked is None and (self.expires is None or now < self.expires)


class Keys:
    """All keys.

    Args:
        ledger: Where their hashes are kept.
        secret_file: Where the secret that keys the hashes is kept; made if it is not there.
        now: Seconds since 1970.

    Raises:
        AccessKeyError: others than the owner can read the secret, or it cannot be read.
    """

    def __init__(self, ledger: Ledger, secret_file: Path, *, now: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._now = now
        self._secret = _secret(secret_file)
        self._cache: OrderedDict[bytes, tuple[float, Key | None]] = OrderedDict()

    def create(
        self, name: str, scopes: Iterable[str], *, agent: str | None = None, expires: float | None = None
    ) -> tuple[str, Key]:
        """Makes a key; gives it, this once, with its record.

        Args:
            name: What to call it.
            scopes: What it may do, at least one of `Scope`.
            agent: Whose calls it makes.
            expires: When it stops working, seconds since 1970.

        Raises:
            AccessKeyError: a scope is unknown, or there is none.
        """
        chosen = tuple(dict.fromkeys(scopes))
        unknown = [scope for scope in chosen if scope not in get_args(Scope)]
        if unknown or not chosen:
            raise AccessKeyError(f"A key needs scopes out of {', '.join(get_args(Scope))}; {unknown or 'none'} given.")
        text = PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
        shown = f"{text[:8]}…{text[-4:]}"
        values = (name, shown, self._hash(text), msgspec.json.encode(chosen).decode(), agent, self._now(), expires)

        def act(connection: apsw.Connection) -> int:
            connection.execute(
                "INSERT INTO key(name, shown, hash, scopes, agent, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            return connection.last_insert_rowid()

        number = self._ledger.transaction(act)
        return text, next(key for key in self.all() if key.id == number)

    def find(self, text: str) -> Key | None:
        """The key that this text is, if it works."""
        digest, now = self._hash(text), self._now()
        known = self._cache.get(digest)
        if known is None or known[0] <= now:
            try:
                rows = self._ledger.rows(f"{_SELECT} WHERE hash = ?", (digest,))
            except LedgerError:
                if known is None:
                    raise
                rows, found = [], known[1]  # a broken disk does not lock out who was let in a moment ago
            else:
                found = _key(rows[0]) if rows else None
            known = (now + CACHE_SECONDS, found)
            self._cache[digest] = known
            if len(self._cache) > _MOST_CACHED:
                self._cache.popitem(last=False)
        key = known[1]
        return key if key is not None and key.works(now) else None

    def all(self) -> list[Key]:
        """Every key there ever was, the oldest first."""
        return [_key(row) for row in self._ledger.rows(f"{_SELECT} ORDER BY id")]

    def revoke(self, number: int) -> Key:
        """Revokes a key; a second time changes nothing.

        Raises:
            AccessKeyError: there is no such key.
        """
        now = self._now()
        self._ledger.transaction(
            lambda c: c.execute("UPDATE key SET revoked = coalesce(revoked, ?) WHERE id = ?", (now, number)).fetchall()
        )
        self._cache.clear()
        found = next((key for key in self.all() if key.id == number), None)
        if found is None:
            raise AccessKeyError(f"There is no key {number}; `relive keys list` shows those there are.")
        return found

    def any_works(self) -> bool:
        """Whether there is at least one key that can be used."""
        now = self._now()
        return any(key.works(now) for key in self.all())

    def _hash(self, text: str) -> bytes:
        return hashlib.blake2b(text.encode(errors="replace"), key=self._secret, digest_size=32).digest()


_SELECT = "SELECT id, name, shown, scopes, agent, created, expires, revoked FROM key"


def _key(row: tuple[object, ...]) -> Key:
    names = ("id", "name", "shown", "scopes", "agent", "created", "expires", "revoked")
    fields = dict(zip(names, row, strict=True))
    return msgspec.convert({**fields, "scopes": msgspec.json.decode(str(fields["scopes"]))}, Key)


def _secret(path: Path) -> bytes:
    """The secret in a file that only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
    except FileExistsError:
        pass
    check_private(path)
    secret = path.read_bytes()
    if len(secret) < 32:
        raise AccessKeyError(f"{path} holds no whole secret. Delete it; every key must then be made anew.")
    return secret[:64]


def check_private(path: Path) -> None:
    """Makes sure that only its owner can read a file.

    Raises:
        AccessKeyError: others can; the message names the command that changes it.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise AccessKeyError(f"{path} can be read by others (mode {mode:o}). Run: chmod 600 {path}")
