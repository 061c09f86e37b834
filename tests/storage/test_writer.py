"""The thread that writes: what fails alone, what fails together, and what is never reported as failed."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import apsw
import pytest
from contract import message

import relive
from relive import Feedback, Transition
from relive.storage import ClosedStoreError, SqliteStorage, StorageBusyError, StorageError, checkpoint, dictionaries
from relive.storage import transaction as transactions
from relive.storage.transaction import Transaction


@contextmanager
def held_back(store: SqliteStorage) -> Iterator[None]:
    """Nothing is committed meanwhile; what is handed in gathers."""
    with store._writer.gate:
        yield


def no_thread_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As when the system has no room for another thread."""
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == name:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)


def states(store: SqliteStorage) -> list[str]:
    return [stored.transition.state["messages"][0]["content"] for stored in store.query()]


def test_what_is_committed_is_written_once_though_something_fails_right_after(
    store: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([message("first")])
    monkeypatch.setattr(checkpoint, "CHECKPOINT_PAGES", 1)
    no_thread_named(monkeypatch, "relive-checkpoint")
    with held_back(store):
        futures = [store.append_soon([message(name)]) for name in "abc"]
    assert [future.result() for future in futures] == [[2], [3], [4]]
    assert states(store) == ["first", "a", "b", "c"]


def test_a_checkpoint_that_could_not_begin_is_begun_by_a_later_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_PAGES", 1)
    with SqliteStorage(path) as store:
        with monkeypatch.context() as patch:
            no_thread_named(patch, "relive-checkpoint")
            store.append([message("a")])
        assert store._checkpointer._thread is None
        store.append([message("b")])
        assert store._checkpointer._thread is not None


def test_who_fails_after_a_commit_is_logged_and_the_write_is_kept(
    store: SqliteStorage, caplog: pytest.LogCaptureFixture
) -> None:
    told = []

    def act(transaction: Transaction) -> str:
        transaction.on_end(told.append)
        transaction.on_end(lambda committed: 1 // 0)
        return "kept"

    with caplog.at_level(logging.ERROR, "relive.storage"):
        assert store.write(act).result() == "kept"
    assert told == [True]
    assert "which is kept" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_failure_right_after_the_lock_was_taken_lets_go_of_it(
    path: Path, store: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([message("a")])
    with monkeypatch.context() as patch:

        def fail(*_: Any) -> Any:
            raise apsw.IOError("one read failed")

        patch.setattr(transactions, "fetch", fail)
        with pytest.raises(StorageError, match="one read failed"):
            store.append([message("b")])
    with SqliteStorage(path, busy_timeout=0.2) as other:
        assert other.append([message("c")]) == [2]
    assert store.append([message("d")]) == [3]


def test_a_dictionary_that_cannot_be_loaded_is_asked_for_again(
    store: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(lambda t: dictionaries.add(t.connection, b"words and words", 0)).result()
    with monkeypatch.context() as patch:
        patch.setattr("relive.storage.sqlite.Compressor", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            store.append([message("a")])
    store.append([message("b" * 400)])
    assert store._pool.writing().execute("SELECT codec FROM payload").get == dictionaries.FIRST_DICTIONARY


def test_a_store_whose_thread_cannot_start_says_so_and_starts_it_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteStorage(path) as store:
        with monkeypatch.context() as patch:
            no_thread_named(patch, "relive-writer")
            for _ in range(2):
                with pytest.raises(StorageError, match=r"Nothing was written to .*can't start new thread; end other"):
                    store.append_soon([message("a")])
        assert store.append([message("b")]) == [1]
        assert store._writer.pending == 0
    with SqliteStorage(path) as store:
        no_thread_named(monkeypatch, "relive-writer")
        with pytest.raises(StorageError):
            store.append([message("c")])


def test_a_dictionary_is_trained_later_if_no_thread_can_be_started_now(
    store: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dictionaries, "TRAIN_AT", 2)
    store.append([message("a"), message("b")])
    with monkeypatch.context() as patch:
        no_thread_named(patch, "relive-dictionary")
        store.append([message("c")])
    assert store._trainer._thread is None
    store.append([message("d")])
    assert store._trainer._thread is not None


def test_a_locked_file_is_waited_for_once_by_all_that_is_queued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteStorage(path, busy_timeout=0.05) as store:
        store.append([message("a")])
        begin, begun = store._writer._begin, []
        monkeypatch.setattr(store._writer, "_begin", lambda: begun.append(1) or begin())
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        with held_back(store):
            futures = [store.append_soon([message(str(n))]) for n in range(21)]
        errors = [future.exception() for future in futures]
        assert all(isinstance(error, StorageBusyError) for error in errors)
        assert len(begun) <= 2  # what was taken before the rest had gathered, and the rest
        other.close()
        assert store.append([message("b")]) == [2]


@pytest.mark.parametrize("error", [SystemExit("from a callback"), ValueError("mine")])
def test_whatever_a_write_raises_reaches_its_caller_and_the_thread_goes_on(
    store: SqliteStorage, error: BaseException
) -> None:
    def act(_: Transaction) -> None:
        raise error

    assert store.write(act).exception() is error
    assert store.append([message("b")]) == [1]


def test_the_queue_is_bounded_in_bytes(store: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.storage.writer.MOST_PENDING_BYTES", 10_000)
    most = 0
    for number in range(50):
        store.append_soon([Transition(state="x" * 3000, action=number)])
        most = max(most, store._writer._pending_bytes)
    assert 3000 < most <= 10_000
    store.append([Transition(state="x" * 30_000, action="alone")])  # larger than all that may wait, and still written
    assert len(store) == 51
    assert store._writer._pending_bytes == 0


def test_who_waits_for_room_in_a_store_that_is_closed_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.storage.writer.MOST_PENDING", 1)
    store = SqliteStorage(path)
    told: list[BaseException] = []

    def append() -> None:
        try:
            store.append([message("b")])
        except ClosedStoreError as error:
            told.append(error)

    with held_back(store):
        first = store.append_soon([message("a")])
        waiting = threading.Thread(target=append)
        waiting.start()
        while not store._writer._room._waiters:  # type: ignore[attr-defined]
            pass
        closing = threading.Thread(target=store.close)
        closing.start()
        waiting.join()
    closing.join()
    assert len(told) == 1
    assert first.result() == [1]


def calls_into(store: SqliteStorage) -> dict[str, Callable[[], Any]]:
    return {
        "append": lambda: store.append([message("within")]),
        "feedback": lambda: store.feedback(Feedback(experience_id=1, reward=1.0)),
        "delete": lambda: store.delete([1]),
        "flush": store.flush,
        "compact": store.compact,
        "close": store.close,
    }


@pytest.mark.parametrize("name", ["append", "feedback", "delete", "flush", "compact", "close"])
def test_a_write_that_would_wait_for_itself_is_told_so(store: SqliteStorage, name: str) -> None:
    store.append([message("a")])
    call = calls_into(store)[name]
    with pytest.raises(StorageError, match=r"(waits for another one of the same store|by one of its own writes)"):
        store.write(lambda _: call()).result(timeout=30)
    told: list[BaseException | None] = []
    done = threading.Event()

    def callback(_: Any) -> None:
        try:
            call()
        except StorageError as error:
            told.append(error)
        done.set()

    with held_back(store):
        write = store.append_soon([message("b")])
        write.add_done_callback(callback)
    assert done.wait(30)
    assert len(told) == 1
    assert write.result() == [2]
    store.flush()
    store.append([message("c")])


def test_a_callback_may_hand_in_more_without_waiting_for_it(
    store: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.storage.writer.MOST_PENDING", 1)
    following: Queue[Any] = Queue()
    with held_back(store):
        store.append_soon([message("a")]).add_done_callback(lambda _: following.put(store.append_soon([message("b")])))
    assert following.get(timeout=30).result(timeout=30) == [2]


def test_a_rule_that_asks_its_own_memory_is_told_so(path: Path) -> None:
    def rule(experience: Any) -> float:
        memory.add(Transition(state="within", action=1))
        return 1.0

    with relive.open(path, priority=rule) as memory:
        with pytest.raises(StorageError, match="waits for another one of the same store"):
            memory.add(Transition(state="a", action=1))
        assert len(memory) == 0
