"""Settings of the adaptive concurrency limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConcurrencyRules:
    """Settings of the concurrency limiter.

    The defaults come from closed-loop simulations of 16 overload scenarios, unless a field says otherwise.
    """

    slo_s: float = 2.0
    """Objective for a whole response in seconds, > 0; from the alert rule "P95 above 2 s"."""
    latency_budget: float = 0.2
    """Share of the objective that a request may spend in the service, in (0, 1].
    0.12 to 0.6 all serve 98.9 % or more of the possible; less shortens the tail of the high class.
    """
    wait_budget: float = 0.25
    """Share of the objective that a request may spend in the queue, in (0, 1]."""
    inflight_start: int = 64
    """Limit before the first measurement, >= 1; 16 loses up to 0.9 % of the first second of 3000/s."""
    inflight_floor: int = 2
    """Lowest target of the limit, >= 1; 16 alone breaks slow services."""
    inflight_max: int = 0
    """Hard limit of the requests in flight, 0: none."""
    queue_max: int = 1024
    """Tickets in one queue, >= 0."""
    period_s: float = 0.5
    """Shortest time between two changes of the limit, > 0."""
    period_completions: int = 8
    """Completions that end a period before a quarter of the objective has passed, >= 1."""
    min_share: float = 0.02
    """Share of the service rate reserved for mid and low together in overload, 0..0.2; 0: strict priority.
    At ten times the capacity the high class pays for it: it gets 0.973 of an oracle's throughput, and 0.991
    without a reserved share (benchmarks.closed_loop).
    """
    memory_target: float = 0.92
    """Target fill of the fullest device, in (0, 1]."""
    dry_run: bool = False
    """Queue no request: it runs above the limit and counts as a queued one."""
