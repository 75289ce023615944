"""What all tests share: hypothesis profiles, event loops, real Redis servers, and the report of attacks.

``HYPOTHESIS_PROFILE`` is ``fast`` (15 examples, the default), ``full`` (50) or ``thorough`` (1000, with fresh
randomness).
"""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

settings.register_profile(
    "fast", max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("full", settings.get_profile("fast"), max_examples=50)
settings.register_profile("thorough", settings.get_profile("full"), max_examples=1000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "fast")

pytest_plugins = ["tests.loops", "tests.store.fixtures", "tests.hostile.attacks"]
