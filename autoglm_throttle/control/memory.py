"""Learns how full the request memory is, and the memory that one more request will add."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from autoglm_throttle.control.staleness import PERIODS_TO_STALE
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import Demand, DeviceKey, GpuSample, GpuView

GAIN = 0.2  # Weight of the newest pair of samples in the slope and in the rates; chosen, as in the limiter
# Differences of fill up to this are noise: drivers round, and other work on a device comes and goes.
RISE = 0.02
# An idle device this near to the target belongs to an engine that allocated its memory in advance: noise
# would read as full in the small rest.
BLIND_MARGIN = 0.05
# A fill expires after this many reported intervals of its source: the same age limit as for the rates.
STALE_INTERVALS = 3.0


class FillBasis(StrEnum):
    """Source of the fill: a closed set, also the metric label."""

    CACHE = "cache"  # The key-value caches of the engines
    DEVICE = "device"  # The fullest device, less its memory in use without requests
    # A device with a fill that stayed when requests ended: an allocator or another process holds it. Until it
    # moves, the caps are shares of the rest.
    KEPT = "kept"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class MemoryLoad:
    """Requests in flight now: the counts from which a fill is projected to the next sample."""

    in_flight: int = 0
    cost: float = 0.0  # Cost of the requests in flight that did not state their memory
    stated_bytes: int = 0  # Bytes that the other requests stated
    peak: int = 0  # Maximum of requests in flight since the last sample
    released: float = 0.0  # Cost of the ended requests without stated memory, since the start
    ended: int = 0  # Ended requests, since the start
    had_requests: bool = False  # Whether any request was ever in flight

    def add(self, demand: Demand) -> None:
        """Count a request that begins."""
        self.had_requests = True
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        if demand.memory_bytes is None:
            self.cost += demand.cost
        else:
            self.stated_bytes += demand.memory_bytes

    def remove(self, demand: Demand) -> None:
        """Count a request that has ended, and was added before."""
        self.in_flight -= 1
        self.ended += 1
        if demand.memory_bytes is None:
            self.cost = max(0.0, self.cost - demand.cost)
            self.released += demand.cost
        else:
            self.stated_bytes -= demand.memory_bytes
        if not self.in_flight:
            self.cost = 0.0  # what adding and taking away of fractions has left


class _DeviceMemory(NamedTuple):
    """Memory of one device, in use and idle (without requests), in bytes."""

    used: int
    idle: int
    total: int

    @property
    def usable(self) -> int:
        return self.total - self.idle

    @property
    def fill(self) -> float:
        return min(1.0, (self.used - self.idle) / self.usable)


class _FillEstimate(NamedTuple):
    """A fill as measured."""

    fill: float
    device: _DeviceMemory | None  # None: the fill is that of the engines' caches
    measured_s: float
    period_s: float


@dataclass(slots=True)
class _Learned:
    """The slope and the retention of one basis: those of another basis say nothing about it."""

    # Fill that one unit of cost adds, >= 0: the mean of d fill / d cost over pairs of samples, each weighted
    # by the square of its d cost, and forgotten exponentially.
    slope: float = 0.0
    products: float = 0.0
    squares: float = 0.0
    _fill: float = 0.0
    _in_flight: int = 0  # Requests in flight when the fill rose

    def basis_of(self, fill: float, load: MemoryLoad) -> FillBasis:
        """Basis of a device fill: retained if it stayed although half of the requests of its rise have ended.

        A fill observed with nothing in flight twice in a row does not belong to requests either.
        """
        if abs(fill - self._fill) > RISE:
            self._fill, self._in_flight = fill, max(load.in_flight, load.peak)
            return FillBasis.DEVICE
        if fill > RISE and load.in_flight <= self._in_flight / 2:
            return FillBasis.KEPT
        self._in_flight = max(self._in_flight, load.in_flight)
        return FillBasis.DEVICE


class MemoryFill:
    """Learns how full the memory is, and how much one unit of cost in flight adds to it.

    The fill is that of the engines' caches, else (used - idle) / (total - idle) of the fullest device. Idle
    is the least that was ever used: weights would otherwise read as "full" for ever.

    A fill that stays when requests end does not belong to them. While it stays, memory in use counts as idle:
    the fill is 0, shares are of the rest, and a unit of cost adds a larger share of it.
    """

    def __init__(self, settings: GpuSettings) -> None:
        self._settings = settings
        self._target = settings.gpu_memory_target  # read for each request with quotas: a plain attribute
        self._fresh_s = settings.stale_after_s
        self.renewal_s: float = settings.sample_interval_s  # Seconds from one measurement to the next, > 0
        # Memory of each device without requests, as far as it is known.
        self.idle_bytes: dict[DeviceKey, int] = {}
        self._at_sample = MemoryLoad()  # Load at the last sample, and its time
        self._sampled_s = -math.inf
        self._learned = _Learned()
        self._estimate: _FillEstimate | None = None
        self.basis: FillBasis = FillBasis.UNKNOWN
        # 0..1 at the last sample, without the memory that is retained; None: not known.
        self.fill: float | None = None
        # Memory that requests can fill on the device that was fullest then.
        self.usable_bytes: int | None = None
        self.slope: float = 0.0  # Fill that one unit of cost adds, >= 0
        # Fill, 0..1, at which the whole device is as full as the target; 1 without a device.
        self.ceiling: float = 1.0
        # Cost, and requests, that end per second, smoothed over the samples; None: not known yet.
        self.end_rates: tuple[float | None, float | None] = (None, None)

    def max_bytes(self, cap: float) -> float | None:
        """Maximum for one request under a cap, with all other memory free; None: not known."""
        device = None if self._estimate is None else self._estimate.device
        if device is None:
            return None
        return min(cap * device.usable, self._target * device.total - device.idle)

    def learn(self, view: GpuView, load: MemoryLoad, now: float) -> None:
        """Process a view, with the requests in flight here; one without a new measurement changes nothing."""
        interval_s = self._settings.sample_interval_s if view.interval_s is None else view.interval_s
        estimate = self._measured(view, load, now, interval_s)
        if estimate is None:
            self.basis, self.fill, self.usable_bytes, self._estimate = FillBasis.UNKNOWN, None, None, None
            self._learned, self.slope, self.ceiling = _Learned(), 0.0, 1.0
            return
        before = self._estimate
        if before is None or (before.device is None) != (estimate.device is None):
            before, self._learned = None, _Learned()
        elif estimate.measured_s <= before.measured_s:
            return
        self.renewal_s = max(interval_s, estimate.period_s)
        self._fresh_s = self._known_s(interval_s, estimate.period_s)
        self._set_basis(estimate, load)
        # A retained fill does not follow the requests: it says nothing about the slope.
        if before is not None and self.basis is not FillBasis.KEPT:
            self._learn_slope(estimate.fill - before.fill, load)
        self.slope = self._learned.slope
        if self.basis is FillBasis.KEPT and estimate.device is not None and self.usable_bytes:
            self.slope = self.slope * estimate.device.usable / self.usable_bytes
        self._record(load, now)

    def projected(self, load: MemoryLoad, now: float) -> float | None:
        """Project the fill from the last sample to the requests in flight now, >= 0; None: not known."""
        fill, estimate = self.fill, self._estimate
        if fill is None or estimate is None or now - estimate.measured_s > self._fresh_s:
            return None
        fill += self.slope * (load.cost - self._at_sample.cost)
        if self.usable_bytes:
            fill += (load.stated_bytes - self._at_sample.stated_bytes) / self.usable_bytes
        return max(0.0, fill)

    def _known_s(self, interval_s: float, period_s: float) -> float:
        return max(self._settings.stale_after_s, STALE_INTERVALS * interval_s, PERIODS_TO_STALE * period_s)

    def _measured(
        self, view: GpuView, load: MemoryLoad, now: float, interval_s: float
    ) -> _FillEstimate | None:
        if view.engines and view.kv_used_ratio is not None and view.engines_at_s is not None:
            return _FillEstimate(view.kv_used_ratio, None, view.engines_at_s, 0.0)
        fullest: _FillEstimate | None = None
        for row in view.devices:
            period_s = row.period_s or 0.0
            measured_s = row.taken_at_s - row.age_s
            if now - measured_s > self._known_s(interval_s, period_s):
                continue
            memory = self._learn_idle(row, load)
            if memory is not None and (fullest is None or memory.fill > fullest.fill):
                fullest = _FillEstimate(memory.fill, memory, measured_s, period_s)
        return fullest

    def _learn_idle(self, row: GpuSample, load: MemoryLoad) -> _DeviceMemory | None:
        """Memory of one device; its idle memory is learned on the way."""
        used, total = row.memory_used_bytes, row.memory_total_bytes
        if row.kind == "engine" or row.health == "lost" or used is None or not total:
            return None
        key = (row.host, row.device)
        # Before the first request a model may still be loading: follow the fill both ways.
        idle = self.idle_bytes[key] = min(self.idle_bytes.get(key, used), used) if load.had_requests else used
        return None if idle >= (self._target - BLIND_MARGIN) * total else _DeviceMemory(used, idle, total)

    def _set_basis(self, estimate: _FillEstimate, load: MemoryLoad) -> None:
        self._estimate, base = estimate, estimate.device
        self.basis, self.fill, self.usable_bytes, self.ceiling = FillBasis.CACHE, estimate.fill, None, 1.0
        if base is None:
            return
        self.basis = self._learned.basis_of(estimate.fill, load)
        if self.basis is FillBasis.KEPT:
            # All memory in use counts as idle; at least one byte stays usable.
            base, self.fill = base._replace(idle=min(base.used, base.total - 1)), 0.0
        self.usable_bytes = base.usable
        self.ceiling = max(0.0, (self._target * base.total - base.idle) / base.usable)

    def _learn_slope(self, rise: float, load: MemoryLoad) -> None:
        learned, added_cost = self._learned, load.cost - self._at_sample.cost
        if self.usable_bytes:
            rise -= (load.stated_bytes - self._at_sample.stated_bytes) / self.usable_bytes
        if added_cost:
            learned.products += GAIN * (rise * added_cost - learned.products)
            learned.squares += GAIN * (added_cost * added_cost - learned.squares)
            learned.slope = max(0.0, learned.products / learned.squares)

    def _record(self, load: MemoryLoad, now: float) -> None:
        """Store the load at a new measurement, and the rates at which requests ended since the last one."""
        before, passed_s = self._at_sample, now - self._sampled_s
        if 0.0 < passed_s < math.inf:
            cost_rate, request_rate = self.end_rates
            self.end_rates = (
                _smoothed(cost_rate, (load.released - before.released) / passed_s),
                _smoothed(request_rate, (load.ended - before.ended) / passed_s),
            )
        self._at_sample, self._sampled_s = replace(load), now
        load.peak = load.in_flight


def _smoothed(old: float | None, new: float) -> float:
    """Move a rate towards a newer one; negative rates (counts that began anew) count as 0."""
    new = max(0.0, new)
    return new if old is None else old + GAIN * (new - old)
