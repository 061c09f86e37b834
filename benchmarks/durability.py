"""That nothing acknowledged is lost: kills, power cuts, and many processes at one store.

    python benchmarks/durability.py [--quick]

1. A writer is killed (SIGKILL) 30 times at random moments, over 200,000 acknowledged rows in all, with eviction on:
   each acknowledged row that was not evicted is there once, and the next 1,000 draws are those of an undisturbed twin.
2. A disk that drops every write not yet synced is cut off at 200 moments of a store under ``power``.
3. Two writers and one sampler work on one file with eviction on: no evicted row is drawn, new rows are soon drawable.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import numpy as np

import relive
from _report import Bar, report
from relive import Transition
from relive.storage import SqliteStorage, checkpoint

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "storage"))
from lossy_disk import LossyDisk

DRAWS = 1000

WRITER = """
    import random, sys, relive
    path, capacity, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    memory = relive.open(path, capacity=capacity)
    newest = memory.query(newest_first=True, limit=1)
    number = newest[0].transition.state["number"] + 1 if newest else 0
    text = [f"word{rng.randrange(10**6)}" for _ in range(1000)]
    while True:
        count = rng.choice((1, 1, 2, 8, 32, 64))
        batch = [
            relive.Transition(state={"number": n, "text": " ".join(rng.sample(text, 80))}, action="a", step=n)
            for n in range(number, number + count)
        ]
        memory.add_batch(batch, priorities=[1 + n % 17 for n in range(number, number + count)])
        number += count
        print(number - 1, flush=True)
    """

APPENDER = """
    import sys, time, relive
    with relive.open(sys.argv[1], follower=True) as memory:
        end = time.monotonic() + float(sys.argv[2])
        number = 0
        while time.monotonic() < end:
            count = 1 if number % 3 else 16
            state = {"by": sys.argv[3], "n": number}
            ids = memory.add_batch([relive.Transition(state=state, action=k) for k in range(count)])
            print(int(ids[-1]), time.monotonic(), flush=True)
            number += 1
            time.sleep(0.002)
    """


def python(code: str, *arguments: object) -> "subprocess.Popen[str]":
    """Runs Python code in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def integrity(path: Path) -> bool:
    """Whether SQLite finds the file whole."""
    connection = apsw.Connection(str(path))
    whole = connection.execute("PRAGMA integrity_check").get == "ok"
    connection.close()
    return whole


def kill(writer: "subprocess.Popen[str]", rows: int, rng: random.Random) -> int:
    """Kills a writer after at least so many rows more, at a random moment; the last number it acknowledged."""
    assert writer.stdout is not None
    first = last = int(writer.stdout.readline())
    while last - first < rows:
        last = int(writer.stdout.readline())
    deadline = time.monotonic() + rng.random() * 0.05
    while time.monotonic() < deadline:
        last = int(writer.stdout.readline())
    writer.kill()
    lines = writer.stdout.read().splitlines(keepends=True)
    writer.wait()
    writer.stdout.close()
    return max([last, *(int(line) for line in lines if line.endswith("\n"))])


def kills(folder: Path, rounds: int, rows: int, capacity: int, figures: dict[str, float], bars: dict[str, Bar]) -> None:
    """Part 1."""
    rng = random.Random(0)
    path = folder / "killed.db"
    twin = relive.open(folder / "twin.db", capacity=capacity)
    lost = doubled = broken = different = fed = 0
    last = -1
    for round_ in range(rounds):
        last = kill(python(WRITER, path, capacity, round_), rows // rounds, rng)
        broken += not integrity(path)
        with relive.open(path) as memory:
            numbers = [row.outline().step for row in memory.query(limit=10**9)]
            expected = range(max(0, numbers[-1] + 1 - capacity), numbers[-1] + 1)
            doubled += len(numbers) - len(set(numbers))
            lost += len(set(expected) - set(numbers)) + max(0, last - numbers[-1])
            while fed <= numbers[-1]:
                part = range(fed, min(numbers[-1] + 1, fed + 64))
                twin.add_batch([Transition(state=None, action=None)] * len(part), priorities=[1 + n % 17 for n in part])
                fed = part[-1] + 1
            different += sum(not np.array_equal(memory.sample(8).ids, twin.sample(8).ids) for _ in range(DRAWS // 8))
        print(f"kill {round_ + 1} of {rounds}: {last + 1:,} rows acknowledged, {lost} lost, {different} batches differ")
    twin.close()
    figures |= {"kills": rounds, "rows acknowledged": last + 1}
    bars |= {
        "acknowledged rows lost by kill -9": Bar(lost, 0, at_most=True),
        "rows doubled by kill -9": Bar(doubled, 0, at_most=True),
        "files not whole after kill -9": Bar(broken, 0, at_most=True),
        "batches unlike the twin's": Bar(different, 0, at_most=True),
    }


def cuts(folder: Path, count: int, figures: dict[str, float], bars: dict[str, Bar]) -> None:
    """Part 2."""
    path, copy = folder / "power.db", folder / "cut.db"
    disk = LossyDisk("lossy-benchmark")
    checkpoint.CHECKPOINT_PAGES = 60  # that there are some to be cut in two
    with SqliteStorage(path, durability="power", vfs=disk.name) as store:
        for number in range(300):
            batch = [Transition(state=os.urandom(300).hex(), action=number) for _ in range(1 + number % 4)]
            disk.note(store.append(batch))
    moments = random.Random(0).sample(range(len(disk.events)), count)
    acknowledged = lost = 0
    for moment in sorted(moments):
        notes = disk.after_power_loss(moment, path, copy)
        if not notes:
            continue
        kept = {number for ids in notes for number in ids}
        with SqliteStorage(copy) as store:
            there = {row.id for row in store.query(limit=10**9)}
        acknowledged += len(kept)
        lost += len(kept - there)
    disk.unregister()
    figures |= {"power cuts": count, "rows acknowledged before a cut, summed": acknowledged}
    bars["acknowledged rows lost by power cuts"] = Bar(lost, 0, at_most=True)


def together(folder: Path, seconds: float, figures: dict[str, float], bars: dict[str, Bar]) -> None:
    """Part 3."""
    path, capacity = folder / "shared.db", 2000
    acknowledged: list[tuple[int, float]] = []

    def listen(writer: "subprocess.Popen[str]") -> None:
        assert writer.stdout is not None
        for line in writer.stdout:
            number, moment = line.split()
            acknowledged.append((int(number), float(moment)))

    with relive.open(path, capacity=capacity) as memory:
        memory.add(Transition(state=None, action=None))
        writers = [python(APPENDER, path, seconds, name) for name in ("a", "b")]
        listeners = [threading.Thread(target=listen, args=(writer,)) for writer in writers]
        for listener in listeners:
            listener.start()
        draws = evicted_drawn = 0
        waits: list[float] = []
        seen = 0
        while any(writer.poll() is None for writer in writers) or seen < len(acknowledged):
            batch = memory.sample(32)
            newest = memory._index.next_id - 1
            draws += 1
            evicted_drawn += int((batch.ids <= newest - capacity).sum())
            evicted_drawn += sum(experience is None for experience in batch.experiences)
            now = time.monotonic()
            pending: list[tuple[int, float]] = []
            ready = len(acknowledged)
            for number, moment in acknowledged[seen:ready]:
                if number <= newest:
                    waits.append(now - moment)
                else:
                    pending.append((number, moment))
            acknowledged[seen:ready] = pending
            time.sleep(0.001)
        for listener in listeners:
            listener.join()
        size = len(memory.storage)
        stats: Any = memory.storage.stats()
    figures |= {
        "draws of 32 beside two writers": draws,
        "rows added by two writers": stats.experiences + stats.evicted - 1,
        "until a new row is drawable, median (ms)": statistics.median(waits) * 1e3,
    }
    bars |= {
        "evicted rows drawn": Bar(evicted_drawn, 0, at_most=True),
        "rows above capacity": Bar(max(0, size - capacity), 0, at_most=True),
        "until a new row is drawable, 99.9 % (ms)": Bar(float(np.quantile(waits, 0.999)) * 1e3, 100, at_most=True),
    }


def main() -> None:
    """Runs all three parts and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer kills, cuts and seconds")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    bars: dict[str, Bar] = {}
    with tempfile.TemporaryDirectory(prefix="relive-durability-") as name:
        folder = Path(name)
        kills(folder, *((5, 10_000, 4_000) if options.quick else (30, 200_000, 50_000)), figures, bars)
        cuts(folder, 40 if options.quick else 200, figures, bars)
        together(folder, 10 if options.quick else 60, figures, bars)
    report(figures, bars)


if __name__ == "__main__":
    main()
