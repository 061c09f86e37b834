"""Twenty planted lessons at once: are the intervals right, and are the right lessons retired?

Five lessons help by 20 points, ten do nothing, five do harm by 20 points, for a simulated agent that succeeds in half
of its calls without them. Each lesson is tested by random holdout as in `relive.playbook.uplift`; nobody tells the book
which is which. In the first setting each call is one of ten situations with two lessons, paired anew in each run; in
the second all twenty lessons are eligible at every call and their effects add up, cut at 0 and 1 (so that what a lesson
is worth depends on the others, and changes when they go).

Printed for each: the share of intervals that cover the truth (the lesson's mean effect over its eligible calls so far)
at the end, and at *every* look from the 30th call on; and which lessons were retired by their 2,000th eligible call.
Then how many eligible calls a lesson of 5 points takes until it is proved.

Then a book of 100,000 lessons: how long a search in it takes, whether a prompt's block ever exceeds its budget, and
what importing its first lessons a second time adds.

Last, reflection by contrast on the 200 airline trials of tau-bench (50 tasks): how long it takes, and which share of
the patterns of tool use found on 30 tasks keep their direction on the 20 others, over 21 ways to split the tasks.

Run it with ``python benchmarks/playbook.py`` (500 runs, about a minute) or ``--quick`` (60 runs, 20,000 lessons).
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relive.playbook import shelf, uplift
from relive.playbook.book import Playbook
from relive.playbook.injection import Injection
from relive.playbook.lesson import Add, LessonText
from relive.playbook.recall import estimate_tokens
from relive.reflect.contrast import Settings, contrast, episodes_of, lift
from relive.storage import SqliteStorage
from relive.storage.importer import import_file
from relive.storage.transaction import Transaction

sys.path.insert(0, str(Path(__file__).parent))
from _report import Bar, report

EFFECTS = np.repeat([0.20, 0.0, -0.20], [5, 10, 5])
CALLS = 2_000
TAU = Path(__file__).parents[1] / "tests" / "data" / "tau_bench" / "gpt-4o-airline.json.zst"
HARMFUL, USELESS = uplift.VERDICTS.index("harmful"), uplift.VERDICTS.index("useless")


class Runs(NamedTuple):
    """What came of simulated books; ``[runs, lessons]`` each.

    Attributes:
        covered: The last interval covers the truth.
        always: Every interval from the 30th call on does.
        retired: The lesson was retired.
        proved_at: Eligible calls until it was proved; 0: it was not.
    """

    covered: npt.NDArray[np.bool_]
    always: npt.NDArray[np.bool_]
    retired: npt.NDArray[np.bool_]
    proved_at: npt.NDArray[np.float64]


def simulate(
    effects: npt.NDArray[np.float64],
    *,
    runs: int,
    calls: int,
    together: bool,
    seed: int,
    rules: uplift.Rules | None = None,
) -> Runs:
    """Plays books from their first call to each lesson's `calls`-th eligible one.

    Args:
        effects: ``[lessons]``, what each adds to the chance of success.
        runs: How many books.
        calls: Eligible calls a lesson.
        together: Whether all lessons are eligible at every call; else two are, paired anew in each run.
        seed: Seed of everything.
        rules: When lessons are settled and retired.
    """
    rng = np.random.default_rng(seed)
    rules = rules or uplift.Rules()
    shape = (runs, len(effects))
    if together:
        effect, group = np.broadcast_to(effects, shape), 1
    else:  # the calls of different situations do not meet, so all situations are played at the same time
        effect, group = rng.permuted(np.broadcast_to(effects, shape), axis=1), len(effects) // 2
    zeros = np.zeros(shape)
    evidence = uplift.Evidence(zeros, zeros, zeros, zeros, zeros, zeros)
    proved, retired = np.zeros(shape, bool), np.zeros(shape, bool)
    always = np.ones(shape, bool)
    truth, proved_at = np.zeros(shape), np.zeros(shape)
    for _ in range(calls):
        propensity = np.where(proved, rules.settled, rules.new)
        shown = (rng.random(shape) < propensity) & ~retired
        added = np.where(shown, effect, 0.0)
        whole = 0.5 + added.reshape(runs, group, -1).sum(axis=2, keepdims=True)
        without = (whole - added.reshape(runs, group, -1)).reshape(shape)
        chance = np.clip(whole, 0.0, 1.0)
        success = np.broadcast_to(rng.random(chance.shape) < chance, (runs, group, shape[1] // group)).reshape(shape)
        evidence = uplift.add(evidence, shown, propensity, success.astype(float), ~retired)
        true_effect = np.clip(without + effect, 0.0, 1.0) - np.clip(without, 0.0, 1.0)
        truth += np.where(retired, 0.0, true_effect)
        found = uplift.interval(evidence, alpha=rules.alpha)
        mean = truth / np.maximum(evidence.calls, 1)
        covered = (found.low <= mean) & (mean <= found.high)
        always &= covered | (np.asarray(evidence.calls) < rules.minimum)
        verdict = uplift.judge(evidence, rules, proved, found)
        newly = (verdict == 1) & ~proved
        proved_at = np.where(newly, evidence.calls, proved_at)
        proved |= newly
        retired |= (verdict == HARMFUL) | (verdict == USELESS)
    order = np.argsort(-effect, axis=1, kind="stable")  # back to useful, useless, harmful
    return Runs(*(np.take_along_axis(np.asarray(a), order, axis=1) for a in (covered, always, retired, proved_at)))


class Searched(NamedTuple):
    """What came of a large book.

    Attributes:
        times: Milliseconds of each search.
        fullest: The largest share of its token budget that a prompt's block took.
        added_again: Lessons that importing the same ones a second time added.
    """

    times: npt.NDArray[np.float64]
    fullest: float
    added_again: int


def large_book(lessons: int, queries: int, seed: int) -> Searched:
    """Searches a book of so many lessons, fills prompts from it, and imports some of its lessons again.

    Lessons and situations are made of words whose frequencies fall as their rank rises (Zipf), as in any language.
    """
    rng = np.random.default_rng(seed)
    chance = np.cumsum(1.0 / np.arange(1, 20_001))

    def sentence(length: int) -> str:
        return " ".join(f"word{n}" for n in np.searchsorted(chance, rng.random(length) * chance[-1]))

    times, fullest = np.zeros(queries), 0.0
    with tempfile.TemporaryDirectory() as folder, SqliteStorage(Path(folder) / "book.db", text_index=False) as store:
        book = Playbook(store)
        store.write(lambda transaction: _fill(transaction, sentence, lessons)).result()
        for number in range(queries):
            text = sentence(40)
            began = time.perf_counter()
            found = book.search(text, agent="support", limit=20, general=True)
            times[number] = 1000 * (time.perf_counter() - began)
            assert found
            budget = int(rng.integers(40, 800))
            injection = Injection(book, token_budget=budget, max_distance=1.0, held_out=0.0)
            plan = injection.plan([{"role": "user", "content": text}], agent="support", episode=str(number))
            fullest = max(fullest, estimate_tokens(plan.block) / budget if plan.block else 0.0)
        records = [record for record, _ in zip(book.export(), range(200), strict=False)]
        book.take_in(records, source="once")
        before = len(book)
        book.take_in(records, source="once")
        return Searched(times, fullest, len(book) - before)


def _fill(transaction: Transaction, sentence: Callable[[int], str], count: int) -> None:
    """Writes active lessons as the book would, without looking for near-duplicates among words drawn at random."""
    for number in range(count):
        text = LessonText(when=sentence(8), do=f"{sentence(12)} {number}")
        shelf.insert(transaction.connection, "default", Add(text=text, origin="person"), "active", "", "benchmark")


def tool_use(splits: int) -> tuple[float, int, int]:
    """Seconds of the slowest reflection on tau-bench's trials; patterns that keep their direction, and all of them."""
    with tempfile.TemporaryDirectory() as folder, SqliteStorage(Path(folder) / "tau.db", text_index=False) as store:
        import_file(TAU, store)
        began = time.perf_counter()
        episodes = episodes_of(store)
        reading = time.perf_counter() - began
    tasks = sorted({one.group or "" for one in episodes}, key=lambda name: int(name.split("-")[2]))
    orders = [np.arange(50), *(np.random.default_rng(seed).permutation(50) for seed in range(splits - 1))]
    slowest, kept, total = 0.0, 0, 0
    for order in orders:
        chosen = {tasks[at] for at in order[:30]}
        began = time.perf_counter()
        found = contrast([one for one in episodes if one.group in chosen], Settings(held_back=0.0, most=500))
        slowest = max(slowest, reading + time.perf_counter() - began)
        others = [one for one in episodes if one.group not in chosen]
        for one in found.patterns:
            there = lift(others, one.feature) if one.feature.kind in ("tool", "order") else None
            if there is not None:
                kept, total = kept + ((there > 1) == one.helps), total + 1
    return slowest, kept, total


def main() -> None:
    """Prints figures and bars."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="60 runs instead of 500")
    arguments = parser.parse_args()
    runs = 60 if arguments.quick else 500
    figures: dict[str, float] = {}
    bars: dict[str, Bar] = {}
    for name, together in (("two at a time", False), ("all twenty at once", True)):
        found = simulate(EFFECTS, runs=runs, calls=CALLS, together=together, seed=1)
        useful, useless, harmful = found.retired[:, :5], found.retired[:, 5:15], found.retired[:, 15:]
        bars |= {
            f"{name}: last interval covers": Bar(float(found.covered.mean()), 0.93),
            f"{name}: every interval covers": Bar(float(found.always.mean()), 0.93),
            f"{name}: harmful retired": Bar(float(harmful.mean()), 0.90),
            f"{name}: useless retired": Bar(float(useless.mean()), 0.50),
            f"{name}: useful ever retired": Bar(float(useful.mean()), 0.05, at_most=True),
        }
        proved = found.proved_at[:, :5]
        figures[f"{name}: useful proved"] = float((proved > 0).mean())
        figures[f"{name}: median calls until proved"] = float(np.median(proved[proved > 0]))
        if not together:
            figures["20 points: calls until nine in ten are proved"] = float(np.quantile(proved, 0.9))
    patient = uplift.Rules(probation=10**9)
    five = simulate(np.full(2, 0.05), runs=runs // 2, calls=12_000, together=False, seed=2, rules=patient)
    proved_at = np.where(five.proved_at > 0, five.proved_at, np.inf)
    figures["5 points: median calls until proved"] = float(np.median(proved_at))
    figures["5 points: calls until nine in ten are proved"] = float(np.quantile(proved_at, 0.9))
    default = simulate(np.full(2, 0.05), runs=runs, calls=CALLS, together=False, seed=3)
    figures["5 points: retired by 2,000 calls all the same"] = float(default.retired.mean())
    book = large_book(20_000 if arguments.quick else 100_000, 100 if arguments.quick else 300, seed=4)
    figures["retrieval: median ms"] = float(np.median(book.times))
    bars["retrieval: p95 ms"] = Bar(float(np.quantile(book.times, 0.95)), 30.0, at_most=True)
    bars["injection: largest share of the budget"] = Bar(book.fullest, 1.0, at_most=True)
    bars["importing twice: lessons added"] = Bar(book.added_again, 0, at_most=True)
    seconds, kept, total = tool_use(splits=5 if arguments.quick else 21)
    figures["contrast: patterns of tool use"] = total
    bars["contrast: seconds"] = Bar(seconds, 10.0, at_most=True)
    bars["contrast: share that keeps its direction"] = Bar(kept / total, 0.8)
    report(figures, bars)


if __name__ == "__main__":
    main()
