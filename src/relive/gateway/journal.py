"""What is under way, kept outside the process: a call that a crash cuts off leaves what was received of it.

An intent is written before a request is forwarded, then each piece of the answer as it comes; when the record is safe
the call is done. The journal of a process that died is read by the next one, which records what it finds.

It lies in the machine's memory where the system has a place for that (``/dev/shm``): it survives the process, not the
machine, and nothing in it reaches a disk before secrets are taken out. Where there is no such place it lies beside the
store and holds no content, only that a call was made. If it cannot be written, calls go on without it, and that is
counted.
"""

import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from relive.gateway.arena import Arena, read_arena
from relive.gateway.capture import Upstream
from relive.gateway.conversations import Step
from relive.gateway.frames import Frame, Orphan, orphans
from relive.gateway.identity import Identity

SEGMENT_BYTES = 8 << 20
"""Size of a file; a call that does not fit into what is left of one goes into a new one."""

_SPARE = 1 << 20  # bytes; room for answers, kept free before a new call is begun in a file
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

    def begin(self, uid: bytes, intent: Intent) -> "Entry":
        """Notes a call that is about to be forwarded."""
        if not self.with_content:
            intent = msgspec.structs.replace(intent, body=b"")
        body = _encode(intent)
        segment = self._segment
        if segment is None or not segment.file.room_for(len(body) + _SPARE):
            segment = self._next_segment(len(body))
        if segment is None or not segment.file.write(_INTENT, uid, body):
            self.failures += 1
            return Entry(self, None, uid)
        segment.open += 1
        return Entry(self, segment, uid)

    def _next_segment(self, least: int) -> "_Segment | None":
        """A new file for new calls; ``None``: there is no room for one."""
        path = self.folder / f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}.calls"
        try:
            made = _Segment(Arena(path, max(SEGMENT_BYTES, 2 * least + _SPARE)))
        except OSError:
            return None
        if self._segment is not None:
            self._segment.retire()
        self._segment = made
        return made

    def left_behind(self) -> Iterator[tuple[Orphan, list[JournaledCall]]]:
        """The files of dead processes with the calls that were not done; close each, deleting it once they are safe."""
        for orphan in orphans(self.folder, "*.calls"):
            yield orphan, _unfinished(orphan)

    def close(self) -> None:
        """Ends the journal; a file with calls under way stays, for the next process to record them."""
        if self._segment is not None:
            self._segment.retire()
            self._segment = None


class Entry:
    """One call in the journal; writing to it never fails."""

    __slots__ = ("_journal", "_segment", "_uid")

    def __init__(self, journal: Journal, segment: "_Segment | None", uid: bytes) -> None:
        self._journal = journal
        self._segment = segment
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
        segment, self._segment = self._segment, None
        if segment is None:
            return
        if not segment.file.write(_DONE, self._uid):
            self._journal.failures += 1
        segment.finished_one()

    def _write(self, kind: int, body: bytes) -> None:
        if self._segment is not None and not self._segment.file.write(kind, self._uid, body):
            self._journal.failures += 1


class _Segment:
    """A file and how many of its calls are under way."""

    def __init__(self, file: Arena) -> None:
        self.file = file
        self.open = 0
        self._retired = False

    def finished_one(self) -> None:
        self.open -= 1
        if self.open == 0:
            if self._retired:
                self.file.close(delete=True)
            else:
                self.file.empty()

    def retire(self) -> None:
        """No new calls come; the file goes when its last call is done, or stays if the process ends before."""
        self._retired = True
        if self.open == 0:
            self.file.close(delete=True)


def _unfinished(orphan: Orphan) -> list[JournaledCall]:
    calls: dict[bytes, JournaledCall] = {}
    for frame in read_arena(orphan.path):
        try:
            _take(calls, frame)
        except msgspec.DecodeError:  # of a newer Relive
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
