"""Where observed steps are recorded: a memory at hand, or one named by its file or address, opened once a process."""

import atexit
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from relive import memory as memories
from relive.observation.writer import Recording

if TYPE_CHECKING:
    from relive.client import RemoteMemory

VARIABLE = "RELIVE_MEMORY"
"""The environment variable that names the memory, where nothing else does."""

Where: TypeAlias = Recording | str | Path
"""A memory, the file of one, or the address of a server."""

_lock = threading.Lock()
_open: "dict[tuple[int, str], memories.Memory | RemoteMemory]" = {}


def default() -> str | None:
    """What the environment names; ``None``: nothing."""
    return os.environ.get(VARIABLE, "").strip() or None


def memory_at(where: Where) -> Recording:
    """The memory there. One that is named is opened when it is first asked for, to record only, and stays open.

    Raises:
        ReliveError: it cannot be opened.
    """
    if not isinstance(where, str | os.PathLike):
        return where
    name = os.fspath(where)
    with _lock:
        known = _open.get((os.getpid(), name))
        if known is None:
            remote = name.lower().startswith(("http://", "https://"))
            known = memories.open(name) if remote else memories.open(name, follower=True)
            _open[os.getpid(), name] = known
        return known


@atexit.register
def close_all() -> None:
    """Closes the memories that were opened here."""
    with _lock:
        for (process, _), memory in list(_open.items()):
            if process == os.getpid():
                memory.close()
        _open.clear()
