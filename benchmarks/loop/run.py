"""One run: clients, a limiter, a service, and the counts."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.loop.clients import Plan
from benchmarks.loop.limiters.limiter import Limiter, LimiterContext
from benchmarks.loop.llm_plant import LlmPlant, LlmPlantSpec
from benchmarks.loop.plant import BatchPlant, DeviceReading, Plant
from benchmarks.loop.request import Request
from benchmarks.loop.run_counts import RunCounts
from benchmarks.loop.scenarios import Scenario
from benchmarks.loop.scheduler import EventScheduler

SAMPLE_S = 1.0
"""Seconds between two readings of the devices."""

BACKOFF_S = 0.25
"""First wait of a client before it retries a rejected request; it doubles each time."""

MakeLimiter = Callable[[LimiterContext], Limiter]


class Run:
    """Clients, limiter and service of one scenario, on one scheduler."""

    def __init__(self, scenario: Scenario, plan: Plan, make_limiter: MakeLimiter) -> None:
        self.scenario = scenario
        self.plan = plan
        self.slo_s = scenario.slo_s
        self.scheduler = EventScheduler()
        self.counts = RunCounts(scenario.warm_s, scenario.duration_s, scenario.slo_s)
        self.plant: Plant = _plant(scenario, self.scheduler, self)
        self.limiter = make_limiter(self)
        for at_s, replica, speed in scenario.speeds:
            self.scheduler.at(at_s, self.plant.speed, (replica, speed))
        self.scheduler.at(SAMPLE_S, self._sample)

    def go(self) -> RunCounts:
        """Run from beginning to end."""
        scheduler, arrive = self.scheduler, self._arrive
        for number, (at_s, priority, cost) in enumerate(
            zip(self.plan.at_s, self.plan.priority, self.plan.cost, strict=True)
        ):
            scheduler.until(at_s)
            arrive(Request(number, at_s, priority, cost))
        scheduler.until(self.scenario.duration_s)
        self.counts.kills = self.plant.kills
        return self.counts

    def admit(self, request: Request, replica: int | None = None) -> None:
        """Pass an admitted request to the service."""
        self.plant.admit(request, replica)

    def reject(self, request: Request) -> None:
        """Reject a request; its client may retry after a wait."""
        now = self.scheduler.now
        self.counts.record_rejected(request, now)
        tries = request.tries
        if tries < self.scenario.retries and request.latest:
            wait_s = BACKOFF_S * 2.0**tries * self.plan.patience[request.number][tries]
            self.scheduler.at(now + wait_s, self._repeat, request)

    def ended(self, request: Request, *, ok: bool) -> None:
        """Count the result of a request and inform the limiter."""
        if ok:
            self.counts.record_answered(request, self.scheduler.now)
        else:
            self.counts.lost += 1
        self.limiter.ended(request, ok=ok)

    def settled(self, replica: int) -> None:
        """Let the limiter continue after a batch."""
        self.limiter.settled(replica)

    def _arrive(self, request: Request) -> None:
        self.counts.record_sent(request)
        if self.scenario.retries:
            self.scheduler.at(request.sent_s + self.slo_s, self._overdue, request)
        self.limiter.arrive(request)

    def _overdue(self, request: Request) -> None:
        """Retry at once for a client without a response at its deadline."""
        if request.tries < self.scenario.retries:
            self._repeat(request)

    def _repeat(self, request: Request) -> None:
        if request.latest and not request.first.done:
            request.latest = False
            self._arrive(request.again(self.scheduler.now))

    def _sample(self, _event: object) -> None:
        now = self.scheduler.now
        self.limiter.sample(self._shown(now))
        if now >= self.scenario.warm_s:
            self.counts.states.append(self.limiter.state())
        self.scheduler.at(now + SAMPLE_S, self._sample)

    def _shown(self, now: float) -> list[DeviceReading]:
        """Return the readings of the devices, with the work of other processes included."""
        readings = self.plant.readings()
        for begun_s, ends_s, index, utilization_pct in self.scenario.taken:
            if begun_s <= now < ends_s:
                readings[index] = readings[index]._replace(
                    utilization_pct=max(utilization_pct, readings[index].utilization_pct)
                )
        return readings


def _plant(scenario: Scenario, scheduler: EventScheduler, run: Run) -> Plant:
    if isinstance(scenario.plant, LlmPlantSpec):
        return LlmPlant(scenario.plant, scheduler, run)
    return BatchPlant(scenario.plant, scheduler, run)
