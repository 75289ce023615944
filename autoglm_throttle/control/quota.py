"""Resource quotas: limit the device memory of each class, and advise admitted requests.

They act beside the memory cap of the concurrency limiter, which queues every class at ``GPU_MEMORY_TARGET``
of the whole device. A quota rejects a class at its share of the memory that requests can fill. With engines,
which allocate their memory in advance, the limiter learns nothing, and the quota of high acts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.control.memory import FillBasis, MemoryFill, MemoryLoad
from autoglm_throttle.settings.groups.gpu import GpuSettings, QuotaSettings
from autoglm_throttle.settings.route_policy import ResourcePolicy, RoutePolicy
from autoglm_throttle.types import Decision, Demand, GpuCondition, GpuView, Priority, Reason, ResourceAdvice

# A rejected class is admitted again this far below its cap, so that it does not flutter; chosen.
RESUME_MARGIN = 0.05
# Factor at or below which all but high get the last precision: the second step of the default tiers.
LAST_PRECISION_FACTOR = 0.4
# Maximum wait, in seconds: the rate at which requests end goes to 0 while none ends; chosen.
MAX_WAIT_S = 3600.0
# For high, mid, low: one digit, so that 9 minus it reverses the order; chosen.
COMPUTE_PRIORITIES: Final = (0, 5, 9)
# By severity and class: whether the first precision applies, else the last.
_FIRST_PRECISION: Final = ((True, True, True), (True, True, False), (True, False, False))


@dataclass(frozen=True, slots=True)
class QuotaView:
    """The quotas at one moment."""

    basis: FillBasis
    """With ``unknown`` the caps do nothing; with ``kept`` they are shares of the rest."""
    fill: float | None
    """Share of the usable memory that is full, projected to the requests in flight now; None: not known."""
    caps: Mapping[Priority, float]
    """Caps in force, lower where the whole device would exceed the target; 0: one request at a time."""
    rejecting: Mapping[Priority, bool]
    """Whether a class is rejected until the fill is 0.05 below its cap, or half of a cap below 0.1."""
    slope: float
    """Fill that one unit of cost adds."""
    usable_bytes: int | None
    """Memory that requests can fill on the fullest device; None: not known, as with engines."""
    cost: float
    """Cost in flight now, without requests that stated their memory."""


class Quota:
    """Rejects requests that would exceed the memory share of their class, and advises on serving the others.

    Not thread-safe: callers hold one lock. The cap of high is ``gpu_memory_target``.
    """

    def __init__(self, settings: QuotaSettings, gpu: GpuSettings, routes: Iterable[RoutePolicy] = ()) -> None:
        high = gpu.gpu_memory_target
        mid = min(settings.gpu_memory_ratio, high)
        # For high, mid and low: share of the memory that requests can fill.
        self.caps: tuple[float, float, float] = (high, mid, min(settings.gpu_memory_ratio_low, mid))
        self._general = ResourcePolicy.model_construct(
            precision_hint=settings.precisions, compute_priority=settings.compute_priority
        )
        self._routes = {
            route.name: route.resource_policy for route in routes if route.resource_policy is not None
        }
        self.memory: MemoryFill = MemoryFill(gpu)
        self._rejecting: set[Priority | str] = set()
        self._degraded = False
        self.factor: float = 1.0  # Factor of the ControlState in force
        self.load: MemoryLoad = MemoryLoad()  # Requests in flight

    def learn(self, view: GpuView, now: float) -> None:
        """Process a view of the devices."""
        self._degraded = any(verdict.condition is GpuCondition.DEGRADED for verdict in view.verdicts.values())
        self.memory.learn(view, self.load, now)

    def rejection(self, demand: Demand, now: float) -> Decision | None:
        """Rejection of a demand; None: it may be admitted, holds no slot, or memory is not known."""
        if not demand.holds_slot:
            return None
        fill = self.memory.projected(self.load, now)
        if fill is None:
            return None
        cap, key = self._cap(demand)
        stated, max_bytes = demand.memory_bytes, self.memory.max_bytes(cap)
        if stated is not None and max_bytes is not None and stated > max_bytes:
            # More than the class may ever fill: no wait helps.
            return Decision(
                False, Reason.TOO_LARGE, "too_large:memory", "memory", int(max_bytes), 0, math.inf, math.inf
            )
        # With nothing in flight and a fill that stays, waiting would free nothing: admit one request.
        return None if self._alone() else self._above(demand, fill, min(cap, self.memory.ceiling), key)

    def reserve(self, demand: Demand) -> MemoryLoad:
        """Count an admitted demand; it must be removed from the returned load."""
        self.load.add(demand)
        return self.load

    def advice(self, demand: Demand, now: float) -> ResourceAdvice:
        """Advice for an admitted demand; call it before the demand is counted."""
        fill = self.memory.projected(self.load, now)
        general = self._general
        route = self._routes.get(demand.route or "", general)
        labels = general.precision_hint if route.precision_hint is None else route.precision_hint
        own = general.compute_priority if route.compute_priority is None else route.compute_priority
        priority = demand.priority if own is None else own
        usable = self.memory.usable_bytes
        remaining_bytes = None
        if fill is not None and usable is not None:
            cap = min(self._cap(demand)[0], self.memory.ceiling)
            remaining_bytes = max(0, round((cap - fill) * usable))
        label = self._label(labels or (), demand, fill)
        return ResourceAdvice(label, COMPUTE_PRIORITIES[priority], remaining_bytes)

    def view(self, now: float) -> QuotaView:
        """All figures at ``now``."""
        memory = self.memory
        fill = memory.projected(self.load, now)
        ceiling = 1.0 if fill is None else memory.ceiling
        caps = {p: min(cap, ceiling) for p, cap in zip(Priority, self.caps, strict=True)}
        acts = fill is not None and not self._alone()
        return QuotaView(
            basis=FillBasis.UNKNOWN if fill is None else memory.basis,
            fill=fill,
            caps=caps,
            rejecting={
                p: acts and p in self._rejecting and _still_rejecting(fill or 0.0, c) for p, c in caps.items()
            },
            slope=memory.slope,
            usable_bytes=memory.usable_bytes,
            cost=self.load.cost,
        )

    def _above(self, demand: Demand, fill: float, cap: float, key: Priority | str) -> Decision | None:
        """Reject a demand beyond a cap, and all of its class until the fill is well below."""
        if key in self._rejecting and _still_rejecting(fill, cap):
            return self._fill_rejection(fill - _resume_fill(cap), fill, cap)
        self._rejecting.discard(key)
        # The first request needs no predicted memory: a wrong slope could otherwise never be corrected.
        added = self.memory.slope * demand.cost if self.load.in_flight else 0.0
        if demand.memory_bytes is not None and self.memory.usable_bytes:
            added = demand.memory_bytes / self.memory.usable_bytes
        excess = fill + added - cap
        if excess <= 0.0 < cap:
            return None
        if cap <= 0.0 or fill + self.memory.slope > cap:
            self._rejecting.add(key)
        return self._fill_rejection(excess, fill, cap)

    def _alone(self) -> bool:
        """Whether the fill stayed with nothing in flight here: other processes or the allocator hold it."""
        return self.memory.basis is FillBasis.KEPT and not self.load.in_flight

    def _cap(self, demand: Demand) -> tuple[float, Priority | str]:
        """The cap of a demand as configured, and the key of its rejection state."""
        if demand.route is not None:
            own = self._routes.get(demand.route, self._general).gpu_memory_ratio
            if own is not None:
                return min(own, self.caps[0]), demand.route
        return self.caps[demand.priority], demand.priority

    def _label(self, labels: tuple[str, ...], demand: Demand, fill: float | None) -> str:
        if not labels:
            return ""
        severity = 0
        if self.factor <= LAST_PRECISION_FACTOR or self._degraded:
            severity = 2
        elif self.factor < 1.0 or (fill is not None and fill > self.caps[Priority.MID]):
            severity = 1
        index = 0 if _FIRST_PRECISION[severity][demand.priority] else len(labels) - 1
        if demand.precision in labels:
            index = max(index, labels.index(demand.precision))
        return labels[index]

    def _fill_rejection(self, excess: float, fill: float, cap: float) -> Decision:
        """Build the rejection. The wait is an estimate, since the duration of requests is unknown."""
        memory = self.memory
        cost_rate, request_rate = memory.end_rates
        # At least one whole interval: requests rejected within one would otherwise all return at its end.
        wait_s = memory.renewal_s
        if self.load.in_flight and request_rate:
            wait_s = max(wait_s, 1.0 / request_rate)
        freed = memory.slope * (cost_rate or 0.0)
        if freed > 0.0:
            wait_s = max(wait_s, excess / freed)
        wait_s = min(wait_s, max(MAX_WAIT_S, memory.renewal_s))
        return Decision(False, Reason.GPU, "gpu:memory", "memory", cap, max(0.0, cap - fill), wait_s, wait_s)


def _resume_fill(cap: float) -> float:
    return max(cap - RESUME_MARGIN, cap / 2)


def _still_rejecting(fill: float, cap: float) -> bool:
    """Whether a rejected class is still rejected; always with a cap of 0."""
    return cap <= 0.0 or fill > _resume_fill(cap)
