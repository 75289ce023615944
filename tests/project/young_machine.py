"""A machine that was started a minute ago, for one test run: a plugin, loaded with ``-p`` before the package.

Importing this module changes the clock of the process.

`time.monotonic` and `time.monotonic_ns` begin at 60 s in each module of tests, as the uptime on Linux does.
Loops of asyncio ask `time.monotonic` by its name and agree; trio, uvloop and processes that a test starts
keep the clock of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Generator

import pytest

STARTED_S = 60
SHARED_CLOCK = "tests/benchmarks/"
"""Benchmarks compare the clocks of several processes: they keep that of the machine."""

ELAPSED_NS = time.monotonic_ns


class Uptime:
    """The time since the machine was started."""

    def __init__(self) -> None:
        self.module = ""
        self.restart()

    def restart(self) -> None:
        """Start the machine anew, a minute ago."""
        self.began_ns = ELAPSED_NS() - STARTED_S * 10**9

    def monotonic_ns(self) -> int:
        return ELAPSED_NS() - self.began_ns

    def monotonic(self) -> float:
        return self.monotonic_ns() / 1e9


UPTIME = Uptime()

time.monotonic = UPTIME.monotonic
time.monotonic_ns = UPTIME.monotonic_ns


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    module = item.nodeid.partition("::")[0]
    if module != UPTIME.module:
        UPTIME.module = module
        UPTIME.restart()
        if module.startswith(SHARED_CLOCK):
            UPTIME.began_ns = 0
    return (yield)
