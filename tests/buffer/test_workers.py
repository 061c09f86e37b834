"""Workers: random streams of their own, the same in every run, whether forked or spawned."""

import ast
import pickle  # noqa: TID251  (it is how processes pass objects; nothing here is read from a file)
import subprocess
import sys

import numpy as np
import pytest

from relive.buffer import ArrayStorage, BufferStateError, Prioritized, ReplayBuffer, Uniform

FORKED = """
import os, random, sys
import numpy as np
from relive.buffer import Prioritized, ReplayBuffer

buffer = ReplayBuffer(10_000, sampler=Prioritized(), seed=123)
buffer.add_batch(range(10_000), np.linspace(0.1, 5, 10_000))

def globals_():
    return random.getstate(), np.random.get_state()[1].tolist()

for worker in range(4):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        before = globals_()
        drawn = [buffer.sample(8).ids.tolist() for _ in range(5)]
        assert globals_() == before
        os.write(write, repr(drawn).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        print(pipe.read())
    assert os.waitpid(child, 0)[1] == 0
print([buffer.sample(8).ids.tolist() for _ in range(5)])
"""

SPAWNED = """
import sys
from relive.buffer import ReplayBuffer

buffer = ReplayBuffer(10_000)
buffer.load(sys.argv[1])
buffer.worker(int(sys.argv[2]))
print([buffer.sample(8).ids.tolist() for _ in range(5)])
"""


def run(script, *arguments):
    done = subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True, text=True)
    return [ast.literal_eval(line) for line in done.stdout.splitlines()]


def assert_all_differ(workers):
    batches = [tuple(batch) for worker in workers for batch in worker]
    assert len(set(batches)) == len(batches)


def test_buf_16_forked_workers_draw_batches_of_their_own_and_the_same_in_every_run():
    first, second = run(FORKED), run(FORKED)
    assert len(first) == 5  # four workers, and the parent's own draws
    assert_all_differ(first)
    assert first == second


def test_buf_16_spawned_workers_draw_batches_of_their_own_and_the_same_in_every_run(tmp_path):
    buffer = ReplayBuffer(10_000, seed=123)
    buffer.add_batch(range(10_000), np.linspace(0.1, 5, 10_000))
    path = str(tmp_path / "snapshot")
    buffer.save(path)
    first = [run(SPAWNED, path, str(number))[0] for number in range(3)]
    assert_all_differ(first)
    assert run(SPAWNED, path, "2")[0] == first[2]


def test_a_fork_leaves_the_parent_s_draws_as_they_are():
    alone = ReplayBuffer(100, seed=123)
    alone.add_batch(range(100))
    script = FORKED.replace("10_000", "100").replace("np.linspace(0.1, 5, 100)", "None")
    assert run(script)[4] == [alone.sample(8).ids.tolist() for _ in range(5)]


def test_a_fork_amid_busy_threads_leaves_the_child_a_whole_buffer():
    script = """
import os, threading
from relive.buffer import ReplayBuffer

buffer = ReplayBuffer(64)
stop = False

def work():
    while not stop:
        buffer.add_batch([1, 2, 3])
        buffer.update_priorities(buffer.sample(8).ids, td_errors=[0.5] * 8 if len(buffer) >= 8 else [0.5] * len(buffer))

buffer.add_batch(range(64))
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        buffer.add("mine")
        ok = len(buffer.sample(64)) == 64
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
stop = True
print([len(buffer)])
"""
    assert run(script) == [[64]]


@pytest.mark.parametrize("sampler", [Prioritized, Uniform])
def test_streams_depend_on_the_number_and_the_state_alone(sampler):
    def drawn(number, before=0):
        buffer = ReplayBuffer(500, sampler=sampler(), seed=1)
        buffer.add_batch(range(500))
        for _ in range(before):
            buffer.sample(4)
        if number is not None:
            buffer.worker(number)
        return buffer.sample(20).ids.tolist()

    all_drawn = [tuple(drawn(number, before)) for number in (None, 0, 1, 2, 3) for before in (0, 1)]
    assert len(set(all_drawn)) == len(all_drawn)
    assert drawn(2) == drawn(2)


def test_the_count_of_forks_is_part_of_the_state():
    script = """
import os
from relive.buffer import ReplayBuffer

def child_draws(buffer):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, repr(buffer.sample(6).ids.tolist()).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()

buffer = ReplayBuffer(1000, seed=5)
buffer.add_batch(range(1000))
print(child_draws(buffer))
state = buffer.state_dict()
print(child_draws(buffer))
twin = ReplayBuffer(1000)
twin.load_state_dict(state)
print(child_draws(twin))
"""
    first, second, resumed = run(script)
    assert first != second
    assert resumed == second


def test_a_batch_may_travel_to_another_process_and_a_buffer_says_how():
    arrays = ReplayBuffer(5, storage=ArrayStorage({"n": "i4"}))
    arrays.add_batch({"n": np.arange(7, dtype=np.int32)})
    objects = ReplayBuffer(5)
    objects.add_batch("abcdefg")
    for buffer in (arrays, objects):
        batch = buffer.sample(3)
        there = pickle.loads(pickle.dumps(batch))  # noqa: S301  (made one line above)
        assert there.ids.tolist() == batch.ids.tolist()
        assert there.weights.tolist() == batch.weights.tolist()
        assert there.ages.tolist() == batch.ages.tolist()
        assert list(there.experiences) == list(batch.experiences)
        with pytest.raises(BufferStateError, match="calls worker"):
            pickle.dumps(buffer)
    batch = arrays.sample(3)
    assert pickle.loads(pickle.dumps(batch))["n"].tolist() == batch["n"].tolist()  # noqa: S301
