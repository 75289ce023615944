"""Immutable view of a breaker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoglm_throttle.types.breaker import BreakerCause, BreakerState


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerView:
    """A breaker at one moment. Its counts only grow, except across a fork."""

    name: str
    state: BreakerState
    """The state for callers: an open breaker after its open period reads half-open."""
    machine: BreakerState
    """The stored state, which changes only at the next call."""
    metrics_only: bool
    """Whether rejections are only counted."""
    cause: BreakerCause | None
    """Cause of the newest change; None before the first."""
    generation: int
    streak: int
    """Consecutive failures."""
    window_calls: int
    """Results in the window; 0 where no rule uses it."""
    window_failures: int
    window_slow: int
    probes: int
    """Probe calls in flight, including those with an expired lease and no replacement yet."""
    probe_successes: int
    """Successful probe calls of this half-open round."""
    rounds: int
    opened_s: float | None
    """Monotonic seconds of the newest opening; None: never opened, or closed since."""
    retry_after_s: float
    in_flight: int
    """Calls in flight; known only with ``max_in_flight``, else the probe calls."""
    calls: int = 0
    """Calls let through. Counted without a lock: of two concurrent increments one may be lost."""
    rejected: Mapping[BreakerCause, int] = field(default_factory=dict)
    would_reject: int = 0
    stale_results: int = 0
    """Results of an earlier generation, and second results of one call."""
    classifier_errors: int = 0
    last_failure: str = ""
    shared: bool = False
    """Whether the fleet's store decides on probe calls now."""
