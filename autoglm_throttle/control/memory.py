"""Learns how full the request memory is, and the memory that one more request will add."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from autoglm_throttle.types import Demand, DeviceKey, GpuSample, GpuView

SLOPE_GAIN = 0.2
"""Weight of the newest pair of samples in the slope; chosen, as for the learned rates of the limiter."""

RISE = 0.02
"""Differences of fill up to this are noise: drivers round, and other work on a device comes and goes."""

BLIND_MARGIN = 0.05
"""An idle device this near to the target belongs to an engine that allocated its memory in advance:
noise would read as full in the small rest.
"""

STALE_INTERVALS = 3.0
STALE_PERIODS = 2.5
"""A fill expires after this many reported intervals of its source, or measurement periods of the source:
the same age limits as for the rates.
"""


class FillBasis(StrEnum):
    """Source of the fill: a closed set, also the metric label."""

    CACHE = "cache"
    """The key-value caches of the engines."""
    DEVICE = "device"
    """The fullest device, less its memory in use without requests."""
    KEPT = "kept"
    """A device with a fill that stayed when requests ended: an allocator retains its memory, or other
    processes hold it. Until it moves, the caps are shares of the rest.
    """
    UNKNOWN = "unknown"


class MemoryLoad:
    """Requests in flight now: the counts from which a fill is projected to the next sample."""

    __slots__ = ("cost", "ended", "had_requests", "in_flight", "peak", "released", "stated_bytes")

    def __init__(self) -> None:
        self.in_flight: int = 0
        """Requests in flight."""
        self.cost: float = 0.0
        """Cost of the requests in flight that did not state their memory."""
        self.stated_bytes: int = 0
        """Bytes that the other requests stated."""
        self.peak: int = 0
        """Maximum of requests in flight since the last sample."""
        self.released: float = 0.0
        """Cost of the ended requests without stated memory, since the start."""
        self.ended: int = 0
        """Ended requests, since the start."""
        self.had_requests: bool = False
        """Whether any request was ever in flight."""

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

    def all_idle(self) -> _DeviceMemory:
        """The same, with all memory in use counted as idle; at least one byte stays usable."""
        return self._replace(idle=min(self.used, self.total - 1))


class _FillEstimate(NamedTuple):
    basis: FillBasis
    fill: float
    device: _DeviceMemory | None
    measured_s: float
    period_s: float


class MemoryFill:
    """Learns how full the memory is, and how much one unit of cost in flight adds to it.

    The fill is that of the engines' caches where engines report it. Else it is
    (used - idle) / (total - idle) of the fullest device. Idle is the least that was ever used: weights
    would otherwise read as "full" for ever. Before the first request idle is the memory in use now, since
    a model may still be loading; from then on it only falls.

    A fill that stays when requests end does not belong to them. While it stays, memory in use counts as
    idle, so the fill is 0 and shares are of the rest; a unit of cost adds a larger share of the smaller rest.

    The slope is the mean of d fill / d cost over pairs of samples, each weighted by the square of its d cost,
    and forgotten exponentially; never below 0.

    Args:
        target: share of a whole device that may be full; an idle device near to it is ignored.
        interval_s: seconds between samples, unless a view reports another interval.
        stale_after_s: age from which a fill is unknown, unless its source is slower.
    """

    __slots__ = (
        "_bytes",
        "_cost",
        "_device",
        "_ended",
        "_fresh_s",
        "_idle",
        "_interval_s",
        "_measured_s",
        "_products",
        "_raw_fill",
        "_reference_fill",
        "_reference_in_flight",
        "_released",
        "_slope",
        "_squares",
        "_stale_after_s",
        "_target",
        "basis",
        "end_rate",
        "fill",
        "release_rate",
        "renewal_s",
        "sampled_s",
        "usable_bytes",
    )

    def __init__(self, target: float, interval_s: float, stale_after_s: float) -> None:
        self._target = target
        self._interval_s = interval_s
        self._stale_after_s = stale_after_s
        self._idle: dict[DeviceKey, int] = {}
        self._measured_s = -math.inf
        self._fresh_s = stale_after_s
        self._cost, self._bytes, self._released, self._ended = 0.0, 0, 0.0, 0
        self._device: _DeviceMemory | None = None
        self._raw_fill: float | None = None  # the last fill, what is kept not taken away
        self.basis: FillBasis = FillBasis.UNKNOWN
        self.fill: float | None = None
        """0..1 at the last sample; None: not known."""
        self.usable_bytes: int | None = None
        """Memory that requests can fill on the device that was fullest then."""
        self.sampled_s: float = -math.inf
        """Time of the last new measurement."""
        self.release_rate: float | None = None
        """Cost that ends per second; None: not known yet."""
        self.end_rate: float | None = None
        """Requests that end per second; None: not known yet."""
        self.renewal_s: float = interval_s
        """Seconds from one measurement to the next, > 0."""
        self._products = self._squares = self._slope = 0.0
        self._reference_fill, self._reference_in_flight = (
            0.0,
            0,
        )  # a fill, and how many requests were in flight when it came

    def idle_bytes(self, device: DeviceKey) -> int | None:
        """Memory of a device without requests, as far as it is known."""
        return self._idle.get(device)

    @property
    def slope(self) -> float:
        """Fill that one unit of cost adds, >= 0."""
        if self.basis is not FillBasis.KEPT or self._device is None:
            return self._slope
        return self._slope * self._device.usable / self._device.all_idle().usable

    @property
    def ceiling(self) -> float:
        """The fill, 0..1, at which the whole device is as full as the target; 1 without a device.

        0: the retained memory alone is above the target.
        """
        if self._device is None:
            return 1.0
        base = self._device.all_idle() if self.basis is FillBasis.KEPT else self._device
        return max(0.0, (self._target * base.total - base.idle) / base.usable)

    def max_bytes(self, cap: float) -> float | None:
        """Maximum for one request under a cap, with all other memory free; None: not known."""
        device = self._device
        if device is None:
            return None
        return min(cap * device.usable, self._target * device.total - device.idle)

    def learn(self, view: GpuView, load: MemoryLoad, now: float) -> None:
        """Process a view; one without a new measurement changes nothing.

        Args:
            view: samples of the devices and engines.
            load: requests in flight here at this moment.
            now: monotonic seconds.
        """
        interval_s = self._interval_s if view.interval_s is None else view.interval_s
        estimate = self._cache(view) or self._fullest(view.devices, load, now, interval_s)
        if estimate is None:
            self.basis, self.fill, self.usable_bytes, self._device = FillBasis.UNKNOWN, None, None, None
            self._reset()
            return
        known = self.basis is estimate.basis or (
            self.basis is FillBasis.KEPT and estimate.basis is FillBasis.DEVICE
        )
        if known and estimate.measured_s <= self._measured_s:
            return
        self._fresh_s = max(
            self._stale_after_s, STALE_INTERVALS * interval_s, STALE_PERIODS * estimate.period_s
        )
        self.renewal_s = max(interval_s, estimate.period_s)
        if not known:
            self._reset()
        before = self._raw_fill
        self._set_basis(estimate, load)
        # A retained fill does not follow the requests: it says nothing about the slope.
        if before is not None and self.basis is not FillBasis.KEPT:
            self._learn_slope(estimate.fill - before, load)
        self._record(load, estimate.measured_s, now)

    def projected(self, load: MemoryLoad, now: float) -> float | None:
        """Project the fill from the last sample to the requests in flight now, >= 0; None: not known."""
        fill = self.fill
        if fill is None or now - self._measured_s > self._fresh_s:
            return None
        fill += self.slope * (load.cost - self._cost)
        if self.usable_bytes:
            fill += (load.stated_bytes - self._bytes) / self.usable_bytes
        return max(0.0, fill)

    def state(self, now: float) -> FillBasis:
        """Basis at ``now``; ``unknown`` once the fill is too old."""
        return FillBasis.UNKNOWN if now - self._measured_s > self._fresh_s else self.basis

    def _cache(self, view: GpuView) -> _FillEstimate | None:
        fill, measured_s = view.kv_used_ratio, view.engines_at_s
        if not view.engines or fill is None or measured_s is None:
            return None
        return _FillEstimate(FillBasis.CACHE, fill, None, measured_s, 0.0)

    def _fullest(
        self, rows: Iterable[GpuSample], load: MemoryLoad, now: float, interval_s: float
    ) -> _FillEstimate | None:
        fullest: _FillEstimate | None = None
        for row in rows:
            period_s = row.period_s or 0.0
            limit_s = max(self._stale_after_s, STALE_INTERVALS * interval_s, STALE_PERIODS * period_s)
            measured_s = row.taken_at_s - row.age_s
            if now - measured_s > limit_s:
                continue
            memory = self._device_of(row, load)
            if memory is not None and (fullest is None or memory.fill > fullest.fill):
                fullest = _FillEstimate(FillBasis.DEVICE, memory.fill, memory, measured_s, period_s)
        return fullest

    def _device_of(self, row: GpuSample, load: MemoryLoad) -> _DeviceMemory | None:
        """Memory of one device; its idle memory is learned on the way."""
        used, total = row.memory_used_bytes, row.memory_total_bytes
        if row.kind == "engine" or row.health == "lost" or used is None or not total:
            return None
        key = (row.host, row.device)
        # Before the first request a model may still be loading: follow the fill both ways.
        idle = self._idle[key] = min(self._idle.get(key, used), used) if load.had_requests else used
        if idle >= (self._target - BLIND_MARGIN) * total:
            return None
        return _DeviceMemory(used, idle, total)

    def _set_basis(self, estimate: _FillEstimate, load: MemoryLoad) -> None:
        """Store a new measurement with its basis and its usable memory."""
        self.basis, self.fill, self._raw_fill = estimate.basis, estimate.fill, estimate.fill
        self._device, self.usable_bytes = estimate.device, None
        if estimate.device is None:
            return
        self.basis, self.usable_bytes = self._basis_of(estimate.fill, load), estimate.device.usable
        if self.basis is FillBasis.KEPT:
            self.fill, self.usable_bytes = 0.0, estimate.device.all_idle().usable

    def _basis_of(self, fill: float, load: MemoryLoad) -> FillBasis:
        """Basis of a device fill: retained if it stayed although at least half of the requests ended.

        The requests are those in flight when the fill rose. A fill observed with nothing in flight twice in a
        row is retained as well: it does not belong to requests.
        """
        if abs(fill - self._reference_fill) > RISE:
            self._reference_fill, self._reference_in_flight = fill, max(load.in_flight, load.peak)
            return FillBasis.DEVICE
        if fill > RISE and load.in_flight <= self._reference_in_flight / 2:
            return FillBasis.KEPT
        self._reference_in_flight = max(self._reference_in_flight, load.in_flight)
        return FillBasis.DEVICE

    def _learn_slope(self, rise: float, load: MemoryLoad) -> None:
        if self.usable_bytes:
            rise -= (load.stated_bytes - self._bytes) / self.usable_bytes
        added_cost = load.cost - self._cost
        if added_cost:
            self._products += SLOPE_GAIN * (rise * added_cost - self._products)
            self._squares += SLOPE_GAIN * (added_cost * added_cost - self._squares)
            self._slope = max(0.0, self._products / self._squares)

    def _record(self, load: MemoryLoad, measured_s: float, now: float) -> None:
        passed_s = now - self.sampled_s
        if 0.0 < passed_s < math.inf:
            self.release_rate = _smoothed(self.release_rate, (load.released - self._released) / passed_s)
            self.end_rate = _smoothed(self.end_rate, (load.ended - self._ended) / passed_s)
        self._cost, self._bytes, self._released = load.cost, load.stated_bytes, load.released
        self._ended = load.ended
        self._measured_s, self.sampled_s = measured_s, now
        load.peak = load.in_flight

    def _reset(self) -> None:
        """Discard the learned values: those of another basis say nothing about this one."""
        self._products = self._squares = self._slope = 0.0
        self._reference_fill, self._reference_in_flight, self._raw_fill = 0.0, 0, None


def _smoothed(old: float | None, new: float) -> float:
    """Move a rate towards a newer one; negative rates (counts reset in a fork) count as 0."""
    new = max(0.0, new)
    return new if old is None else old + SLOPE_GAIN * (new - old)
