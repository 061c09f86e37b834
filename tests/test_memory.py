"""`relive.open`: a replay buffer whose experiences, priorities and draws outlive the process."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive import Feedback, Memory, Transition, buffer
from relive.buffer import BufferSettingError, InvalidPriorityError, Selector
from relive.buffer.selector import Selection
from relive.errors import InvalidExperienceError
from relive.storage import IndexOwnedError, NotOwnerError, ReadOnlyStoreError, SqliteStorage, StorageFullError
from relive.storage.sampling import IndexChange


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def transitions(count: int, start: int = 0, **fields: Any) -> list[Transition]:
    return [Transition(state=n, action="a", episode_id=f"e{n}", **fields) for n in range(start, start + count)]


class LastIn(Selector):
    """Chooses the newest first, to make the index anything but a ring."""

    follows = False

    def select(self, count: int) -> Selection:
        ids = self.view.ids()[::-1][:count].copy()
        return Selection(ids=ids, probabilities=np.ones(len(ids)))


def draws(memory: Memory, count: int = 1000) -> list[list[int]]:
    return [memory.sample(8).ids.tolist() for _ in range(count // 8)]


def test_what_is_added_is_drawn_with_its_experience_and_can_be_updated(path: Path) -> None:
    with relive.open(path, capacity=100) as memory:
        added = memory.add(Transition(state={"q": 1}, action="a", reward=1.0))
        ids = memory.add_batch(transitions(5, 1), priorities=[1, 2, 3, 4, 5])
        assert [added, *ids.tolist()] == [1, 2, 3, 4, 5, 6]
        batch = memory.sample(32)
        assert len(batch) == 6
        stored = dict(zip(batch.ids.tolist(), batch.experiences, strict=True))
        assert all(stored[n].state == n - 1 for n in stored if n > 1)
        assert memory.update_priorities([1, 2, 99], td_errors=[-7.0, 0.0, 1.0]) == 2
        assert memory.priorities([1, 2]).tolist() == pytest.approx([7.0, 1e-6], rel=1e-6)
        assert memory.stats().stale_updates == 1


def test_priorities_and_draws_go_on_where_they_were(path: Path, tmp_path: Path) -> None:
    twin = relive.open(tmp_path / "twin.db", capacity=64)
    for round_ in range(6):
        with relive.open(path, capacity=64) as memory:
            for one in (memory, twin):
                one.add_batch(transitions(20, 20 * round_), priorities=np.arange(1.0, 21.0))
                one.update_priorities(one.sample(16).ids, priorities=np.linspace(0.1, 9, 16))
                one.add(Transition(state="no priority given", action=None))
            assert draws(memory) == draws(twin)
    with relive.open(path) as memory:
        assert memory.capacity == 64
        assert len(memory) == 64
        assert draws(memory) == draws(twin)
        assert memory.stats().to_dict() == twin.stats().to_dict() | {"bytes": memory.stats().bytes}
    twin.close()


@pytest.mark.parametrize("take_out", [[3, 5, 50], list(range(11, 60)), [60]])
def test_an_index_that_is_no_ring_any_more_goes_on_where_it_was(
    path: Path, tmp_path: Path, take_out: list[int]
) -> None:
    twin = relive.open(tmp_path / "twin.db", capacity=64, remover=LastIn())
    for round_ in range(4):
        with relive.open(path, capacity=64, remover=LastIn()) as memory:
            for one in (memory, twin):
                one.add_batch(transitions(37, 37 * round_), priorities=np.arange(1.0, 38.0))
                one.remove(take_out)
                one.remove(one.sample(3).ids)
                one.add_batch(transitions(3))
            assert draws(memory) == draws(twin)
    with relive.open(path, remover=LastIn()) as memory:
        assert draws(memory) == draws(twin)
    twin.close()


def test_a_full_memory_removes_the_oldest_in_the_same_transaction(path: Path) -> None:
    with relive.open(path, capacity=10) as memory, SqliteStorage(path) as reader:
        for start in range(0, 40, 4):
            memory.add_batch(transitions(4, start))
            assert len(reader) == min(start + 4, 10)
        assert [row.id for row in reader.query()] == list(range(31, 41))
        assert memory.stats().evicted == 30
        assert reader.stats().evicted == 30
        big = memory.add_batch(transitions(25))
        assert big.tolist() == list(range(41, 66))
        assert [row.id for row in reader.query()] == list(range(56, 66))


def test_a_smaller_capacity_removes_the_oldest_on_opening(path: Path) -> None:
    with relive.open(path, capacity=50) as memory:
        memory.add_batch(transitions(30), priorities=np.arange(1.0, 31.0))
    with relive.open(path, capacity=10) as memory:
        assert len(memory) == 10
        assert memory.priorities(np.arange(21, 31)).tolist() == list(range(21, 31))
        assert len(memory.storage) == 10
    with relive.open(path, capacity=20) as memory:
        memory.add_batch(transitions(15))
        assert len(memory) == 20


def test_what_others_append_reward_and_remove_is_followed_before_the_next_draw(path: Path) -> None:
    def rule(experience: Transition) -> float:
        return 1.0 if experience.reward is None else 10.0 * experience.reward

    with relive.open(path, capacity=100, priority=rule) as memory, relive.open(path, follower=True) as other:
        memory.add_batch(transitions(3))
        assert other.storage.append(transitions(2, 3), priorities=[None, 4.0]) == [4, 5]
        assert sorted(memory.sample(5).ids.tolist()) == [1, 2, 3, 4, 5]
        assert memory.priorities([4, 5]).tolist() == [1.0, 4.0]
        assert other.feedback(2, 0.5) == 1
        other.storage.delete([1])
        assert set(memory.sample(50).ids.tolist()) == {2, 3, 4, 5}
        assert memory.priorities([1, 2]).tolist()[1] == 5.0
        assert len(memory) == len(other) == 4
        assert other.stats().reward_mean == 0.5
        with pytest.raises(NotOwnerError, match="records and looks only"):
            other.sample(1)


def test_others_may_append_more_than_fits_while_the_owner_is_away(path: Path) -> None:
    with relive.open(path, capacity=10) as memory:
        memory.add_batch(transitions(7))
    with relive.open(path, follower=True) as other:
        other.add_batch(transitions(25))
    with relive.open(path) as memory:
        assert len(memory) == len(memory.storage) == 10
        assert set(memory.sample(200).ids.tolist()) == set(range(23, 33))


def test_an_owner_that_was_away_too_long_for_the_change_log_looks_at_everything(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.storage.transaction.KEPT_CHANGES", 100)
    with relive.open(path, capacity=5000) as memory:
        memory.add_batch(transitions(10))
    with SqliteStorage(path) as store:
        store.delete([4, 5])
        for start in range(1100):
            store.append_soon(transitions(1, start))
        store.flush()
        assert not store.changes(1).complete
    with relive.open(path) as memory:
        assert len(memory) == 1108
        assert set(memory.sample(1108).ids.tolist()) == {1, 2, 3, *range(6, 1111)}


def test_late_feedback_sets_reward_and_outcome_and_evaluates_the_priority_rule_again(path: Path) -> None:
    with relive.open(path, priority=lambda e: 5.0 if e.outcome == "success" else 1.0, capacity=10) as memory:
        one = memory.add(Transition(state=1, action=1, episode_id="E"))
        assert memory.feedback(one, 1.0) == 1
        assert memory.priorities([one]).tolist() == [5.0]
        assert memory.feedback(Feedback(episode_id="E", source="judge", reward=0.0)) == 1
        assert memory.get([one])[0] is not None
        assert memory.query(outcome="success")[0].reward == 0.5
        assert memory.stats().reward_mean == 0.5


def test_a_bad_priority_adds_nothing(path: Path) -> None:
    with relive.open(path, capacity=10) as memory:
        memory.add_batch(transitions(4))
        for bad in (float("nan"), float("inf"), -1.0):
            with pytest.raises(InvalidPriorityError):
                memory.add_batch(transitions(2), priorities=[1.0, bad])
            with pytest.raises(InvalidPriorityError):
                memory.update_priorities([1, 2], [5.0, bad])
        assert len(memory) == len(memory.storage) == 4
        assert memory.priorities([1, 2]).tolist() == [1.0, 1.0]
        with pytest.raises(InvalidExperienceError, match="not str"):
            memory.add("text")  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 1e39])
def test_a_follower_refuses_what_the_owner_would(path: Path, bad: float) -> None:
    with relive.open(path) as owner, relive.open(path, follower=True) as memory:
        with pytest.raises(InvalidPriorityError, match="experience 1 of the new ones"):
            memory.add_batch(transitions(2), priorities=[1.0, bad])
        assert len(owner.storage) == 0
        with pytest.raises(InvalidExperienceError, match="priority is"):
            owner.storage.append(transitions(1), priorities=[bad])
        owner.storage.append(transitions(1))
        with pytest.raises(InvalidExperienceError, match="one priority for each id"):
            owner.storage.set_priorities([1], [bad])


@pytest.mark.parametrize("alpha", [0.6, 1.0, 2.0])
def test_a_store_that_holds_priorities_beyond_the_largest_one_still_opens_and_draws(path: Path, alpha: float) -> None:
    def sampler() -> Selector:
        return buffer.Prioritized(alpha)

    with relive.open(path, sampler=sampler()) as memory, SqliteStorage(path) as other:
        row = other.encode(transitions(1), priorities=[3e38])[0]._replace(priority=1e39)
        other.write(lambda transaction: transaction.append([row])).result()
        memory.add_batch(transitions(1), priorities=[1.0])
        assert 1 in memory.sample(64).ids
        infinite = IndexChange(np.array([1], np.int32), np.array([np.inf], np.float32))
        memory.storage.write(lambda transaction: transaction.save_index(infinite)).result()
    for capacity in (None, 10):
        with relive.open(path, sampler=sampler(), capacity=capacity) as memory:
            batch = memory.sample(64)
            assert 1 in batch.ids
            assert np.isfinite(batch.probabilities).all()
            assert np.isfinite(memory.priorities([1, 2])).all()


def test_a_write_that_fails_leaves_the_index_as_it_was(path: Path, tmp_path: Path) -> None:
    twin = relive.open(tmp_path / "twin.db", capacity=200)
    with relive.open(path, capacity=200) as memory:
        for one in (memory, twin):
            one.add_batch(transitions(20), priorities=np.arange(1.0, 21.0))
        memory.storage._pool.writing().pragma("max_page_count", 40)
        with pytest.raises(StorageFullError, match="No room left"):
            memory.add_batch([Transition(state=os.urandom(20_000).hex(), action=None) for _ in range(40)])
        assert len(memory) == len(memory.storage) == 20
        assert draws(memory) == draws(twin)
        memory.storage._pool.writing().pragma("max_page_count", 100_000)
        for one in (memory, twin):
            one.add_batch(transitions(20), priorities=np.arange(1.0, 21.0))
        assert draws(memory) == draws(twin)
    with relive.open(path) as memory:
        assert draws(memory) == draws(twin)
    twin.close()


def test_a_memory_that_cannot_be_flushed_is_closed_and_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = relive.open(path)
    memory.add_batch(transitions(3))

    def full() -> None:
        raise StorageFullError("No room left.")

    monkeypatch.setattr(memory.storage, "flush", full)
    with pytest.raises(StorageFullError):
        memory.close()
    assert memory.storage.closed
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]
    with relive.open(path) as again:
        assert len(again) == 3


def test_a_second_owner_is_told_who_holds_the_index_and_may_record_meanwhile(path: Path) -> None:
    with relive.open(path) as memory:
        code = """
            import sys, relive
            from relive.storage import IndexOwnedError
            try:
                relive.open(sys.argv[1])
            except IndexOwnedError as error:
                print(error)
            with relive.open(sys.argv[1], follower=True) as memory:
                memory.add(relive.Transition(state=1, action=1))
            """
        told = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), str(path)], capture_output=True, text=True, check=True
        ).stdout
        assert f"held by process {os.getpid()} on " in told
        assert "follower=True" in told
        with pytest.raises(IndexOwnedError, match="this process itself"):
            relive.open(path)
        assert len(memory.sample(1)) == 1


def test_a_readonly_memory_looks_and_does_nothing_else(path: Path) -> None:
    with relive.open(path) as memory:
        memory.add(Transition(state="hello", action=1, reward=2.0))
    before = path.read_bytes()
    with relive.open(path, readonly=True) as memory:
        assert memory.get([1])[0] is not None
        assert memory.search("hello")[0][0] == 1
        assert memory.stats().reward_mean == 2.0
        with pytest.raises(ReadOnlyStoreError):
            memory.add(Transition(state=1, action=1))
        with pytest.raises(NotOwnerError):
            memory.sample(1)
    assert path.read_bytes() == before


def test_a_forked_child_records_and_leaves_the_drawing_to_its_parent(path: Path) -> None:
    with relive.open(path, capacity=10) as memory:
        memory.add_batch(transitions(3))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                memory.add(Transition(state="child", action=1))
                try:
                    memory.sample(1)
                except NotOwnerError:
                    memory.close()
                    status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(memory.sample(4)) == 4
        assert len(memory) == 4


def test_kill_9_loses_nothing_acknowledged_and_the_draws_equal_an_undisturbed_twins(path: Path, tmp_path: Path) -> None:
    code = """
        import sys, numpy as np, relive
        memory = relive.open(sys.argv[1], capacity=150)
        for number in range(10**6):
            ids = memory.add_batch([relive.Transition(state=number, action=k) for k in range(5)])
            memory.update_priorities(ids, np.arange(5) + 0.1 * (number % 7))
            print(number, flush=True)
        """
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    for _ in range(60):
        last = int(writer.stdout.readline())
    writer.kill()
    rest = writer.stdout.read().splitlines(keepends=True)
    last = max([last, *(int(line) for line in rest if line.endswith("\n"))])
    writer.wait()
    writer.stdout.close()
    with relive.open(path) as memory, relive.open(tmp_path / "twin.db", capacity=150) as twin:
        newest = memory.query(newest_first=True, limit=1)[0]
        assert newest.transition.state in (last, last + 1)
        rewarded = memory.priorities([newest.id])[0] != memory.priorities([newest.id - 1])[0]
        for number in range(newest.transition.state + 1):
            ids = twin.add_batch([Transition(state=number, action=k) for k in range(5)])
            if number < newest.transition.state or rewarded:
                twin.update_priorities(ids, np.arange(5) + 0.1 * (number % 7))
        assert draws(memory) == draws(twin)


def test_a_limit_on_bytes_holds_after_every_addition(path: Path) -> None:
    with relive.open(path, capacity=1000, max_bytes=20_000) as memory:
        for number in range(60):
            memory.add(Transition(state=os.urandom(500).hex(), action=number))
            assert memory.storage.payload_bytes() <= 20_000
        assert 20 < len(memory) < 40
        assert [row.transition.action for row in memory.query(limit=100)] == list(range(60 - len(memory), 60))
        memory.add(Transition(state=os.urandom(30_000).hex(), action="larger than all that may be"))
        assert len(memory) == memory.storage.payload_bytes() == 0


def test_a_limit_on_age_holds_at_every_draw_and_across_opening(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000 * 10**9
    monkeypatch.setattr("time.time_ns", lambda: now)
    with relive.open(path, capacity=100, max_age=60) as memory:
        memory.add_batch(transitions(3))
        now += 50 * 10**9
        memory.add_batch(transitions(2, 3))
        assert len(memory.sample(5)) == 5
        now += 11 * 10**9
        assert sorted(memory.sample(5).ids.tolist()) == [4, 5]
        assert len(memory.storage) == 2
    now += 50 * 10**9
    with relive.open(path, capacity=100, max_age=60) as memory:
        assert len(memory) == 0
    with pytest.raises(BufferSettingError, match="max_age is -1"):
        relive.open(path, max_age=-1)
    relive.open(path).close()  # the refused one has let go of it


def test_a_custom_selector_is_told_all_that_is_stored_on_opening(path: Path) -> None:
    class Seen(LastIn):
        follows = True

        def reset(self) -> None:
            self.states: dict[int, Any] = {}

        def insert(self, ids: Any, priorities: Any, experiences: Any) -> None:
            self.states |= dict(zip(ids.tolist(), [e.state for e in experiences], strict=True))

        def delete(self, ids: Any) -> None:
            for number in ids.tolist():
                del self.states[number]

    sampler = Seen()
    sampler.reset()
    with relive.open(path, capacity=10, sampler=sampler) as memory:
        memory.add_batch(transitions(14))
        assert sampler.states == {n: n - 1 for n in range(5, 15)}
    with SqliteStorage(path) as other:
        other.delete([6])
        other.append(transitions(1, 14))
    again = Seen()
    with relive.open(path, sampler=again) as memory:
        assert again.states == {n: n - 1 for n in [5, *range(7, 16)]}
        assert memory.sample(1).experiences[0].state == 14


@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_calls_goes_on_where_it_was(path: Path, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    twin = relive.open(tmp_path / "twin.db", capacity=16, remover=LastIn() if seed % 2 else None)
    for _ in range(25):
        with relive.open(path, capacity=16, remover=LastIn() if seed % 2 else None) as memory:
            for _ in range(3):
                count, kind = int(rng.integers(1, 20)), rng.random()
                some = rng.integers(1, memory._index.next_id + 2, 3)
                values = rng.random(20).astype(np.float64)
                for one in (memory, twin):
                    if kind < 0.5:
                        one.add_batch(transitions(count), priorities=values[:count] if kind < 0.3 else None)
                    elif kind < 0.7:
                        one.remove(some)
                    elif kind < 0.85:
                        one.update_priorities(some, values[:3])
                    elif kind < 0.95:
                        one.sample(4)
                    else:
                        one.storage.delete(some.tolist())
            memory.follow()
            twin.follow()
            assert memory._index.free_slots().tolist() == twin._index.free_slots().tolist()
            assert [memory.sample(4).ids.tolist() for _ in range(8)] == [twin.sample(4).ids.tolist() for _ in range(8)]
    twin.close()


def test_taking_one_out_of_a_large_memory_does_not_fill_the_disk(path: Path) -> None:
    with relive.open(path, capacity=1_000_000) as memory:
        memory.add_batch(transitions(10))
        memory.remove([5])
    assert path.stat().st_size < 1 << 20
    with relive.open(path) as memory:
        assert memory.add_batch(transitions(3)).tolist() == [11, 12, 13]
        assert sorted(memory.sample(12).ids.tolist()) == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13]


def test_a_fork_amid_draws_and_additions_harms_neither_side(path: Path) -> None:
    with relive.open(path, capacity=50) as memory:
        memory.add_batch(transitions(50))
        stop = threading.Event()

        def add() -> None:
            while not stop.is_set():
                memory.add_batch(transitions(3))

        def draw() -> None:
            while not stop.is_set():
                batch = memory.sample(8)
                memory.update_priorities(batch.ids, np.ones(len(batch)))
                assert all(experience.action == "a" for experience in batch.experiences)

        threads = [threading.Thread(target=work) for work in (add, draw, draw)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    memory.add(Transition(state="child", action="a"))
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        assert len(memory) == 50


def test_a_remover_that_refuses_newcomers_keeps_what_it_chose(path: Path, tmp_path: Path) -> None:
    twin = relive.open(tmp_path / "twin.db", capacity=20, remover=buffer.Reservoir())
    for round_ in range(5):
        with relive.open(path, capacity=20, remover=buffer.Reservoir()) as memory:
            ids = [one.add_batch(transitions(30, 30 * round_)).tolist() for one in (memory, twin)]
            assert ids[0] == ids[1]
            assert len(memory) == len(memory.storage) == 20
            stored = {row.id: row.transition.state for row in memory.query()}
            assert set(stored) == set(memory.sample(20).ids.tolist())
            assert set(twin.sample(20).ids.tolist()) == set(stored)
            for place, number in enumerate(ids[0]):
                if number in stored:
                    assert stored[number] == 30 * round_ + place
    assert min(stored.values()) < 60  # some of the first still stand for the whole stream
    twin.close()


def test_buf_15_a_reopened_memory_lets_go_what_it_would_have_let_go(path: Path) -> None:
    def reopen() -> Memory:
        return relive.open(path, capacity=4, sampler=relive.Uniform(), remover=buffer.Lowest())

    with reopen() as memory:
        memory.add_batch(transitions(4), priorities=[9.0, 1.0, 5.0, 7.0])
    for left, new in ((2, 3.0), (5, 4.0), (6, None), (3, None)):
        with reopen() as memory:
            before = set(memory._index.ids().tolist())
            id_ = memory.add(transitions(1)[0], new)
            assert before - set(memory._index.ids().tolist()) == {left}
            assert memory.priorities([id_])[0] == (9.0 if new is None else new)


def test_a_rule_that_knows_td_errors_knows_them_after_reopening(path: Path) -> None:
    rule = [buffer.TdError() * buffer.Recency(1e9) for _ in range(3)]
    with relive.open(path, capacity=20, priority=rule[0]) as memory:
        memory.add_batch(transitions(6))
        memory.update_priorities([1, 2, 3], td_errors=[-4.0, 2.0, 1.0])
        before = memory.priorities(range(1, 7))
    with relive.open(path, priority=rule[1]) as memory:
        assert memory.priorities(range(1, 7)) == pytest.approx(before)
        memory.update_priorities([4], td_errors=[8.0])
        memory.storage.close()  # as if killed: what the rule knew is not saved again
    with relive.open(path, priority=rule[2]) as memory:
        assert memory.priorities([1, 2, 4])[2] == pytest.approx(8.0, rel=1e-3)
        memory.sample(4)
        assert memory.priorities([1, 2, 4]).tolist() == pytest.approx([4.0, 2.0, 8.0], rel=1e-3)


@pytest.mark.parametrize("limit", [1.5, True, "1", 2**63])
def test_a_limit_that_the_store_cannot_keep_is_refused_before_it_is_written(tmp_path, limit):
    path = tmp_path / "a.db"
    with pytest.raises(BufferSettingError, match="max_bytes is"):
        relive.open(path, max_bytes=limit)
    with relive.open(path) as memory:
        memory.add(relive.Transition(state=1, action=2))
        assert len(memory) == 1
