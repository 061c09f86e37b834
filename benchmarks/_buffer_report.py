"""The documentation's table and picture of benchmarks/buffer.py."""

import datetime
import os
import platform
import statistics
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

TITLES = {
    "add_1": "add one",
    "add_256": "add 256 as arrays",
    "sample_32": "sample 32",
    "sample_256": "sample 256",
    "sample_4096": "sample 4096",
    "update_256": "update 256",
    "add_4_sample_256_update_256": "add 4, sample 256, update 256",
    "objects_sample_256": "sample 256 of 200,000 objects",
}
PACKAGES = {
    "relive": "relive",
    "cpprb": "cpprb",
    "tianshou": "tianshou",
    "sb3 (uniform)": "stable-baselines3",
    "torchrl": "torchrl",
}


def write_docs(
    folder: Path, times: dict[str, dict[str, list[float]]], figures: dict[str, float], own_version: str
) -> None:
    """Writes ``buffer-benchmark.md`` and ``buffer-benchmark.png``.

    Args:
        folder: Where to.
        times: Microseconds a call, by operation and contender, one a round.
        figures: All other figures by name.
        own_version: Relive's version.
    """
    names = [name for name in PACKAGES if any(name in by_contender for by_contender in times.values())]
    medians = {
        operation: {name: statistics.median(values) for name, values in by_contender.items()}
        for operation, by_contender in times.items()
    }
    header = ["CPU µs a call", *(f"{name} {_version(name, own_version)}" for name in names)]
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for operation, title in TITLES.items():
        cells = [f"{medians[operation][name]:,.1f}" if name in medians[operation] else "–" for name in names]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    today = datetime.datetime.now(datetime.UTC).date()
    where = f"{today}, {os.cpu_count()} cores of {_processor()}, Python {platform.python_version()}"
    sizes = (
        f"Memory over raw rows {figures['memory_over_raw_rows']:.3f}; "
        f"index {figures['index_bytes_an_item']:.2f} bytes an item."
    )
    lines += ["", f"Medians of one interleaved run, {where}; 2^20 rows of 141 bytes, full. {sizes}", ""]
    lines.append("![Microseconds a call, by library](buffer-benchmark.png)")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "buffer-benchmark.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _draw(folder / "buffer-benchmark.png", medians, names)


def _draw(path: Path, medians: dict[str, dict[str, float]], names: list[str]) -> None:
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    for position, name in enumerate(names):
        shown = [(row, medians[operation].get(name)) for row, operation in enumerate(TITLES)]
        rows = [row + (position - (len(names) - 1) / 2) * 0.8 / len(names) for row, value in shown if value]
        values = [value for _, value in shown if value]
        axes.barh(rows, values, height=0.8 / len(names), label=name)
    axes.set_yticks(range(len(TITLES)), TITLES.values())
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("CPU microseconds a call (lower is better, logarithmic)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _version(name: str, own_version: str) -> str:
    try:
        return own_version if name == "relive" else version(PACKAGES[name])
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
