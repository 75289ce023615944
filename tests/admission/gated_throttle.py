"""Throttles with a line before them, and what is asked of the line."""

import math
from dataclasses import replace
from typing import Any

from autoglm_throttle import Demand, Outcome, Permit, Priority, Rejection, Throttle
from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.limiting.shared_budget import SharedBudget
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests

WIDE = {"rate_high_rps": "1000000/s", "rate_mid_rps": "1000000/s", "rate_low_rps": "1000000/s"}
"""Rates that are in nobody's way."""

WARM_RPS = 100.0
"""What a service has done after `warmed`."""


def gated(slots: int = 1, **settings: Any) -> ManualThrottle:
    """A throttle whose gate has so many slots, neither more nor fewer."""
    own = {"policy": "concurrency", "inflight_start": slots, "inflight_max": slots, "inflight_floor": 1}
    return throttle_for_tests(**{**own, **WIDE, **settings})


def warmed(throttle: ManualThrottle) -> ManualThrottle:
    """The same after a second in which the service did 100 low requests in 10 ms each."""
    gate, demand = throttle.admission.parts.settlement.limiter, Demand(Priority.LOW)
    for _ in range(int(WARM_RPS)):
        started_s = throttle.clock()
        assert gate.try_acquire(demand, started_s)
        gate.release(started_s, Outcome.SUCCESS, throttle.clock.advance(1 / WARM_RPS))
    gate.close_period(throttle.clock())
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


def held(throttle: Throttle, slots: int = 1) -> list[Permit]:
    """Permits for so many anonymous low requests."""
    return [permit_for(throttle, Demand(Priority.LOW)) for _ in range(slots)]


def with_budget(throttle: ManualThrottle, budget_rps: float) -> SharedBudget:
    """The shared budget of all classes, in force at this rate until the next sample."""
    state = replace(throttle.control_state(), budget_rps=budget_rps, term="test")
    throttle.admission.apply(state, None, math.inf, throttle.clock())
    return throttle.admission.parts.shared_budget


def active(throttle: Throttle) -> int:
    return sum(throttle.snapshot().active.values())


def in_flight(throttle: Throttle) -> int:
    return throttle.admission.parts.settlement.limiter.in_flight


def left_over(throttle: Throttle) -> dict[str, Any]:
    """What a throttle holds for others than the requests in flight; all of it is empty when nobody waits."""
    settlement = throttle.admission.parts.settlement
    lanes = [len(lane) for lane in getattr(settlement.limiter, "_queues", ())]
    return {
        "waiting": settlement.limiter.waiting,
        "lanes": sum(lanes),
        "unheard": len(settlement.unclaimed),
        "bells": len(settlement.lock.pending),
    }


NOTHING = {"waiting": 0, "lanes": 0, "unheard": 0, "bells": 0}


def queued(throttle: Throttle, priority: Priority) -> tuple[int, float]:
    """How many have stood in line, and for how long together."""
    times = throttle.snapshot().queue_time[priority]
    return sum(times.counts), times.total_s


def outcomes(throttle: Throttle) -> dict[Outcome, int]:
    return {outcome: n for (_, outcome), n in throttle.snapshot().outcomes.items() if n}
