"""Recording: an answer waits a moment, nothing that can be kept is lost, and what is lost is counted."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from gateway_calls import KEY, transition, uid
from loopback import until

from relive.errors import InvalidExperienceError
from relive.experience import Feedback, Transition
from relive.gateway import recorder
from relive.gateway.recorder import WAIT, Recorder
from relive.gateway.spool import Spool
from relive.storage import SqliteStorage
from relive.storage.errors import StorageFullError
from relive.storage.redaction import Redactor


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(tmp_path / "store.db") as opened:
        yield opened


def nothing(_: int | None) -> None:
    pass


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


def test_no_commit_holds_a_record_without_its_failed_attempts(storage: SqliteStorage, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def look(*_: Any) -> int:
        with SqliteStorage(storage.path, readonly=True) as others:
            parents = [stored.transition.parent for stored in others.query()]
        seen.append((parents.count(None), len(parents)))
        return 0

    async def body(recorder: Recorder) -> None:
        await asyncio.wrap_future(storage.alone(lambda connection: connection.set_wal_hook(look)))
        for number in range(3):
            await recorder.record(tried_twice(number), uid(number), nothing)

    with_recorder(storage, tmp_path / "spool", body)
    assert seen[-1] == (3, 6)
    assert all(total == 2 * records for records, total in seen)


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
