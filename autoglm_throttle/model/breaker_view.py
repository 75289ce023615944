"""A breaker as it is seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoglm_throttle.model.breaker import Cause, State


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerView:
    """A breaker at one moment. Its counts only grow, except across a fork."""

    name: str
    state: State
    """What a caller sees: an open breaker whose period is over reads half-open."""
    machine: State
    """What the machine is in until somebody asks it."""
    metrics_only: bool
    """Whether it only counts what it would refuse."""
    cause: Cause | None
    """Of the newest change; None before the first."""
    generation: int
    streak: int
    """Failures in a row."""
    window_calls: int
    """Results in the window; 0 where no rule looks at it."""
    window_failures: int
    window_slow: int
    trials: int
    """Under way, those included whose lease is over and that nobody has replaced yet."""
    won: int
    """Successes of this round of trials."""
    rounds: int
    opened_s: float | None
    """Monotonic seconds of the newest opening; None: never opened, or closed since."""
    retry_after_s: float
    in_flight: int
    """Calls under way; known only with ``max_in_flight``, else the trials."""
    calls: int = 0
    """Let through. Counted without a lock: of two threads at once one may be lost."""
    refused: Mapping[Cause, int] = field(default_factory=dict)
    would_refuse: int = 0
    stale_results: int = 0
    """Results of an earlier generation, and second results of one call."""
    classifier_errors: int = 0
    last_failure: str = ""
    shared: bool = False
    """Whether the fleet's store decides on trials now."""
