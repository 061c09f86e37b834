"""What the tests of the server share lies beside them in `server_rig`, and in the gateway's `loopback`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "gateway")]


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
