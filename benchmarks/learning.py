"""Does an agent get better from its own experience, and by what? A real model on real messages; simulated agents.

    python benchmarks/learning.py [--quick] [--simulated]

**The real model** (SmolLM2-135M on this machine, 16 intents of Banking77). Each seed is a stream of messages, told
only whether the answer was right; then every arm answers the same held-out test messages, those with lessons every
second one. Differences are means over pairs (one message, two arms) with the 95 % paired bootstrap over messages, each
with the mean of its seeds, for the answers to one message are alike. Arms: no memory; random past successes; recall;
lessons that reflection by contrast made of the stream, all approved; both; recall from a stream with shuffled rewards;
lessons made from all labels (oracle); the same with the intents mixed up (poisoned); a word-count bandit without an
LLM. A further stream swaps half of the labels midway.

**Simulated agents** (`_learning_simulated.py`): eight an arm, each with a rule that stays and with one that flips
midway, and noisy rewards, as regret and as successes per million tokens. The arms are those above without shuffled
rewards, and random lessons in the place of random successes. Then lessons of experiences chosen by priority against
uniformly chosen ones, and the tabular task of the prioritized-replay paper.

In full an hour on two cores; `--quick`: one seed of 120 messages and as many held out. `--simulated` leaves the real
model out, and its bars with it.
"""

import argparse
import math
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

import _learning_banking as banking
import _learning_simulated as simulated
import relive
from _report import Bar, bootstrap, report
from relive.envs import Banking77
from relive.llm import LocalServer, Upstream

SEEDS, MESSAGES, HELD_OUT = 3, 300, 320
QUICK_SEEDS, QUICK_MESSAGES, QUICK_HELD_OUT = 1, 120, 112
AROUND = 4  # a quarter of the stream before the flip is compared with the last quarter
LEAST = {"no_memory": 0.25, "random_successes": 0.08}
LONGEST = 3600.0


def real(seeds: int, count: int, kept: int, threads: int | None = None) -> tuple[dict[str, float], dict[str, Bar]]:
    """Figures and bars of the real model."""
    started = time.monotonic()
    held = banking.held_out(kept)
    arms: dict[str, list[float]] = defaultdict(list)
    tokens: dict[str, list[float]] = defaultdict(list)
    before, after = [], []

    def note(arm: str, found: banking.Answers) -> None:
        arms[arm] += found.rewards
        tokens[arm].append(found.tokens)
        print(f"  {arm:<18} {np.nanmean(found.rewards):.3f}  {found.tokens:>5.0f} tokens a call", flush=True)

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalServer(threads=threads) as server,
        Upstream(server.base_url, server.model) as model,
    ):
        alone = banking.answers(model, held)
        for seed in range(seeds):
            print(f"seed {seed}")
            path = Path(folder)
            stream = banking.Stream(model, path / f"{seed}.db", Banking77(count=count, seed=seed), count, seed)
            note("no_memory", alone)
            note("random_successes", stream.answered(held, stream.random()))
            note("recall", stream.answered(held, stream.recall()))
            book = stream.lessons()
            note("lessons", stream.answered(held, None, book, every=2))
            note("both", stream.answered(held, stream.recall(), book, every=2))
            note("no_llm", banking.bandit(held, count, seed))
            env = Banking77(count=count, seed=seed, shuffled_rewards=True)
            shuffled = banking.Stream(model, path / f"{seed}-shuffled.db", env, count, seed)
            note("shuffled_rewards", shuffled.answered(held, shuffled.recall()))
            if seed == 0:
                for arm, lessons in (("oracle", banking.oracle), ("poisoned", banking.poisoned)):
                    with relive.open(path / f"{arm}.db") as memory:
                        note(arm, banking.answers(model, held, memory=memory, book=lessons(memory), every=2))
            flip = banking.Stream(model, path / f"{seed}-flip.db", banking.flipping(count, seed), count, seed)
            part = count // AROUND
            before += flip.rewards[count // 2 - part : count // 2]
            after += flip.rewards[-part:]
            print(f"  flip: {np.mean(before):.3f} before, {np.mean(after):.3f} at the end (seeds so far)", flush=True)
    seconds = time.monotonic() - started

    figures = {f"accuracy_{arm}": float(np.nanmean(rewards)) for arm, rewards in arms.items()}
    figures |= {f"tokens_{arm}": float(np.mean(found)) for arm, found in tokens.items() if any(found)}
    figures |= {"flip_before": float(np.mean(before)), "flip_after": float(np.mean(after)), "seconds": seconds}
    bars = {}
    for arm, less in (*(("recall", arm) for arm in LEAST), ("both", "recall"), ("shuffled_rewards", "no_memory")):
        pairs = np.subtract(arms[arm], arms[less]).reshape(seeds, -1).mean(axis=0)
        differences = pairs[~np.isnan(pairs)].tolist()
        low, high = bootstrap(differences)
        name = f"{arm}_minus_{less}"
        figures |= {name: float(np.mean(differences)), f"{name}_low": low, f"{name}_high": high}
        if arm == "recall":
            bars[name] = Bar(float(np.mean(differences)), LEAST[less])
            bars[f"{name}_low"] = Bar(low, math.ulp(0.0))  # above 0
        if arm == "shuffled_rewards":
            bars[f"{name}_low"] = Bar(low, 0.0, at_most=True)
    bars["flip_after_over_before"] = Bar(figures["flip_after"] / max(figures["flip_before"], 1e-9), 0.8)
    bars["seconds"] = Bar(seconds, LONGEST, at_most=True)
    return figures, bars


def main() -> None:
    """Runs both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, fewer messages and agents")
    parser.add_argument("--simulated", action="store_true", help="only the simulated agents")
    parser.add_argument("--threads", type=int, help="of the model's server: 1 where other work runs beside")
    arguments = parser.parse_args()
    figures, bars = simulated.measure(quick=arguments.quick)
    if not arguments.simulated:
        sizes = (QUICK_SEEDS, QUICK_MESSAGES, QUICK_HELD_OUT) if arguments.quick else (SEEDS, MESSAGES, HELD_OUT)
        found, held = real(*sizes, threads=arguments.threads)
        figures, bars = figures | found, bars | held
    report(figures, bars)


if __name__ == "__main__":
    main()
