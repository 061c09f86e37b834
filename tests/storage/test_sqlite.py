"""The store in one SQLite file: the contract of every store, and what is this one's own."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from contract import StorageContract, message

from relive import Transition
from relive.storage import (
    ClosedStoreError,
    DamagedStoreError,
    IndexChange,
    NewerStoreError,
    NotAStoreError,
    ReadOnlyStoreError,
    SqliteStorage,
    StorageError,
    StorageFullError,
    StoragePathError,
    checkpoint,
    connection,
    dictionaries,
    sampling,
    schema,
    usage_report,
)
from relive.storage.reading import Query, Reader


class TestContract(StorageContract):
    """The contract on a file of its own."""


class TestContractUnderPower(StorageContract):
    """The contract with an fsync for each acknowledgement."""

    @pytest.fixture
    def store(self, path: Path) -> Iterator[SqliteStorage]:
        with SqliteStorage(path, durability="power") as opened:
            yield opened


def settings(opened: SqliteStorage) -> dict[str, object]:
    writing = opened._pool.writing()
    names = ("journal_mode", "synchronous", "page_size", "temp_store", "trusted_schema")
    return {name: writing.pragma(name) for name in names}


def files_of(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir()}


def test_the_settings_are_those_that_were_decided(path: Path) -> None:
    with SqliteStorage(path) as store:
        decided = {
            "journal_mode": "wal", "synchronous": 1, "page_size": 8192, "temp_store": 2, "trusted_schema": 0
        }  # fmt: skip
        assert settings(store) == decided
    with SqliteStorage(path, durability="power") as store:
        assert settings(store) == decided | {"synchronous": 2}


def test_a_durability_that_does_not_exist_is_refused_before_a_file_is_made(path: Path) -> None:
    with pytest.raises(StorageError, match="durability is 'paranoid'; it must be one of process, power"):
        SqliteStorage(path, durability="paranoid")  # type: ignore[arg-type]
    assert files_of(path) == set()


def test_a_time_that_nobody_can_have_written_is_damage(path: Path, store: SqliteStorage) -> None:
    store.append([message("a")])
    store.close()
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE experience SET created_at = ?", (2**62,))
    with SqliteStorage(path) as damaged:
        [stored] = damaged.query()
        for look in (lambda: stored.created_at, stored.outline, lambda: stored.transition):
            with pytest.raises(DamagedStoreError, match=r"(of e|E)xperience 1 cannot be read"):
                look()


def test_closing_leaves_one_file_and_may_be_repeated(path: Path, store: SqliteStorage) -> None:
    store.append([message("a")])
    store.claim()
    store.close()
    store.close()
    assert files_of(path) == {"agent.db"}
    for use in (lambda: store.append([message("b")]), lambda: store.get([1]), store.flush, store.stats):
        with pytest.raises(ClosedStoreError, match="is closed"):
            use()


def test_a_store_is_found_again(path: Path) -> None:
    with SqliteStorage(path) as store:
        store.append([message("a")])
        identity = store.store_id()
    with SqliteStorage(path) as store:
        assert store.store_id() == identity
        assert store.append([message("b")]) == [2]
    with SqliteStorage(path, readonly=True) as store:
        assert len(store) == 2
        with pytest.raises(ReadOnlyStoreError, match="readonly=True"):
            store.append([message("c")])
        with pytest.raises(ReadOnlyStoreError, match="readonly=True"):
            store.claim()


def test_a_path_that_cannot_hold_a_store_is_refused_with_the_next_step(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StoragePathError, match=r"There is no folder .*missing; make it first"):
        SqliteStorage(tmp_path / "missing" / "agent.db")
    with pytest.raises(StoragePathError, match="is not a plain file"):
        SqliteStorage(tmp_path)
    with pytest.raises(StoragePathError, match="There is no store at"):
        SqliteStorage(path, readonly=True)
    assert files_of(path) == set()


@pytest.mark.parametrize("content", [b"hello\n", b"SQLite format 3\x00 but no more", os.urandom(20_000)])
def test_a_file_that_is_no_database_is_refused_untouched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for readonly in (False, True):
        with pytest.raises(NotAStoreError, match="is not a Relive store: it is no database"):
            SqliteStorage(path, readonly=readonly)
    assert path.read_bytes() == content
    assert files_of(path) == {"agent.db"}


def test_another_programs_database_is_refused_untouched(path: Path) -> None:
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE theirs(a)")
    other.close()
    content = path.read_bytes()
    with pytest.raises(NotAStoreError, match="a database of another program"):
        SqliteStorage(path)
    assert path.read_bytes() == content
    assert files_of(path) == {"agent.db"}


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with SqliteStorage(path) as store:
        assert len(store) == 0


def test_a_file_cut_short_is_damaged_and_left_alone(path: Path, store: SqliteStorage) -> None:
    store.append([Transition(state=os.urandom(3000).hex(), action=None) for _ in range(100)])
    store.close()
    os.truncate(path, path.stat().st_size * 6 // 10)
    content = path.read_bytes()
    with pytest.raises(DamagedStoreError, match="has been cut short"):
        SqliteStorage(path)
    assert path.read_bytes() == content


def test_sto_03_a_newer_file_is_refused_untouched(path: Path, store: SqliteStorage) -> None:
    store.append([message("a")])
    store.close()
    newer = apsw.Connection(str(path))
    newer.execute("ALTER TABLE experience ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'")
    newer.pragma("user_version", schema.SCHEMA_VERSION + 1)
    newer.close()
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    for readonly in (False, True):
        with pytest.raises(NewerStoreError) as refusal:
            SqliteStorage(path, readonly=readonly)
        for part in (str(path), f"version {schema.SCHEMA_VERSION + 1}", f"up to {schema.SCHEMA_VERSION}"):
            assert part in str(refusal.value)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert files_of(path) == {"agent.db"}


def test_a_newer_file_whose_version_is_still_in_the_log_is_refused_before_anything_is_written(
    path: Path, store: SqliteStorage
) -> None:
    store.append([message("a")])
    newer = apsw.Connection(str(path))
    newer.pragma("user_version", schema.SCHEMA_VERSION + 1)
    with pytest.raises(NewerStoreError):
        SqliteStorage(path)
    newer.close()


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph"])
def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(connection, "file_system", lambda _: kind)
    with pytest.raises(StoragePathError, match=rf"network file system \({kind}\)"):
        SqliteStorage(path)
    assert files_of(path) == set()


def test_a_link_to_a_file_on_a_network_file_system_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far").mkdir()
    path.symlink_to(tmp_path / "far" / "agent.db")
    monkeypatch.setattr(connection, "file_system", lambda folder: "nfs" if folder.name == "far" else "ext4")
    with pytest.raises(StoragePathError, match=r"network file system \(nfs\)"):
        SqliteStorage(path)
    assert list((tmp_path / "far").iterdir()) == []


def test_the_file_system_of_a_folder_is_that_of_its_innermost_mount() -> None:
    assert connection.file_system(Path("/proc/self")) == "proc"
    assert connection.file_system(Path("/")) not in ("", "proc")


def test_sto_06_a_full_disk_is_named_loses_nothing_and_ends_by_itself(path: Path) -> None:
    with SqliteStorage(path) as store:
        store._pool.writing().pragma("max_page_count", (2 << 20) // 8192)
        for kept in range(64):
            try:
                store.append([Transition(state=os.urandom(32 << 10).hex(), action=kept)])
            except StorageFullError as error:
                assert f"No room left to write to {path}; free some space" in str(error)  # noqa: PT017
                break
        assert 10 < kept < 63
        waiting = [store.append_soon([Transition(state=os.urandom(32 << 10).hex(), action=-1)]) for _ in range(5)]
        assert all(isinstance(future.exception(), StorageFullError) for future in waiting)
        assert len(store) == kept
        store._pool.writing().pragma("max_page_count", 1 << 20)
        assert store.append([Transition(state="room again", action=kept)]) == [kept + 1]
    with SqliteStorage(path) as store:
        assert [row.transition.action for row in store.query()] == list(range(kept + 1))
        assert store._pool.writing().execute("PRAGMA integrity_check").get == "ok"


def test_one_bad_write_fails_alone_though_it_shared_a_transaction(store: SqliteStorage) -> None:
    store._writer.gate.acquire()  # holds the writer back until all are queued

    def bad(_: object) -> None:
        raise ValueError("mine")

    futures = [store.append_soon([message("a")]), store.write(bad), store.append_soon([message("b")])]
    store._writer.gate.release()
    assert [futures[0].result(), futures[2].result()] == [[1], [2]]
    with pytest.raises(ValueError, match="mine"):
        futures[1].result()


def test_a_write_that_was_cancelled_in_time_is_not_done(store: SqliteStorage) -> None:
    store.append([message("a")])
    store._writer.gate.acquire()
    first = store.append_soon([message("b")])
    while not first.running():
        pass
    second = store.append_soon([message("c")])
    assert second.cancel()
    store._writer.gate.release()
    assert first.result() == [2]
    assert store.append([message("d")]) == [3]


def test_the_queue_is_bounded(store: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.storage.writer.MOST_PENDING", 50)
    most = 0
    for number in range(300):
        store.append_soon([message(str(number))])
        most = max(most, store._writer.pending)
    assert most <= 50
    store.flush()
    assert len(store) == 300


def test_flush_returns_when_everything_before_it_is_kept(path: Path, store: SqliteStorage) -> None:
    futures = [store.append_soon([message(str(number))]) for number in range(50)]
    store.flush()
    assert all(future.done() for future in futures)
    with SqliteStorage(path, readonly=True) as reader:
        assert len(reader) == 50


def test_the_file_does_not_grow_at_capacity(path: Path) -> None:
    rng = np.random.default_rng(0)
    with SqliteStorage(path) as store:
        sizes = []
        for round_ in range(30):
            batch = [Transition(state=rng.bytes(2000).hex(), action=n) for n in range(100)]
            first = round_ * 100 - 400
            store.append(batch, evict=range(first + 1, first + 101) if first >= 0 else ())
            store._pool.writing().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            sizes.append(path.stat().st_size)
        assert len(store) == 400
        assert max(sizes[8:]) <= 1.03 * sizes[7]


def test_compaction_gives_space_back_and_changes_nothing_else(path: Path) -> None:
    with SqliteStorage(path) as store:
        store.append([message(f"number {n} " + os.urandom(1000).hex(), tags=("t",)) for n in range(400)])
        store.delete(range(1, 351))
        before = [row.transition for row in store.query(limit=1000)]
        size = path.stat().st_size
        waiting = store.append_soon([message("meanwhile")])
        assert store.compact() > size // 2
        assert waiting.result() == [401]
        assert [row.transition for row in store.query(limit=1000)][:-1] == before
        assert [number for number, _ in store.search("360")] == [361]
        assert store.stats().wal_bytes == 0


def test_a_dictionary_is_trained_once_there_is_enough_and_older_rows_stay_readable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dictionaries, "TRAIN_AT", 400)
    prompt = "You are a careful assistant of a bank. " + " ".join(f"Rule {n}: be kind." for n in range(40))

    def rows(count: int) -> list[Transition]:
        return [message(f"{prompt} Question {n * 7919}: where is card {n}?") for n in range(count)]

    with SqliteStorage(path) as store:
        for _ in range(5):
            store.append(rows(100))
        store._trainer.wait()
        store.flush()
        store.append(rows(100))
        used = dict(store._pool.writing().execute("SELECT codec, count(*) FROM payload GROUP BY codec").fetchall())
        assert used == {1: 500, 16: 100}
        sizes = [row.bytes for row in store.query(limit=1000)]
        assert max(sizes[500:]) < 0.5 * min(sizes[:500])
    with SqliteStorage(path) as store:
        found = [t.state for t in store.get(range(1, 601)) if t]
        assert found == [t.state for t in rows(100)] * 6
        store.append(rows(1))
        assert store._pool.writing().execute("SELECT codec FROM payload WHERE id = 601").get == 16


def test_no_dictionary_is_kept_that_does_not_help() -> None:
    assert dictionaries.train([os.urandom(200) for _ in range(500)]) is None
    assert dictionaries.train([b"{}"] * 3) is None


def test_a_dictionarys_number_is_never_given_twice(store: SqliteStorage) -> None:
    writing = store._pool.writing()
    assert dictionaries.add(writing, b"one", 0) == 16
    writing.execute("DELETE FROM dictionary")
    assert dictionaries.add(writing, b"two", 0) == 17


def test_the_saved_index_equals_what_was_saved_through_log_and_chunks(store: SqliteStorage) -> None:
    rng = np.random.default_rng(0)
    slots = 20_000
    store._pool.writing().execute("UPDATE total SET next_id = ?", (slots,))
    ids, priorities = np.zeros(slots, np.int64), np.zeros(slots, np.float32)
    for round_ in range(600):
        where = rng.integers(0, slots, 40).astype(np.int32)
        new = rng.random(40, np.float32)
        change = IndexChange(where, new, rng.integers(1, 10**12, 40) if round_ % 3 == 0 else None)
        for position, slot in enumerate(where.tolist()):
            priorities[slot] = new[position]
            if change.ids is not None:
                ids[slot] = change.ids[position]
        store.write(lambda view, change=change: view.save_index(change, b"state %d" % change.slots[0]))
    store.flush()
    saved = store.load_index()
    assert np.array_equal(saved.ids[:slots], ids)
    assert np.array_equal(saved.priorities[:slots], priorities)
    assert not saved.ids[slots:].any()
    assert saved.state == b"state %d" % where[0]
    assert store._pool.writing().execute("SELECT count(*) FROM index_log").get < sampling._FOLD_ROWS


def test_times_of_storing_never_fall(store: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append([message("a")])
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000_000)
    store.append([message("b")])
    times = store._pool.writing().execute("SELECT stored_at FROM experience ORDER BY id").fetchall()
    assert times == sorted(times)


def test_the_log_of_changes_is_bounded(store: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.storage.transaction.KEPT_CHANGES", 100)
    for number in range(3000):
        store.append_soon([message(str(number))])
    store.flush()
    assert store._pool.writing().execute("SELECT count(*) FROM change").get < 1200
    assert not store.changes(1).complete
    assert store.changes(2999).complete


def test_the_log_is_moved_into_the_file_beside_the_writes_and_starts_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checkpoint.CHECKPOINT_PAGES == 8000
    monkeypatch.setattr(checkpoint, "CHECKPOINT_PAGES", 30)
    lengths = []

    class Observed(checkpoint.Checkpointer):
        def _committed(self, connection: apsw.Connection, name: str, pages: int) -> int:
            lengths.append(pages)
            return super()._committed(connection, name, pages)

    monkeypatch.setattr("relive.storage.sqlite.Checkpointer", Observed)
    with SqliteStorage(path) as store:
        for number in range(3000):
            store.append([Transition(state=os.urandom(4000).hex(), action=number)])
            if len(lengths) > 1 and lengths[-1] < lengths[-2]:
                break
        assert lengths[-1] < lengths[-2]
        assert path.stat().st_size > 30 * 4000


def test_a_large_write_ahead_log_raises_an_alarm(store: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append([message("a")])
    assert not store.stats().wal_alarm
    monkeypatch.setattr("relive.storage.statistics.WAL_ALARM", 1000)
    assert store.stats().wal_alarm


def test_a_readonly_folder_can_still_be_read(path: Path, store: SqliteStorage) -> None:
    store.append([message("a")])
    store.close()
    folder = path.parent
    folder.chmod(0o555)
    try:
        with SqliteStorage(path, readonly=True) as reader:
            assert len(reader.query()) == 1
        if os.geteuid() != 0:  # root may write everywhere
            with pytest.raises(StoragePathError, match="cannot be written"):
                SqliteStorage(path)
    finally:
        folder.chmod(0o755)
    assert files_of(path) == {"agent.db"}


@pytest.mark.parametrize(
    "conditions",
    [
        {},
        {"agent": "a"},
        {"outcome": "success"},
        {"group_id": "g"},
        {"parent": 3},
        {"tag": "t"},
        {"error": True},
        {"agent": "a", "newest_first": True},
    ],
)
def test_a_page_is_read_in_the_order_of_ids_without_sorting_all_that_is_found(
    store: SqliteStorage, path: Path, conditions: dict[str, Any]
) -> None:
    asked: list[tuple[str, Any]] = []
    with closing(connection.connect(path, readonly=True)) as opened:
        opened.exec_trace = lambda _, statement, values: asked.append((statement, values)) or True
        query = {name: value for name, value in conditions.items() if name != "newest_first"}
        newest_first = "newest_first" in conditions
        Reader().query(opened, Query(**query), after=7, limit=10, newest_first=newest_first)
        opened.exec_trace = None
        [(statement, values)] = asked
        plan = " / ".join(row[3] for row in opened.execute(f"EXPLAIN QUERY PLAN {statement}", values))
    assert "TEMP B-TREE" not in plan
    assert "SCAN e" not in plan


@pytest.mark.parametrize("agent", [None, "a"])
def test_costs_since_a_time_are_found_by_it_and_those_of_all_days_in_one_pass(
    store: SqliteStorage, path: Path, agent: str | None
) -> None:
    store.append([message("x", agent="a")])
    asked: list[tuple[str, Any]] = []
    with closing(connection.connect(path, readonly=True)) as opened:
        opened.exec_trace = lambda _, statement, values: asked.append((statement, values)) or True
        usage_report.usage_rows(opened, by=["day"], agent=agent, since=datetime(2026, 11, 1, tzinfo=UTC))
        opened.exec_trace = None
        for statement, values in asked:
            plan = " / ".join(row[3] for row in opened.execute(f"EXPLAIN QUERY PLAN {statement}", values))
            assert "experience_created (created_at>?)" in plan
        assert len(asked) == 2, "sums and latencies, however many days there are"


def test_priorities_of_a_page_are_those_of_the_whole_index(store: SqliteStorage) -> None:
    ids = [number or 0 for number in store.append([message(str(number)) for number in range(60)])]
    rng = np.random.default_rng(0)
    taken: dict[int, int] = {}
    for turn in range(40):
        slots = rng.choice(3 * sampling.CHUNK, 20, replace=False).astype(np.int32)
        free = [number for number in ids if number not in taken.values()]
        owners = np.array([(free.pop() if free and rng.random() < 0.5 else 0) for _ in slots], np.int64)
        taken |= dict(zip(slots.tolist(), owners.tolist(), strict=True))
        moved = IndexChange(slots, rng.random(20, np.float32), owners)
        store.write(lambda t, change=moved: t.save_index(change)).result()
        placed = np.array([slot for slot, number in taken.items() if number], np.int32)
        change = IndexChange(placed, rng.random(len(placed), np.float32))
        store.write(lambda t, change=change: t.save_index(change)).result()
        if turn % 15 == 14:
            store.write(lambda t: sampling.fold(t.connection)).result()
        known = dict(zip(*(column.tolist() for column in store.priorities()), strict=True))
        for after in (0, 20, 50):
            for found in store.query(after=after, limit=15):
                assert found.priority == known.get(found.id)
