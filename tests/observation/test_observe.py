"""`relive.observe`: what is observed goes on as if nobody looked, and what it did is recorded."""

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import relive
from relive import Memory, Transition, observe
from relive.observation import ObserveError, Step, current, flush, stats
from relive.observation import step as steps
from relive.observation.step import plain
from relive.observation.writer import Tree, Writer
from relive.storage import StorageFullError


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with relive.open(tmp_path / "agent.db") as opened:
        assert isinstance(opened, Memory)
        yield opened
        flush()


def records(memory: Memory) -> list[Transition]:
    assert flush(30)
    return [stored.transition for stored in memory.query()]


def test_a_function_goes_on_as_it_is_and_its_call_is_recorded(memory: Memory) -> None:
    @observe("add up", memory=memory, agent="clerk", tags=("tool",), reward=lambda total: total / 10)
    def add_up(numbers: list[int], *, start: int = 1) -> int:
        """Adds."""
        numbers.append(99)  # what it does to its arguments later is not what it saw
        return sum(numbers[:-1]) + start

    assert add_up([2, 3]) == 6
    assert (add_up.__name__, add_up.__doc__) == ("add_up", "Adds.")
    (one,) = records(memory)
    assert one.state == {"function": "add up", "arguments": {"numbers": [2, 3], "start": 1}}
    assert (one.action, one.reward, one.agent, one.tags, one.policy) == (
        6,
        0.6,
        "clerk",
        ("observed", "tool"),
        "add up",
    )
    assert one.latency_ms is not None
    assert one.outcome == "unknown"
    assert (one.parent, one.usage, one.cost, one.error) == (None, None, None, None)


def test_an_error_is_recorded_and_raised_again(memory: Memory) -> None:
    @observe(memory=memory)
    def divide(a: int, b: int) -> float:
        return a / b

    with pytest.raises(ZeroDivisionError):
        divide(1, 0)
    with pytest.raises(TypeError):
        divide(1)  # type: ignore[call-arg]
    with pytest.raises(KeyboardInterrupt), observe("wait", memory=memory):
        raise KeyboardInterrupt
    errors = [one.error for one in records(memory)]
    assert errors[0] == "ZeroDivisionError: division by zero"
    assert str(errors[1]).startswith("TypeError: ")
    assert errors[2] == "KeyboardInterrupt"


def test_a_method_is_recorded_without_the_object_it_belongs_to(memory: Memory) -> None:
    class Desk:
        @observe(memory=memory)
        def answer(self, question: str) -> str:
            return question.upper()

    assert Desk().answer("hi") == "HI"
    (one,) = records(memory)
    assert one.state["arguments"] == {"question": "hi"}


def test_coroutines_are_observed_and_those_at_the_same_time_do_not_nest(memory: Memory) -> None:
    @observe(memory=memory)
    async def fetch(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    async def body() -> None:
        async with observe("both", memory=memory) as step:
            step.action = await asyncio.gather(fetch(1), fetch(2))

    asyncio.run(body())
    outer, *inner = records(memory)
    assert (outer.action, outer.policy, outer.parent) == ([2, 4], "both", None)
    assert sorted(one.action for one in inner) == [2, 4]
    assert {one.parent for one in inner} == {1}
    assert {one.episode_id for one in inner} == {outer.episode_id}
    assert sorted(one.step for one in [outer, *inner]) == [0, 1, 2]


def test_a_coroutine_that_is_cancelled_is_recorded_as_such(memory: Memory) -> None:
    @observe(memory=memory)
    async def wait() -> None:
        await asyncio.sleep(60)

    async def body() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())
    assert records(memory)[0].error == "CancelledError"


def test_steps_inside_steps_have_parents_at_every_depth(memory: Memory) -> None:
    @observe
    def leaf(n: int) -> int:
        return n

    with observe("root", memory=memory, state={"ticket": 7}, agent="desk") as root:
        with observe("branch") as branch:
            leaf(1)
            leaf(2)
        leaf(3)
        root.action = "closed"
        root.outcome = "success"
    found = {one.policy if one.policy != leaf.__qualname__ else one.action: (n, one) for n, one in numbered(memory)}
    number, one = found["root"]
    assert (one.state, one.action, one.outcome) == ({"ticket": 7}, "closed", "success")
    assert root.id == number
    assert found["branch"][1].parent == found[3][1].parent == number
    assert branch.id == found["branch"][0]
    assert found[1][1].parent == found[2][1].parent == branch.id
    assert {one.agent for _, one in found.values()} == {"desk"}
    assert current() is None


def numbered(memory: Memory) -> list[tuple[int, Transition]]:
    assert flush(30)
    return [(stored.id, stored.transition) for stored in memory.query()]


def test_another_episode_or_memory_inside_is_a_tree_of_its_own(memory: Memory, tmp_path: Path) -> None:
    with relive.open(tmp_path / "other.db") as other:
        with observe("outer", memory=memory, episode_id="e") as outer:
            with observe("elsewhere", memory=other):
                pass
            with observe("again", episode_id="f") as inner:
                pass
        assert [(one.policy, one.parent) for one in records(other)] == [("elsewhere", None)]
    assert (outer.step, inner.step, inner.episode_id) == (0, 0, "f")
    assert {one.policy for one in records(memory)} == {"outer", "again"}


def test_one_observer_serves_blocks_inside_one_another_and_many_threads(memory: Memory) -> None:
    observer = observe("block", memory=memory)
    with observer as first, observer as second:
        second.action, first.action = "inner", "outer"

    def work(number: int) -> None:
        with observer as step:
            step.action = number

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = records(memory)
    assert [(one.action, one.parent) for one in found if isinstance(one.action, str)] == [("outer", None), ("inner", 1)]
    assert sorted(one.action for one in found if isinstance(one.action, int)) == list(range(8))


def test_what_has_no_json_form_is_shown_and_what_is_too_deep_is_cut(memory: Memory) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert plain({"a": {1}, "b": (1, 2)}) == {"a": [1], "b": [1, 2]}
    assert plain([Odd()]) == ["<Odd whose repr raises RuntimeError>"]
    assert len(plain([object, "x" * 5_000, memoryview(b"x")])[1]) == 5_000
    loop: list[Any] = []
    loop.append(loop)
    assert "..." in str(plain(loop))

    @observe(memory=memory)
    def odd(thing: object) -> object:
        return thing

    thing = Odd()
    assert odd(thing) is thing
    assert "Odd" in records(memory)[0].action


def test_a_memory_that_fails_leaves_what_is_observed_alone() -> None:
    class Broken:
        def add_batch(self, experiences: Any) -> Any:
            raise StorageFullError("full")

    before = stats.failed

    @observe(memory=Broken())
    def work() -> int:
        return 1

    assert work() == 1
    with observe("one", memory=Broken()):
        work()
    assert flush(30)
    assert stats.failed == before + 3

    with observe("nowhere", memory="/no/such/folder/agent.db"):
        pass
    assert flush(30)
    assert stats.failed == before + 4


def test_a_reward_that_fails_is_counted_and_changes_nothing(memory: Memory) -> None:
    before = stats.unscored

    @observe(memory=memory, reward=lambda result: result["missing"])
    def work() -> dict[str, int]:
        return {}

    assert work() == {}
    assert stats.unscored == before + 1
    assert records(memory)[0].reward is None
    with observe("odd", memory=memory) as step:
        step.reward = float("nan")
    assert records(memory)[1].reward is None


def test_one_bad_step_does_not_take_others_with_it(memory: Memory) -> None:
    with observe("outer", memory=memory):
        for n in range(3):
            with observe("inner") as step:
                step.action = n
                step.outcome = "fine" if n == 1 else "success"  # type: ignore[assignment]
    assert [one.action for one in records(memory)] == [None, 0, 2]


def test_a_step_holds_no_more_than_its_bound(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOST_HELD", 3)
    before = stats.apart
    with observe("outer", memory=memory):
        for _ in range(5):
            with observe("inner"):
                pass
    assert stats.apart == before + 2
    found = records(memory)
    assert sorted(one.parent is None for one in found if one.policy == "inner") == [False, False, False, True, True]


def test_a_task_that_outlives_its_outer_step_is_recorded_under_it(memory: Memory) -> None:
    async def body() -> None:
        async def late() -> None:
            async with observe("late"):
                await asyncio.sleep(0.05)

        async with observe("outer", memory=memory):
            task = asyncio.create_task(late())
            await asyncio.sleep(0.001)
        assert flush(30)
        await task

    asyncio.run(body())
    assert [(one.policy, one.parent) for one in records(memory)] == [("outer", None), ("late", 1)]


def test_without_a_memory_nothing_is_recorded_and_the_environment_may_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RELIVE_MEMORY", raising=False)

    @observe
    def work() -> int:
        return 1

    assert work() == 1
    monkeypatch.setenv("RELIVE_MEMORY", str(tmp_path / "named.db"))
    assert work() == 1
    assert flush(30)
    with relive.open(tmp_path / "named.db", readonly=True) as memory:
        assert [stored.transition.action for stored in memory.query()] == [1]


def test_a_call_through_the_gateway_can_join_the_episode(memory: Memory) -> None:
    with observe("outer", memory=memory, agent="desk", episode_id="e") as step:
        assert step.headers == {"x-relive-agent": "desk", "x-relive-episode": "e"}
        assert isinstance(current(), Step)


def test_too_many_waiting_trees_are_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, gate = Writer(), threading.Event()

    class Slow:
        def add_batch(self, experiences: Any) -> list[int]:
            gate.wait(30)
            return [1] * len(experiences)

    writer._queue.maxsize = 2
    jobs = [writer.put(Tree(Transition(state=1, action=1), lambda _: None, []), Slow) for _ in range(6)]
    gate.set()
    assert writer.flush(30)
    assert all(job.is_set() for job in jobs)
    assert writer.stats.lost in (3, 4)  # the thread may hold one that is not in the queue
    assert writer.stats.recorded + writer.stats.lost == 6


def test_a_memory_that_is_no_longer_used_is_let_go() -> None:
    class Kept:
        def add_batch(self, experiences: Any) -> list[int]:
            return [1] * len(experiences)

    memory = Kept()
    with observe("work", memory=memory):
        pass
    assert flush(30)
    known = weakref.ref(memory)
    del memory
    gc.collect()
    assert known() is None


def test_nobody_waits_long_for_a_memory_that_is_held_up() -> None:
    gate, late = threading.Event(), stats.late

    class Held:
        def add_batch(self, experiences: Any) -> list[int]:
            assert gate.wait(60)
            return [7] * len(experiences)

    with observe("work", memory=Held()) as step:
        pass
    assert (stats.late, step.id) == (late + 1, None)  # it went on while the memory still held
    gate.set()
    assert flush(60)
    assert step.id == 7


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_records_with_a_thread_of_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    with observe("parent", memory=path):
        pass
    assert flush(30)
    child = os.fork()
    if child == 0:
        try:
            with observe("child", memory=path):
                pass
            os._exit(0 if flush(30) else 1)
        except BaseException:  # noqa: BLE001
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    with relive.open(path, readonly=True) as memory:
        assert [stored.transition.policy for stored in memory.query()] == ["parent", "child"]


def test_generators_and_classes_are_refused_with_what_to_do_instead() -> None:
    def items() -> Iterator[int]:
        yield 1

    with pytest.raises(ObserveError, match="around the loop"):
        observe(items)
    with pytest.raises(ObserveError, match="takes a function"):
        observe("a name")(3)  # type: ignore[arg-type]
