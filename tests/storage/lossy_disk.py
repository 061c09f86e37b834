"""A disk that is recorded write by write, and can be put back to what it would hold had the power failed at any moment.

What was written to a file after its last sync is lost, wholly or in part: `after_power_loss` keeps none of it, or those
writes that `keep` chooses (a disk may have got to some of them, in any order).
"""

# ruff: noqa: N802  (SQLite's own names)

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw

KEPT = ("", "-wal")  # what stays of a store on disk; the log's index beside it is built anew


class Event(NamedTuple):
    """Something done to a file, or (file empty) a note of the test's own."""

    kind: str
    file: str
    offset: int = 0
    data: bytes = b""
    note: Any = None


class LossyDisk(apsw.VFS):
    """Records what SQLite does to its files. Pass `name` as ``vfs``."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.name = name
        self.events: list[Event] = []

    def note(self, note: Any) -> None:
        """Adds a note to the recording, at the present moment."""
        self.events.append(Event("note", "", note=note))

    def xOpen(self, name: Any, flags: list[int]) -> "_File":
        return _File(self.events, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.events.append(Event("delete", filename))
        super().xDelete(filename, syncdir)

    def after_power_loss(
        self, moment: int, original: Path, copy: Path, keep: Callable[[], bool] = lambda: False
    ) -> list[Any]:
        """Writes to `copy` what the disk holds if the power fails before the event number `moment`.

        Returns:
            The notes made before.
        """
        durable: dict[str, bytearray] = {}
        pending: dict[str, list[Event]] = {}
        notes = []
        for event in self.events[:moment]:
            if event.kind == "note":
                notes.append(event.note)
            elif event.kind == "sync":
                content = durable.setdefault(event.file, bytearray())
                for write in pending.pop(event.file, []):
                    _apply(write, content)
            elif event.kind == "delete":
                durable.pop(event.file, None)
                pending.pop(event.file, None)
            else:
                pending.setdefault(event.file, []).append(event)
        for file, content in durable.items():
            for write in pending.get(file, []):
                if keep():
                    _apply(write, content)
        for suffix in KEPT:
            target = Path(f"{copy}{suffix}")
            target.unlink(missing_ok=True)
            if f"{original}{suffix}" in durable:
                target.write_bytes(durable[f"{original}{suffix}"])
        return notes


class _File(apsw.VFSFile):
    def __init__(self, events: list[Event], name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._events = events
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)

    # Two threads may be at it. A sync counts for what was recorded before it, and a write is recorded when it is done:
    # so nothing counts as synced that might not be.

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._events.append(Event("write", self._name, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._events.append(Event("truncate", self._name, newsize))

    def xSync(self, flags: int) -> None:
        self._events.append(Event("sync", self._name))
        super().xSync(flags)


def _apply(write: Event, content: bytearray) -> None:
    if write.kind == "truncate":
        del content[write.offset :]
        return
    if len(content) < write.offset:
        content.extend(bytes(write.offset - len(content)))
    content[write.offset : write.offset + len(write.data)] = write.data
