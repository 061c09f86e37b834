"""Looking a store through, copying it while it is in use, making its file small."""

import multiprocessing
import shutil
import time
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest

from relive.experience import Feedback, TokenTrace, Transition
from relive.storage import DamagedStoreError, NotAStoreError, SqliteStorage, StoragePathError
from relive.storage.backup import backup, compact
from relive.storage.check import check
from relive.storage.connection import PAGE_SIZE, connect, immediate

TRACE = TokenTrace(token_ids=np.arange(3_000), mask=np.ones(3_000, np.uint8))


def fill(path: Path, count: int = 200, **more: Any) -> None:
    with SqliteStorage(path) as storage:
        storage.append(
            [
                Transition(
                    state={"text": f"state {n} " + "word " * 50},
                    action=n,
                    episode_id=f"e{n // 4}",
                    step=n % 4,
                    tags=("t",),
                    tokens=TRACE if n % 10 == 0 else None,
                    **more,
                )
                for n in range(count)
            ]
        )
        storage.feedback(Feedback(experience_id=3, reward=1.0))


def change(path: Path, *statements: str) -> None:
    connection = connect(path)
    with immediate(connection):
        for statement in statements:
            connection.execute(statement)
    connection.close()


# -- check --------------------------------------------------------------------------------------------------------


def test_a_healthy_store_has_no_problems(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    seen: list[tuple[str, int, int]] = []
    report = check(tmp_path / "s.db", progress=lambda *done: seen.append(done))
    assert (report.experiences, report.problems) == (200, [])
    assert {what for what, _, _ in seen} >= {"the database", "what belongs together", "payloads", "token traces"}


def test_a_store_can_be_checked_while_it_is_written_to(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    with SqliteStorage(tmp_path / "s.db") as storage:
        storage.append([Transition(state=1, action=2)])
        report = check(tmp_path / "s.db")
        assert (report.experiences, report.problems) == (201, [])


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM payload WHERE id IN (5, 6)", "2 experiences have no payload (5, 6)."),
        ("DELETE FROM experience WHERE id = 8", "1 payloads belong to no experience (8)."),
        ("DELETE FROM token_trace WHERE id = 11", "1 experiences have lost their tokens (11)."),
        ("UPDATE experience SET flags = 0 WHERE id = 11", "1 token traces belong to no experience (11)."),
        ("UPDATE payload SET codec = 99 WHERE id = 7", "1 payloads need a dictionary that is gone (7)."),
        ("INSERT INTO tag VALUES ('t', 999)", "1 tags belong to no experience (999)."),
        (
            "DELETE FROM tag WHERE id < 10",
            "9 experiences are missing from the list of their tags (1, 2, 3, 4, 5, …).",
        ),
        (
            "UPDATE feedback SET experience_id = -1",
            "1 pieces of feedback are about experiences that were removed (-1).",
        ),
        ("UPDATE total SET rows = 7", "The counter says 7 experiences, but there are 200."),
        ("UPDATE total SET next_id = 200", "1 experiences have an id that may be given out again (200)."),
        ("UPDATE payload SET body = zeroblob(length(body)) WHERE id = 7", "1 payloads cannot be read (7)."),
        ("UPDATE token_trace SET body = zeroblob(length(body)) WHERE id = 11", "1 token traces cannot be read (11)."),
        ("UPDATE experience SET tags = 'x' WHERE id = 4", "1 experiences cannot be read (4)."),
        ("UPDATE experience SET outcome = 9 WHERE id = 4", "1 experiences cannot be read (4)."),
        ("UPDATE experience SET uid = x'00' WHERE id = 4", "1 experiences have an identity of the wrong length (4)."),
        ("INSERT INTO next_state VALUES (999, 0, x'31')", "1 next states belong to no experience (999)."),
        (
            "INSERT INTO index_log(slots, priorities) VALUES (x'ffffff7f', x'00000000')",
            "The saved sampling index is damaged.",
        ),
        (
            """INSERT INTO index_log(slots, ids, priorities) VALUES (x'0000000001000000',
            x'01000000000000000100000000000000', x'0000803f0000803f')""",
            "The saved sampling index holds an experience twice.",
        ),
    ],
)
def test_each_thing_that_does_not_fit_is_named(statement: str, problem: str, tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    change(tmp_path / "s.db", statement)
    assert problem in check(tmp_path / "s.db").problems


@pytest.mark.parametrize("page", [1, 5, 9])
def test_damage_of_the_database_is_named(page: int, tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    with (tmp_path / "s.db").open("r+b") as file:
        file.seek(page * PAGE_SIZE)
        file.write(bytes(PAGE_SIZE))
    for quick in (True, False):
        report = check(tmp_path / "s.db", quick=quick)
        assert any("damage" in problem for problem in report.problems)


def test_a_file_cut_short_is_a_problem_and_another_file_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    with (tmp_path / "s.db").open("r+b") as file:
        file.truncate(5 * PAGE_SIZE)
    [problem] = check(tmp_path / "s.db").problems
    assert "cut short" in problem
    (tmp_path / "text").write_text("hello" * 100)
    with pytest.raises(NotAStoreError):
        check(tmp_path / "text")
    with pytest.raises(StoragePathError):
        check(tmp_path / "nowhere.db")


# -- backup -------------------------------------------------------------------------------------------------------


def test_a_backup_is_a_store_with_the_same_content(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    report = backup(tmp_path / "s.db", tmp_path / "b.db")
    assert report.experiences == 200
    with SqliteStorage(tmp_path / "s.db") as a, SqliteStorage(tmp_path / "b.db") as b:
        assert a.store_id() == b.store_id()
        assert [s.transition for s in a.query(limit=999)] == [s.transition for s in b.query(limit=999)]
    assert check(tmp_path / "b.db").problems == []


def test_where_a_backup_was_put_is_written_down(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    backup(tmp_path / "s.db", tmp_path / "b.db")
    with SqliteStorage(tmp_path / "s.db") as storage:
        [entry] = storage.audit(action="backup")
        assert (entry.target, entry.after) == (str(tmp_path / "b.db"), {"experiences": 200})


def write_on(path: Path, stop: Any, written: Any) -> None:
    with SqliteStorage(path) as storage:
        while not stop.is_set():
            storage.append([Transition(state=n, action=0, episode_id=f"{written.value}", step=n) for n in range(16)])
            written.value += 16


def test_a_backup_under_a_writer_that_never_rests_ends_and_holds_whole_transactions(tmp_path: Path) -> None:
    fill(tmp_path / "s.db", 2_000)
    context = multiprocessing.get_context("spawn")
    stop, written = context.Event(), context.Value("q", 0)
    process = context.Process(target=write_on, args=(tmp_path / "s.db", stop, written))
    process.start()
    try:
        while written.value < 160:
            time.sleep(0.01)
        for number in range(3):
            before = 2_000 + written.value
            report = backup(tmp_path / "s.db", tmp_path / "b.db", force=number > 0)
            assert before <= report.experiences <= 2_000 + written.value + 16
            assert (report.experiences - 2_000) % 16 == 0
            assert check(tmp_path / "b.db", quick=True).problems == []
    finally:
        stop.set()
        process.join()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_a_backup_replaces_a_file_only_if_told_to_and_never_the_store(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    (tmp_path / "b.db").write_text("precious")
    with pytest.raises(StoragePathError, match="there already"):
        backup(tmp_path / "s.db", tmp_path / "b.db")
    assert (tmp_path / "b.db").read_text() == "precious"
    backup(tmp_path / "s.db", tmp_path / "b.db", force=True)
    assert check(tmp_path / "b.db").experiences == 200
    with pytest.raises(StoragePathError, match="the store itself"):
        backup(tmp_path / "s.db", tmp_path / "s.db", force=True)
    with pytest.raises(StoragePathError, match="folder"):
        backup(tmp_path / "s.db", tmp_path / "nowhere" / "b.db")
    with pytest.raises(StoragePathError):
        backup(tmp_path / "nothing.db", tmp_path / "c.db")


def test_a_damaged_store_does_not_replace_a_good_backup(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    backup(tmp_path / "s.db", tmp_path / "b.db")
    with (tmp_path / "s.db").open("r+b") as file:
        file.seek(5 * PAGE_SIZE)
        file.write(bytes(PAGE_SIZE))
    with pytest.raises(DamagedStoreError):
        backup(tmp_path / "s.db", tmp_path / "b.db", force=True)
    assert check(tmp_path / "b.db").problems == []
    assert not [p for p in tmp_path.iterdir() if "unfinished" in p.name]


# -- compact ------------------------------------------------------------------------------------------------------


def test_compacting_gives_the_room_of_removed_experiences_back(tmp_path: Path) -> None:
    fill(tmp_path / "s.db", 2_000)
    with SqliteStorage(tmp_path / "s.db") as storage:
        storage.delete(range(1, 1_801))
        kept = [s.transition for s in storage.query(limit=999)]
    report = compact(tmp_path / "s.db")
    assert report.bytes_after < 0.3 * report.bytes_before
    assert (tmp_path / "s.db").stat().st_size == report.bytes_after
    with SqliteStorage(tmp_path / "s.db") as storage:
        assert [s.transition for s in storage.query(limit=999)] == kept
        assert storage.search("state 1900")[0][0] == 1901
    assert check(tmp_path / "s.db").problems == []


def test_compacting_waits_for_nobody_forever_and_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoragePathError):
        compact(tmp_path / "nothing.db")
    assert list(tmp_path.iterdir()) == []
    shutil.copyfile(__file__, tmp_path / "text")
    with pytest.raises(NotAStoreError):
        compact(tmp_path / "text")


def test_a_store_may_stay_open_while_it_is_compacted(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    with SqliteStorage(tmp_path / "s.db") as storage:
        compact(tmp_path / "s.db")
        assert len(storage) == 200
        storage.append([Transition(state=1, action=2)])
    assert check(tmp_path / "s.db").experiences == 201


def test_apsw_and_not_the_older_sqlite_of_python_makes_the_copies() -> None:
    assert apsw.sqlite_lib_version() >= "3.50"
