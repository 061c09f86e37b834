"""What the tests of the gateway share lies beside them in `gateway_calls`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
