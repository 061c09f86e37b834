"""How fast the durable store appends, reads and opens, beside a plain file (the limit) and SQLite with JSON text.

    python benchmarks/storage.py [--quick] [--rows N] [--folder PATH]

Payloads are real talk of an airline's agent (tau-bench), put together anew with some words replaced, 4 KB of JSON each.
Everything is encoded as it is written. What is compared is measured in turns, and the medians of the ratios count.
"""

import argparse
import json
import os
import random
import shutil
import sqlite3  # noqa: TID251 - the thing to beat, on a file of its own
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zstandard

import relive
from _report import Bar, report
from relive import Transition
from relive.storage import SqliteStorage, dictionaries, record
from relive.storage.codec import Compressor

TALK = Path(__file__).parents[1] / "tests" / "data" / "tau_bench" / "gpt-4o-airline.json.zst"
DISTINCT = 20_000
BYTES = 3_300  # of messages in a payload, before the rest
REPLACED = 0.2  # share of the words


def payloads(count: int) -> list[tuple[Any, Any]]:
    """(state, action) of realistic text, always the same."""
    rng = random.Random(0)
    talk = json.loads(zstandard.ZstdDecompressor().decompress(TALK.read_bytes()))
    messages = [message for episode in talk for message in episode["traj"][1:] if len(json.dumps(message)) < 2500]
    letters, weights = "etaoinshrdlucmfwypvbgk", [12, 9, 8, 8, 7, 7, 6, 6, 6, 4, 4, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1]
    words = ["".join(rng.choices(letters, weights, k=3 + n % 7)) for n in range(20_000)]

    def reworded(message: dict[str, Any]) -> dict[str, Any]:
        text = (message.get("content") or "").split(" ")
        for place in range(len(text)):
            if rng.random() < REPLACED:
                text[place] = words[int(rng.paretovariate(0.6)) % len(words)]
        return message | {"content": " ".join(text)}

    made = []
    for _ in range(count):
        chosen: list[dict[str, Any]] = []
        size = 0
        while size < BYTES:
            chosen.append(reworded(rng.choice(messages)))
            size += len(json.dumps(chosen[-1]))
        action = {"role": "assistant", "content": reworded(rng.choice(messages))["content"]}
        made.append(({"messages": chosen, "id": f"{rng.getrandbits(128):032x}"}, action))
    return made


def experience(number: int, pool: list[tuple[Any, Any]]) -> Transition:
    """The experience with this number; 8 make an episode."""
    state, action = pool[number % len(pool)]
    return Transition(
        state=state,
        action=action,
        agent=f"agent{number % 7}",
        episode_id=f"episode{number // 8:08d}",
        step=number % 8,
        outcome=("unknown", "success", "failure")[number % 3],
        reward=(number * 7919 % 1000) / 1000,
        policy="model",
        policy_version=number // 1000,
    )


class Bench:
    """Where the runs happen, and what they share."""

    def __init__(self, folder: Path, pool: list[tuple[Any, Any]]) -> None:
        self.folder = folder
        self.pool = pool
        self.experiences = [experience(number, pool) for number in range(len(pool))]

    def fresh(self, name: str) -> Path:
        """A path in the folder, with nothing of an earlier run there."""
        for file in self.folder.glob(f"{name}*"):
            file.unlink()
        return self.folder / name

    def batches(self, rows: int, batch: int) -> list[list[Transition]]:
        """Batches of experiences, from the start again when there are no more."""
        made = [self.experiences[n % len(self.pool) :][:batch] for n in range(0, rows, batch)]
        return [part for part in made if len(part) == batch]

    def relive(
        self, rows: int, batch: int, *, in_flight: int = 1, text: bool = False, durability: Any = "process"
    ) -> float:
        """Rows a second through the store's own `append_soon`, a dictionary being there already."""
        batches = self.batches(rows, batch)
        path = self.fresh("relive.db")
        with SqliteStorage(path, text_index=text, durability=durability) as store:
            give_dictionary(store, self.experiences[:3000])
            waiting: deque[Any] = deque()
            start = time.perf_counter()
            for part in batches:
                waiting.append(store.append_soon(part))
                while len(waiting) >= in_flight:
                    waiting.popleft().result()
            while waiting:
                waiting.popleft().result()
            return len(batches) * batch / (time.perf_counter() - start)

    def baseline(self, rows: int, batch: int) -> float:
        """Rows a second of the standard library's SQLite with JSON text and the same indexes."""
        batches = self.batches(rows, batch)
        connection = sqlite3.connect(self.fresh("baseline.db"), isolation_level=None)
        for statement in (
            "PRAGMA journal_mode=wal",
            "PRAGMA synchronous=normal",
            """CREATE TABLE experience(id INTEGER PRIMARY KEY, agent TEXT, episode TEXT, step INT, outcome TEXT,
                reward REAL, created REAL, policy TEXT, policy_version INT)""",
            "CREATE INDEX a ON experience(agent, created)",
            "CREATE INDEX b ON experience(episode, step)",
            "CREATE INDEX c ON experience(outcome, reward)",
            "CREATE TABLE payload(id INTEGER PRIMARY KEY, body TEXT)",
        ):
            connection.execute(statement)
        number = 0
        start = time.perf_counter()
        for part in batches:
            first = number + 1
            number += len(part)
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO experience VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (first + k, t.agent, t.episode_id, t.step, t.outcome, t.reward, t.created_at.timestamp(), t.policy,
                     t.policy_version) for k, t in enumerate(part)
                ],
            )  # fmt: skip
            connection.executemany(
                "INSERT INTO payload VALUES (?, ?)",
                [(first + k, json.dumps({"state": t.state, "action": t.action})) for k, t in enumerate(part)],
            )
            connection.execute("COMMIT")
        rate = number / (time.perf_counter() - start)
        connection.close()
        return rate

    def plain_file(self, rows: int, batch: int) -> float:
        """Rows a second of a file that encodes the same rows and is synced after each batch: the limit."""
        batches = self.batches(rows, batch)
        compress = Compressor(
            (
                16,
                dictionaries.train([record.encode(t, with_text=False).payload for t in self.experiences[:3000]]) or b"",
            )
        )
        with self.fresh("plain.log").open("wb", buffering=0) as file:
            start = time.perf_counter()
            for part in batches:
                encoded = [record.encode(t, with_text=False) for t in part]
                rows_ = [msgspec.json.encode(r.columns) + compress(r.payload)[1] for r in encoded]
                file.write(b"".join(rows_))
                os.fdatasync(file.fileno())
            return len(batches) * batch / (time.perf_counter() - start)

    def syncs(self, count: int) -> float:
        """Seconds of one fsync of the disk, after 4 KB appended."""
        block = os.urandom(4096)
        with self.fresh("sync.log").open("wb", buffering=0) as file:
            times = []
            for _ in range(count):
                start = time.perf_counter()
                file.write(block)
                os.fdatasync(file.fileno())
                times.append(time.perf_counter() - start)
        return statistics.median(times)


def give_dictionary(store: SqliteStorage, experiences: list[Transition]) -> None:
    """A dictionary as the store trains one by itself after 3,000 rows."""
    body = dictionaries.train([record.encode(t, with_text=False).payload for t in experiences])
    if body is not None:
        store.write(lambda transaction: dictionaries.add(transaction.connection, body, 0)).result()


def ratios(rounds: int, *runs: Callable[[], float]) -> list[list[float]]:
    """What each run measured, round by round, in turns."""
    return [[run() for run in runs] for _ in range(rounds)]


def medians(measured: list[list[float]]) -> list[float]:
    """The median of each run."""
    return [statistics.median(column) for column in zip(*measured, strict=True)]


def ratio(measured: list[list[float]], above: int, below: int) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(row[above] / row[below] for row in measured)


def appending(bench: Bench, rows: int, rounds: int, figures: dict[str, float], bars: dict[str, Bar]) -> None:
    """Appends under ``process``."""
    measured = ratios(
        rounds,
        lambda: bench.baseline(rows, 32),
        lambda: bench.relive(rows, 32),
        lambda: bench.relive(rows, 32, in_flight=8),
        lambda: bench.relive(rows, 32, text=True),
        lambda: bench.relive(rows, 32, in_flight=8, text=True),
        lambda: bench.relive(rows // 8, 1),
        lambda: bench.relive(rows, 256),
    )
    names = ("stdlib JSON, 32", "relive, 32", "relive, 32, 8 in flight", "relive, 32, text", "relive, 32, 8, text",
             "relive, 1", "relive, 256")  # fmt: skip
    figures |= {f"{name} (rows/s)": value for name, value in zip(names, medians(measured), strict=True)}
    bars |= {
        "8 in flight / stdlib JSON": Bar(ratio(measured, 2, 0), 1.5),
        "awaited / stdlib JSON": Bar(ratio(measured, 1, 0), 1.05),
        "8 in flight, with text index / without": Bar(ratio(measured, 4, 2), 0.5),
        "awaited, with text index / without": Bar(ratio(measured, 3, 1), 0.5),
    }


def power(bench: Bench, rows: int, rounds: int, figures: dict[str, float], bars: dict[str, Bar]) -> None:
    """Appends under ``power``; a batch is encoded while the one before it is synced, which the plain file does not."""
    singles = 300
    measured = ratios(
        rounds,
        lambda: bench.plain_file(rows, 256),
        lambda: bench.relive(rows, 256, in_flight=2, durability="power"),
        lambda: bench.syncs(singles),
        lambda: 1 / bench.relive(singles, 1, durability="power"),
    )
    limit, batch, sync, single = medians(measured)
    figures |= {
        "plain file with fsync, 256 (rows/s)": limit,
        "relive power, 256, 2 in flight (rows/s)": batch,
        "one fsync (ms)": sync * 1e3,
        "one power append (ms)": single * 1e3,
    }
    bars["power, 256, 2 in flight / plain file"] = Bar(ratio(measured, 1, 0), 0.35)
    if sync >= 2e-3:
        bars["single power append / fsync rate"] = Bar(ratio(measured, 2, 3), 0.8)
    else:
        above = statistics.median(row[3] - row[2] for row in measured)
        bars["single power append above an fsync (ms)"] = Bar(above * 1e3, 0.4, at_most=True)


def reading(bench: Bench, rows: int, figures: dict[str, float], bars: dict[str, Bar]) -> None:
    """Random reads, and size on disk, of a full store without the text index."""
    path = bench.fresh("full.db")
    rng = np.random.default_rng(0)
    raw = 0
    with SqliteStorage(path, text_index=False) as store:
        for first in range(0, rows, 1024):
            part = [experience(n, bench.pool) for n in range(first, min(rows, first + 1024))]
            store.append_soon(part)
            raw += sum(len(msgspec.json.encode(t.to_dict())) for t in part) if first < 8192 else 0
        store.flush()
    with SqliteStorage(path) as store:
        times = []
        for _ in range(60):
            ids = rng.integers(1, rows + 1, 256)
            found = None  # freeing the records of the last read is no part of this one
            start = time.perf_counter()
            found = store.read(ids)
            middle = time.perf_counter()
            assert all(one is not None and one.transition.state for one in found)
            times.append((middle - start, time.perf_counter() - start))
    undecoded, decoded = (statistics.median(column) * 1e3 for column in zip(*times[10:], strict=True))
    share = path.stat().st_size / (raw / min(rows, 8192) * rows)
    figures |= {"read 256, undecoded (ms)": undecoded, "read 256, decoded (ms)": decoded, "size / raw JSON": share}
    bars |= {
        "read 256, undecoded (ms)": Bar(undecoded, 1.5, at_most=True),
        "read 256, decoded (ms)": Bar(decoded, 8.0, at_most=True),
        "size / raw JSON": Bar(share, 0.4, at_most=True),
    }


def evicting(bench: Bench, rows: int, figures: dict[str, float]) -> None:
    """Additions to a memory that is full: each removes as many of the oldest."""
    path = bench.fresh("bounded.db")
    with relive.open(path, capacity=rows // 2, text_index=False) as memory:
        give_dictionary(memory.storage, bench.experiences[:3000])
        batches = bench.batches(rows, 32)
        for part in batches[: len(batches) // 2 + 1]:
            memory.add_batch(part)
        start = time.perf_counter()
        for part in batches[len(batches) // 2 + 1 :]:
            memory.add_batch(part)
        figures["memory at capacity, 32 (rows/s)"] = (
            32 * (len(batches) - len(batches) // 2 - 1) / (time.perf_counter() - start)
        )


def opening(bench: Bench, rows: int, figures: dict[str, float], bars: dict[str, Bar]) -> None:
    """From opening a large memory to its first sample."""
    path = bench.fresh("large.db")
    row = record.encode(Transition(state="x", action="y", episode_id="e"), with_text=False)
    with SqliteStorage(path) as store:
        for first in range(0, rows, 2000):
            part = [row] * min(2000, rows - first)
            store.write(lambda transaction, part=part: transaction.append(part), 2000)
    with relive.open(path, capacity=rows) as memory:
        memory.update_priorities(np.arange(1, rows + 1, 3), np.random.default_rng(0).random(len(range(1, rows + 1, 3))))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        with relive.open(path) as memory:
            assert len(memory.sample(32)) == 32
            times.append(time.perf_counter() - start)
    figures["open to the first sample (s)"] = statistics.median(times)
    bars["open to the first sample (s)"] = Bar(statistics.median(times), 1.5, at_most=True)


def main() -> None:
    """Runs everything and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--rows", type=int, help="rows of the full store (200,000; quick: 20,000)")
    parser.add_argument("--folder", type=Path, help="where to write (a temporary folder)")
    options = parser.parse_args()
    rows = options.rows or (20_000 if options.quick else 200_000)
    rounds = 3 if options.quick else 5
    per_run = 6_000 if options.quick else 20_000
    folder = Path(tempfile.mkdtemp(prefix="relive-bench-", dir=options.folder))
    figures: dict[str, float] = {"rows": rows}
    bars: dict[str, Bar] = {}
    try:
        bench = Bench(folder, payloads(6_000 if options.quick else DISTINCT))
        appending(bench, per_run, rounds, figures, bars)
        power(bench, per_run, rounds, figures, bars)
        reading(bench, rows, figures, bars)
        evicting(bench, per_run, figures)
        opening(bench, 200_000 if options.quick else 2_000_000, figures, bars)
    finally:
        shutil.rmtree(folder)
    report(figures, bars)


if __name__ == "__main__":
    main()
