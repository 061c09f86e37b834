"""`RateLimiter`: keeps inserting and sampling in step, by letting whoever is ahead wait.

The rule is Reverb's `SampleToInsertRatio` (Cassirer et al. 2021, "Reverb: a framework for experience replay"): with
I inserts, S samples since the limiter was set and r = samples_per_insert,

    min_size * r - tolerance  <=  I * r - S  <=  min_size * r + tolerance

The left bound holds samplers back, the right one inserters. The first `min_size` inserts always pass, and nothing is
drawn before `min_size` experiences are stored. Samples are what ``sample(n)`` counts: experiences, or from a sampler of
sequences, sequences.
"""

import math
from typing import Any

import msgspec

from relive.buffer.errors import BufferSettingError


class RateLimiter(msgspec.Struct, frozen=True):
    """Settings of a limit on the ratio of samples to inserts. The counts are kept by the buffer that it is given to.

    Attributes:
        samples_per_insert: How often each experience is to be drawn on average, positive.
        min_size: Stored experiences before anything is drawn, at least 1.
        tolerance: How far samples may run ahead or behind, in samples; at least half the largest batch, and half of
            `samples_per_insert`.
        timeout: Seconds that a call waits before it fails with `RateLimitError`; ``None``: without end, 0: not at all.

    Raises:
        BufferSettingError: a setting is out of range.
    """

    samples_per_insert: float
    min_size: int = 1
    tolerance: float = 1000.0
    timeout: float | None = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.samples_per_insert < math.inf:
            raise BufferSettingError(f"samples_per_insert is {self.samples_per_insert}; it must be positive.")
        if self.min_size < 1:
            raise BufferSettingError(f"min_size is {self.min_size}; it must be at least 1.")
        if not self.tolerance >= max(0.5, self.samples_per_insert / 2):
            raise BufferSettingError(
                f"tolerance is {self.tolerance}; it must be at least {max(0.5, self.samples_per_insert / 2):g}, or "
                "inserting and sampling would wait for each other."
            )
        if self.timeout is not None and not self.timeout >= 0:
            raise BufferSettingError(f"timeout is {self.timeout}; it must be at least 0, or None to wait without end.")

    @property
    def allowed(self) -> tuple[float, float]:
        """The range that inserts * samples_per_insert - samples must stay in."""
        middle = self.min_size * self.samples_per_insert
        return middle - self.tolerance, middle + self.tolerance

    def lets_insert(self, inserts: float, samples: float, count: int) -> bool:
        """Whether `count` more may be added."""
        if inserts + count <= self.min_size:
            return True
        return (inserts + count) * self.samples_per_insert - samples <= self.allowed[1]

    def lets_sample(self, inserts: float, samples: float, count: int, size: int) -> bool:
        """Whether `count` may be drawn while `size` are stored."""
        if size < self.min_size:
            return False
        return inserts * self.samples_per_insert - (samples + count) >= self.allowed[0]

    def largest(self) -> tuple[int, int]:
        """The largest batch that can ever be inserted, and the largest that can ever be drawn."""
        most = 2 * self.tolerance
        if most == math.inf:
            return 2**62, 2**62
        return max(self.min_size, math.floor(most / self.samples_per_insert)), math.floor(most)

    def settings(self) -> dict[str, Any]:
        """What decides who waits, as JSON values; the time limit does not."""
        return {
            "samples_per_insert": self.samples_per_insert,
            "min_size": self.min_size,
            "tolerance": self.tolerance if self.tolerance < math.inf else "inf",
        }
