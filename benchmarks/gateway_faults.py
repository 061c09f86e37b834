"""That the gateway loses nothing it could keep, whatever breaks: kills, a locked store, a full disk, no disk at all.

    python benchmarks/gateway_faults.py [--quick] [--only PART ...]

kills   The gateway is killed (SIGKILL) 30 times under load. Each call whose answer ended and was not marked pending is
        recorded once, what was in flight is there as interrupted, and nothing twice.
locked  Another process holds the store's lock for 80 s under load, the spool can be written.
full    The disk of the store is full for 80 s under load (a small tmpfs, which only root may mount), the spool is on
        another disk.
none    No file at all can be written for some seconds: what is lost is counted and shown.

In each of the last three the agents' calls go on as fast as before, and memory stays where it was.
"""

import argparse
import asyncio
import collections
import contextlib
import itertools
import json
import os
import random
import resource
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import apsw

import _gateway_servers as servers
from _gateway_servers import Target
from _report import Bar, report
from relive.storage import SqliteStorage

CLIENTS = 8
FORMS = ("whole", "stream")
Figures = dict[str, float]
Bars = dict[str, Bar]


class Memory(threading.Thread):
    """Watches how much memory a process has, in MB."""

    def __init__(self, target: Target) -> None:
        super().__init__(daemon=True)
        self.most = 0.0
        self._target = target
        self._end = threading.Event()

    def run(self) -> None:
        """Looks twice a second."""
        while not self._end.wait(0.5):
            self.most = max(self.most, self._target.memory())

    def stop(self) -> float:
        """The most that it was."""
        self._end.set()
        self.join()
        return self.most


def metric(target: Target, name: str) -> float:
    """One of the gateway's own counts."""
    request = urllib.request.Request(  # noqa: S310 - an address of our own
        target.url.removesuffix(servers.CHAT) + "/metrics", headers={"authorization": f"Bearer {target.key}"}
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        for line in answer.read().decode().splitlines():
            if line.startswith(f"relive_{name} "):
                return float(line.split()[1])
    raise AssertionError(name)


def health(target: Target) -> tuple[int, str]:
    """The status and the body of the gateway's health."""
    try:
        with urllib.request.urlopen(target.url.removesuffix(servers.CHAT) + "/healthz") as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until_well(target: Target, seconds: float = 120.0) -> None:
    """Returns once everything that waited is stored."""
    end = time.monotonic() + seconds
    while health(target)[0] != 200:
        assert time.monotonic() < end, "What waits is not stored."
        time.sleep(0.2)


async def ask(url: str, key: str, prefix: str, seen: dict[str, str]) -> None:
    """Calls until the gateway is gone; notes which questions were asked, and how the answers ended."""

    async def one(number: int) -> None:
        headers = {"authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers) as client:
            for count in itertools.count():
                text = f"{prefix}-{number}-{count}"
                seen[text] = "asked"
                messages = [{"role": "user", "content": text}]
                body = {"model": "bench-1", "messages": messages, "stream": count % 2 == 1}
                try:
                    async with client.post(url, json=body) as answer:
                        got = await answer.read()
                        assert answer.status == 200, got
                        assert b"[DONE]" in got or json.loads(got)["choices"]
                        seen[text] = answer.headers.get("x-relive-recorded", "ended")
                except aiohttp.ClientError:
                    return

    await asyncio.gather(*(one(number) for number in range(CLIENTS)))


def kills(folder: Path, base_url: str, quick: bool, figures: Figures, bars: Bars) -> None:
    """Kills it again and again."""
    seen: dict[str, str] = {}
    rng = random.Random(0)
    rounds = 5 if quick else 30
    for round_ in range(rounds):
        with servers.relive(folder, base_url) as relive:
            loading = threading.Thread(target=asyncio.run, args=(ask(relive.url, relive.key, str(round_), seen),))
            loading.start()
            time.sleep(0.4 + rng.random() * 0.6)
            assert relive.process is not None
            relive.process.kill()
            loading.join()
            relive.process.wait()
    with servers.relive(folder, base_url):
        pass
    recorded: collections.Counter[str] = collections.Counter()
    interrupted = set()
    with SqliteStorage(folder / "relive.db", readonly=True) as storage:
        for row in storage.query(limit=10**9):
            text = row.transition.state["messages"][0]["content"]
            recorded[text] += 1
            if row.transition.info["status"] == "interrupted":
                interrupted.add(text)
    ended = [text for text, how in seen.items() if how == "ended"]
    asked = {text for text, how in seen.items() if how == "asked"}
    figures |= {"kills": rounds, "calls whose answer ended": len(ended), "calls in flight, recorded": len(interrupted)}
    bars |= {
        "killed: ended calls not recorded": Bar(sum(not recorded[text] for text in ended), 0, at_most=True),
        "killed: calls recorded twice": Bar(sum(count > 1 for count in recorded.values()), 0, at_most=True),
        "killed: ended calls that count as interrupted": Bar(len(interrupted - asked), 0, at_most=True),
        "killed: calls found interrupted": Bar(len(interrupted), rounds),
    }


def broken(
    name: str,
    relive: Target,
    store: Path,
    fault: Callable[[], "contextlib.AbstractContextManager[None]"],
    seconds: float,
    figures: Figures,
    bars: Bars,
) -> None:
    """Measures before, during and after a fault that leaves the spool to write to."""
    before = [relive.load(CLIENTS, 6, form) for form in FORMS]
    level = relive.memory()
    counted = list(before)
    with fault():
        end = time.monotonic() + 60
        stuck = False
        while not stuck and time.monotonic() < end:  # the first answers wait; a full disk has room inside its files
            counted += [relive.load(CLIENTS, 2, "whole")]
            stuck = bool(metric(relive, "store_stuck"))
        memory = Memory(relive)
        memory.start()
        during = [relive.load(CLIENTS, seconds / len(FORMS), form) for form in FORMS]
        grown = memory.stop() - level
        status, said = health(relive)
    until_well(relive)
    after = [relive.load(CLIENTS, 6, form) for form in FORMS]
    counted += [*during, *after]
    lost = metric(relive, "records_lost_total")
    for form, one, middle, two in zip(FORMS, before, during, after, strict=True):
        usual = (one["p50"] + two["p50"]) / 2
        figures |= {f"{name}, {form}: p50 around (ms)": usual, f"{name}, {form}: p50 during (ms)": middle["p50"]}
        bars[f"{name}, {form}: p50 during over p50 around"] = Bar(middle["p50"] / usual, 1.1, at_most=True)
    answered = sum(int(load["answered"]) for load in counted)
    unmarked = sum(load["answered"] - load["pending"] for load in during)
    with SqliteStorage(store, readonly=True) as storage:
        recorded = len(storage)
    figures |= {f"{name}: seconds": seconds, f"{name}: calls during": sum(load["answered"] for load in during)}
    bars |= {
        f"{name}: calls failed": Bar(sum(load["failed"] for load in counted), 0, at_most=True),
        f"{name}: answers not marked pending": Bar(unmarked, 0, at_most=True),
        f"{name}: memory above its level (MB)": Bar(grown, 50, at_most=True),
        f"{name}: records lost": Bar(max(lost, answered - recorded), 0, at_most=True),
        f"{name}: said by the gateway's health": Bar(int(status == 503 and "store" in said), 1),
    }


@contextlib.contextmanager
def locked(store: Path) -> Iterator[None]:
    """Holds the store's lock."""
    connection = apsw.Connection(str(store))
    connection.set_busy_timeout(10_000)
    connection.execute("BEGIN IMMEDIATE").fetchall()
    try:
        yield
    finally:
        connection.execute("ROLLBACK").fetchall()
        connection.close()


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Leaves no byte free on a small disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 4_096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    try:
        yield
    finally:
        ballast.unlink()


def no_disk(folder: Path, base_url: str, quick: bool, figures: Figures, bars: Bars) -> None:
    """No file can be written: neither store, spool, ledger nor journal."""
    with servers.relive(folder, base_url) as relive:
        assert relive.process is not None
        before = relive.load(CLIENTS, 5, "whole")
        level = relive.memory()
        memory = Memory(relive)
        memory.start()
        resource.prlimit(relive.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        during = relive.load(CLIENTS, 10 if quick else 80, "whole")
        grown = memory.stop() - level
        said = health(relive)
        resource.prlimit(relive.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        end = time.monotonic() + 60
        while metric(relive, "records_waiting") and time.monotonic() < end:
            time.sleep(0.2)
        after = relive.load(CLIENTS, 3, "whole")
        lost = metric(relive, "records_lost_total")
    with SqliteStorage(folder / "relive.db", readonly=True) as storage:
        recorded = len(storage)
    answered = before["answered"] + during["answered"] + after["answered"]
    figures |= {"no disk: calls during": during["answered"], "no disk: records lost": lost}
    bars |= {
        "no disk: calls failed": Bar(before["failed"] + during["failed"] + after["failed"], 0, at_most=True),
        "no disk: p50 during over p50 around": Bar(
            2 * during["p50"] / (before["p50"] + after["p50"]), 1.1, at_most=True
        ),
        "no disk: memory above its level (MB)": Bar(grown, 50, at_most=True),
        "no disk: records lost and not counted": Bar(max(0, answered - recorded - lost), 0, at_most=True),
        "no disk: said by the gateway's health": Bar(
            int(said[0] == 503 and (not lost or "records are lost" in said[1])), 1
        ),
        "no disk: recorded again afterwards": Bar(int(after["pending"] == 0), 1),
    }


def main() -> None:
    """Runs the parts and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 kills, 10 seconds for each fault")
    parser.add_argument("--only", nargs="+", choices=["kills", "locked", "full", "none"], metavar="PART")
    options = parser.parse_args()
    parts = options.only or ["kills", "locked", "full", "none"]
    seconds = 10.0 if options.quick else 80.0
    figures: Figures = {}
    bars: Bars = {}
    with tempfile.TemporaryDirectory(prefix="relive-faults-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        direct = stack.enter_context(servers.upstream(folder))
        base_url = direct.url.removesuffix("/chat/completions")
        if "kills" in parts:
            kills(folder / "kills", base_url, options.quick, figures, bars)
        if "locked" in parts:
            with servers.relive(folder / "locked", base_url) as relive:
                store = folder / "locked" / "relive.db"
                broken("locked", relive, store, lambda: locked(store), seconds, figures, bars)
        if "full" in parts and os.geteuid() == 0:
            disk = folder / "disk"
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(disk)], check=True)  # noqa: S607
            stack.callback(subprocess.run, ["umount", str(disk)], check=True)
            with servers.relive(folder / "full", base_url, disk / "relive.db") as relive:
                broken("full", relive, disk / "relive.db", lambda: full(disk), seconds, figures, bars)
        elif "full" in parts:
            print("Only root may mount a small disk: the part with a full one is left out.")
        if "none" in parts:
            no_disk(folder / "none", base_url, options.quick, figures, bars)
    report(figures, bars)


if __name__ == "__main__":
    main()
