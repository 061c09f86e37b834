"""A clock that only moves when someone waits."""

from typing import Any

import pytest

WALL = 1_790_000_000.0  # seconds since 1970 at the fake clock's start


class Clock:
    """Time that passes only in `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL + self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    @property
    def options(self) -> dict[str, Any]:
        """What makes an `Upstream` live by this clock."""
        return {"clock": self.monotonic, "wall_clock": self.wall, "sleep": self.sleep}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def say() -> list[dict[str, Any]]:
    """The shortest conversation."""
    return [{"role": "user", "content": "hi"}]
