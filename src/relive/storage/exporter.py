"""Takes experiences out of a store into a file that other programs read: Relive JSONL, one experience a line.

A line holds what is known and leaves out what is not, so a reader sees no null that could be taken for a value. The
payload is the text that was stored, byte for byte; the whole is UTF-8, ends in LF, and holds no line break within.
Beside the record's own fields a line has ``uid``, by which an import knows the experience again, and what was fed back
about it, so that a store made of the lines answers as the first one did.

What is appended while an export runs is not part of it.
"""

import gzip
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

import msgspec
import zstandard

from relive.experience import SCHEMA_VERSION, Feedback
from relive.storage import identity
from relive.storage.errors import StorageError
from relive.storage.reading import Query
from relive.storage.sqlite import SqliteStorage
from relive.storage.stored import Stored

Progress = Callable[[int, int], None]
"""Called now and then with the experiences written so far and how many there are."""

_PAGE = 256
_PAYLOAD = ("state", "action", "next_state", "info")
_encode = msgspec.json.Encoder().encode


class ExportError(StorageError):
    """A file cannot be written as asked."""


class Exported(NamedTuple):
    """One experience on its way out.

    Attributes:
        stored: The experience.
        uid: Its identity.
        parent: Identity of the experience it belongs under; ``None``: none, or it is not stored any more.
        feedback: What was fed back about it and its episode.
    """

    stored: Stored
    uid: bytes
    parent: bytes | None
    feedback: list[Feedback]


def export_lines(
    storage: SqliteStorage, out: IO[bytes], query: Query | None = None, *, progress: Progress | None = None
) -> int:
    """Writes the experiences that a query finds as Relive JSONL, in the order of ids; returns how many.

    Args:
        storage: The store; it may be written to meanwhile.
        out: Where to.
        query: Which experiences; ``None``: all.
        progress: Called after every page.

    Raises:
        OSError: `out` cannot be written, for example because the disk is full or the reader has gone.
    """
    count = 0
    for count, exported in enumerate(selected(storage, query, progress=progress), 1):  # noqa: B007 - the answer
        out.write(line(exported))
    return count


def selected(
    storage: SqliteStorage, query: Query | None = None, *, progress: Progress | None = None
) -> Iterator[Exported]:
    """The experiences that a query finds and that are stored now, in the order of ids."""
    conditions: dict[str, Any] = msgspec.structs.asdict(query) if query is not None else {}
    newest = storage.query(limit=1, newest_first=True)
    if not newest:
        return
    last = newest[0].id
    total = storage.count(query)
    prefix = bytes.fromhex(storage.store_id())[: identity.LENGTH // 2]
    any_feedback = storage.stats().feedback > 0
    after: int | None = None
    count = 0
    while page := storage.query(**conditions, after=after, limit=_PAGE):
        after = page[-1].id
        parents = _parents(storage, prefix, page)
        for stored in page:
            if stored.id > last:
                return
            feedback = storage.feedback_of(stored.id) if any_feedback else []
            yield Exported(stored, _uid(prefix, stored), parents.get(stored.id), feedback)
            count += 1
        if progress is not None:
            progress(count, max(count, total))


def line(exported: Exported) -> bytes:
    """The line of an experience."""
    stored = exported.stored
    payload = stored.json()
    if b"\n" in payload or b"\r" in payload:  # a payload that was handed over as text may be indented
        payload = payload.replace(b"\r", b" ").replace(b"\n", b" ")
    rest = _encode(fields(exported))
    return b'{"schema_version":%d,"uid":"%s",%s,%s\n' % (
        SCHEMA_VERSION,
        exported.uid.hex().encode(),
        payload[1:-1],
        rest[1:],
    )


def fields(exported: Exported) -> dict[str, Any]:
    """What a line says beside identity and payload; what is not known is left out."""
    stored = exported.stored
    record = stored.outline().to_dict()
    for name in (*_PAYLOAD, "parent"):
        del record[name]
    result = {name: value for name, value in record.items() if value is not None and value not in ((), [])}
    if exported.parent is not None:
        result["parent_uid"] = exported.parent.hex()
    if stored.priority is not None:
        result["priority"] = stored.priority
    if exported.feedback:
        recorded_reward, recorded_outcome = stored.recorded
        result["recorded_reward"], result["recorded_outcome"] = recorded_reward, recorded_outcome
        result["feedback"] = [_feedback(one) for one in exported.feedback]
    return result


@contextmanager
def replacing(path: Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """A file that is there whole once the body ends, or not at all if it fails; packed if its name ends so.

    A path that is no plain file (a device, a named pipe) is written to as it is.

    Args:
        path: Where to; a name that ends with ``.gz`` or ``.zst`` is packed by gzip or zstandard.
        force: Replace a file that is there.

    Raises:
        ExportError: there is a file already, or no such folder.
        OSError: the file cannot be written.
    """
    if not path.parent.is_dir():
        raise ExportError(f"There is no folder {path.parent}; make it first, or choose another path.")
    if path.is_dir():
        raise ExportError(f"{path} is a folder; give the path of a file.")
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            yield device
        return
    if path.exists() and not force:
        raise ExportError(f"{path} is there already; replace it with --force, or choose another path.")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            with _packed(file, path.suffix) as out:
                yield out
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _packed(file: BinaryIO, suffix: str) -> Iterator[BinaryIO]:
    if suffix == ".gz":
        with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
            yield cast("BinaryIO", packed)
    elif suffix == ".zst":
        with zstandard.ZstdCompressor(level=6).stream_writer(file, closefd=False) as frames:
            yield cast("BinaryIO", frames)
    else:
        yield file


def _uid(prefix: bytes, stored: Stored) -> bytes:
    return stored.uid if stored.uid is not None else identity.of_own(prefix, stored.id)


def _parents(storage: SqliteStorage, prefix: bytes, page: list[Stored]) -> dict[int, bytes]:
    """Identity of the parent of each experience of a page that has one."""
    parents: dict[int, int] = {stored.id: parent for stored in page if (parent := stored.parent) is not None}
    if not parents:
        return {}
    found = {one.id: _uid(prefix, one) for one in storage.read(sorted(set(parents.values()))) if one is not None}
    return {number: found[parent] for number, parent in parents.items() if parent in found}


def _feedback(feedback: Feedback) -> dict[str, Any]:
    """A feedback without the id of this store; what is not said is left out."""
    said = feedback.to_dict()
    del said["experience_id"]
    return {name: value for name, value in said.items() if value is not None}
