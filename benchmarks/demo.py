"""Whether the demo's agent gets better from its own experience: `relive demo` over seeds, pooled.

    python benchmarks/demo.py [--quick] [--folder PATH]

Each seed is one whole demo with the small model of this machine. Over the last third of its stream, on the messages on
which the agent did not explore, the agent's answers are compared with those of three arms that answer the same ones:
the same model without a memory, the same model with random past successes, and a word-count bandit without an LLM. Each
difference is a mean over pairs (one message, two arms); its interval is the 95 % paired bootstrap over all pairs.

The prompt does not name the intents, for any arm: only the JSON schema of the answer does, which llama.cpp enforces and
does not show to the model. A prompt that lists them helps a model without a memory; what it reaches then is measured
too (`no_memory_intents_listed`). And the agent's own schema leaves out the intents that failed on messages like this
one, which the other arms' do not. What its memory is worth with no LLM at all is `copy_nearest`: the intent of the past
success most like the message, copied. Neither is a bar. `--quick` runs two seeds over fewer messages: less can be
learnt.
"""

import argparse
import math
import tempfile
from pathlib import Path

import numpy as np

import relive
from _report import Bar, bootstrap, report
from relive.demo import ARMS, Result, Settings, run
from relive.envs import Banking77
from relive.envs.banking import INTENTS
from relive.learner import Agent
from relive.llm import LocalServer, Upstream
from relive.storage.text import state_text

SEEDS, QUICK_SEEDS = range(5), range(2)
MESSAGES, QUICK_MESSAGES = 300, 120
BARS = {"no_memory": 0.30, "random_successes": 0.10, "no_llm": 0.08}
LONGEST = 300  # seconds a demo may take
LISTED = f"Route the customer's message to one of these intents: {', '.join(INTENTS)}."


def compared(result: Result) -> list[int]:
    """The messages on which the arms are compared."""
    return [answer.index for answer in result.answers if answer.arm == "no_memory"]


def listed(result: Result, model: Upstream) -> list[float]:
    """The rewards of the model without a memory when the prompt lists the intents, on the messages compared."""
    agent = Agent(model, recall=False, choice_key="intent", temperature=0, max_tokens=48)
    rewards = []
    for index in compared(result):
        settings = result.settings
        env = Banking77(count=settings.messages, seed=settings.seed, start=index, instruction=LISTED)
        messages, _ = env.reset()
        choice = agent.ask(messages, actions=INTENTS).action
        rewards.append(0.0 if choice is None else float(env.step(choice)[1] or 0.0))
    return rewards


def copied(result: Result, file: Path) -> list[float]:
    """The rewards of copying the agent's past success most like each message compared, out of what it knew then."""
    settings, wanted, rewards = result.settings, set(compared(result)), []
    with relive.open(result.file, readonly=True) as memory, relive.open(file) as then:
        for index, stored in enumerate(memory.query(agent="recall", limit=settings.messages)):
            past = stored.transition
            if index in wanted:
                found = then.search(state_text(past.state), outcome="success", limit=1)
                [nearest] = then.get([number for number, _ in found]) or [None]
                env = Banking77(count=settings.messages, seed=settings.seed, start=index)
                env.reset()
                rewards.append(0.0 if nearest is None else float(env.step(nearest.action)[1] or 0.0))
            then.add(past)
    return rewards


def main() -> None:
    """Runs the demos, pools them, compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds, fewer messages")
    parser.add_argument("--folder", type=Path, help="keep the demos' files here")
    arguments = parser.parse_args()
    seeds = QUICK_SEEDS if arguments.quick else SEEDS
    messages = QUICK_MESSAGES if arguments.quick else MESSAGES

    rewards: dict[str, list[float]] = {arm: [] for arm in (*ARMS, "no_memory_intents_listed", "copy_nearest")}
    seconds = []
    print(f"{'seed':>4}  " + "  ".join(f"{arm:>16}" for arm in ARMS) + f"  {'pairs':>5}  {'seconds':>7}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for seed in seeds:
            result = run(Settings(seed=seed, messages=messages, file=folder / f"demo-{seed}.db"))
            seconds.append(result.seconds)
            for arm in ARMS:
                rewards[arm] += result.compared(arm)
            shares = "  ".join(f"{np.mean(result.compared(arm)):>16.3f}" for arm in ARMS)
            print(f"{seed:>4}  {shares}  {len(result.compared('recall')):>5}  {result.seconds:>7.0f}", flush=True)
            with LocalServer() as server, Upstream(server.base_url, server.model) as model:
                rewards["no_memory_intents_listed"] += listed(result, model)
            rewards["copy_nearest"] += copied(result, Path(temporary) / f"copied-{seed}.db")
    print()

    figures = {f"accuracy_{arm}": float(np.mean(values)) for arm, values in rewards.items()}
    figures |= {"pairs": float(len(rewards["recall"])), "seconds_longest": max(seconds)}
    bars = {}
    for arm, bar in BARS.items():
        differences = np.array(rewards["recall"]) - np.array(rewards[arm])
        low, high = bootstrap(differences.tolist())
        figures |= {f"recall_minus_{arm}_low": low, f"recall_minus_{arm}_high": high}
        bars[f"recall_minus_{arm}"] = Bar(float(differences.mean()), bar)
        bars[f"recall_minus_{arm}_low"] = Bar(low, math.ulp(0.0))  # above 0
    bars["seconds_longest"] = Bar(max(seconds), LONGEST, at_most=True)
    report(figures, bars)


if __name__ == "__main__":
    main()
