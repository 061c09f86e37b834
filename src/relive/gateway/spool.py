"""Finished records and feedback that wait on disk while the store cannot take them.

What is in the spool has had its secrets taken out. It is read back once the store takes writes again, by this process
or by the next; a record's uid keeps it from being stored twice. Numbers and texts of the payload stay byte for byte.
"""

import errno
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from relive.errors import InvalidExperienceError
from relive.experience import Feedback, Transition
from relive.gateway.frames import Frame, FrameFile, orphans, read_frames
from relive.storage.codec import clean_text, decode_json, encode_json

_RECORD, _FEEDBACK, _NEXT_STATE = range(3)
_PAYLOAD = ("state", "action", "next_state", "info")
SEGMENT_BYTES = 16 << 20

MOST_BYTES = 4 << 30
"""Size of all files of a process; beyond it nothing is taken."""


class NextState(msgspec.Struct, frozen=True):
    """What an agent saw after a step whose record was stored or spooled before.

    Attributes:
        text: JSON text.
    """

    text: bytes


class Waiting(msgspec.Struct, frozen=True):
    """Something in the spool: a record with its uid, a late next state with that of its record, or feedback.

    Attributes:
        uid: The record's; sixteen zeros for feedback.
        item: The record, what came next, or the feedback.
    """

    uid: bytes
    item: Transition | Feedback | NextState


class Spool:
    """The spool of this process.

    Args:
        folder: Where its files are; made if it is not there.

    Attributes:
        waiting: How many records and pieces of feedback wait in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[FrameFile] = []
        self.waiting = 0

    def put(self, uid: bytes, item: Transition | Feedback | NextState) -> None:
        """Keeps a record, what came after it, or feedback, until it can be stored.

        Raises:
            OSError: it cannot be written, or as much waits as may.
            InvalidExperienceError: it has no JSON form.
        """
        if isinstance(item, Transition):
            kind, body = _RECORD, encode_record(item)
        elif isinstance(item, NextState):
            kind, body = _NEXT_STATE, item.text
        else:
            kind, uid, body = _FEEDBACK, bytes(16), encode_json(item.to_dict())
        if self.size + len(body) > MOST_BYTES:
            raise OSError(errno.ENOSPC, "The spool holds as much as it may.")
        self._file().write(kind, uid, body)
        self.waiting += 1

    @property
    def size(self) -> int:
        """Bytes of what waits."""
        return sum(file.size for file in self._files)

    def batches(self, size: int) -> Iterator[list[Waiting]]:
        """What waits, the oldest first, in lists of at most `size`; a file goes once all its lists were asked for.

        Ask for the next list only after the last one is safe: stopping early leaves the file as it is, and what was
        stored twice is known by its uid.
        """
        while self._files:
            file = self._files[0]
            if file is self._files[-1]:
                self._files.append(self._new_file())  # what comes meanwhile goes elsewhere
            yield from _in_lists(read_frames(file.path), size)  # no more of it than the store takes
            self._files.pop(0)
            file.close(delete=True)
            self.waiting -= file.frames
            if len(self._files) == 1 and self._files[0].size == 0:
                self._files.pop().close(delete=True)

    def left_behind(self, size: int) -> Iterator[list[Waiting]]:
        """What dead processes left, in lists of at most `size`; a file goes once all its lists were asked for."""
        for orphan in orphans(self._folder, "*.spool"):
            done = False
            try:
                yield from _in_lists(orphan.frames(), size)
                done = True
            finally:
                orphan.close(delete=done)

    def close(self) -> None:
        """Lets go of its files; what waits in them stays for the next process."""
        for file in self._files:
            file.close(delete=file.size == 0)
        self._files = []

    def _file(self) -> FrameFile:
        if not self._files or self._files[-1].size > SEGMENT_BYTES:
            self._files.append(self._new_file())
        return self._files[-1]

    def _new_file(self) -> FrameFile:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return FrameFile(self._folder / f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}.spool")


def encode_record(transition: Transition) -> bytes:
    """A transition as one JSON object: its fields as they are named, payload byte for byte.

    Raises:
        InvalidExperienceError: it has no JSON form.
    """
    try:
        return _ENCODER.encode(transition)
    except (TypeError, AttributeError, ValueError, OverflowError):  # half of a surrogate pair, a number too long
        payload = {name: msgspec.Raw(encode_json(getattr(transition, name))) for name in _PAYLOAD}
        error = None if transition.error is None else clean_text(transition.error)
        return _ENCODER.encode(msgspec.structs.replace(transition, error=error, **payload))


def decode_record(text: bytes) -> Transition:
    """The transition that `encode_record` wrote.

    Raises:
        InvalidExperienceError: it is none.
    """
    fields: dict[str, Any] = decode_json(text)
    raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    transition = Transition.from_dict({**fields, **dict.fromkeys(_PAYLOAD)})
    payload = {name: msgspec.Raw(bytes(raw[name])) for name in _PAYLOAD if fields.get(name) is not None}
    return msgspec.structs.replace(transition, **payload)


def _in_lists(frames: Iterable[Frame], size: int) -> Iterator[list[Waiting]]:
    waiting: list[Waiting] = []
    for frame in frames:
        try:
            if frame.kind == _RECORD:
                waiting.append(Waiting(frame.uid, decode_record(frame.body)))
            elif frame.kind == _NEXT_STATE:
                waiting.append(Waiting(frame.uid, NextState(frame.body)))
            elif frame.kind == _FEEDBACK:
                waiting.append(Waiting(frame.uid, Feedback.from_dict(decode_json(frame.body))))
        except (InvalidExperienceError, ValueError):
            continue  # of a newer Relive; its checksum is right, so it is no damage that could be undone
        if len(waiting) == size:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


_ENCODER = msgspec.json.Encoder(enc_hook=lambda value: value.tolist())
