"""Append-only files that are written through memory: no system call, and so no waiting, for a write.

An arena is a file of fixed size mapped into memory, owned by one process for as long as it lives. What was written
survives the process, whatever ends it: the pages belong to the file. An entry's mark is written last, and what has no
mark ends the reading, so an entry that a crash cut off is not seen.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from relive.gateway.frames import Frame

_MARK = b"RELV"
_HEAD = struct.Struct("<4sIB16s")
_NOTHING = bytes(_HEAD.size)


class Arena:
    """A new file, locked while it is open.

    Args:
        path: Where to make it; its folder must exist.
        size: Its bytes, all of them taken at once, so that a later write cannot fail for want of room.

    Attributes:
        path: Where it is.
        size: Its bytes.
        used: Bytes written.

    Raises:
        OSError: there is no room.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.used = 0
        self.size = size
        self._descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._descriptor, 0, size)
            else:  # macOS has no such call; what is written is there
                _fill(self._descriptor, size)
            self._memory = mmap.mmap(self._descriptor, size)
        except OSError:
            path.unlink(missing_ok=True)
            os.close(self._descriptor)
            raise

    def room_for(self, length: int, *, beside: int = 0) -> bool:
        """Whether a body of this length fits, and so many empty ones after it."""
        return self.used + (2 + beside) * _HEAD.size + length <= self.size

    def write(self, kind: int, uid: bytes, body: bytes = b"") -> bool:
        """Appends an entry; False: there is no room for it."""
        start = self.used
        end = start + _HEAD.size + len(body)
        if end + _HEAD.size > self.size:
            return False
        memory = self._memory
        memory[end : end + _HEAD.size] = _NOTHING  # what lay there before must not be read as the next entry
        memory[start:end] = _HEAD.pack(bytes(4), len(body), kind, uid) + body
        memory[start : start + 4] = _MARK
        self.used = end
        return True

    def empty(self) -> None:
        """Throws away what is in it."""
        self._memory[: _HEAD.size] = _NOTHING
        self.used = 0

    def close(self, *, delete: bool) -> None:
        """Lets go of the file, and deletes it if nobody needs it any more."""
        self._memory.close()
        if delete:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def read_arena(path: Path) -> Iterator[Frame]:
    """The whole entries of a file, in order."""
    data = path.read_bytes()
    start = 0
    while start + _HEAD.size <= len(data):
        mark, length, kind, uid = _HEAD.unpack_from(data, start)
        end = start + _HEAD.size + length
        if mark != _MARK or end > len(data):
            return
        yield Frame(kind, uid, data[start + _HEAD.size : end])
        start = end


def _fill(descriptor: int, size: int) -> None:
    """Writes zeros, so that the file has all its room."""
    zeros = bytes(min(size, 1 << 20))
    while size > 0:
        size -= os.write(descriptor, zeros[: min(size, len(zeros))])
