"""Throttles with a concurrency limit and a queue, and helpers to inspect them."""

import math
from dataclasses import dataclass, replace
from typing import Any

from autoglm_throttle import Demand, Outcome, Permit, Priority, Rejection, Throttle
from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter, Ticket
from autoglm_throttle.limiting.fixed_limit import FixedConcurrencyLimit
from autoglm_throttle.limiting.token_bucket import SharedBudget
from autoglm_throttle.limiting.work_class import WorkClass
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests

HIGH_RATES: dict[str, Any] = {
    "rate_high_rps": "1000000/s",
    "rate_mid_rps": "1000000/s",
    "rate_low_rps": "1000000/s",
}
"""Rates that never reject."""

WARM_RPS = 100.0
"""Completion rate of the service after `warmed`."""


def limited_throttle(slots: int = 1, **settings: Any) -> ManualThrottle:
    """Build a throttle with a fixed number of slots."""
    own = {"policy": "concurrency", "slo_s": 2.0}
    limits = {"inflight_start": slots, "inflight_max": slots, "inflight_floor": 1}
    return throttle_for_tests(**{**own, **limits, **HIGH_RATES, **settings})


@dataclass
class Request:
    """A request in flight without a permit: nothing but the limiter counts it."""

    work_class: WorkClass
    slot: int
    started_s: float


def slot_of(
    limiter: AdaptiveConcurrencyLimiter | FixedConcurrencyLimit, demand: Demand, now: float
) -> Request:
    """Take a slot of a limiter that has one free."""
    work_class = limiter.work_classes[demand.work_class]
    slot = limiter.try_acquire(demand, work_class, now)
    assert slot
    return Request(work_class, slot, now)


def warmed(throttle: ManualThrottle) -> ManualThrottle:
    """Complete 100 low requests of 10 ms each within a second."""
    limiter = throttle.admission.parts.settlement.limiter
    for _ in range(int(WARM_RPS)):
        request = slot_of(limiter, Demand(Priority.LOW), throttle.clock())
        limiter.release(request, Outcome.SUCCESS, throttle.clock.advance(1 / WARM_RPS))
    limiter.close_period(throttle.clock())
    return throttle


def permit_for(throttle: Throttle, demand: Demand) -> Permit:
    permit = throttle.try_admit(demand)
    assert isinstance(permit, Permit)
    return permit


def ticket_for(throttle: Throttle, demand: Demand) -> Ticket:
    ticket = throttle.try_admit(demand)
    assert isinstance(ticket, Ticket)
    return ticket


def rejection_for(throttle: Throttle, demand: Demand) -> Rejection:
    rejection = throttle.try_admit(demand)
    assert isinstance(rejection, Rejection)
    return rejection


def permits_for(throttle: Throttle, slots: int = 1) -> list[Permit]:
    """Acquire permits for anonymous low requests."""
    return [permit_for(throttle, Demand(Priority.LOW)) for _ in range(slots)]


def with_budget(throttle: ManualThrottle, budget_rps: float) -> SharedBudget:
    """Activate the shared budget of all classes at this rate until the next sample."""
    state = replace(throttle.control_state(), budget_rps=budget_rps, term="test")
    throttle.admission.apply(state, None, math.inf, throttle.clock())
    return throttle.admission.parts.shared_budget


def active(throttle: Throttle) -> int:
    return sum(throttle.snapshot().active.values())


def in_flight(throttle: Throttle) -> int:
    return throttle.admission.parts.settlement.limiter.in_flight


def remaining_state(throttle: Throttle) -> dict[str, Any]:
    """Count the state held for waiting requests; all counts are zero without waiters."""
    settlement = throttle.admission.parts.settlement
    queue_lengths = [len(queue) for queue in getattr(settlement.limiter, "_queues", ())]
    return {
        "waiting": settlement.limiter.waiting,
        "queued": sum(queue_lengths),
        "unclaimed": len(settlement.unclaimed),
        "wakeups": len(settlement.lock.pending),
    }


NO_REMAINING_STATE = {"waiting": 0, "queued": 0, "unclaimed": 0, "wakeups": 0}


def queued(throttle: Throttle, priority: Priority) -> tuple[int, float]:
    """Return the number of queued requests so far, and their total queue time."""
    times = throttle.snapshot().queue_time[priority]
    return sum(times.counts), times.total_s


def outcomes(throttle: Throttle) -> dict[Outcome, int]:
    return {outcome: n for (_, outcome), n in throttle.snapshot().outcomes.items() if n}
