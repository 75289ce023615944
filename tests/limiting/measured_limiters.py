"""Gates that know what a test has set, and what is asked of them again and again."""

from __future__ import annotations

from typing import Any

from autoglm_throttle.limiting.concurrency_limiter import (
    AdaptiveConcurrencyLimiter,
    Ticket,
    TicketState,
)
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import Decision, Demand, Outcome, Priority, Reason

HIGH, MID, LOW = Priority
WAITING, CALLED, DROPPED, LEFT = TicketState
FROZEN: dict[str, Any] = {"period_s": 60.0}
"""No period ends in a test, so the estimates stay as it has set them."""


MEMORY_TARGET = GpuSettings().gpu_memory_target


def limiter(
    now: float = 0.0, *, memory_target: float = MEMORY_TARGET, dry_run: bool = False, **settings: Any
) -> AdaptiveConcurrencyLimiter:
    group = ConcurrencySettings(**settings)
    return AdaptiveConcurrencyLimiter(group, now, memory_target=memory_target, dry_run=dry_run)


def knowing(
    rate: float, *demand: float, limit: int = 4, latency_s: float = 0.1, **settings: Any
) -> AdaptiveConcurrencyLimiter:
    """A gate that has measured a service, and whose knowledge stands still."""
    tested = limiter(inflight_start=limit, inflight_floor=1, **(FROZEN | {"min_share": 0.0} | settings))
    tested.service.rate_rps = rate
    tested.service.latency_s = latency_s
    tested.service.demand_rps = [*demand, 0.0, 0.0, 0.0][:3]
    return tested


def fill(tested: AdaptiveConcurrencyLimiter, now: float = 0.0) -> AdaptiveConcurrencyLimiter:
    while tested.in_flight < tested.capacity:
        assert tested.try_acquire(Demand(HIGH), now)
    return tested


def come(
    tested: AdaptiveConcurrencyLimiter, priority: Priority, now: float = 0.0, slo_s: float | None = None
) -> Ticket | Decision | None:
    """None: let in."""
    demand = Demand(priority, slo_s=slo_s)
    return None if tested.try_acquire(demand, now) else tested.enqueue(demand, now)


def wait(
    tested: AdaptiveConcurrencyLimiter, priority: Priority, now: float = 0.0, slo_s: float | None = None
) -> Ticket:
    got = come(tested, priority, now, slo_s)
    assert isinstance(got, Ticket)
    return got


def rejected(
    tested: AdaptiveConcurrencyLimiter, priority: Priority, now: float = 0.0, slo_s: float | None = None
) -> Decision:
    got = come(tested, priority, now, slo_s)
    assert isinstance(got, Decision)
    assert not got.allowed
    assert got.reason is Reason.QUEUE
    assert got.policy == "queue"
    return got


def end(tested: AdaptiveConcurrencyLimiter, now: float, started_s: float = 0.0) -> list[Ticket]:
    tested.release(started_s, Outcome.SUCCESS, now)
    return list(tested.pop_ready(now))
