"""Recording: an answer waits a moment, nothing that can be kept is lost, and what is lost is counted."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np
import pytest

from relive.errors import InvalidExperienceError
from relive.experience import Feedback, TokenTrace, Transition, Usage
from relive.gateway import frames, recorder
from relive.gateway.arena import Arena, read_arena
from relive.gateway.capture import Upstream
from relive.gateway.conversations import Step
from relive.gateway.frames import FrameFile, orphans, read_frames
from relive.gateway.identity import Identity
from relive.gateway.journal import Intent, Journal, LeftBehind
from relive.gateway.recorder import WAIT, Recorder
from relive.gateway.spool import Spool, Waiting, decode_record, encode_record
from relive.storage import SqliteStorage
from relive.storage.errors import StorageFullError
from relive.storage.redaction import Redactor

KEY = "sk-test-AAAABBBBCCCCDDDD"


def uid(number: int) -> bytes:
    return number.to_bytes(16, "big")


def transition(number: int = 0, **fields: Any) -> Transition:
    return Transition(state={"n": number}, action="done", episode_id=f"e{number}", **fields)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(tmp_path / "store.db") as opened:
        yield opened


def nothing(_: int | None) -> None:
    pass


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


# The spool


def test_a_record_comes_back_from_the_spool_as_it_was(tmp_path: Path) -> None:
    number = b'{"n":123456789012345678901234567890,"x":1.10}'
    whole = Transition(
        state=msgspec.Raw(number),
        action={"content": "für 🚀"},
        info={"status": "complete"},
        reward=0.5,
        tags=("a",),
        usage=Usage(input_tokens=3),
        tokens=TokenTrace(token_ids=np.array([1, 2]), mask=np.array([0, 1]), logprobs=np.array([0.0, -0.5])),
    )
    back = decode_record(encode_record(whole))
    assert bytes(back.state) == number
    assert json.loads(bytes(back.action)) == {"content": "für 🚀"}
    rest = dict.fromkeys(("state", "action", "next_state", "info"))
    assert msgspec.structs.replace(back, **rest) == msgspec.structs.replace(whole, **rest)


def test_the_spool_gives_back_all_in_order_and_its_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.gateway.spool.SEGMENT_BYTES", 2_000)
    spool = Spool(tmp_path / "spool")
    for number in range(30):
        spool.put(uid(number), transition(number))
    feedback = Feedback(episode_id="e1", reward=1.0)
    spool.put(bytes(16), feedback)
    assert spool.waiting == 31
    seen: list[Waiting] = []
    for batch in spool.batches(7):
        seen += batch
    assert [waiting.uid for waiting in seen[:-1]] == [uid(n) for n in range(30)]
    assert seen[-1].item == feedback
    assert spool.waiting == 0
    spool.close()
    assert list((tmp_path / "spool").iterdir()) == []


def test_what_is_not_taken_out_of_the_spool_waits_for_the_next_process(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(5):
        spool.put(uid(number), transition(number))
    batches = spool.batches(2)
    next(batches)
    spool.close()
    after = Spool(tmp_path)
    assert [len(batch) for batch in after.left_behind(2)] == [2, 2, 1]
    assert list(after.left_behind(2)) == []


# The recorder


class Broken:
    """A store that takes nothing until it is mended."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.taken: list[Any] = []

    def encode(self, rows: list[Transition], *, uids: list[bytes]) -> Any:
        return list(zip(uids, rows, strict=True))

    def append(self, rows: list[Any]) -> list[int]:
        self.taken += rows
        return list(range(len(rows)))

    def write(self, act: Callable[[Any], Any], rows: int = 1) -> "Future[Any]":
        future: Future[Any] = Future()
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(act(self))
        return future

    def feedback_soon(self, feedback: Feedback) -> "Future[Any]":
        return self.write(lambda store: store.append([feedback]) and 1)


def with_recorder(
    storage: Any,
    folder: Path,
    body: Callable[[Recorder], Awaitable[None]],
    *,
    redact: Redactor | None = None,
    wait: float = WAIT,
) -> Recorder:
    made: list[Recorder] = []

    async def run() -> None:
        made.append(Recorder(storage, Spool(folder), redact=redact, wait=wait, sleep=lambda _: asyncio.sleep(0.01)))
        await body(made[0])
        await made[0].close()

    asyncio.run(run())
    return made[0]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about")


def test_a_record_is_stored_before_the_answer_goes_on(storage: SqliteStorage, tmp_path: Path) -> None:
    ids: list[int | None] = []

    async def body(recorder: Recorder) -> None:
        assert await recorder.record(transition(1), uid(1), ids.append) == "stored"
        assert len(storage) == 1
        assert await recorder.record(transition(1), uid(1), ids.append) == "stored"

    stats = with_recorder(storage, tmp_path / "spool", body, wait=60.0).stats  # however busy the machine is
    assert (stats.stored, stats.pending, stats.lost) == (2, 0, 0)
    assert ids == [1, None], "the second time its uid was there"
    assert len(storage) == 1


def test_sto_06_a_locked_store_holds_up_only_the_first_answers_and_loses_nothing(
    storage: SqliteStorage, tmp_path: Path
) -> None:
    storage.append([transition()])
    other = apsw.Connection(str(storage.path))
    safe: list[int | None] = []

    async def body(recorder: Recorder) -> None:
        other.execute("BEGIN IMMEDIATE").fetchall()
        assert await recorder.record(transition(1), uid(1), safe.append) == "pending"
        await until(lambda: recorder.stuck)
        for number in range(2, 300):
            assert await recorder.record(transition(number), uid(number), safe.append) == "pending"
        assert await recorder.feedback(Feedback(episode_id="e2", reward=1.0)) is None
        assert recorder.waiting == 299
        assert len(safe) == 298, "those on the disk are safe, the first is still on its way"
        other.execute("ROLLBACK").fetchall()
        await until(lambda: not recorder.waiting and not recorder.stuck)
        assert await recorder.record(transition(300), uid(300), safe.append) == "stored"

    stats = with_recorder(storage, tmp_path / "spool", body).stats
    assert (stats.lost, stats.pending) == (0, 299)
    assert len(storage) == 301
    assert storage.query(episode_id="e2")[0].reward == 1.0


def test_a_full_disk_fills_the_spool_and_a_mended_one_empties_it(tmp_path: Path) -> None:
    store = Broken(StorageFullError("No room."))

    async def body(recorder: Recorder) -> None:
        for number in range(100):
            assert await recorder.record(transition(number), uid(number), nothing) == "pending"
        assert recorder.stuck
        assert store.taken == []
        store.error = None
        await until(lambda: not recorder.stuck)
        assert await recorder.record(transition(100), uid(100), nothing) == "stored"

    assert with_recorder(store, tmp_path / "spool", body).stats.lost == 0
    assert sorted(number for number, _ in store.taken) == [uid(n) for n in range(101)]


def test_with_no_disk_at_all_memory_is_bounded_and_the_loss_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "MOST_MEMORY", 5_000)
    store = Broken(StorageFullError("No room."))
    (tmp_path / "file").write_text("no folder can be made here")
    safe: list[int | None] = []

    async def body(recorder: Recorder) -> None:
        for number in range(100):
            await recorder.record(transition(number), uid(number), safe.append)
        assert 5 < recorder.waiting < 50
        assert len(safe) == recorder.stats.lost == 100 - recorder.waiting
        store.error = None
        await until(lambda: not recorder.waiting)

    stats = with_recorder(store, tmp_path / "file" / "spool", body).stats
    assert stats.lost + len(store.taken) == 100
    assert len(safe) == 100
    assert "are lost" in caplog.text


def test_records_gathered_with_one_that_no_store_can_hold_are_all_stored(
    storage: SqliteStorage, tmp_path: Path
) -> None:
    async def body(recorder: Recorder) -> None:
        odd = msgspec.structs.replace(transition(0), action={"x": object()})
        many = [odd, *(transition(n) for n in range(1, 40))]
        first = [asyncio.create_task(recorder.record(t, uid(n), nothing)) for n, t in enumerate(many[:20])]
        await asyncio.sleep(0.0015)  # others come while the store looks at the first
        rest = [asyncio.create_task(recorder.record(t, uid(n), nothing)) for n, t in enumerate(many[20:], 20)]
        await asyncio.gather(*first, *rest)
        await until(lambda: not recorder.outstanding)

    stats = with_recorder(storage, tmp_path / "spool", body).stats
    assert (stats.refused, stats.stored, stats.lost) == (1, 39, 0)
    assert len(storage) == 39


def test_what_no_store_can_hold_does_not_stop_the_spool(tmp_path: Path) -> None:
    store = Broken(StorageFullError("No room."))

    class Picky(Broken):
        def append(self, rows: list[Any]) -> list[int]:
            if any(number == uid(3) for number, _ in rows):
                raise InvalidExperienceError("No.")
            return super().append(rows)

    store.__class__ = Picky

    async def body(recorder: Recorder) -> None:
        for number in range(10):
            await recorder.record(transition(number), uid(number), nothing)
        store.error = None
        await until(lambda: not recorder.waiting and not recorder.stuck)

    stats = with_recorder(store, tmp_path / "spool", body).stats
    assert (stats.refused, stats.lost) == (1, 0)
    assert {number for number, _ in store.taken} == {uid(n) for n in range(10) if n != 3}


def test_half_of_a_surrogate_pair_reaches_the_spool(tmp_path: Path) -> None:
    odd = transition(1, error="broke off at \ud83d")
    odd = msgspec.structs.replace(odd, action={"content": "cut \ud83d"})
    back = decode_record(encode_record(odd))
    assert json.loads(bytes(back.action)) == {"content": "cut \ufffd"}
    assert back.error == "broke off at \ufffd"


def test_the_spool_takes_so_much_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.gateway.spool.MOST_BYTES", 3_000)
    spool = Spool(tmp_path)
    while spool.size < 2_400:
        spool.put(uid(spool.waiting), transition(1))
    with pytest.raises(OSError, match="as much as it may"):
        spool.put(uid(1), transition(1, error="x" * 600))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 3_100
    spool.close()


def test_what_follows_a_record_follows_it_out_of_the_spool_too(tmp_path: Path) -> None:
    store = Broken(StorageFullError("No room."))
    followed: list[Any] = []

    async def body(recorder: Recorder) -> None:
        recorder.stored = lambda row, number: followed.append((row.episode_id, number))
        await recorder.record(transition(1), uid(1), nothing)
        store.error = None
        await until(lambda: not recorder.waiting and not recorder.stuck)
        await recorder.record(transition(2), uid(2), nothing)

    with_recorder(store, tmp_path / "spool", body)
    assert followed == [("e1", 0), ("e2", 0)]


def test_what_came_after_a_step_waits_with_it_while_the_store_is_locked(storage: SqliteStorage, tmp_path: Path) -> None:
    storage.append([transition()])
    other = apsw.Connection(str(storage.path))

    async def body(recorder: Recorder) -> None:
        other.execute("BEGIN IMMEDIATE").fetchall()
        await recorder.record(transition(1), uid(1), nothing)
        await until(lambda: recorder.stuck)
        await recorder.record(transition(2), uid(2), nothing)
        for number in (1, 2):
            await recorder.next_state(uid(number), {"seen after": number})
        other.execute("ROLLBACK").fetchall()
        await until(lambda: not recorder.waiting and not recorder.stuck)

    with_recorder(storage, tmp_path / "spool", body)
    states = {row.transition.episode_id: row.transition.next_state for row in storage.query()}
    assert states == {"e0": None, "e1": {"seen after": 1}, "e2": {"seen after": 2}}


def test_a_record_that_no_store_can_hold_is_refused_and_stops_nothing(storage: SqliteStorage, tmp_path: Path) -> None:
    async def body(recorder: Recorder) -> None:
        odd = msgspec.structs.replace(transition(1), action={"x": object()})
        assert await recorder.record(odd, uid(1), nothing) == "pending"
        assert await recorder.record(transition(2), uid(2), nothing) == "stored"

    stats = with_recorder(storage, tmp_path / "spool", body).stats
    assert (stats.refused, stats.stored, stats.lost) == (1, 1, 0)


def test_what_waits_when_the_process_ends_is_stored_by_the_next(storage: SqliteStorage, tmp_path: Path) -> None:
    async def before(recorder: Recorder) -> None:
        for number in range(10):
            await recorder.record(transition(number), uid(number), nothing)

    async def after(recorder: Recorder) -> None:
        assert await recorder.recover_spool() == 10
        assert await recorder.recover_spool() == 0

    with_recorder(Broken(StorageFullError("No room.")), tmp_path / "spool", before)
    storage.append([transition(3)], uids=[uid(3)])
    with_recorder(storage, tmp_path / "spool", after)
    assert len(storage) == 10, "none twice"


def test_prx_14_secrets_do_not_reach_the_spool(tmp_path: Path) -> None:
    async def body(recorder: Recorder) -> None:
        said = {"messages": [{"role": "user", "content": f"my key is {KEY}"}]}
        await recorder.record(Transition(state=said, action=f"Bearer {KEY}", error=f"refused {KEY}"), uid(1), nothing)
        await recorder.feedback(Feedback(episode_id="e", comment=f"it said {KEY}"))

    with_recorder(Broken(StorageFullError("No room.")), tmp_path / "spool", body, redact=Redactor())
    files = list((tmp_path / "spool").iterdir())
    assert files
    assert not any(KEY.encode() in file.read_bytes() for file in files)


def test_a_late_next_state_and_failed_attempts_stand_beside_the_record(storage: SqliteStorage, tmp_path: Path) -> None:
    async def body(recorder: Recorder) -> None:
        await recorder.record(tried_twice(1), uid(1), nothing)
        await recorder.next_state(uid(1), {"messages": ["seen"]})
        await recorder.next_state(uid(2), {"messages": ["of nobody"]})

    with_recorder(storage, tmp_path / "spool", body)
    (stored,) = storage.get([1])
    assert stored is not None
    assert stored.next_state == {"messages": ["seen"]}
    (attempt,) = storage.query(parent=1)
    assert attempt.transition.error == "overloaded"
    assert attempt.priority == 0.0


def tried_twice(number: int) -> Transition:
    """A record of a call whose first try failed."""
    failed = {"model": "m", "latency_ms": 1.0, "error": "overloaded", "status": 503, "kind": "overloaded"}
    return transition(number, info={"attempts": [failed]})


def test_failed_attempts_come_with_their_record_through_the_spool_too(storage: SqliteStorage, tmp_path: Path) -> None:
    async def before(recorder: Recorder) -> None:
        for number in range(200):  # more than are stored at a time
            await recorder.record(tried_twice(number), uid(number), nothing)

    async def after(recorder: Recorder) -> None:
        await recorder.recover_spool()
        await recorder.record(tried_twice(7), uid(7), nothing)  # stored before: so are its attempts

    with_recorder(Broken(StorageFullError("No room.")), tmp_path / "spool", before)
    with_recorder(storage, tmp_path / "spool", after)
    parents = [stored.transition.parent for stored in storage.query(limit=1_000)]
    assert (parents.count(None), len(parents)) == (200, 400)
    assert len({parent for parent in parents if parent is not None}) == 200


def test_feedback_that_was_acknowledged_while_the_store_was_locked_is_kept(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "store.db", busy_timeout=0.3)
    (number,) = storage.append([transition(1)])
    other = apsw.Connection(str(storage.path))

    async def body(recorder: Recorder) -> None:
        other.execute("BEGIN IMMEDIATE").fetchall()
        given = Feedback(experience_id=number, reward=1.0, source="t")
        assert await recorder.feedback(given, patience=0.05) is None
        assert recorder.waiting == 1, "it is on the disk before it is acknowledged"
        await asyncio.sleep(0.5)  # the write that was under way has failed by now
        other.execute("ROLLBACK").fetchall()
        await until(lambda: not recorder.waiting)

    with storage:
        with_recorder(storage, tmp_path / "spool", body)
        assert len(storage.feedback_of(number or 0)) == 1


def test_the_journal_survives_kill_9(tmp_path: Path, memory: Path) -> None:
    script = """
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, {here!r})
        from test_recorder import INTENT, UPSTREAM, uid
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
