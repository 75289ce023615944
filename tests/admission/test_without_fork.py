"""Without fork, as on Windows, the package can be imported and works."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os
del os.fork, os.register_at_fork
from autoglm_throttle import Demand, Settings, Throttle
throttle = Throttle(Settings(user_limit="1/minute", gpu="none"))
print([throttle.try_admit(Demand(user="u")).admitted for _ in range(2)])
"""


def test_limits_without_fork() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout == "[True, False]\n", done.stderr
