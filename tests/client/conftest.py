"""The server that these tests talk to lies with the server's own tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOMS = Path(__file__).parent.parent
sys.path[:0] = [str(ROOMS / "server"), str(ROOMS / "gateway")]


@pytest.fixture(autouse=True)
def no_server_stays() -> Iterator[None]:
    """Ends the servers that a failed test left running."""
    yield
    from server_rig import STARTED

    while STARTED:
        process = STARTED.pop().process
        if process.poll() is None:
            process.kill()
            process.communicate()
