"""Who owns the sampling index of a store: one holder at a time, told by a lock on a small file beside it.

The lock is the kernel's (``flock``): it goes with the process, however that ends. The file says who holds it, for those
who are refused.
"""

import fcntl
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from relive.storage.errors import IndexOwnedError


class Claim:
    """The ownership of one store's sampling index, from `take` to `release`."""

    def __init__(self, path: Path) -> None:
        """Args: path: of the store; the lock is a file of the same name with ``-owner`` added."""
        self._store = path
        self._path = Path(f"{path}-owner")
        self._handle: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds it."""
        return self._handle is not None

    def take(self, *, url: str | None = None) -> None:
        """Takes the ownership; `url` is where the holder serves others, if it does.

        Raises:
            IndexOwnedError: somebody holds it; the error says who.
        """
        if self._handle is not None:
            return
        while True:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                holder = who_holds(self._store)
                raise IndexOwnedError(_refusal(self._store, holder), holder) from None
            if _same_file(handle, self._path):
                break
            os.close(handle)  # its holder removed it between our two steps
        holder = {
            "pid": os.getpid(),
            "host": platform.node(),
            "command": Path(sys.argv[0]).name or "python",  # without its arguments, which may hold secrets
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if url is not None:
            holder["url"] = url
        os.truncate(handle, 0)
        os.pwrite(handle, msgspec.json.encode(holder), 0)
        self._handle = handle

    def release(self) -> None:
        """Gives the ownership back; does nothing if it is not held."""
        if self._handle is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None

    def forget(self) -> None:
        """In a forked child: lets go of the parent's lock without ending it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def who_holds(path: Path) -> dict[str, Any]:
    """What the holder of a store's index wrote about itself; empty: nothing readable."""
    try:
        return msgspec.json.decode(Path(f"{path}-owner").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return {}


def _refusal(store: Path, holder: dict[str, Any]) -> str:
    if holder.get("pid") == os.getpid() and holder.get("host") == platform.node():
        who = "this process itself, which opened it before"
    elif holder:
        who = f"process {holder['pid']} on {holder['host']} ({holder['command']}), since {holder['since']}"
    else:
        who = "another process"
    url = holder.get("url")
    step = (
        f"draw through {url} instead"
        if url
        else "close it there first, or open it here with follower=True to record only"
    )
    return f"The sampling index of {store} is held by {who}; {step}."


def _same_file(handle: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
