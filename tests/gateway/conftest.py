"""What the tests of the gateway share lies beside them in `gateway_calls` and `loopback`."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("relive", deadline=None)  # a test never asserts how long something takes
settings.load_profile("relive")
