"""What all tests share: how hard hypothesis looks for counterexamples, event loops, and real Redis servers.

``HYPOTHESIS_PROFILE=thorough`` looks twenty times as long, with fresh randomness.
"""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

settings.register_profile(
    "fast", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

pytest_plugins = ["tests.loops", "tests.store.fixtures"]
