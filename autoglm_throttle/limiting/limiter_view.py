"""The view of the concurrency limiter for metrics, logs and pages."""

from __future__ import annotations

from typing import Protocol

from autoglm_throttle.limiting.memory_cap import MemoryCap
from autoglm_throttle.limiting.queue import PriorityQueues
from autoglm_throttle.limiting.service_estimator import ServiceEstimator
from autoglm_throttle.limiting.work_class import WorkClasses
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import ConcurrencyView, WorkClassView

VIEWED_CLASSES = 16  # Work classes in a view: those with most requests


class ViewedLimiter(Protocol):
    """The state of the limiter that a view shows."""

    settings: ConcurrencySettings
    service: ServiceEstimator
    memory: MemoryCap
    queues: PriorityQueues
    work_classes: WorkClasses
    in_flight: int
    paused: int


def concurrency_view(limiter: ViewedLimiter, limit: float, retry_backlog_s: float) -> ConcurrencyView:
    """Return all figures of a limiter that has just been told the time."""
    service, memory = limiter.service, limiter.memory
    high, mid, low = service.demand_rps
    rate = service.rate_rps
    used = [one for one in limiter.work_classes.all() if one.ever_done or one.in_flight]
    used.sort(key=lambda one: -one.rate_rps)
    return ConcurrencyView(
        limit=limit,
        in_flight=limiter.in_flight,
        paused=limiter.paused,
        waiting=limiter.queues.waiting(),
        service_rps=rate,
        demand_rps=(high, mid, low),
        latency_s=service.latency_s,
        unloaded_s=service.unloaded_s,
        budget_s=service.aim_s,
        slo_s=service.slo_s,
        slo_learned=limiter.settings.slo_s is None,
        memory_cap=memory.requests,
        memory_blind=memory.blind,
        slo_unreachable=service.slo_unreachable,
        pressure=(high + mid + low) / rate if rate and service.measured else limiter.in_flight / limit,
        retry_backlog_s=retry_backlog_s,
        work_classes=tuple(
            WorkClassView(one.name, one.rate_rps, one.mean_s, one.unloaded_s, one.negligible, one.in_flight)
            for one in used[:VIEWED_CLASSES]
        ),
    )
