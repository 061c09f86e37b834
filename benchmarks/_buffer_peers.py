"""The contenders of benchmarks/buffer.py: each library's buffer, full, behind the same few calls."""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import relive

Columns = dict[str, npt.NDArray[Any]]

FIELDS: dict[str, tuple[str, tuple[int, ...]]] = {
    "obs": ("f4", (16,)),
    "act": ("i8", ()),
    "rew": ("f4", ()),
    "next_obs": ("f4", (16,)),
    "done": ("?", ()),
}


class Contender(NamedTuple):
    """A full buffer.

    Attributes:
        name: The library.
        sample: Draws n rows, touches all their data and weights, and returns what `update` takes as ids.
        one: Makes a call that adds this row.
        add: Adds columns; ``None``: it cannot.
        update: Sets priorities; ``None``: it has none.
        ids_of: What `update` takes for the rows numbered 0 to capacity - 1.
    """

    name: str
    sample: Callable[[int], Any]
    one: Callable[[dict[str, Any]], Callable[[], Any]]
    add: Callable[[Columns], Any] | None
    update: Callable[[Any, Any], Any] | None
    ids_of: Callable[[npt.NDArray[np.int64]], Any] = lambda rows: rows


def columns(count: int, rng: np.random.Generator) -> Columns:
    """Random rows."""
    return {
        "obs": rng.normal(size=(count, 16)).astype(np.float32),
        "act": rng.integers(0, 9, count),
        "rew": rng.normal(size=count).astype(np.float32),
        "next_obs": rng.normal(size=(count, 16)).astype(np.float32),
        "done": rng.uniform(size=count) < 0.05,
    }


def contenders(capacity: int, rng: np.random.Generator) -> list[Contender]:
    """Relive first, then the extra `bench`, then TorchRL where it is installed and loads."""
    missing = [name for name in ("cpprb", "tianshou", "stable_baselines3") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"Not installed: {', '.join(missing)}. Next: pip install -c constraints.txt -e '.[bench]'")
    part = columns(min(capacity, 2**16), rng)
    priorities = np.exp(rng.uniform(-3, 3, capacity))
    made = [_relive(capacity, part, priorities), _cpprb(capacity, part, priorities)]
    made += [_tianshou(capacity, part, priorities), _stable_baselines3(capacity, part)]
    with contextlib.suppress(Exception):  # its wheels load with few versions of torch
        made.append(_torchrl(capacity, part, priorities))
    return made


def _fill(capacity: int, part: Columns, add: Callable[[Columns], Any]) -> None:
    for _ in range(capacity // len(part["act"])):
        add(part)


def _relive(capacity: int, part: Columns, priorities: npt.NDArray[np.float64]) -> Contender:
    buffer = relive.ReplayBuffer(
        capacity, storage=relive.ArrayStorage(FIELDS), sampler=relive.Prioritized(0.6, 0.4), seed=0
    )
    _fill(capacity, part, buffer.add_batch)
    first = _oldest(buffer)
    buffer.update_priorities(np.arange(first, first + capacity), priorities)

    def sample(count: int) -> Any:
        batch = buffer.sample(count)
        _ = batch["obs"], batch["act"], batch["rew"], batch["next_obs"], batch["done"], batch.weights
        return batch.ids

    return Contender(
        "relive",
        sample,
        lambda row: lambda: buffer.add(row),
        buffer.add_batch,
        buffer.update_priorities,
        lambda rows: rows + _oldest(buffer),
    )


def _oldest(buffer: relive.ReplayBuffer) -> int:
    """The oldest stored id of a full buffer: ids run on as rows are replaced."""
    batch = buffer.sample(1)
    return int(batch.ids[0] + batch.ages[0]) + 1 - buffer.capacity


def _cpprb(capacity: int, part: Columns, priorities: npt.NDArray[np.float64]) -> Contender:
    cpprb = importlib.import_module("cpprb")
    fields = {name: {"shape": shape or 1, "dtype": np.dtype(kind)} for name, (kind, shape) in FIELDS.items()}
    buffer = cpprb.PrioritizedReplayBuffer(capacity, fields, alpha=0.6)
    _fill(capacity, part, lambda part: buffer.add(**part))
    buffer.update_priorities(np.arange(capacity), priorities)
    return Contender(
        "cpprb",
        lambda count: buffer.sample(count, 0.4)["indexes"],
        lambda row: lambda: buffer.add(**row),
        lambda part: buffer.add(**part),
        buffer.update_priorities,
    )


def _tianshou(capacity: int, part: Columns, priorities: npt.NDArray[np.float64]) -> Contender:
    data = importlib.import_module("tianshou.data")
    buffer = data.PrioritizedReplayBuffer(capacity, alpha=0.6, beta=0.4)

    def one(row: dict[str, Any]) -> Callable[[], Any]:
        step = data.Batch(
            obs=row["obs"],
            act=row["act"],
            rew=row["rew"],
            terminated=row["done"],
            truncated=False,
            obs_next=row["next_obs"],
            info={},
        )
        return lambda: buffer.add(step)

    one({name: array[0] for name, array in part.items()})()
    # It adds rows one by one, a minute for this many: its own arrays are filled instead.
    for theirs, ours in (("obs", "obs"), ("act", "act"), ("rew", "rew"), ("obs_next", "next_obs")):
        held = buffer._meta[theirs]
        for start in range(0, capacity, len(part[ours])):
            held[start : start + len(part[ours])] = part[ours]
    buffer._size = capacity
    for start in range(0, capacity, 2**16):
        rows = np.arange(start, min(start + 2**16, capacity))
        buffer.update_weight(rows, priorities[rows])
    return Contender("tianshou", lambda count: buffer.sample(count)[1], one, None, buffer.update_weight)


def _stable_baselines3(capacity: int, part: Columns) -> Contender:
    spaces = importlib.import_module("gymnasium.spaces")
    buffers = importlib.import_module("stable_baselines3.common.buffers")
    buffer = buffers.ReplayBuffer(
        capacity,
        spaces.Box(-9, 9, (16,), np.float32),
        spaces.Discrete(9),
        device="cpu",
        handle_timeout_termination=False,
    )
    for theirs, ours in (("observations", "obs"), ("next_observations", "next_obs")):
        held = getattr(buffer, theirs)
        for start in range(0, capacity, len(part[ours])):
            held[start : start + len(part[ours]), 0] = part[ours]
    buffer.full = True

    def one(row: dict[str, Any]) -> Callable[[], Any]:
        step = [row["obs"][None], row["next_obs"][None], np.array([row["act"]]), np.array([row["rew"]])]
        return lambda: buffer.add(*step, np.array([row["done"]]), [{}])

    return Contender("sb3 (uniform)", buffer.sample, one, None, None)


def _torchrl(capacity: int, part: Columns, priorities: npt.NDArray[np.float64]) -> Contender:
    torch = importlib.import_module("torch")
    data = importlib.import_module("torchrl.data")
    tensordict = importlib.import_module("tensordict")
    buffer = data.TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=data.LazyTensorStorage(capacity), batch_size=256
    )

    def made(part: Columns) -> Any:
        return tensordict.TensorDict(
            {name: torch.from_numpy(array) for name, array in part.items()}, [len(part["act"])]
        )

    _fill(capacity, part, lambda part: buffer.extend(made(part)))
    buffer.update_priority(torch.arange(capacity), torch.from_numpy(priorities).float())

    def one(row: dict[str, Any]) -> Callable[[], Any]:
        step = tensordict.TensorDict({name: torch.as_tensor(value) for name, value in row.items()}, [])
        return lambda: buffer.add(step)

    return Contender(
        "torchrl",
        lambda count: buffer.sample(count)["index"],
        one,
        lambda part: buffer.extend(made(part)),
        lambda ids, values: buffer.update_priority(torch.as_tensor(ids), torch.as_tensor(values)),
    )


class Item:
    """A Python object of about 2 KB."""

    __slots__ = ("number", "text")

    def __init__(self, number: int) -> None:
        self.number = number
        self.text = f"{number:08d}" * 240


def object_contenders(count: int, rng: np.random.Generator) -> dict[str, Callable[[], Any]]:
    """Calls that draw 256 Python objects with their weights from full buffers."""
    items = [Item(number) for number in range(count)]
    priorities = np.exp(rng.uniform(-3, 3, count))
    ours = relive.ReplayBuffer(count, sampler=relive.Prioritized(0.6, 0.4), seed=0)
    ours.add_batch(items, priorities)

    def sample() -> Any:
        batch = ours.sample(256)
        return batch.experiences, batch.weights, batch.ids

    held = np.empty(count, dtype=object)
    held[:] = items
    cpprb = importlib.import_module("cpprb")
    theirs = cpprb.PrioritizedReplayBuffer(count, {"item": {"dtype": object}}, alpha=0.6)
    theirs.add(item=held)
    theirs.update_priorities(np.arange(count), priorities)

    data = importlib.import_module("tianshou.data")
    third = data.PrioritizedReplayBuffer(count, alpha=0.6, beta=0.4)
    one = np.empty((), dtype=object)
    one[()] = items[0]
    third.add(data.Batch(obs=one, act=0, rew=0.0, terminated=False, truncated=False, info={}))
    third._meta["obs"][:] = held
    third._size = count
    third.update_weight(np.arange(count), priorities)
    return {
        "relive": sample,
        "cpprb": lambda: theirs.sample(256, 0.4),
        "tianshou": lambda: third.sample(256),
    }
