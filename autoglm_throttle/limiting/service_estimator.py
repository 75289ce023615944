"""Estimates the service behind the limiter: its rate, its latency, and the demand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoglm_throttle.settings.groups.control import ConcurrencySettings

FIRST_LATENCY_S = 0.05
"""Assumed latency before the first completion."""

SHORTEST_S = 0.001
"""Lower bound of a mean latency: clocks and event loops are no more precise."""

PROBE_FACTOR = 1.3
"""Assumed headroom of a saturated service over its throughput; without it the limit could never grow."""

SLO_PER_PERIOD_MAX = 4
"""A period ends after a quarter of the objective, even with few completions."""

IDLE_PERIODS = 2
"""A period longer than this many maximum lengths was idle: it proves nothing about saturation."""

DEMAND_GAIN, LATENCY_GAIN, UNLOADED_GAIN = 0.4, 0.5, 0.3
"""Weight of the newest period in the demand, the latency, and the unloaded latency near the floor."""

RATE_UP_GAIN, RATE_DOWN_GAIN = 0.5, 0.3
"""Weight of the newest period in the service rate: a hiccup must not halve it."""

SLOW_GAIN = 0.1
"""Least weight of the newest period in the long-term mean latency."""

STEP_DOWN, STEP_UP, STEP_UP_FAST = 0.3, 0.3, 1.0
"""Largest change of the limit in a period, as a share of it; the last below half of the latency budget."""

MIN_REMAINING_SHARE = 0.02
"""A class with at most this share of the service rate left is not queued."""

SLO_PER_BUDGET_MAX, UNLOADED_PER_BUDGET = 0.7, 2.5
"""The latency budget is at least 2.5 unloaded latencies, within 0.7 of an objective that can be met."""

LATENCY_MARGIN = 1.3
"""Mean latencies of the objective that stay reserved for the service itself."""


@dataclass(slots=True)
class MeasurementPeriod:
    """Measurements between two changes of the limit."""

    lasted_s: float
    arrived: tuple[int, int, int]
    """High, mid, low."""
    done: int
    """Requests that ended with a measured outcome."""
    total_s: float
    """The sum of their times in the service."""
    mean_in_flight: float
    peak: int
    """Most requests in flight."""
    limited: bool
    """Whether a request found the limit reached."""


class RunningPeriod:
    """The present period: counts and sums, read and changed by the limiter.

    Args:
        now: monotonic seconds at which it begins.
    """

    __slots__ = (
        *("arrived", "done", "due_s", "failure_s", "latest_s"),
        *("limited", "opened_s", "peak", "starts_s", "total_s"),
    )

    def __init__(self, now: float) -> None:
        self.opened_s: float = now
        self.latest_s: float = now
        """Newest instant that the limiter was given."""
        self.due_s: float = 0.0
        """Earliest end of the period."""
        self.arrived: list[int] = [0, 0, 0]
        """Arrivals of high, mid, low."""
        self.done: int = 0
        self.total_s: float = 0.0
        """Sum of the service times of the ``done`` requests."""
        self.starts_s: float = 0.0
        """Sum of the start instants of the requests in flight: their area is ``in_flight * now`` minus it."""
        self.peak: int = 0
        self.limited: bool = False
        self.failure_s: float = math.inf
        """Least service time of a failure that is measured as a completion."""

    def close(self, now: float, in_flight: int) -> MeasurementPeriod:
        """Return the measurements until ``now``, and begin the next period with ``in_flight`` requests."""
        lasted_s = now - self.opened_s
        high, mid, low = self.arrived
        closed = MeasurementPeriod(
            lasted_s=lasted_s,
            arrived=(high, mid, low),
            done=self.done,
            total_s=self.total_s,
            mean_in_flight=(in_flight * now - self.starts_s) / lasted_s,
            peak=self.peak,
            limited=self.limited,
        )
        self.opened_s = now
        self.arrived = [0, 0, 0]
        self.done, self.total_s, self.starts_s = 0, 0.0, in_flight * now
        self.peak, self.limited = in_flight, False
        return closed


class ServiceEstimator:
    """Tracks rates and latencies, updated once in a period.

    Args:
        settings: those of the limiter.
    """

    __slots__ = (
        "_settings",
        "_wait_budget",
        "demand_rps",
        "latency_s",
        "longest_s",
        "measured",
        "periods",
        "rate_rps",
        "slo_s",
        "slow_latency_s",
        "unloaded_s",
    )

    def __init__(self, settings: ConcurrencySettings) -> None:
        self._settings = settings
        self._wait_budget = settings.wait_budget
        self.slo_s: float = settings.slo_s
        """Objective of requests without one of their own."""
        self.longest_s: float = max(settings.period_s, self.slo_s / SLO_PER_PERIOD_MAX)
        """Longest period, even with few completions."""
        self.periods: int = 0
        """Periods with completions so far."""
        self.slow_latency_s: float = 0.0
        """Long-term mean latency."""
        self.rate_rps: float | None = None
        """Requests finished per second, a lower bound until ``measured``; None: no completion yet."""
        self.measured: bool = False
        """Whether a period at the limit has been observed."""
        self.demand_rps: list[float] = [0.0, 0.0, 0.0]
        self.latency_s: float = FIRST_LATENCY_S
        self.unloaded_s: float | None = None

    @property
    def slo_unreachable(self) -> bool:
        """Whether a request takes more than half of the objective even without load."""
        return self.unloaded_s is not None and self.unloaded_s > self.slo_s / 2

    @property
    def budget_s(self) -> float:
        """Seconds that a request may spend in the service."""
        unloaded_s, budget_s = self.unloaded_s, self._settings.latency_budget * self.slo_s
        if unloaded_s is None:
            return budget_s
        if self.slo_unreachable:
            return UNLOADED_PER_BUDGET * unloaded_s
        return max(budget_s, min(UNLOADED_PER_BUDGET * unloaded_s, SLO_PER_BUDGET_MAX * self.slo_s))

    def max_wait_s(self, slo_s: float) -> float:
        """Return the longest useful wait in seconds under an objective of ``slo_s``."""
        return max(0.0, min(self._wait_budget * slo_s, slo_s - LATENCY_MARGIN * self.latency_s))

    def remaining_rps(self, priority: int, rate_rps: float) -> float:
        """Return the rate that higher classes leave to ``priority``, per second; 0 if too little."""
        remaining = rate_rps - sum(self.demand_rps[:priority])
        return remaining if remaining > MIN_REMAINING_SHARE * rate_rps else 0.0

    def limit(self, priority: int, max_wait_s: float, capacity: int) -> int:
        """Return the tickets that may be ahead of a new request of ``priority``; below 0: it must not wait.

        Until the rate is known, the queue may be as long as the limit.
        """
        rate = self.rate_rps
        if rate is None:
            return capacity - 1
        remaining = self.remaining_rps(priority, rate)
        return int(remaining * max_wait_s) if remaining else -1

    def learn(self, period: MeasurementPeriod, limit: float) -> float:
        """Update the estimates with a period under ``limit``; returns the limit of the next period."""
        demand, lasted_s = self.demand_rps, period.lasted_s
        idle = lasted_s > IDLE_PERIODS * self.longest_s
        gain = 1.0 if idle else DEMAND_GAIN
        for priority, arrived in enumerate(period.arrived):
            demand[priority] += gain * (arrived / lasted_s - demand[priority])
        if not period.done:
            return limit
        mean_s = max(period.total_s / period.done, SHORTEST_S)
        self._learn_latency(mean_s, period.peak)
        if idle or not period.limited:
            # Below the limit, throughput is a lower bound: it may raise the rate, never lower it.
            observed = min(period.done / lasted_s, period.mean_in_flight / mean_s)
            if observed > (self.rate_rps or 0.0):
                self.rate_rps = observed
            return limit if idle or mean_s <= self.budget_s else self._lowered(limit, period.peak)
        rate = self._track(min(PROBE_FACTOR * period.done / lasted_s, limit / mean_s))
        budget_s = self.budget_s
        change = max(self._settings.inflight_floor, rate * budget_s) - limit
        up = STEP_UP_FAST if mean_s < budget_s / 2 else STEP_UP
        return limit + max(-STEP_DOWN * limit, min(change, up * limit))

    def _lowered(self, limit: float, peak: int) -> float:
        """Lower a limit that was not reached although latency exceeds the budget.

        Without this a small service would meet its first burst with more requests than it can finish in time.
        """
        wanted = max(self._settings.inflight_floor, (self.rate_rps or 0.0) * self.budget_s)
        return min(limit, max(wanted, (1.0 - STEP_DOWN) * min(limit, peak)))

    def _learn_latency(self, mean_s: float, peak: int) -> None:
        self.latency_s += LATENCY_GAIN * (mean_s - self.latency_s)
        self.periods += 1
        self.slow_latency_s += max(SLOW_GAIN, 1 / self.periods) * (mean_s - self.slow_latency_s)
        unloaded_s = self.unloaded_s
        if unloaded_s is None or self.slow_latency_s < unloaded_s:
            self.unloaded_s = self.slow_latency_s
        elif peak <= self._settings.inflight_floor:  # near the floor, latency is almost the unloaded latency
            self.unloaded_s = unloaded_s + UNLOADED_GAIN * (mean_s - unloaded_s)

    def _track(self, observed: float) -> float:
        """Update the service rate with the observed rate of a period at the limit."""
        rate = self.rate_rps
        if rate is None or (not self.measured and observed > rate):
            rate = observed  # rising from the lower bound by halves, the limit would first fall too far
        else:
            rate += (RATE_UP_GAIN if observed > rate else RATE_DOWN_GAIN) * (observed - rate)
        self.measured = True
        self.rate_rps = rate
        return rate
