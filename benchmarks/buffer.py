"""How fast and how small the replay buffer is, beside cpprb, Tianshou, Stable-Baselines3 and TorchRL.

    python benchmarks/buffer.py [--quick] [--docs FOLDER]

Every call goes through each library's public Python API. All buffers hold 2^20 rows (obs float32[16], action int64,
reward float32, next_obs float32[16], done), full, with priorities spread over e^-3 to e^3. Contenders take turns within
each round; what counts is the median over the rounds of their ratios. Before the rounds of an operation each of them
does it for a quarter of a second without a clock: memory that has just been filled is several times slower at first.
The clock is the calling thread's CPU time, which on an idle machine is the time that passes, and on a busy one leaves
out the waiting for a core; a rival that used more threads would look faster than it is. Stable-Baselines3 has no
priorities: it draws uniformly and stands beside, not among, the rivals.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import relive
from _buffer_checks import exactness
from _buffer_memory import growth, memory
from _buffer_peers import FIELDS, Contender, columns, contenders, object_contenders
from _buffer_report import write_docs
from _report import Bar, report

CAPACITY = 2**20
WARM_UP = 0.25  # seconds
OBJECTS = 200_000

BARS = {
    "sample_32": 4.0,
    "sample_256": 4.0,
    "sample_4096": 4.0,
    "update_256": 6.0,
    "add_1": 15.0,
    "add_256": 3.0,
    "add_4_sample_256_update_256": 6.0,
    "objects_sample_256": 2.0,
}
"""How many times faster than the best rival; the two additions than cpprb."""

AGAINST_CPPRB = {"add_1", "add_256"}


def operations(contender: Contender, rng: np.random.Generator) -> dict[str, Callable[[], Any]]:
    """What is timed, by name; each call gets fresh ids and values, made before the clock starts."""
    fresh = _fresh(contender, rng)
    row = {name: array[0] for name, array in columns(1, rng).items()}
    row |= {"act": 3, "rew": 0.5, "done": False}
    four, many = columns(4, rng), columns(256, rng)
    made: dict[str, Callable[[], Any]] = {f"sample_{n}": lambda n=n: contender.sample(n) for n in (32, 256, 4096)}
    made["add_1"] = contender.one(row)
    if contender.add is not None:
        made["add_256"] = lambda: contender.add(many)
    if contender.update is not None:
        made["update_256"] = lambda: contender.update(*next(fresh))
        values = rng.uniform(0.05, 20, 256)

        def mixed() -> None:
            if contender.add is not None:
                contender.add(four)
            else:
                for _ in range(4):
                    made["add_1"]()
            contender.update(contender.sample(256), values)

        made["add_4_sample_256_update_256"] = mixed
    return made


def _fresh(contender: Contender, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
    """Ids and priorities in turn: 2^20 of them before the first comes again, more than a cache holds.

    They are made at the first call, before any clock starts, and after all that adds rows.
    """
    rows = rng.integers(0, CAPACITY, (4096, 256))
    values = np.exp(rng.uniform(-3, 3, (4096, 256)))
    yield from itertools.cycle([(contender.ids_of(ids), given) for ids, given in zip(rows, values, strict=True)])


def race(made: dict[str, dict[str, Callable[[], Any]]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """CPU microseconds a call, by operation and contender, one figure a round; contenders take turns."""
    times: dict[str, dict[str, list[float]]] = {}
    for name in next(iter(made.values())):
        entrants = {who: operations[name] for who, operations in made.items() if name in operations}
        times[name] = {who: [] for who in entrants}
        repeats = {who: _repeats(call) for who, call in entrants.items()}
        for _ in range(rounds):
            for who, call in entrants.items():
                start = time.thread_time()
                for _ in range(repeats[who]):
                    call()
                times[name][who].append((time.thread_time() - start) / repeats[who] * 1e6)
    return times


def _repeats(call: Callable[[], Any]) -> int:
    """How often to call for about 5 ms, once the call is warm."""
    start = time.thread_time()
    while time.thread_time() < start + WARM_UP:
        call()
    start = time.thread_time()
    for _ in range(3):
        call()
    return max(2, min(500, round(0.005 / ((time.thread_time() - start) / 3))))


def ratio(times: dict[str, list[float]], rival: str) -> float:
    """Median over the rounds of the rival's time over ours."""
    return statistics.median(b / a for a, b in zip(times["relive"], times[rival], strict=True))


def main() -> None:
    """Measures, prints, and writes the documentation's table and picture where asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the same figures, rougher, in a minute or two")
    parser.add_argument("--docs", type=Path, help="folder for the table and the picture")
    arguments = parser.parse_args()
    rounds = 15 if arguments.quick else 60
    rng = np.random.default_rng(0)

    rivals = contenders(CAPACITY, rng)
    times = race({contender.name: operations(contender, rng) for contender in rivals}, rounds)
    objects = object_contenders(OBJECTS, rng)
    for name, figures in race({who: {"sample_256": call} for who, call in objects.items()}, rounds).items():
        times[f"objects_{name}"] = figures
    prioritized = {contender.name for contender in rivals if contender.update is not None} - {"relive"}

    figures: dict[str, float] = {}
    bars: dict[str, Bar] = {}
    for name, by_contender in times.items():
        figures |= {f"{name}.{who}_us": statistics.median(values) for who, values in by_contender.items()}
        against = {"cpprb"} if name in AGAINST_CPPRB else prioritized & by_contender.keys()
        best = min(ratio(by_contender, rival) for rival in against)
        bars[f"{name}_times_faster"] = Bar(best, BARS[name])
    for name, value, most in (*memory(FIELDS), *growth(rounds), *exactness(quick=arguments.quick)):
        figures[name] = float(value)
        bars[name] = Bar(float(value), abs(most), at_most=most >= 0)
    if arguments.docs is not None:
        write_docs(arguments.docs, times, figures, relive.__version__)
    report(figures, bars)


if __name__ == "__main__":
    main()
