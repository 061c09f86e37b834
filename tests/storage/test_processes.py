"""Several processes, threads and loops on one file: cases STO-01, STO-04 and STO-05."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import apsw
import pytest

from relive import Transition
from relive.storage import IndexOwnedError, SqliteStorage, StorageBusyError


def run_python(code: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def integrity(path: Path) -> str:
    connection = apsw.Connection(str(path))
    answer = str(connection.execute("PRAGMA integrity_check").get)
    connection.close()
    return answer


def test_sto_01_eight_processes_append_and_a_reader_sees_whole_episodes_only(path: Path) -> None:
    writer = """
        import sys
        from relive import Transition
        from relive.storage import SqliteStorage
        with SqliteStorage(sys.argv[1]) as store:
            for number in range(250):
                episode = f"{sys.argv[2]}-{number}"
                steps = [Transition(state=number, action=n, episode_id=episode, step=n) for n in range(2)]
                store.append(steps)
        """
    writers = [run_python(writer, path, name) for name in range(8)]
    counts = []
    with SqliteStorage(path) as reader:
        while any(writer.poll() is None for writer in writers):
            counts.append(len(reader))
            half = apsw.Connection(str(path))
            broken = "SELECT count(*) FROM (SELECT 1 FROM experience GROUP BY episode_id HAVING count(*) <> 2)"
            assert half.execute(broken).get == 0
            half.close()
        assert [writer.wait() for writer in writers] == [0] * 8
        assert counts == sorted(counts)
        assert len(reader) == 4_000
        assert reader.stats().episodes == 2_000
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.close()


def test_sto_01_an_append_waits_for_another_process_transaction(path: Path, store: SqliteStorage) -> None:
    holder = run_python(
        """
        import sys, time, apsw
        connection = apsw.Connection(sys.argv[1])
        connection.execute("BEGIN IMMEDIATE")
        print("held", flush=True)
        time.sleep(3)
        connection.execute("COMMIT")
        """,
        path,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert store.append([Transition(state=1, action=1)]) == [1]
    holder.wait()
    holder.stdout.close()


def test_a_writer_that_never_gets_the_lock_says_so(path: Path) -> None:
    with SqliteStorage(path, busy_timeout=0.05) as store:
        holder = apsw.Connection(str(path))
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageBusyError, match="Another process has been writing"):
            store.append([Transition(state=1, action=1)])
        holder.execute("ROLLBACK")
        holder.close()
        assert store.append([Transition(state=1, action=1)]) == [1]


def test_sto_04_forked_children_open_their_own_handle(path: Path) -> None:
    store = SqliteStorage(path)
    for number in range(10):
        store.append([Transition(state=number, action="parent")])
    acknowledged, tell = os.pipe()
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                count = 50 if child < 3 else 1_000_000
                for number in range(count):
                    store.append([Transition(state=number, action=f"child {child}")])
                    if child == 3:
                        os.write(tell, b".")
                store.close()
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    os.close(tell)
    for number in range(50):
        store.append([Transition(state=number, action="parent")])
    assert os.read(acknowledged, 1) == b"."
    os.kill(children[3], signal.SIGKILL)
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    assert statuses[:3] == [0, 0, 0]
    assert statuses[3] == signal.SIGKILL
    written = 1
    while chunk := os.read(acknowledged, 65536):
        written += len(chunk)
    os.close(acknowledged)
    assert integrity(path) == "ok"
    killed = len([s for s in store.query(limit=1_000_000) if s.transition.action == "child 3"])
    assert killed - written in (0, 1)  # one write may have been kept that nobody was told of any more
    assert len(store) == 10 + 50 + 150 + killed
    store.close()


def test_a_child_may_outlive_the_parents_store(path: Path) -> None:
    store = SqliteStorage(path)
    store.append([Transition(state=0, action="parent")])
    may_write, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(go)
            os.read(may_write, 1)
            store.append([Transition(state=1, action="child")])
            store.close()
            status = 0
        finally:
            os._exit(status)
    store.close()
    os.close(may_write)
    os.close(go)
    assert os.waitpid(pid, 0)[1] == 0
    with SqliteStorage(path) as again:
        assert [s.transition.action for s in again.query()] == ["parent", "child"]


def test_a_fork_amid_busy_threads_harms_neither_side(path: Path) -> None:
    store = SqliteStorage(path)
    stop = False

    def work() -> None:
        while not stop:
            store.append([Transition(state=1, action="thread")])
            store.query(limit=3)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                store.append([Transition(state=1, action="child")])
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
    stop = True
    for thread in threads:
        thread.join()
    children = sum(s.transition.action == "child" for s in store.query(limit=1_000_000))
    store.close()
    assert children == 5
    assert integrity(path) == "ok"


def test_sto_05_any_thread_and_loop_may_use_the_store(path: Path, store: SqliteStorage) -> None:
    def use(number: int) -> int:
        store.append([Transition(state=number, action="pool")])
        return len(store.query(limit=10))

    for _ in range(2):  # the first pool's threads have ended when the second's begin
        with ThreadPoolExecutor(8) as pool:
            assert min(pool.map(use, range(64))) >= 1

    async def record(name: str) -> None:
        waiting = [store.append_soon([Transition(state=n, action=name)]) for n in range(50)]
        await asyncio.gather(*map(asyncio.wrap_future, waiting))
        assert len(await asyncio.to_thread(store.query, limit=1000)) >= 50

    loops = [Thread(target=lambda name=name: asyncio.run(record(name))) for name in ("one", "two")]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    assert len(store) == 128 + 100

    for _ in range(200):
        thread = Thread(target=use, args=(0,))
        thread.start()
        thread.join()
    assert len(store) == 428
    assert store.stats().connections <= 16
    handles = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert sum(handle == path for handle in handles) <= 16


def test_a_second_owner_in_another_process_is_told_who_holds_the_index(path: Path, store: SqliteStorage) -> None:
    store.claim()
    other = run_python(
        """
        import sys
        from relive.storage import IndexOwnedError, SqliteStorage
        with SqliteStorage(sys.argv[1]) as store:
            try:
                store.claim()
            except IndexOwnedError as error:
                print(error.holder["pid"], error)
        """,
        path,
    )
    told, _ = other.communicate()
    assert told.startswith(str(os.getpid()))
    assert f"is held by process {os.getpid()}" in told


def test_a_second_owner_in_this_process_is_refused_until_the_first_lets_go(path: Path, store: SqliteStorage) -> None:
    store.claim()
    with SqliteStorage(path) as second:
        with pytest.raises(IndexOwnedError, match="this process itself"):
            second.claim()
        store.release()
        second.claim()
        assert second.owns_index


def test_ownership_ends_with_a_killed_process_even_if_its_child_lives_on(path: Path, store: SqliteStorage) -> None:
    owner = run_python(
        """
        import os, signal, sys, time
        from relive.storage import SqliteStorage
        store = SqliteStorage(sys.argv[1])
        store.claim()
        if os.fork() == 0:
            print(os.getpid(), flush=True)  # by the child: it has let go of what it inherited once it runs
        time.sleep(60)
        """,
        path,
    )
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    with pytest.raises(IndexOwnedError):
        store.claim()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    try:
        store.claim()
        assert store.owns_index
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_busy_wait_ends_as_soon_as_the_lock_is_free(path: Path, store: SqliteStorage) -> None:
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN IMMEDIATE")
    waiting = store.append_soon([Transition(state=1, action=1)])
    time.sleep(0.05)
    assert not waiting.done()
    holder.execute("COMMIT")
    holder.close()
    assert waiting.result(timeout=10) == [1]
