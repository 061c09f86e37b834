"""A file as a stream of records: unpacked, without its byte order mark, each record with the line it begins on.

Two layouts are told apart by content: one record a line (JSON Lines), and one JSON document that is an array of records
or one record spread over several lines. Memory use is bounded by the largest record, not by the file.

Only LF ends a line, with or without a CR before it: U+2028, U+0085 and their like are ordinary characters of a string.
"""

import gzip
import io
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Self, cast

import zstandard

from relive.storage.errors import StorageError
from relive.storage.formats.document import LARGEST_RECORD, TOO_LARGE, Chunk, Scanner

_PIECE = 1 << 20
_PEEK = 1 << 16
_ZSTD_PIECE = 1 << 12  # packed bytes taken at once: little enough that a bomb cannot fill the memory
_BOM = b"\xef\xbb\xbf"
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_PACKED = {
    b"PK\x03\x04": "a ZIP archive; unpack it first",
    b"BZh": "packed by bzip2; unpack it first, or pack it by gzip or zstandard",
    b"\xfd7zXZ\x00": "packed by xz; unpack it first, or pack it by gzip or zstandard",
    b"SQLite format 3\x00": "a database; if it is a Relive store, `relive export` turns it into a file to import",
    b"PAR1": "a Parquet file, which Relive writes but does not read; import the JSONL that it was made from",
    b"\x80\x02": "a Python pickle, which may run code when it is loaded and is never read",
    b"\x80\x03": "a Python pickle, which may run code when it is loaded and is never read",
    b"\x80\x04": "a Python pickle, which may run code when it is loaded and is never read",
    b"\x80\x05": "a Python pickle, which may run code when it is loaded and is never read",
}


class SourceError(StorageError):
    """A file cannot be imported at all: it cannot be read, is packed in an unknown way, or is not UTF-8 text."""


class Source:
    """A file of records that can be read several times; ``-`` is standard input, kept in a temporary file.

    Attributes:
        name: What messages call it.
        size: Bytes of the file as it is, packed or not.
        modified: When it was last changed, in seconds since 1970 UTC.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the file and looks at its first bytes.

        Raises:
            SourceError: it cannot be read, or holds no UTF-8 text.
        """
        self._closing = ExitStack()
        self.name = os.fspath(path)
        try:
            self._file = self._open(path)
            status = os.fstat(self._file.fileno())
            self.size, self.modified = status.st_size, status.st_mtime
            with self._unpacked() as stream:
                self._check(stream.read(4096))
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            self._closing.close()
            reason = (isinstance(error, OSError) and error.strerror) or error
            raise SourceError(f"{self.name} cannot be read: {reason}.") from error
        except BaseException:
            self._closing.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    @property
    def position(self) -> int:
        """Bytes of the file read so far, of `size`: how far a progress bar is."""
        return self._file.tell()

    def chunks(self) -> Iterator[Chunk]:
        """The records from the beginning, one after another; blank lines are passed over."""
        with self._unpacked() as stream:
            document = _is_document(stream.read(_PEEK))
        with self._unpacked() as stream:
            try:
                yield from _elements(stream) if document else _lines(stream)
            except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
                yield Chunk(0, None, f"the packed file is damaged or cut off ({error}); what came before it was read")

    def _open(self, path: str | os.PathLike[str]) -> BinaryIO:
        if os.fspath(path) != "-":
            if Path(path).is_dir():
                raise SourceError(f"{self.name} is a folder; name one file.")
            return self._closing.enter_context(Path(path).open("rb"))
        self.name = "standard input"
        spool = cast("BinaryIO", self._closing.enter_context(tempfile.TemporaryFile()))  # noqa: SIM115
        shutil.copyfileobj(sys.stdin.buffer, spool)
        return spool

    @contextmanager
    def _unpacked(self) -> Iterator[IO[bytes]]:
        self._file.seek(0)
        start = self._file.read(4)
        self._file.seek(0)
        if start[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=self._file) as packed:
                yield cast("IO[bytes]", packed)
        elif start == b"\x28\xb5\x2f\xfd":
            with io.BufferedReader(_ZstdFrames(self._file), _PIECE) as unpacked:
                yield unpacked
        else:
            yield self._file

    def _check(self, start: bytes) -> None:
        """Refuses what is no UTF-8 text, by its first bytes."""
        for magic, what in _PACKED.items():
            if start.startswith(magic):
                raise SourceError(f"{self.name} is {what}.")
        encoding = ""
        if start.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
            encoding = "UTF-32"
        elif start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in start[:4]:
            encoding = "UTF-16"
        if encoding:
            raise SourceError(
                f"{self.name} is encoded as {encoding}, but Relive reads UTF-8; "
                f"`iconv -f {encoding} -t UTF-8` converts it."
            )


class _ZstdFrames(io.RawIOBase):
    """The content of a file of zstandard frames; unlike zstandard's own reader it notices where one is cut off."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._frame: Any = None
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready:
            packed = self._file.read(_ZSTD_PIECE)
            if not packed:
                if self._frame is not None:
                    raise EOFError("its last frame does not end")
                return 0
            while packed:
                if self._frame is None:
                    self._frame = zstandard.ZstdDecompressor().decompressobj()
                self._ready += self._frame.decompress(packed)
                packed = self._frame.unused_data
                if self._frame.eof:
                    self._frame = None
        count = min(len(self._ready), len(target))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def _is_document(start: bytes) -> bool:
    """Whether a file that begins so is one JSON document, and not one record a line."""
    text = start.removeprefix(_BOM).lstrip()
    if not text.startswith(b"{"):
        return text.startswith(b"[")
    first, _, rest = text.partition(b"\n")
    if not rest.strip() or rest.lstrip().startswith(b"{"):
        return False
    outside_strings = _STRING.sub(b"", first)
    return outside_strings.count(b"{") > outside_strings.count(b"}")


def _lines(stream: IO[bytes]) -> Iterator[Chunk]:
    """The lines that are not blank, each as a record."""
    number = 0
    while line := stream.readline(LARGEST_RECORD + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) > LARGEST_RECORD:
            while line and not line.endswith(b"\n"):
                line = stream.readline(_PIECE)
            yield Chunk(number, None, TOO_LARGE)
        elif line.strip():
            yield Chunk(number, line)


def _elements(stream: IO[bytes]) -> Iterator[Chunk]:
    """The records of a JSON document."""
    scanner = Scanner()
    piece = stream.read(_PIECE).removeprefix(_BOM)
    while piece:
        yield from scanner.feed(piece)
        piece = stream.read(_PIECE)
    yield from scanner.finish()
