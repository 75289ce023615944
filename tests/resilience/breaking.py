"""Breakers in any state, for the tests of the machine alone."""

from __future__ import annotations

from typing import Any

from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import GuardPermit, Outcome

BEGAN = 100.0
"""When each of these breakers began, and opened if it did."""


def breaker(**rules: Any) -> Breaker:
    """A breaker of the name ``it`` with these rules, all others by default."""
    return Breaker("it", BreakerSettings(**rules))


def taken(core: Breaker, now: float) -> GuardPermit:
    """Leave for a call, which must be given."""
    got = core.allow(now)
    assert isinstance(got, GuardPermit), got
    return got


def called(core: Breaker, outcome: Outcome, now: float, times: int = 1) -> None:
    """Make calls one after the other, each with this outcome."""
    for _ in range(times):
        core.record(taken(core, now), outcome, now)


def opened(**rules: Any) -> Breaker:
    """Build a breaker that has just opened by its first failure, without pending notifications."""
    core = breaker(failures=1, **rules)
    called(core, Outcome.FAILURE, BEGAN)
    core.machine.drain()
    return core


def ramping(**rules: Any) -> Breaker:
    """A breaker that its first trial, 10 s after the opening, has put on its ramp."""
    core = opened(**rules)
    called(core, Outcome.SUCCESS, BEGAN + 10)
    core.machine.drain()
    return core
