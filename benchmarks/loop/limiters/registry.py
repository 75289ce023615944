"""All limiters by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.loop.limiters.codel import CodelLimiter
from benchmarks.loop.limiters.limiter import Limiter, LimiterContext
from benchmarks.loop.limiters.no_limit import NoLimit
from benchmarks.loop.limiters.oracle import OracleLimiter
from benchmarks.loop.limiters.shares import Aimd, Gradient, SharesLimiter
from benchmarks.loop.limiters.throttle_limiter import ThrottleLimiter
from benchmarks.loop.scenarios import Scenario

OTHERS: dict[str, Callable[[LimiterContext], Limiter]] = {
    "oracle": OracleLimiter,
    "none": NoLimit,
    "aimd": lambda context: SharesLimiter(context, Aimd(context.slo_s)),
    "gradient": lambda context: SharesLimiter(context, Gradient(context.scheduler)),
    "codel": CodelLimiter,
}

POLICIES = ("tiers", "concurrency", "adaptive")
"""Policies of the real `Throttle`."""

NAMES = (*OTHERS, *POLICIES)


def make(name: str, context: LimiterContext, scenario: Scenario, tuning: Mapping[str, Any]) -> Limiter:
    """Build a limiter; ``tuning`` holds settings of the throttle, by name.

    Raises:
        ValueError: there is no such limiter.
    """
    if name in POLICIES:
        return ThrottleLimiter(context, scenario, name, tuning)
    if name not in OTHERS:
        raise ValueError(f"no limiter is called {name}; there are {', '.join(NAMES)}")
    return OTHERS[name](context)
