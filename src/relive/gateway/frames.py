"""Append-only files of small frames, each owned by one process for as long as it lives.

A frame is its body's length, a checksum, a kind, a 16-byte uid, and the body. A write is one system call into the page
cache: it survives the end of the process, and costs a few microseconds. A frame cut off by a crash or a full disk ends
the reading of its file; everything before it is whole.
"""

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct("<IIB16s")
LARGEST_FRAME = 256 << 20


class Frame(NamedTuple):
    """One frame.

    Attributes:
        kind: What it is, 0 to 255.
        uid: Whom it is about, 16 bytes.
        body: The rest.
    """

    kind: int
    uid: bytes
    body: bytes


class FrameFile:
    """A new file, locked while it is open.

    Args:
        path: Where to make it; its folder must exist.

    Attributes:
        path: Where it is.
        size: Its length in bytes.
        frames: How many frames are in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.frames = 0
        self._descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, kind: int, uid: bytes, body: bytes = b"") -> None:
        """Appends a frame, whole or not at all.

        Raises:
            OSError: there is no room; what was written of it is taken back.
        """
        checksum = zlib.crc32(body, zlib.crc32(uid, kind))
        frame = _HEADER.pack(len(body), checksum, kind, uid) + body
        written = 0
        try:
            while written < len(frame):
                written += os.write(self._descriptor, frame[written:] if written else frame)
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(frame)
        self.frames += 1

    def empty(self) -> None:
        """Throws away what is in it."""
        os.ftruncate(self._descriptor, 0)
        self.size = self.frames = 0

    def sync(self) -> None:
        """Returns once what was written is on the disk."""
        os.fsync(self._descriptor)

    def close(self, *, delete: bool) -> None:
        """Lets go of the file, and deletes it if nobody needs it any more."""
        if delete:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def read_frames(path: Path) -> Iterator[Frame]:
    """The whole frames of a file, in order."""
    with path.open("rb") as file:
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            length, checksum, kind, uid = _HEADER.unpack(header)
            if length > LARGEST_FRAME:
                return
            body = file.read(length)
            if len(body) < length or zlib.crc32(body, zlib.crc32(uid, kind)) != checksum:
                return
            yield Frame(kind, uid, body)


class Orphan:
    """A file whose owner is gone; while it is open nobody else takes it over."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def frames(self) -> Iterator[Frame]:
        """Its whole frames, in order."""
        return read_frames(self.path)

    def close(self, *, delete: bool) -> None:
        """Lets go of it, and deletes it once all in it is safe elsewhere."""
        if delete:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


def orphans(folder: Path, pattern: str) -> Iterator[Orphan]:
    """The files of a folder whose owners are gone, the oldest name first, each locked for the caller."""
    for path in sorted(folder.glob(pattern)):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # another process has just finished with it
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            continue
        if not path.exists():
            os.close(descriptor)
            continue
        yield Orphan(path, descriptor)
