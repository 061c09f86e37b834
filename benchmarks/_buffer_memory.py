"""Memory and growth figures of benchmarks/buffer.py: (name, value, the most it may be)."""

import json
import statistics
import subprocess
import sys
import time

import numpy as np

import relive

Figure = tuple[str, float, float]

# Runs alone, so that nothing else grows: resident memory before and after a buffer is filled.
_MEASURE = """
import json, sys
import numpy as np
import relive

capacity, fields = 2**20, {name: (kind, tuple(shape)) for name, (kind, shape) in json.loads(sys.argv[1]).items()}
part = {name: np.ones((2**12, *shape), kind) for name, (kind, shape) in fields.items()}

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))

small = relive.ReplayBuffer(2**12, storage=relive.ArrayStorage(fields))
small.add_batch(part)
before = resident()
buffer = relive.ReplayBuffer(capacity, storage=relive.ArrayStorage(fields))
for _ in range(capacity // 2**12 + 3):
    buffer.add_batch(part)
print(resident() - before)
"""


def memory(fields: dict[str, tuple[str, tuple[int, ...]]]) -> list[Figure]:
    """Resident memory of a full buffer of 2^20 rows over the rows' own bytes, and what the index takes an item."""
    row = sum(np.dtype(kind).itemsize * int(np.prod(shape, dtype=int)) for kind, shape in fields.values())
    run = subprocess.run(
        [sys.executable, "-c", _MEASURE, json.dumps(fields)], check=True, capture_output=True, text=True
    )
    capacity = 2**20
    alone = relive.ReplayBuffer(capacity)
    return [
        ("memory_over_raw_rows", int(run.stdout) / (capacity * row), 1.06),
        ("index_bytes_an_item", alone.stats().bytes / capacity, 5.0),
    ]


def growth(rounds: int) -> list[Figure]:
    """Time of a drawn index with 2^24 items over that with 2^20, measured in turns."""
    rng = np.random.default_rng(1)
    buffers = []
    for capacity in (2**20, 2**24):
        buffer = relive.ReplayBuffer(capacity, storage=relive.ArrayStorage({"flag": "?"}), seed=0)
        part = {"flag": np.zeros(2**18, bool)}
        for _ in range(capacity // 2**18):
            ids = buffer.add_batch(part)
            buffer.update_priorities(ids, np.exp(rng.uniform(-3, 3, len(ids))))
        buffers.append(buffer)
    ratios = []
    for _ in range(rounds):
        times = []
        for buffer in buffers:
            start = time.thread_time()
            for _ in range(20):
                buffer.sample(256)
            times.append(time.thread_time() - start)
        ratios.append(times[1] / times[0])
    return [("time_of_an_index_2^24_over_2^20", statistics.median(ratios), 2.2)]
