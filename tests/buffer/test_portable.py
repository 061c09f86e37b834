"""A processor without AVX2 draws the same: this test's draws are repeated on an emulated one."""

import platform
import shutil
import subprocess
import sys

import pytest

SCRIPT = """
import hashlib
import numpy as np
from relive.buffer import ArrayStorage, Prioritized, ReplayBuffer, _core

rng = np.random.default_rng(0)
buffer = ReplayBuffer(
    3000, storage=ArrayStorage({"obs": ("f4", (5,)), "n": "i8"}), sampler=Prioritized(0.6, 0.4), seed=7
)
digest = hashlib.sha256()
for step in range(40):
    buffer.add_batch({"obs": rng.random((100, 5), dtype=np.float32), "n": np.arange(100)})
    batch = buffer.sample(77)
    buffer.update_priorities(batch.ids, td_errors=np.ldexp(rng.integers(-1000, 1000, len(batch)), -7))
    for array in (batch.ids, batch.weights, batch.probabilities, batch["obs"], batch["n"]):
        digest.update(array.tobytes())
print(_core.kernels(), digest.hexdigest())
"""


def test_an_emulated_processor_without_avx2_gives_the_same_draws_bit_for_bit():
    emulator = shutil.which("qemu-x86_64")
    if platform.machine() != "x86_64" or emulator is None:
        pytest.skip("needs an x86-64 processor and Debian's package qemu-user")

    def run(*prefix):
        command = [*prefix, sys.executable, "-c", SCRIPT]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    here = run()
    kernels, digest = run(emulator, "-cpu", "Nehalem")
    assert kernels == "portable"
    assert digest == here[1]
