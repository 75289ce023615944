"""Gates that know what a test has set, and what is asked of them again and again."""

from __future__ import annotations

from typing import Any

from autoglm_throttle.limiting.concurrency_limiter import (
    AdaptiveConcurrencyLimiter,
    Ticket,
    TicketState,
)
from autoglm_throttle.limiting.fixed_limit import FixedConcurrencyLimit
from autoglm_throttle.limiting.work_class import COUNTED, WorkClass
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
    values: dict[str, Any] = {"slo_s": 2.0, "inflight_start": 64, "fairness": "fifo"}
    group = ConcurrencySettings(**(values | settings))
    return AdaptiveConcurrencyLimiter(group, now, memory_target=memory_target, dry_run=dry_run, objectives={})


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
        assert start(tested, now=now)
    return tested


class Running:
    """A request with a slot, as its permit."""

    def __init__(self, work_class: WorkClass, slot: int, started_s: float) -> None:
        self.work_class = work_class
        self.slot = slot
        self.started_s = started_s


def start(
    tested: AdaptiveConcurrencyLimiter | FixedConcurrencyLimit,
    priority: Priority = HIGH,
    now: float = 0.0,
    work_class: str = "",
) -> Running | None:
    """Ask for a slot; None: there is none."""
    kind = tested.work_classes[work_class]
    slot = tested.try_acquire(Demand(priority), kind, now)
    return Running(kind, slot, now) if slot else None


def release(
    tested: AdaptiveConcurrencyLimiter | FixedConcurrencyLimit,
    started_s: float,
    outcome: Outcome,
    now: float,
    slot: int = COUNTED,
) -> None:
    """End some request that began at an instant."""
    tested.release(Running(tested.work_classes[""], slot, started_s), outcome, now)


def reserve(tested: AdaptiveConcurrencyLimiter, priority: Priority, now: float) -> Ticket | None:
    """Ask for a slot of the reserved share."""
    return tested.enqueue_reserved(Demand(priority), tested.work_classes[""], now)


def over(tested: AdaptiveConcurrencyLimiter | FixedConcurrencyLimit, priority: Priority) -> None:
    """Let one in above the limit."""
    tested.occupy_over_limit(Demand(priority), tested.work_classes[""])


def come(
    tested: AdaptiveConcurrencyLimiter, priority: Priority, now: float = 0.0, slo_s: float | None = None
) -> Ticket | Decision | None:
    """None: let in."""
    demand, kind = Demand(priority, slo_s=slo_s), tested.work_classes[""]
    return None if tested.try_acquire(demand, kind, now) else tested.enqueue(demand, kind, now)


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
    release(tested, started_s, Outcome.SUCCESS, now)
    return list(tested.pop_ready(now))
