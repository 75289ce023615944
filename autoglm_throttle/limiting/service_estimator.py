"""Estimates the service behind the limiter: its rate, its latency by work class, and the demand.

All classes share one queue inside the service, so they share one queueing budget: the least that any class
allows beyond its latency without load. What a class completes earns slots: its completions times its latency
aim, at most twice the slots that it fills. So the completions of short requests cannot raise the limit.
"""

from __future__ import annotations

from autoglm_throttle.limiting.work_class import MeasurementPeriod, WorkClass, WorkClasses
from autoglm_throttle.settings.groups.control import ConcurrencySettings

FIRST_LATENCY_S = 0.05  # Assumed latency before the first completion
SHORTEST_S = 0.001  # Lower bound of a mean latency: clocks and event loops are no more precise

# Assumed headroom of a saturated service over its throughput; without it the limit could never grow.
PROBE_FACTOR = 1.3

SLO_PER_PERIOD = 4  # A period with completions ends after a quarter of the objective, even if they are few
PERIODS_AT_MOST = 4  # Without completions it ends after four times as long

# A period longer than this many maximum lengths was idle: it proves nothing about saturation.
IDLE_PERIODS = 2

DEMAND_GAIN, LATENCY_GAIN = 0.4, 0.5  # Weight of the newest period in the demand and in the latency

# Weight of the newest period in the service rate: a hiccup must not halve it.
RATE_UP_GAIN, RATE_DOWN_GAIN = 0.5, 0.3

# Largest change of the limit in a period, as a share of it; the last below half of the latency aim.
STEP_DOWN, STEP_UP, STEP_UP_FAST = 0.3, 0.3, 1.0

MIN_REMAINING_SHARE = 0.02  # A priority with at most this share of the service rate left is not queued

# A class asks at most for twice the slots that it fills. [simulated: without it, 600 answers/s of 1 ms leave
# a GPU 0.28 of its throughput]
SLOTS_PER_FILLED = 2.0

# Share of the requests in flight in the limit of several classes, beside that of the completions. [simulated:
# at 0 requests of 5 s beside others of 10 ms keep 0.57 of what they could have, with it 0.76; at 0.5 a tenth
# of the random mixes lose 3 %]
BY_WORK = 0.4

NEGLIGIBLE = 0.02  # Share of the mean latency below which a class needs no slots. [simulated]

# Least share of the arrivals with which a class has a say in the longest wait of all. [simulated]
PATIENCE_SHARE = 0.05

LATENCY_MARGIN = 1.3  # Mean latencies of the objective that stay reserved for the service itself

# Slots that each of several workers adds to its limit: at most, and as a share of its arrivals within the
# latency aim, since a slow service must not be flooded. Only a constant pulls equal shares together.
# [simulated: without it four workers keep 0.51 of high at 5x, with at most 2 in steps of 0.1 they keep 0.92]
EVEN_MAX, EVEN_DEMAND_SHARE = 3.0, 0.08


class ServiceEstimator:
    """Tracks rates and latencies, updated once in a period.

    ``workers`` is the number of processes in front of the same service.
    """

    __slots__ = (
        *("_classes", "_floor", "_period_s", "_settings", "_share", "_wanted", "_workers"),
        *("aim_s", "demand_rps", "is_unloaded", "latency_s", "measured", "patience_s", "rate_rps"),
        *("shortest_s", "slo_s", "slo_unreachable"),
    )

    def __init__(self, settings: ConcurrencySettings, classes: WorkClasses, workers: int = 1) -> None:
        self._settings = settings
        self._period_s = settings.period_s
        self._share = settings.service_share
        self._classes = classes
        self._workers = workers
        self._floor = max(1, settings.inflight_floor // workers)
        # Smoothed limit before its bounds; None until a period at the limit.
        self._wanted: float | None = None
        # Requests that are not negligible, finished per second; a lower bound until ``measured``. None: no
        # completion yet.
        self.rate_rps: float | None = None
        self.measured: bool = False  # Whether a period at the limit has been observed
        # Whether the limit was reached in the last period while answers took less than half of their aim.
        self.is_unloaded: bool = False
        self.demand_rps: list[float] = [0.0, 0.0, 0.0]
        # Mean latency, weighted by time: of several classes the long ones decide.
        self.latency_s: float = FIRST_LATENCY_S
        # Objective of requests without one of their own: the set one, or the longest learned one.
        self.slo_s: float = 0.0
        self.shortest_s: float = 0.0  # Least length of a period with few completions
        self._learn_objective()
        # Mean seconds that a request may spend in the service.
        self.aim_s: float = settings.service_share * self.slo_s
        # Longest wait of all queued requests: with the longer objective of one class alone, its requests
        # would stand in front whenever a slot is free.
        self.patience_s: float = settings.wait_budget * self.slo_s
        # Whether a class takes more than half of its objective even without load.
        self.slo_unreachable: bool = False

    @property
    def unloaded_s(self) -> float | None:
        """Latency without load of the class that takes most time; None until it is known."""
        known = [one for one in self._classes.all() if one.unloaded_s is not None]
        return max(known, key=_work).unloaded_s if known else None

    @property
    def longest_s(self) -> float:
        """Longest period, even without completions."""
        return PERIODS_AT_MOST * self.shortest_s

    def is_over(self, lasted_s: float, ended: list[WorkClass]) -> bool:
        """Whether a period of some length, with ends of some classes, is over."""
        if lasted_s < self._period_s:
            return False
        # Ends of negligible requests say nothing of the others.
        done = sum(one.done for one in ended if not one.negligible)
        shortest_s = self.shortest_s
        return (
            (done >= self._settings.period_completions and lasted_s >= min(self.latency_s, shortest_s))
            or (done >= 2 and lasted_s >= shortest_s)
            or lasted_s >= self.longest_s
        )

    def max_wait_s(self, work_class: WorkClass, slo_s: float | None, *, in_turn: bool = False) -> float:
        """Return the longest useful wait in seconds of a request whose own objective is ``slo_s``, if any."""
        set_s = slo_s or work_class.slo_s or self._settings.slo_s
        slo_s = set_s or self._classes.slo_of(work_class)
        mean_s = work_class.mean_s
        mean_s = self.latency_s if mean_s is None else mean_s
        longest_s = slo_s - LATENCY_MARGIN * mean_s
        # If it returns at the time that it was given, only a set objective counts. [simulated: otherwise
        # 5 % of the calls of 160 callers fail, with it 1 %]
        if not (in_turn and set_s):
            longest_s = min(longest_s, self.patience_s, self._settings.wait_budget * slo_s)
        return max(0.0, longest_s)

    def remaining_rps(self, priority: int, rate_rps: float) -> float:
        """Return the rate that higher classes leave to ``priority``, per second; 0 if too little."""
        remaining = rate_rps - sum(self.demand_rps[:priority])
        return remaining if remaining > MIN_REMAINING_SHARE * rate_rps else 0.0

    def limit(self, priority: int, max_wait_s: float, unmeasured: int) -> int:
        """Return the tickets that may be ahead of a new request of ``priority``; below 0: it must not wait.

        The result is ``unmeasured`` until the rate is known, and while the limit doubles.
        """
        rate = self.rate_rps
        if rate is None or self.is_unloaded:
            return unmeasured
        remaining = self.remaining_rps(priority, rate)
        return int(remaining * max_wait_s) if remaining else -1

    def learn(self, period: MeasurementPeriod, limit: float) -> float:
        """Update the estimates with a period under ``limit``; returns the limit of the next period."""
        lasted_s = period.lasted_s
        idle = lasted_s > IDLE_PERIODS * self.longest_s
        gain = 1.0 if idle else DEMAND_GAIN
        for priority, arrived in enumerate(period.arrived):
            self.demand_rps[priority] += gain * (arrived / lasted_s - self.demand_rps[priority])
        total_s = sum(one.total_s for one in period.ended)
        if period.done:
            square_s = sum(one.total_s**2 / one.done for one in period.ended)
            mean_s = max(square_s / total_s, SHORTEST_S) if total_s > 0.0 else SHORTEST_S
            self.latency_s += LATENCY_GAIN * (mean_s - self.latency_s)
        several = len(self._classes) > 1 or self._classes.client_errors.ever_done
        # Requests may have waited until their class was forgotten: their ends are in no known class.
        classes = dict.fromkeys((*self._classes.all(), *period.ended))
        for one in classes:
            one.close(lasted_s, gain, alone=self._workers == 1)
            one.negligible = several and one.mean_s is not None and one.mean_s < NEGLIGIBLE * self.latency_s
        self._learn_objective()
        self._learn_patience()
        if period.done:
            limit = self._learn_limit(period, max(total_s, period.done * SHORTEST_S), limit, idle=idle)
        for one in classes:
            one.begin()
        self._classes.forget_unused()
        return limit

    def _learn_limit(self, period: MeasurementPeriod, total_s: float, limit: float, *, idle: bool) -> float:
        """Return the next limit, after a period with completions."""
        aims = self._aims(period.ended)
        lasted_s, done = period.lasted_s, period.done
        heavy = sum(one.done for one in period.ended if not one.negligible)
        mean_s = total_s / done
        mean_aim_s = self.aim_s = sum(one.done * aim_s for one, aim_s in aims) / done
        self.is_unloaded = False
        if idle or not period.limited:
            # Below the limit, throughput is a lower bound: it may raise the rate, never lower it.
            observed = min(heavy / lasted_s, period.mean_in_flight / mean_s)
            if observed > (self.rate_rps or 0.0):
                self.rate_rps = observed
            if idle or mean_s <= mean_aim_s or not self._objectives_known(period.ended):
                return limit
            return self._lowered(limit, period.peak)
        at_limit = max(limit, period.mean_in_flight)
        if heavy:  # negligible ends alone say nothing of the rate
            self._track(min(PROBE_FACTOR * heavy / lasted_s, heavy * at_limit / total_s))
        wanted = min(PROBE_FACTOR / lasted_s, at_limit / total_s) * sum(
            min(SLOTS_PER_FILLED * max(one.total_s, one.done * SHORTEST_S), one.done * aim_s)
            for one, aim_s in aims
        )
        lateness_of_work = self._lateness(aims)
        in_time = lateness_of_work is None or lateness_of_work <= 1.0
        # All requests cost alike, and this process alone loads the service.
        simple = self._workers == 1 and len(self._classes) == 1 and not self._classes.client_errors.done
        if in_time and simple and self._wanted is not None:
            self._wanted = max(self._wanted, wanted)  # the bounds of the step smooth enough
        else:
            if in_time and len(self._classes) > 1:
                wanted += BY_WORK * max(0.0, self._wanted_by_work() - wanted)
            self._wanted = _follow(self._wanted, wanted)
        change = max(self._floor, self._wanted + self._even_slots) - limit
        self.is_unloaded = lateness_of_work is not None and lateness_of_work < 0.5
        up = STEP_UP_FAST if self.is_unloaded else STEP_UP
        # While answers are in time, few completions only mean that requests have just begun.
        down = 0.0 if in_time else STEP_DOWN
        return limit + max(-down * limit, min(change, up * limit))

    def _wanted_by_work(self) -> float:
        """Return the limit at which the work in flight would take its aim.

        The completions of a long class are so few in a period that their number is chance.
        """
        running = [
            (one, one.in_flight - one.paused, one.mean_s)
            for one in self._classes.all()
            if one.in_flight > one.paused and one.mean_s
        ]
        aims = dict(self._aims([one for one, _, _ in running]))
        return sum(number * min(SLOTS_PER_FILLED, aims[one] / mean_s) for one, number, mean_s in running)

    def _aims(self, ended: list[WorkClass]) -> list[tuple[WorkClass, float]]:
        """Return the latency aim of each class with completions."""
        share, classes = self._share, self._classes
        alone = len(classes) == 1 and self._workers == 1
        budgets = {
            one: one.budget_s(share, classes.slo_of(one), alone=alone)
            for one in classes.all()
            if one.done or one.in_flight
        }
        waits = [budget - one.unloaded_s for one, budget in budgets.items() if one.unloaded_s is not None]
        queueing_s = min(waits, default=None)
        # While no unloaded latency is known, none is below 0: the common queue may last the least budget.
        most = [budget for one, budget in budgets.items() if one.least_s and not one.negligible]
        unknown = queueing_s is None and len(most) > 1
        if unknown:
            queueing_s = min(most)
        aims = []
        for one in ended:
            budget_s = budgets[one] if one in budgets else one.budget_s(share, classes.slo_of(one))
            if queueing_s is None:
                aim_s = budget_s
            elif one.unloaded_s is not None:
                aim_s = one.unloaded_s + queueing_s
            else:
                loaded_s = one.least_s if unknown else one.mean_s
                aim_s = min(budget_s, (loaded_s or 0.0) + queueing_s)
            aims.append((one, max(aim_s, SHORTEST_S)))
        self.slo_unreachable = any(
            one.unloaded_s is not None and one.unloaded_s > classes.slo_of(one) / 2 for one in budgets
        )
        return aims

    def _is_work(self, work_class: WorkClass) -> bool:
        """Answers with client errors and negligible ones are no work: in a stall they would hide the rest."""
        return not work_class.negligible and work_class is not self._classes.client_errors

    def _lateness(self, aims: list[tuple[WorkClass, float]]) -> float | None:
        """Return the time of the work that ended over its aim; None if there was none."""
        work = [(one, aim_s) for one, aim_s in aims if self._is_work(one)]
        aim_s = sum(one.done * aim_s for one, aim_s in work)
        return sum(one.total_s for one, _ in work) / aim_s if work else None

    def is_far_in_time(self, ended: list[WorkClass], least: float) -> bool:
        """Whether ``least`` work has ended in this period, on the average in less than half of its aim."""
        work = [one for one in ended if self._is_work(one)]
        done = sum(one.done for one in work)
        return done >= least and sum(one.total_s for one in work) < done * self.aim_s / 2

    def _objectives_known(self, ended: list[WorkClass]) -> bool:
        """Whether a limit may be lowered by latency alone: not by that of an objective nobody has set."""
        return all(self._classes.is_known(one) for one in ended if not one.negligible)

    def _lowered(self, limit: float, peak: int) -> float:
        """Lower a limit that was not reached although latency exceeds its aim.

        Otherwise a small service would meet its first burst with more requests than it can finish in time.
        """
        wanted = max(self._floor, (self.rate_rps or 0.0) * self.aim_s + self._even_slots)
        return min(limit, max(wanted, (1.0 - STEP_DOWN) * min(limit, peak)))

    def _learn_objective(self) -> None:
        self.slo_s = self._settings.slo_s or max(
            (self._classes.slo_of(one) for one in self._classes.values() if one.slo_s is None),
            default=self._classes.slo_of(self._classes.shared),
        )
        self.shortest_s = max(self._period_s, self.slo_s / SLO_PER_PERIOD)

    def _learn_patience(self) -> None:
        """Update the longest wait: the least of the classes with a share of the arrivals."""
        classes = self._classes
        least_rps = PATIENCE_SHARE * sum(one.demand_rps for one in classes.all())
        slos = [
            classes.slo_of(one)
            for one in classes.all()
            if one.demand_rps and one.demand_rps >= least_rps and not one.negligible
        ]
        self.patience_s = self._settings.wait_budget * min(slos, default=self.slo_s)

    @property
    def _even_slots(self) -> float:
        """The slots that pull the shares of several workers together."""
        if self._workers == 1:
            return 0.0
        return min(EVEN_MAX, EVEN_DEMAND_SHARE * sum(self.demand_rps) * self.aim_s)

    def _track(self, observed: float) -> None:
        """Update the service rate with the observed rate of a period at the limit."""
        rate = self.rate_rps
        if rate is not None and not self.measured and observed > rate:
            rate = None  # rising from the lower bound by halves, the limit would first fall too far
        self.rate_rps = _follow(rate, observed)
        self.measured = True


def _follow(value: float | None, observed: float) -> float:
    if value is None:
        return observed
    return value + (RATE_UP_GAIN if observed > value else RATE_DOWN_GAIN) * (observed - value)


def _work(work_class: WorkClass) -> float:
    return work_class.rate_rps * (work_class.mean_s or 0.0)
