"""The journal of calls in flight, and the files under it: what a process that died left is found, and nothing else."""

import os
import signal
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from gateway_calls import KEY, uid

from relive.gateway import frames
from relive.gateway.arena import Arena, read_arena
from relive.gateway.capture import Upstream
from relive.gateway.conversations import Step
from relive.gateway.frames import FrameFile, orphans, read_frames
from relive.gateway.identity import Identity
from relive.gateway.journal import Intent, Journal, LeftBehind

# Frames


def test_frames_are_read_back_and_a_torn_end_is_left_out(tmp_path: Path) -> None:
    file = FrameFile(tmp_path / "a.log")
    file.write(1, uid(1), b"one")
    file.write(2, uid(2))
    file.close(delete=False)
    whole = (tmp_path / "a.log").read_bytes()
    for cut in range(len(whole) + 1):
        (tmp_path / "a.log").write_bytes(whole[:cut])
        found = list(read_frames(tmp_path / "a.log"))
        assert found == [(1, uid(1), b"one"), (2, uid(2), b"")][: len(found)]
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        (tmp_path / "a.log").write_bytes(damaged)
        assert all(frame in [(1, uid(1), b"one"), (2, uid(2), b"")] for frame in read_frames(tmp_path / "a.log"))


def test_a_write_that_finds_no_room_leaves_no_half_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = FrameFile(tmp_path / "a.log")
    file.write(1, uid(1), b"one")
    real = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) > 10:
            return real(descriptor, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(frames.os, "write", half)
    with pytest.raises(OSError, match="No space"):
        file.write(1, uid(2), b"two" * 10)
    monkeypatch.undo()
    file.write(1, uid(3), b"three")
    file.close(delete=False)
    assert [frame.uid for frame in read_frames(tmp_path / "a.log")] == [uid(1), uid(3)]


def test_a_file_is_an_orphan_only_once_its_owner_is_gone(tmp_path: Path) -> None:
    file = FrameFile(tmp_path / "a.log")
    assert list(orphans(tmp_path, "*.log")) == []
    file.close(delete=False)
    (orphan,) = orphans(tmp_path, "*.log")
    assert list(orphans(tmp_path, "*.log")) == []
    orphan.close(delete=True)
    assert list(tmp_path.iterdir()) == []


# The journal

INTENT = Intent(
    "/v1/chat/completions",
    b'{"model":"m"}',
    Identity(agent="a", tags=("x",)),
    Step("e", 3),
    "a",
    datetime(2026, 5, 4, tzinfo=UTC),
    "snapshot",
)
UPSTREAM = Upstream(name="r", model="m", base_url="http://up/v1", shown="http://up/v1", key=KEY)


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


def left_by_the_dead(journal: Journal, memory: Path) -> LeftBehind:
    """What the journal's files would be read as if its process had died now."""
    for file in list(journal.folder.iterdir()):  # copies are not locked
        copy = file.with_suffix(".copy")
        copy.write_bytes(file.read_bytes())
        file.unlink()
        copy.rename(file)
    return Journal(memory.parent, in_memory=memory).left_behind()


def test_what_a_dead_process_left_is_found_call_by_call(tmp_path: Path, memory: Path) -> None:
    journal = Journal(tmp_path, in_memory=memory)
    done, bare, partial = (journal.begin(uid(n), INTENT) for n in (1, 2, 3))
    for entry in (done, partial):
        entry.forwarded(UPSTREAM, drop_usage=False)
        entry.began(503, "application/json", None)
        entry.piece(b"overloaded")
        entry.forwarded(UPSTREAM, drop_usage=True)
        entry.began(200, "text/event-stream", None)
        entry.piece(b"data: 1\n")
        entry.piece(b"\n")
    done.done()
    assert Journal(tmp_path, in_memory=memory).left_behind() == ([], []), "its owner lives"
    journal.close()
    journal._segment = None
    del bare
    left = left_by_the_dead(journal, memory)
    assert [call.uid for call in left.calls] == [uid(2), uid(3)]
    assert left.calls[0].intent == INTENT
    assert left.calls[0].upstream is None
    assert left.calls[1].upstream == msgspec.structs.replace(UPSTREAM, key=None)
    assert (left.calls[1].pieces, left.calls[1].drop_usage) == ([b"data: 1\n", b"\n"], True)
    assert KEY.encode() not in left.files[0].path.read_bytes()
    left.close(delete=True)
    assert list(journal.folder.iterdir()) == []


def test_the_journal_is_empty_once_all_calls_are_done_and_its_files_go(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.gateway.journal.SEGMENT_BYTES", 2_000)
    monkeypatch.setattr("relive.gateway.journal._SPARE", 500)
    journal = Journal(tmp_path, in_memory=memory)
    entries = [journal.begin(uid(n), INTENT) for n in range(50)]
    assert len(list(journal.folder.iterdir())) > 3
    for entry in entries:
        entry.done()
        entry.done()
    (last,) = journal.folder.iterdir()
    assert list(read_arena(last)) == []
    journal.close()
    assert list(journal.folder.iterdir()) == []
    assert journal.failures == 0


def test_an_answer_that_outgrows_its_file_goes_on_in_the_next(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.gateway.journal.SEGMENT_BYTES", 4_000)
    monkeypatch.setattr("relive.gateway.journal._SPARE", 500)
    journal = Journal(tmp_path, in_memory=memory)
    one, two, three = (journal.begin(uid(n), INTENT) for n in range(3))
    pieces = [bytes([n]) * 300 for n in range(40)]
    for piece in pieces:
        one.piece(piece)
        two.piece(piece)
    two.done()
    assert len(list(journal.folder.iterdir())) > 3
    left = left_by_the_dead(journal, memory)
    assert [call.uid for call in left.calls] == [uid(0), uid(2)]
    assert left.calls[0].pieces == pieces
    assert journal.failures == 0
    left.close(delete=True)
    one.done()
    three.done()


def test_the_journal_is_bounded_and_what_it_could_not_hold_leaves_no_gap(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.gateway.journal.SEGMENT_BYTES", 4_000)
    monkeypatch.setattr("relive.gateway.journal._SPARE", 500)
    monkeypatch.setattr("relive.gateway.journal.MOST_BYTES", 9_000)
    journal = Journal(tmp_path, in_memory=memory)
    entry = journal.begin(uid(1), INTENT)
    for number in range(10):
        entry.piece(bytes([number]) * 1_000)
        entry.piece(b"small")
    assert sum(file.stat().st_size for file in journal.folder.iterdir()) <= 9_000
    assert journal.failures == 1
    left = left_by_the_dead(journal, memory)
    (call,) = left.calls
    left.close(delete=False)
    assert (
        b"".join(call.pieces)
        == b"".join(bytes([n]) * 1_000 + b"small" for n in range(10))[: sum(map(len, call.pieces))]
    )
    assert 3 < len(call.pieces) < 20
    entry.done()
    for number in range(100):  # the room that was taken is free again
        journal.begin(uid(number), INTENT).done()
    assert journal.failures == 1


def test_every_call_that_was_done_is_marked_so_however_full_its_file_is(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.gateway.journal.SEGMENT_BYTES", 4_000)
    monkeypatch.setattr("relive.gateway.journal._SPARE", 0)
    monkeypatch.setattr("relive.gateway.journal.MOST_BYTES", 4_000)
    journal = Journal(tmp_path, in_memory=memory)
    entries = [journal.begin(uid(n), INTENT) for n in range(8)]
    for _ in range(100):
        for entry in entries:
            entry.piece(b"x" * 50)
    for entry in entries[1:]:
        entry.done()
    left = left_by_the_dead(journal, memory)
    assert [call.uid for call in left.calls] == [uid(0)]
    left.close(delete=False)
    entries[0].done()


def test_a_call_larger_than_a_file_gets_a_larger_one(tmp_path: Path, memory: Path) -> None:
    journal = Journal(tmp_path, in_memory=memory)
    body = b"x" * (9 << 20)
    entry = journal.begin(uid(1), msgspec.structs.replace(INTENT, body=body))
    (file,) = journal.folder.iterdir()
    assert [frame.uid for frame in read_arena(file)] == [uid(1)]
    assert journal.failures == 0
    entry.done()
    journal.close()


def test_without_a_place_in_memory_no_content_is_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path, in_memory=None)
    entry = journal.begin(uid(1), msgspec.structs.replace(INTENT, body=KEY.encode()))
    entry.piece(KEY.encode())
    (file,) = journal.folder.iterdir()
    assert file.parent.parent == tmp_path
    assert KEY.encode() not in file.read_bytes()
    assert b"e" in file.read_bytes()
    entry.done()
    journal.close()


def test_a_journal_that_has_no_room_stops_no_call(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    journal = Journal(tmp_path, in_memory=memory)
    first = journal.begin(uid(1), INTENT)
    monkeypatch.setattr("relive.gateway.arena.os.posix_fallocate", full)
    huge = b"x" * (9 << 20)
    second = journal.begin(uid(2), msgspec.structs.replace(INTENT, body=huge))
    first.piece(huge)
    for entry in (first, second):
        entry.piece(b"x")
        entry.done()
    assert journal.failures == 2
    journal.close()
    assert list(journal.folder.iterdir()) == []


# Arenas


def test_an_entry_that_a_crash_cut_off_ends_the_reading(tmp_path: Path) -> None:
    arena = Arena(tmp_path / "a.calls", 4_096)
    assert arena.write(1, uid(1), b"one")
    second = arena.used
    assert arena.write(2, uid(2), b"two")
    end = arena.used
    arena.close(delete=False)
    data = (tmp_path / "a.calls").read_bytes()
    assert list(read_arena(tmp_path / "a.calls")) == [(1, uid(1), b"one"), (2, uid(2), b"two")]
    for written in range(second + 4, end):  # all but the mark, in whatever order the rest came
        for part in (data[second + 4 : written].ljust(end - second - 4, b"\0"), bytes(end - second - 4)):
            (tmp_path / "a.calls").write_bytes(data[:second] + bytes(4) + part + data[end:])
            assert list(read_arena(tmp_path / "a.calls")) == [(1, uid(1), b"one")]


def test_what_lay_in_an_arena_before_is_not_read_again(tmp_path: Path) -> None:
    arena = Arena(tmp_path / "a.calls", 4_096)
    for number in range(5):
        arena.write(1, uid(number), b"same length")
    arena.empty()
    assert list(read_arena(tmp_path / "a.calls")) == []
    arena.write(1, uid(9), b"same length")
    assert [frame.uid for frame in read_arena(tmp_path / "a.calls")] == [uid(9)]
    assert not arena.write(1, uid(1), bytes(4_096))
    arena.close(delete=True)


def test_the_journal_survives_kill_9(tmp_path: Path, memory: Path) -> None:
    script = """
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, {here!r})
        from test_journal import INTENT, UPSTREAM, uid
        from relive.gateway.journal import Journal
        journal = Journal(Path({beside!r}), in_memory=Path({memory!r}))
        for number in range(100):
            entry = journal.begin(uid(number), INTENT)
            entry.forwarded(UPSTREAM, drop_usage=False)
            entry.began(200, "text/event-stream", None)
            entry.piece(b"data: 1")
            if number % 2:
                entry.done()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    text = textwrap.dedent(script).format(here=str(Path(__file__).parent), beside=str(tmp_path), memory=str(memory))
    result = subprocess.run([sys.executable, "-c", text], check=False)
    assert result.returncode == -signal.SIGKILL
    left = Journal(tmp_path, in_memory=memory).left_behind()
    assert [call.uid for call in left.calls] == [uid(n) for n in range(0, 100, 2)]
    assert all(call.pieces == [b"data: 1"] for call in left.calls)
    left.close(delete=True)
