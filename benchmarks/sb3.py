"""Stable-Baselines3's DQN with Relive's prioritized replay learns CartPole, and costs hardly more a step.

The hyper-parameters are rl-zoo's for DQN on CartPole-v1, and so is the protocol: every 1,000 steps the greedy policy
plays five episodes, and the best policy of the 50,000 steps is kept. A seed's score is its mean return over 50
other episodes (so that nothing is gained by a lucky choice). The last policy's is shown beside it. Three seeds.

Time is measured apart: both DQNs take turns of 768 steps in one process, and the figure is the median ratio of their
processor time, so that what else the machine does falls on both.

Needs ``stable-baselines3``. ``--quick`` trains one seed for 25,000 steps.
"""

import argparse
import copy
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
TURN = 768  # steps: three rounds of collecting and training


def play(model: stable_baselines3.DQN, episodes: int, seed: int) -> float:
    """Mean return of the greedy policy."""
    environment = Monitor(gymnasium.make(ENVIRONMENT))
    environment.reset(seed=seed)
    mean, _ = evaluate_policy(model, environment, n_eval_episodes=episodes, deterministic=True)
    return float(mean)


def train(seed: int, steps: int) -> tuple[float, float]:
    """Mean returns over 50 episodes of the best policy on the way and of the last one."""
    model = DQN("MlpPolicy", ENVIRONMENT, seed=seed, **SETTINGS)
    best = -1.0
    parameters: dict[str, torch.Tensor] = {}

    def keep_best(local: dict[str, Any], _: dict[str, Any]) -> bool:
        nonlocal best, parameters
        if local["self"].num_timesteps % 1_000 == 0:
            score = play(model, 5, seed=10_000 + seed)
            if score > best:
                best, parameters = score, copy.deepcopy(model.policy.state_dict())
        return best < 500  # nothing is left to gain

    model.learn(steps, callback=keep_best)
    last = play(model, 50, seed=20_000 + seed)
    model.policy.load_state_dict(parameters)
    return play(model, 50, seed=20_000 + seed), last


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
    parser.add_argument("--quick", action="store_true", help="one seed and half the steps, in about a minute")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)

    theirs, ours, ratio = time_ratio(6 if quick else 20)
    scores = {}
    for seed in range(1 if quick else 3):
        scores[seed] = train(seed, 25_000 if quick else 50_000)
        print(f"seed {seed}: best policy {scores[seed][0]:.0f}, last policy {scores[seed][1]:.0f}", flush=True)
    figures = {
        "us_a_step_stable_baselines3": theirs,
        "us_a_step_relive": ours,
        "median_best": statistics.median(best for best, _ in scores.values()),
        "median_last": statistics.median(last for _, last in scores.values()),
        **{f"best_seed_{seed}": best for seed, (best, _) in scores.items()},
        **{f"last_seed_{seed}": last for seed, (_, last) in scores.items()},
    }
    print()
    report(figures, {"median_best": Bar(figures["median_best"], 400), "time_ratio": Bar(ratio, 1.1, at_most=True)})


if __name__ == "__main__":
    main()
