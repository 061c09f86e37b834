"""A memory behind an address behaves as one in this process: the same values, the same types, the same errors."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from server_rig import Process, Served, served, upstream_thread

import relive
from relive import Feedback, Memory, TokenTrace, Transition, Usage
from relive.buffer import BufferSettingError, BufferStats, InvalidPriorityError, NotEnoughExperiencesError, NStep
from relive.client import AccessRefusedError, RemoteError, RemoteMemory, UnreachableError, remote
from relive.errors import InvalidExperienceError
from relive.observation import flush
from relive.observation.memories import close_all
from relive.playbook.recall import Recall
from relive.storage import IndexOwnedError, NotOwnerError, Stored
from relive.storage.forget import Forgotten, NothingToForgetError
from relive.storage.travel import batch_fields, batch_of
from relive.storage.wire import MSGPACK, pack, unpack


def with_server(folder: Path, use: Callable[[Served, RemoteMemory], None], **over: Any) -> None:
    """Runs a test's body in a thread, with a memory over a server in this process."""

    async def all_of_it() -> None:
        async with served(folder, **over) as made:

            def body() -> None:
                with RemoteMemory(made.url) as memory:
                    use(made, memory)

            await asyncio.wait_for(asyncio.to_thread(body), 60)

    asyncio.run(all_of_it())


def whole(**fields: Any) -> Transition:
    """A transition with something in every field."""
    versions = np.array([3, 3, 4], np.int32)
    trace = TokenTrace(
        token_ids=np.array([1, 2**31 - 1, 0], np.int32),
        mask=np.array([0, 1, 1], np.uint8),
        logprobs=np.array([0.0, -0.1, -1e-30], np.float32),
        versions=versions,
        temperature=0.7,
        top_p=0.9,
        tokenizer="abc",
    )
    given: dict[str, Any] = {
        "state": {"z": 1, "a": [1.10, None, "é\x00"], "big": 10**40},
        "action": {"role": "assistant", "content": "yes"},
        "next_state": [1],
        "reward": 0.1,
        "terminated": True,
        "outcome": "success",
        "agent": "worker",
        "episode_id": "e",
        "step": 3,
        "group_id": "g",
        "tags": ("t", "u"),
        "policy": "m",
        "policy_version": 7,
        "usage": Usage(input_tokens=5, output_tokens=2),
        "cost": 2**53 + 1,
        "latency_ms": 1.5,
        "error": "it broke",
        "created_at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        "tokens": trace,
        "info": {"k": "v"},
    }
    return Transition(**{**given, **fields})


def test_an_experience_crosses_without_loss_in_both_directions(tmp_path: Path) -> None:
    def body(made: Served, memory: RemoteMemory) -> None:
        given = whole()
        number = memory.add(given, priority=2.0)
        (got,) = memory.get([number])
        assert got == given
        assert got is not None
        assert got.tokens is not None
        assert [array.dtype for array in (got.tokens.token_ids, got.tokens.mask, got.tokens.logprobs)] == [
            np.int32,
            np.uint8,
            np.float32,
        ]
        [stored] = memory.query(agent="worker")
        [local] = made.parts.memory.query(agent="worker")
        assert type(stored) is type(local) is Stored
        assert stored.json() == local.json()
        assert b'"z"' in stored.json()[:14]  # the order of keys is kept
        for name in ("id", "priority", "uid", "bytes", "reward", "outcome", "recorded", "created_at", "transition"):
            assert getattr(stored, name) == getattr(local, name), name

    with_server(tmp_path, body)


def test_workers_write_and_a_trainer_draws_and_sets_priorities(tmp_path: Path) -> None:
    def body(made: Served, memory: RemoteMemory) -> None:
        ids = memory.add_batch([whole(state=n) for n in range(4)], priorities=np.array([1.0, 0, 0, 0]))
        assert ids.dtype == np.int64
        assert ids.tolist() == [1, 2, 3, 4]
        batch = memory.sample(8)
        assert (batch.ids.tolist(), batch.requested, batch.shortfall) == ([1], 8, 7)
        assert batch.ages.tolist() == [3]
        assert batch.weights.tolist() == [1.0]
        assert batch.experiences[0] == whole(state=0)
        batch.weights[0] = 0.5  # arrays are one's own
        assert memory.update_priorities(ids, td_errors=[0.0, -5.0, 0.0, 0.0]) == 4
        assert memory.update_priorities([99], [1.0]) == 0
        assert made.parts.memory.priorities([2])[0] == pytest.approx(5.0)
        assert isinstance(memory.stats(), BufferStats)
        assert memory.stats() == made.parts.memory.stats()
        assert len(memory) == 4
        assert memory.search("nothing like it") == made.parts.memory.search("nothing like it")

    with_server(tmp_path, body)


def test_experiences_are_taken_out_through_the_server(tmp_path: Path) -> None:
    def body(made: Served, memory: RemoteMemory) -> None:
        given = [whole(state=f"secret-{n}", agent=f"a{n % 2}", episode_id=f"e{n}") for n in range(6)]
        ids = memory.add_batch(given)
        assert memory.remove([]) == 0
        assert memory.remove([ids[0], ids[1], 99]) == 2
        assert memory.remove(ids[:2]) == 0
        assert memory.get(ids[:3]) == [None, None, given[2]]
        memory.feedback(int(ids[3]), 1.0)
        gone = memory.forget(agent="a1", match="SECRET-3")
        assert isinstance(gone, Forgotten)
        assert (gone.experiences, gone.episodes, gone.feedback, gone.token_traces) == (1, 1, 1, 1)
        assert memory.forget(episode="e4", agent="a1").experiences == 0, "all that is given must hold"
        assert [row.id for row in memory.query()] == ids[[2, 4, 5]].tolist()
        assert len(memory) == len(made.parts.memory) == 3
        assert set(memory.sample(50).ids.tolist()) <= set(ids[[2, 4, 5]].tolist())
        stored = b"".join(path.read_bytes() for path in tmp_path.glob("store.db*") if path.is_file())
        assert b"secret-3" not in stored

    with_server(tmp_path, body)


def test_feedback_reaches_experiences_and_episodes_and_says_how_many(tmp_path: Path) -> None:
    def body(made: Served, memory: RemoteMemory) -> None:
        ids = memory.add_batch([Transition(state=n, action="a", episode_id="e") for n in range(3)])
        assert memory.feedback(int(ids[0]), 1.0, source="test") == 1
        assert memory.feedback(Feedback(episode_id="e", reward=0.0, source="judge")) == 3
        assert memory.feedback(99, 1.0) == 0
        assert memory.feedback("0" * 32, 1.0) == 0
        first = memory.get([int(ids[0])])[0]
        assert first is not None
        assert first.reward == 0.5  # the mean over sources
        assert [stored.id for stored in memory.query(max_reward=0.1)] == ids[1:].tolist()
        with pytest.raises(InvalidExperienceError, match="says nothing"):
            memory.feedback(1)

    with_server(tmp_path, body)


def test_pages_follow_one_another_until_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_PAGE", 100)

    def body(made: Served, memory: RemoteMemory) -> None:
        memory.add_batch([Transition(state=n, action="a", tags=("odd",) if n % 2 else ()) for n in range(240)])
        assert [one.id for one in memory.query(limit=230)] == list(range(1, 231))
        assert [one.id for one in memory.query(tag="odd", newest_first=True, limit=3)] == [240, 238, 236]
        assert len(memory.get(list(range(1, 242)))) == 241
        assert memory.get([241]) == [None]
        assert memory.query(error=True) == []

    with_server(tmp_path, body)


def test_an_addition_whose_answer_was_lost_is_not_kept_twice(tmp_path: Path) -> None:
    def body(made: Served, memory: RemoteMemory) -> None:
        fields, priorities, uids = memory._checked([whole(), whole(state=1)], [1.0, 2.0])
        first = memory._add(fields, priorities, uids)
        again = memory._add(fields, priorities, uids)
        assert first.tolist() == again.tolist() == [1, 2]
        assert len(memory) == 2
        assert made.parts.memory.priorities([1, 2]).tolist() == [1.0, 2.0]

    with_server(tmp_path, body)


def test_a_connection_that_the_server_closed_is_replaced_unnoticed(tmp_path: Path) -> None:
    def body(made: Served, memory: RemoteMemory) -> None:
        memory.add(whole())
        for connection in memory._connection._idle:
            connection.sock.shutdown(socket.SHUT_RDWR)
        assert memory.add(whole()) == 2

    with_server(tmp_path, body)


REFUSED: list[tuple[Callable[[Any], Any], type[Exception]]] = [
    (lambda m: m.add(whole(), priority=float("nan")), InvalidPriorityError),
    (lambda m: m.add(whole(), priority=-1.0), InvalidPriorityError),
    (lambda m: m.add(whole(), priority=1e39), InvalidPriorityError),
    (lambda m: m.add_batch([whole(), whole()], [1.0]), InvalidPriorityError),
    (lambda m: m.add_batch([whole(), whole()], [1.0, float("inf")]), InvalidPriorityError),
    (lambda m: m.add({"state": 1}), InvalidExperienceError),
    (lambda m: m.add(whole(state=object())), InvalidExperienceError),
    (lambda m: m.update_priorities([1], [float("nan")]), InvalidPriorityError),
    (lambda m: m.update_priorities([1], td_errors=[float("inf")]), InvalidPriorityError),
    (lambda m: m.update_priorities([1, 2], [1.0]), InvalidPriorityError),
    (lambda m: m.update_priorities([1]), InvalidPriorityError),
    (lambda m: m.update_priorities([0.5], [1.0]), BufferSettingError),
    (lambda m: m.remove([0.5]), BufferSettingError),
    (lambda m: m.forget(), NothingToForgetError),
    (lambda m: m.forget(agent=""), NothingToForgetError),
    (lambda m: m.sample(-1), BufferSettingError),
    (lambda m: m.sample(3, strict=True), NotEnoughExperiencesError),
    (lambda m: m.query(outcome="fine"), InvalidExperienceError),
    (lambda m: m.query(since=datetime(2026, 1, 1)), InvalidExperienceError),
]


def test_errors_are_those_of_a_memory_in_this_process_and_change_nothing(tmp_path: Path) -> None:
    def body(made: Served, memory: RemoteMemory) -> None:
        for number, (call, error) in enumerate(REFUSED):
            for one in (made.parts.memory, memory):
                with pytest.raises(error) as caught:
                    call(one)
                assert type(caught.value) is error, (number, one)
        assert len(memory) == 0

    with_server(tmp_path, body)


def test_additions_may_be_handed_over_and_waited_for(tmp_path: Path) -> None:
    def body(made: Served, memory: RemoteMemory) -> None:
        futures = [memory.add_soon([whole(state=n)]) for n in range(5)]
        memory.flush()
        assert [future.result().tolist() for future in futures] == [[1], [2], [3], [4], [5]]
        last = memory.add_soon([whole()])
        memory.close()
        assert last.result().tolist() == [6]
        with pytest.raises(UnreachableError, match="closed"):
            memory.stats()

    with_server(tmp_path, body)


def test_many_threads_share_one_memory(tmp_path: Path) -> None:
    def body(made: Served, memory: RemoteMemory) -> None:
        def work(number: int) -> None:
            for n in range(10):
                (got,) = memory.get([memory.add(whole(state=[number, n]))])
                assert got is not None
                assert got.state == [number, n]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(memory) == 60

    with_server(tmp_path, body)


def test_what_a_sampler_of_sequences_draws_arrives_whole(tmp_path: Path) -> None:
    with relive.open(tmp_path / "local.db", sampler=NStep(2, 0.5)) as memory:
        memory.add_batch([Transition(state=n, action="a", reward=1.0, episode_id="e", step=n) for n in range(5)])
        batch = memory.sample(4)
        arrived = batch_of(unpack(pack(batch_fields(batch), MSGPACK), MSGPACK))
    assert arrived.n_step is not None
    assert batch.n_step is not None
    for name in ("rewards", "discounts", "steps", "last_ids"):
        np.testing.assert_array_equal(getattr(arrived.n_step, name), getattr(batch.n_step, name))
    assert list(arrived.n_step.last or ()) == list(batch.n_step.last or ())
    assert (arrived.ids.tolist(), arrived.ages.tolist()) == (batch.ids.tolist(), batch.ages.tolist())


@pytest.mark.parametrize(
    "text", [b"{", b"[NaN]", b'{"a": 1} trailing', b"\xff", b"", b"Infinity", b"[" * 100_000 + b"]" * 100_000]
)
def test_json_text_from_outside_is_checked_before_it_is_stored(text: bytes) -> None:
    sent = msgspec.msgpack.encode({"state": msgspec.msgpack.Ext(2, text)})
    with pytest.raises(InvalidExperienceError):
        unpack(sent, MSGPACK)


def test_json_text_on_several_lines_arrives_on_one() -> None:
    sent = msgspec.msgpack.encode(msgspec.msgpack.Ext(2, b'{"a":\n 1.10}'))
    assert bytes(unpack(sent, MSGPACK)) == b'{"a":1.10}'


def test_a_key_is_asked_for_and_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from relive.server.build import open_keys

    store = tmp_path / "store.db"
    ledger, keys = open_keys(store)
    reads, writes, admins = (keys.create(scope, [scope])[0] for scope in ("read", "write", "admin"))
    ledger.close()

    def body(made: Served) -> None:
        with pytest.raises(AccessRefusedError, match="RELIVE_KEY"):
            relive.open(made.url)
        with pytest.raises(AccessRefusedError):
            relive.open(made.url, key="rlv_wrong")
        with relive.open(made.url, key=reads) as memory:
            assert memory.query() == []
            with pytest.raises(AccessRefusedError, match="may not write"):
                memory.add(whole())
        monkeypatch.setenv("RELIVE_KEY", writes)
        with relive.open(made.url) as memory:
            assert memory.add(whole()) == 1
            for take_out in (lambda: memory.remove([1]), lambda: memory.forget(match="a")):
                with pytest.raises(AccessRefusedError, match="may not admin"):
                    take_out()
        with relive.open(made.url, key=admins) as memory:
            assert memory.remove([1]) == 1

    async def all_of_it() -> None:
        async with served(tmp_path, store={"path": store}, server={"keys": "required"}) as made:
            await asyncio.wait_for(asyncio.to_thread(body, made), 60)

    asyncio.run(all_of_it())


def test_a_store_that_a_server_owns_is_opened_through_the_server(tmp_path: Path) -> None:
    with upstream_thread() as upstream:
        server = Process(tmp_path, "--upstream", upstream.base_url, "--store", "agent.db")
        url = server.ready()
        with relive.open(tmp_path / "agent.db") as memory:
            assert isinstance(memory, RemoteMemory)
            assert memory.url == url
            assert memory.add(whole()) == 1
            assert memory.sample(1).experiences[0] == whole()
        with relive.open(tmp_path / "agent.db", follower=True) as follower:
            assert isinstance(follower, Memory)
            with pytest.raises(NotOwnerError):
                follower.sample(1)
        with pytest.raises(IndexOwnedError, match=url):
            relive.open(tmp_path / "agent.db", sampler=relive.Uniform())
        assert server.stop() == 0
    with relive.open(tmp_path / "agent.db") as memory:
        assert isinstance(memory, Memory)
        assert memory.get([1]) == [whole()]


def test_a_server_that_ends_is_named_and_one_that_comes_back_is_used(tmp_path: Path) -> None:
    with upstream_thread() as upstream:
        server = Process(tmp_path, "--upstream", upstream.base_url, "--store", "agent.db")
        url = server.ready()
        with relive.open(url) as memory:
            memory.add(whole())
            server.stop()
            with pytest.raises(UnreachableError, match=f"{url}.*relive serve"):
                memory.add(whole())
            again = Process(
                tmp_path, "--upstream", upstream.base_url, "--store", "agent.db", "--port", url.rsplit(":", 1)[1]
            )
            again.ready()
            assert memory.add(whole()) == 2
            again.stop()


@pytest.mark.parametrize(
    "url", ["http://", "http://user:secret@127.0.0.1:1", "http://127.0.0.1:notaport", "https:///x"]
)
def test_an_address_that_is_none_is_refused_without_showing_secrets(url: str) -> None:
    with pytest.raises(RemoteError) as caught:
        relive.open(url)
    assert "secret" not in str(caught.value)


def test_whoever_else_answers_is_not_taken_for_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RemoteError, match="not as a Relive server"):
            relive.open(f"http://127.0.0.1:{listening.getsockname()[1]}/v1")
        thread.join()


def test_a_forked_child_does_not_use_its_parents_connections(tmp_path: Path) -> None:
    with upstream_thread() as upstream:
        url = Process(tmp_path, "--upstream", upstream.base_url).ready()
        with relive.open(url) as memory:
            memory.add(whole())
            before = memory._connection._idle[:]
            memory._connection._process = os.getpid() + 1  # as a child finds it
            memory.add(whole())
            assert not set(before) & set(memory._connection._idle)
            for connection in before:
                connection.close()


def test_what_is_observed_may_be_recorded_by_a_server(tmp_path: Path) -> None:
    def body(made: Served, memory: RemoteMemory) -> None:
        with relive.observe("outer", memory=made.url, agent="desk"), relive.observe("inner") as step:
            step.action = 1
        assert flush(30)
        assert [(s.agent, s.parent, s.transition.action) for s in memory.query()] == [
            ("desk", None, None),
            ("desk", 1, 1),
        ]
        close_all()

    with_server(tmp_path, body)


def test_an_agent_learns_through_a_server_as_through_a_file(tmp_path: Path) -> None:
    def body(made: Served, memory: RemoteMemory) -> None:
        question = {"messages": [{"role": "user", "content": "Where is my card?"}]}
        memory.add(Transition(state=question, action="In Leeds.", reward=1.0, outcome="success", agent="a"))
        recall = Recall(memory, agent="a")
        prompt = recall.prompt([{"role": "user", "content": "Where is my other card?"}])
        assert [one.id for one in prompt.demonstrations] == [1]

    with_server(tmp_path, body)
