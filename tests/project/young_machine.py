"""A machine that was started a minute ago, for one test run: a plugin, loaded with ``-p`` before the package.

Importing this module changes the clock of the process.

`time.monotonic` and `time.monotonic_ns` begin at 60 s, as the uptime on Linux does. Loops of asyncio ask
`time.monotonic` by its name and agree; trio, uvloop and processes that a test starts keep the clock of the
machine.
"""

from __future__ import annotations

import time

STARTED_S = 60

BEGAN_NS = time.monotonic_ns() - STARTED_S * 10**9
ELAPSED_NS = time.monotonic_ns


def monotonic_ns() -> int:
    """Nanoseconds since this machine was started."""
    return ELAPSED_NS() - BEGAN_NS


def monotonic() -> float:
    """Seconds since this machine was started."""
    return monotonic_ns() / 1e9


time.monotonic = monotonic
time.monotonic_ns = monotonic_ns
