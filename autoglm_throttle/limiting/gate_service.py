"""What a gate has learnt of the service behind it: how fast it is and how much is asked of it."""

from __future__ import annotations

from dataclasses import dataclass

from autoglm_throttle.limiting.gate_rules import GateRules

FIRST_LATENCY_S = 0.05
"""Assumed until something has finished."""

SHORTEST_S = 0.001
"""A mean latency below this is read as this: clocks and event loops are no better."""

PROBE = 1.3
"""A saturated service is believed to do up to so many times what it did, or the limit could never grow."""

SLO_PER_PERIOD_MAX = 4
"""A period ends after a quarter of the objective, however little has finished."""

IDLE_PERIODS = 2
"""Nobody came by in a period of so many times the greatest length: it proves nothing about saturation."""

DEMAND_GAIN, LATENCY_GAIN, UNLOADED_GAIN = 0.4, 0.5, 0.3
"""Weight of the newest period in the demand, the latency, and the unloaded latency near the floor."""

RATE_UP_GAIN, RATE_DOWN_GAIN = 0.5, 0.3
"""Weight of the newest period in the service rate: a hiccup must not halve it."""

SLOW_GAIN = 0.1
"""Least weight of the newest period in the long mean of the latency."""

STEP_DOWN, STEP_UP, STEP_UP_FAST = 0.3, 0.3, 1.0
"""Largest change of the limit in a period, as a share of it; the last below half of the latency budget."""

LITTLE_LEFT = 0.02
"""A class that is left no more than this share of the service rate is told not to wait."""

SLO_PER_BUDGET_MAX, UNLOADED_PER_BUDGET = 0.7, 2.5
"""The latency budget is at least 2.5 unloaded latencies, within 0.7 of an objective that can be met."""

LATENCY_MARGIN = 1.3
"""Of the objective, so many mean latencies are kept for the service itself."""


@dataclass(slots=True)
class Period:
    """What was counted between two changes of the limit."""

    lasted_s: float
    arrived: tuple[int, int, int]
    """High, mid, low."""
    done: int
    """Requests that ended with evidence."""
    total_s: float
    """The sum of their times inside."""
    mean_in_flight: float
    peak: int
    """Most requests in flight."""
    limited: bool
    """Somebody found the limit reached."""


class Service:
    """Rates and latencies, moved on once in a period.

    Args:
        rules: of the gate.
    """

    __slots__ = (
        "_periods",
        "_rules",
        "_slow_s",
        "demand_rps",
        "latency_s",
        "longest_s",
        "measured",
        "rate_rps",
        "unloaded_s",
    )

    def __init__(self, rules: GateRules) -> None:
        self._rules = rules
        self.longest_s: float = max(rules.period_s, rules.slo_s / SLO_PER_PERIOD_MAX)
        """A period lasts no longer, however little has finished."""
        self._periods = 0
        self._slow_s = 0.0
        self.rate_rps: float | None = None
        """Requests it finishes per second; a lower bound until ``measured``; None: nothing finished yet."""
        self.measured: bool = False
        """A period at the limit has been seen."""
        self.demand_rps: list[float] = [0.0, 0.0, 0.0]
        self.latency_s: float = FIRST_LATENCY_S
        self.unloaded_s: float | None = None

    @property
    def out_of_reach(self) -> bool:
        """Whether a request takes more than half of the objective even without load."""
        return self.unloaded_s is not None and self.unloaded_s > self._rules.slo_s / 2

    @property
    def budget_s(self) -> float:
        """Seconds that a request may spend inside."""
        rules, unloaded_s = self._rules, self.unloaded_s
        if unloaded_s is None:
            return rules.latency_budget * rules.slo_s
        if self.out_of_reach:
            return UNLOADED_PER_BUDGET * unloaded_s
        return max(
            rules.latency_budget * rules.slo_s,
            min(UNLOADED_PER_BUDGET * unloaded_s, SLO_PER_BUDGET_MAX * rules.slo_s),
        )

    def patience_s(self, slo_s: float) -> float:
        """Seconds for which it is of use to wait under an objective of ``slo_s``."""
        return max(0.0, min(self._rules.wait_budget * slo_s, slo_s - LATENCY_MARGIN * self.latency_s))

    def left_rps(self, priority: int, rate_rps: float) -> float:
        """Requests per second that the classes above leave to ``priority``; 0 if too few to wait for."""
        left = rate_rps - sum(self.demand_rps[:priority])
        return left if left > LITTLE_LEFT * rate_rps else 0.0

    def places(self, priority: int, patience_s: float, room: int) -> int:
        """Tickets that may stand before a newcomer of ``priority``; below 0: it must not wait at all.

        While nothing is known of the rate, as many may wait as may be inside.
        """
        rate = self.rate_rps
        if rate is None:
            return room - 1
        left = self.left_rps(priority, rate)
        return int(left * patience_s) if left else -1

    def learn(self, period: Period, limit: float) -> float:
        """Take in what was counted in a period under ``limit``; returns the limit of the next one."""
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
            seen = min(period.done / lasted_s, period.mean_in_flight / mean_s)
            if seen > (self.rate_rps or 0.0):
                self.rate_rps = seen
            return limit if idle or mean_s <= self.budget_s else self._lowered(limit, period.peak)
        rate = self._track(min(PROBE * period.done / lasted_s, limit / mean_s))
        budget_s = self.budget_s
        change = max(self._rules.inflight_floor, rate * budget_s) - limit
        up = STEP_UP_FAST if mean_s < budget_s / 2 else STEP_UP
        return limit + max(-STEP_DOWN * limit, min(change, up * limit))

    def _lowered(self, limit: float, peak: int) -> float:
        """The limit that nobody has reached and that is too high all the same: answers are late below it.

        Without this a small service would meet its first wave with more inside than it can finish in time.
        """
        wanted = max(self._rules.inflight_floor, (self.rate_rps or 0.0) * self.budget_s)
        return min(limit, max(wanted, (1.0 - STEP_DOWN) * min(limit, peak)))

    def _learn_latency(self, mean_s: float, peak: int) -> None:
        self.latency_s += LATENCY_GAIN * (mean_s - self.latency_s)
        self._periods += 1
        self._slow_s += max(SLOW_GAIN, 1 / self._periods) * (mean_s - self._slow_s)
        unloaded_s = self.unloaded_s
        if unloaded_s is None or self._slow_s < unloaded_s:
            self.unloaded_s = self._slow_s
        elif peak <= self._rules.inflight_floor:  # there, latency is all but the unloaded latency
            self.unloaded_s = unloaded_s + UNLOADED_GAIN * (mean_s - unloaded_s)

    def _track(self, seen: float) -> float:
        """Follow what a period at the limit has shown.

        The first one replaces a lower bound: rising from it by halves, the limit would first fall too far.
        """
        rate = self.rate_rps
        if rate is None or (not self.measured and seen > rate):
            rate = seen
        else:
            rate += (RATE_UP_GAIN if seen > rate else RATE_DOWN_GAIN) * (seen - rate)
        self.measured = True
        self.rate_rps = rate
        return rate
