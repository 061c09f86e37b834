"""How exact the buffer is, for benchmarks/buffer.py: (name, value, the most it may be; negative: the least)."""

import math

import numpy as np
import numpy.typing as npt

import relive

Figure = tuple[str, float, float]


def exactness(*, quick: bool) -> list[Figure]:
    """Totals, zeros, frequencies and weights against exact references. Seeded: the same in every run."""
    figures = [
        ("total_after_1e8_updates_relative_error", _total(10**7 if quick else 10**8), 1e-9),
        ("zeros_in_1e7_draws", _zeros(10**7), 0.0),
        ("weights_relative_error", _weights(), 1e-9),
    ]
    for name, size in (("5", 5), ("1000", 1000), ("2^20", 2**20)):
        figures.append((f"chi_square_p_{name}_items", _frequencies(size, 10**6 if quick else 10**7), -0.01))
    return figures


def _filled(priorities: npt.NDArray[np.float64], **settings: float | bool | str) -> relive.ReplayBuffer:
    size = len(priorities)
    buffer = relive.ReplayBuffer(
        size, storage=relive.ArrayStorage({"n": "u1"}), sampler=relive.Prioritized(**settings), seed=0
    )
    buffer.add_batch({"n": np.zeros(size, np.uint8)}, priorities)
    return buffer


def _total(updates: int) -> float:
    """Relative error of the total after many updates over twelve powers of e."""
    size = 2**20
    rng = np.random.default_rng(0)
    ids = rng.integers(0, size, 2**20)
    values = np.exp(rng.uniform(-6, 6, 2**20))
    buffer = _filled(np.ones(size), alpha=1.0)
    for start in range(0, updates, 4096):
        place = start % 2**20
        buffer.update_priorities(ids[place : place + 4096], values[place : place + 4096])
    leaves = buffer.state_dict()["index"]["leaves"].astype(np.float64)
    exact = math.fsum(leaves.tolist())
    # One draw's probability is leaf / total: it gives the total that draws are made by.
    batch = buffer.sample(1)
    return abs(leaves[batch.ids[0]] / batch.probabilities[0] / exact - 1)


def _zeros(draws: int) -> float:
    """How many draws hit one of the nine tenths with an explicit priority of 0."""
    size = 2**20
    rng = np.random.default_rng(1)
    priorities = rng.uniform(0.1, 2, size) * (rng.uniform(size=size) < 0.1)
    buffer = _filled(priorities, alpha=1.0)
    return float(sum((priorities[buffer.sample(50_000).ids] == 0).sum() for _ in range(draws // 50_000)))


def _weights() -> float:
    """Largest relative error of probabilities and weights against plain float64 formulas over the leaves."""
    rng = np.random.default_rng(2)
    worst = 0.0
    for scale in ("batch", "buffer"):
        buffer = _filled(np.exp(rng.uniform(-6, 6, 10_007)), weights=scale, beta=0.7, beta_increment=0.0)
        leaves = buffer.state_dict()["index"]["leaves"].astype(np.float64)
        chance = leaves / math.fsum(leaves.tolist())
        raw = (len(leaves) * chance) ** -0.7
        for _ in range(100):
            batch = buffer.sample(256)
            largest = raw[batch.ids].max() if scale == "batch" else raw.max()
            worst = max(
                worst,
                np.abs(batch.probabilities / chance[batch.ids] - 1).max(),
                np.abs(batch.weights / (raw[batch.ids] / largest) - 1).max(),
            )
    return float(worst)


def _frequencies(size: int, draws: int) -> float:
    """The p of Pearson's chi-square of independent draws with priorities over twelve powers of e.

    Items expected fewer than 5 times count as one. The tail is Wilson and Hilferty's (1931) normal approximation.
    """
    rng = np.random.default_rng(3)
    priorities = np.exp(rng.uniform(-6, 6, size))
    buffer = _filled(priorities, alpha=1.0, stratified=False)
    batch = min(size, 50_000)
    counts = np.zeros(size)
    for _ in range(min(draws // batch, 200_000)):
        counts += np.bincount(buffer.sample(batch).ids, minlength=size)
    expected = priorities / priorities.sum() * counts.sum()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    k = len(wanted) - 1
    z = ((statistic / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))
    return 0.5 * math.erfc(z / math.sqrt(2))
