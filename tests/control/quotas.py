"""Devices, engines and books for the tests of resource quotas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoglm_throttle.control.memory import MemoryLoad
from autoglm_throttle.control.quota import Quota
from autoglm_throttle.settings.groups.gpu import GpuSettings, QuotaSettings
from autoglm_throttle.settings.route_policy import ResourcePolicy, RoutePolicy
from autoglm_throttle.types import Demand, DeviceKey, GpuSample, GpuVerdict, GpuView, Priority

GB = 1_000_000_000
TOTAL = 100 * GB
HIGH, MID, LOW = Priority


def new_quota(routes: Sequence[RoutePolicy] = (), **settings: Any) -> Quota:
    return Quota(QuotaSettings(**settings), GpuSettings(), routes)


def route(name: str, **resources: Any) -> RoutePolicy:
    return RoutePolicy(f"/{name}", name=name, resource_policy=ResourcePolicy(**resources))


def card(used_gb: float | None, at_s: float, device: str = "GPU-0", **more: Any) -> GpuSample:
    used = None if used_gb is None else int(used_gb * GB)
    own = {"memory_used_bytes": used, "memory_total_bytes": TOTAL, "taken_at_s": at_s}
    return GpuSample(device=device, index=0, source="test", **(own | more))


def seen(*cards: GpuSample, kv: float | None = None, at_s: float | None = None, **more: Any) -> GpuView:
    """A view of cards, and of one engine where ``at_s`` says when it was heard."""
    verdicts: dict[DeviceKey, GpuVerdict] = more.pop("verdicts", {})
    return GpuView(
        taken_at_s=max((row.taken_at_s for row in cards), default=0.0),
        utilization_pct=None,
        utilization_max_pct=None,
        memory_ratio=None,
        power_ratio=None,
        capacity=1.0,
        devices=cards,
        kv_used_ratio=kv,
        engines=0 if at_s is None else 1,
        engines_at_s=at_s,
        verdicts=verdicts,
        **more,
    )


def loaded(load: MemoryLoad, count: int, cost: float = 1.0) -> MemoryLoad:
    """The books with so many more requests in flight."""
    for _ in range(count):
        load.add(Demand(cost=cost))
    return load


def unloaded(load: MemoryLoad, count: int, cost: float = 1.0) -> MemoryLoad:
    for _ in range(count):
        load.remove(Demand(cost=cost))
    return load
