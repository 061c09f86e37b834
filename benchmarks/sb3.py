"""Stable-Baselines3's DQN with Relive's prioritized replay learns CartPole, and costs hardly more a step.

The hyper-parameters are rl-zoo's for DQN on CartPole-v1. Three seeds train for 50,000 steps each; every 5,000 steps the
greedy policy plays 20 episodes. A seed's score is its best evaluation, as rl-zoo keeps the best policy; the last one is
shown beside it.

Time is measured apart: both DQNs take turns of 768 steps in one process, and the figure is the median ratio of their
processor time, so that what else the machine does falls on both.

Needs ``stable-baselines3``. ``--quick`` trains the first seed only, and takes about two minutes.
"""

import argparse
import statistics
import time
from typing import Any

import gymnasium
import stable_baselines3
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from _report import Bar, report
from relive.integrations.sb3 import DQN

SETTINGS: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
ENVIRONMENT = "CartPole-v1"
STEPS = 50_000
TURN = 768  # steps: three rounds of collecting and training


def evaluations(seed: int, steps: int) -> list[float]:
    """Mean return of the greedy policy over 20 episodes, every 5,000 steps."""
    model = DQN("MlpPolicy", ENVIRONMENT, seed=seed, **SETTINGS)
    environment = Monitor(gymnasium.make(ENVIRONMENT))
    environment.reset(seed=10_000 + seed)
    scores = []

    def evaluate(local: dict[str, Any], _: dict[str, Any]) -> bool:
        if local["self"].num_timesteps % 5_000 == 0:
            score, _ = evaluate_policy(model, environment, n_eval_episodes=20, deterministic=True)
            scores.append(float(score))
        return True

    model.learn(steps, callback=evaluate)
    return scores


def time_ratio(turns: int) -> tuple[float, float, float]:
    """Microseconds a step of Stable-Baselines3's DQN and of ours, and the median ratio of neighbouring turns."""
    models = [kind("MlpPolicy", ENVIRONMENT, seed=0, **SETTINGS) for kind in (stable_baselines3.DQN, DQN)]
    for model in models:
        model.learn(2 * TURN)
    seconds: list[list[float]] = [[], []]
    for _ in range(turns):
        for model, taken in zip(models, seconds, strict=True):
            start = time.process_time()
            model.learn(TURN, reset_num_timesteps=False)
            taken.append(time.process_time() - start)
    ratios = [ours / theirs for theirs, ours in zip(*seconds, strict=True)]
    theirs, ours = (statistics.median(taken) / TURN * 1e6 for taken in seconds)
    return theirs, ours, statistics.median(ratios)


def main() -> None:
    """Prints a table, then one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="the first seed only, in about two minutes")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)

    theirs, ours, ratio = time_ratio(6 if quick else 20)
    curves = {}
    for seed in range(1 if quick else 3):
        curves[seed] = evaluations(seed, STEPS)
        print(f"seed {seed}, every 5,000 steps: " + " ".join(f"{score:4.0f}" for score in curves[seed]), flush=True)
    figures = {
        "us_a_step_stable_baselines3": theirs,
        "us_a_step_relive": ours,
        "median_best": statistics.median(max(curve) for curve in curves.values()),
        "median_last": statistics.median(curve[-1] for curve in curves.values()),
        **{f"best_seed_{seed}": max(curve) for seed, curve in curves.items()},
        **{f"last_seed_{seed}": curve[-1] for seed, curve in curves.items()},
    }
    print()
    report(figures, {"median_best": Bar(figures["median_best"], 400), "time_ratio": Bar(ratio, 1.1, at_most=True)})


if __name__ == "__main__":
    main()
