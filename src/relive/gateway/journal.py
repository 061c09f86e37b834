"""What is under way, kept outside the process: a call that a crash cuts off leaves what was received of it.

An intent is written before a request is forwarded, then each piece of the answer as it comes; when the record is safe
the call is done. The journal of a process that died is read by the next one, which records what it finds.

It lies in the machine's memory where the system has a place for that (``/dev/shm``): it survives the process, not the
machine, and nothing in it reaches a disk before secrets are taken out. Where there is no such place it lies beside the
store and holds no content, only that a call was made. Its size is bounded. If it cannot be written, calls go on without
it, and that is counted.
"""

import hashlib
import os
import time
import uuid
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from relive.gateway.arena import Arena, read_arena
from relive.gateway.capture import Upstream
from relive.gateway.conversations import Step
from relive.gateway.frames import Frame, Orphan, orphans
from relive.gateway.identity import Identity

SEGMENT_BYTES = 8 << 20
"""Size of a file; what does not fit into what is left of one goes into a new one."""

MOST_BYTES = 256 << 20
"""Size of all files together; beyond it calls go on without the journal."""

_SPARE = 1 << 20  # bytes; room for answers, there when a call is begun in a file
_INTENT, _FORWARDED, _BEGAN, _PIECE, _DONE = range(5)
_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own in it, for the owner alone


class Intent(msgspec.Struct, frozen=True):
    """What is known of a call before it is forwarded.

    Attributes:
        path: The request's path.
        body: Its bytes; empty where content is not kept.
        identity: What the client says of itself.
        place: The episode and step it belongs to.
        agent: Who acts.
        created_at: When it arrived.
        snapshot: Hash of what held then; ``None``: none.
        upstream: Whom it goes to first, without its key; ``None``: not known yet.
        drop_usage: Whether the gateway asks that one for the chunk with the usage.
    """

    path: str
    body: bytes
    identity: Identity
    place: Step
    agent: str
    created_at: datetime
    snapshot: str | None = None
    upstream: Upstream | None = None
    drop_usage: bool = False


class Begun(msgspec.Struct, frozen=True):
    """The head of an upstream's answer."""

    status: int
    content_type: str | None
    content_encoding: str | None


class JournaledCall(msgspec.Struct):
    """A call as a dead process left it.

    Attributes:
        uid: Of its row.
        intent: What was asked.
        upstream: Whom it went to last; ``None``: not known.
        drop_usage: Whether the gateway had asked for the chunk with the usage.
        begun: The head of the answer; ``None``: none came.
        pieces: What came of the answer.
    """

    uid: bytes
    intent: Intent
    upstream: Upstream | None = None
    drop_usage: bool = False
    begun: Begun | None = None
    pieces: list[bytes] = msgspec.field(default_factory=list)


class _Forwarded(msgspec.Struct, frozen=True):
    upstream: Upstream
    drop_usage: bool


class Journal:
    """The journal of this process.

    Args:
        beside: The folder beside the store, used where the system has no place in memory.
        in_memory: The system's place in memory; ``None``: it has none.

    Attributes:
        folder: Where its files are.
        with_content: Whether requests and answers are kept in it.
        failures: How many writes failed; the calls went on.
    """

    def __init__(self, beside: Path, *, in_memory: Path | None = _MEMORY) -> None:
        self.with_content = in_memory is not None and os.access(in_memory, os.W_OK | os.X_OK)
        if in_memory is not None and self.with_content:
            name = hashlib.blake2b(str(beside.resolve()).encode(), digest_size=8).hexdigest()
            self.folder = in_memory / f"relive-{os.getuid()}-{name}"
        else:
            self.folder = beside / "journal"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.failures = 0
        self._segment: _Segment | None = None
        self._bytes = 0

    def begin(self, uid: bytes, intent: Intent) -> "Entry":
        """Notes a call that is about to be forwarded."""
        if not self.with_content:
            intent = msgspec.structs.replace(intent, body=b"")
        body = _encode(intent)
        segment = self._with_room(len(body))
        if segment is None or not segment.write(_INTENT, uid, body):
            self.failures += 1
            return Entry(self, None, uid)
        segment.calls += 1
        return Entry(self, segment, uid)

    def left_behind(self) -> "LeftBehind":
        """The files of dead processes with the calls that were not done."""
        files = list(orphans(self.folder, "*.calls"))
        return LeftBehind(files, _unfinished(files))

    def close(self) -> None:
        """Ends the journal; files with calls under way stay, for the next process to record them."""
        if self._segment is not None:
            self._segment.retire()
            self._segment = None

    def _with_room(self, length: int) -> "_Segment | None":
        """The file for what comes now, with room for an entry of this length and more; ``None``: there is none."""
        segment = self._segment
        if segment is not None and segment.file.room_for(length + _SPARE, beside=segment.calls):
            return segment
        size = max(SEGMENT_BYTES, 2 * length + _SPARE)
        if self._bytes + size > MOST_BYTES:
            return None
        try:
            made = _Segment(Arena(self.folder / f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}.calls", size), self)
        except OSError:
            return None
        self._bytes += size
        self._segment = made
        if segment is not None:
            segment.retire()
        return made

    def _deleted(self, file: Arena) -> None:
        self._bytes -= file.size


class LeftBehind(NamedTuple):
    """What dead processes left.

    Attributes:
        files: Theirs, which nobody else takes over meanwhile.
        calls: Those that were not done, in the order in which they began.
    """

    files: list[Orphan]
    calls: list[JournaledCall]

    def close(self, *, delete: bool) -> None:
        """Lets go of the files, and deletes them once all calls are safe."""
        for file in self.files:
            file.close(delete=delete)


class Entry:
    """One call in the journal; writing to it never fails."""

    __slots__ = ("_journal", "_segments", "_torn", "_uid")

    def __init__(self, journal: Journal, segment: "_Segment | None", uid: bytes) -> None:
        self._journal = journal
        self._segments = [segment] if segment is not None else []  # a long answer goes on in the next file
        self._torn = False  # something found no room; what came after it would be read as if nothing were missing
        self._uid = uid

    def forwarded(self, upstream: Upstream, *, drop_usage: bool) -> None:
        """The request goes to this upstream."""
        self._write(_FORWARDED, _encode(_Forwarded(msgspec.structs.replace(upstream, key=None), drop_usage)))

    def began(self, status: int, content_type: str | None, content_encoding: str | None) -> None:
        """The answer begins."""
        self._write(_BEGAN, _encode(Begun(status, content_type, content_encoding)))

    def piece(self, data: bytes) -> None:
        """The next bytes of the answer."""
        if self._journal.with_content:
            self._write(_PIECE, data)

    def done(self) -> None:
        """The record is safe elsewhere."""
        segments, self._segments = self._segments, []
        for segment in segments:
            segment.write(_DONE, self._uid, b"")
            segment.finished_one()

    def _write(self, kind: int, body: bytes) -> None:
        if self._torn or not self._segments or self._segments[-1].write(kind, self._uid, body):
            return
        following = self._journal._with_room(len(body))
        if following is not None and following.write(kind, self._uid, body):
            following.calls += 1
            self._segments.append(following)
        else:
            self._torn = True
            self._journal.failures += 1


class _Segment:
    """A file and how many of its calls are under way; each has its place kept for the mark that it is done."""

    def __init__(self, file: Arena, journal: Journal) -> None:
        self.file = file
        self.calls = 0
        self._journal = journal
        self._retired = False

    def write(self, kind: int, uid: bytes, body: bytes) -> bool:
        """Appends an entry; False: there is no room for it."""
        if kind != _DONE and not self.file.room_for(len(body), beside=self.calls + 1):
            return False
        return self.file.write(kind, uid, body)

    def finished_one(self) -> None:
        self.calls -= 1
        if self.calls == 0:
            if self._retired:
                self._delete()
            else:
                self.file.empty()

    def retire(self) -> None:
        """No new calls come; the file goes when its last call is done, or stays if the process ends before."""
        self._retired = True
        if self.calls == 0:
            self._delete()

    def _delete(self) -> None:
        self.file.close(delete=True)
        self._journal._deleted(self.file)


def _unfinished(files: Iterable[Orphan]) -> list[JournaledCall]:
    calls: dict[bytes, JournaledCall] = {}
    for file in files:
        for frame in read_arena(file.path):
            try:
                _take(calls, frame)
            except (msgspec.DecodeError, msgspec.ValidationError):  # of a newer Relive
                calls.pop(frame.uid, None)
    return list(calls.values())


def _take(calls: dict[bytes, JournaledCall], frame: Frame) -> None:
    kind, uid, body = frame
    if kind == _INTENT:
        intent = msgspec.msgpack.decode(body, type=Intent)
        calls[uid] = JournaledCall(uid, intent, intent.upstream, intent.drop_usage)
    elif uid in calls:
        call = calls[uid]
        if kind == _FORWARDED:
            forwarded = msgspec.msgpack.decode(body, type=_Forwarded)
            call.upstream, call.drop_usage = forwarded.upstream, forwarded.drop_usage
            call.begun, call.pieces = None, []
        elif kind == _BEGAN:
            call.begun = msgspec.msgpack.decode(body, type=Begun)
        elif kind == _PIECE:
            call.pieces.append(body)
        elif kind == _DONE:
            del calls[uid]


_ENCODER = msgspec.msgpack.Encoder()


def _encode(value: msgspec.Struct) -> bytes:
    return _ENCODER.encode(value)
