"""What the tests of the server share lies beside them in `server_rig`, and in the gateway's `loopback`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "gateway")]
