"""Learns how full the request memory is, and the memory that one more request will add."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from autoglm_throttle.model import Demand, DeviceKey, GpuSample, GpuView

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


class Basis(StrEnum):
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


class Load:
    """Requests in flight now: the counts from which a fill is projected to the next sample."""

    __slots__ = ("cost", "ended", "ever", "held", "peak", "released", "stated_bytes")

    def __init__(self) -> None:
        self.held: int = 0
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
        self.ever: bool = False
        """Whether any request was ever in flight."""

    def add(self, demand: Demand) -> None:
        """Count a request that begins."""
        self.ever = True
        self.held += 1
        self.peak = max(self.peak, self.held)
        if demand.memory_bytes is None:
            self.cost += demand.cost
        else:
            self.stated_bytes += demand.memory_bytes

    def drop(self, demand: Demand) -> None:
        """Count a request that has ended, and was added before."""
        self.held -= 1
        self.ended += 1
        if demand.memory_bytes is None:
            self.cost = max(0.0, self.cost - demand.cost)
            self.released += demand.cost
        else:
            self.stated_bytes -= demand.memory_bytes
        if not self.held:
            self.cost = 0.0  # what adding and taking away of fractions has left


class _Device(NamedTuple):
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

    def kept(self) -> _Device:
        """The same, with all memory in use counted as idle; at least one byte stays usable."""
        return self._replace(idle=min(self.used, self.total - 1))


class _Found(NamedTuple):
    basis: Basis
    fill: float
    device: _Device | None
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
        "_held",
        "_idle",
        "_interval_s",
        "_measured_s",
        "_products",
        "_released",
        "_slope",
        "_squares",
        "_stale_after_s",
        "_target",
        "_told",
        "_top",
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
        self._device: _Device | None = None
        self._told: float | None = None  # the last fill, what is kept not taken away
        self.basis: Basis = Basis.UNKNOWN
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
        self._top, self._held = 0.0, 0  # a fill, and how many requests were in flight when it came

    def idle_bytes(self, device: DeviceKey) -> int | None:
        """Memory of a device without requests, as far as it is known."""
        return self._idle.get(device)

    @property
    def slope(self) -> float:
        """Fill that one unit of cost adds, >= 0."""
        if self.basis is not Basis.KEPT or self._device is None:
            return self._slope
        return self._slope * self._device.usable / self._device.kept().usable

    @property
    def ceiling(self) -> float:
        """The fill, 0..1, at which the whole device is as full as the target; 1 without a device.

        0: the retained memory alone is above the target.
        """
        if self._device is None:
            return 1.0
        base = self._device.kept() if self.basis is Basis.KEPT else self._device
        return max(0.0, (self._target * base.total - base.idle) / base.usable)

    def most_bytes(self, cap: float) -> float | None:
        """Maximum for one request under a cap, with all other memory free; None: not known."""
        device = self._device
        if device is None:
            return None
        return min(cap * device.usable, self._target * device.total - device.idle)

    def learn(self, view: GpuView, load: Load, now: float) -> None:
        """Process a view; one without a new measurement changes nothing.

        Args:
            view: samples of the devices and engines.
            load: requests in flight here at this moment.
            now: monotonic seconds.
        """
        interval_s = self._interval_s if view.interval_s is None else view.interval_s
        found = self._cache(view) or self._fullest(view.devices, load, now, interval_s)
        if found is None:
            self.basis, self.fill, self.usable_bytes, self._device = Basis.UNKNOWN, None, None, None
            self._forget()
            return
        known = self.basis is found.basis or (self.basis is Basis.KEPT and found.basis is Basis.DEVICE)
        if known and found.measured_s <= self._measured_s:
            return
        self._fresh_s = max(self._stale_after_s, STALE_INTERVALS * interval_s, STALE_PERIODS * found.period_s)
        self.renewal_s = max(interval_s, found.period_s)
        if not known:
            self._forget()
        before = self._told
        self._place(found, load)
        # A retained fill does not follow the requests: it says nothing about the slope.
        if before is not None and self.basis is not Basis.KEPT:
            self._learn_slope(found.fill - before, load)
        self._note(load, found.measured_s, now)

    def projected(self, load: Load, now: float) -> float | None:
        """Project the fill from the last sample to the requests in flight now, >= 0; None: not known."""
        fill = self.fill
        if fill is None or now - self._measured_s > self._fresh_s:
            return None
        fill += self.slope * (load.cost - self._cost)
        if self.usable_bytes:
            fill += (load.stated_bytes - self._bytes) / self.usable_bytes
        return max(0.0, fill)

    def state(self, now: float) -> Basis:
        """Basis at ``now``; ``unknown`` once the fill is too old."""
        return Basis.UNKNOWN if now - self._measured_s > self._fresh_s else self.basis

    def _cache(self, view: GpuView) -> _Found | None:
        fill, measured_s = view.kv_used_ratio, view.engines_at_s
        if not view.engines or fill is None or measured_s is None:
            return None
        return _Found(Basis.CACHE, fill, None, measured_s, 0.0)

    def _fullest(self, rows: Iterable[GpuSample], load: Load, now: float, interval_s: float) -> _Found | None:
        fullest: _Found | None = None
        for row in rows:
            period_s = row.period_s or 0.0
            limit_s = max(self._stale_after_s, STALE_INTERVALS * interval_s, STALE_PERIODS * period_s)
            measured_s = row.taken_at_s - row.age_s
            if now - measured_s > limit_s:
                continue
            told = self._device_of(row, load)
            if told is not None and (fullest is None or told.fill > fullest.fill):
                fullest = _Found(Basis.DEVICE, told.fill, told, measured_s, period_s)
        return fullest

    def _device_of(self, row: GpuSample, load: Load) -> _Device | None:
        """Memory of one device; its idle memory is learned on the way."""
        used, total = row.memory_used_bytes, row.memory_total_bytes
        if row.kind == "engine" or row.health == "lost" or used is None or not total:
            return None
        key = (row.host, row.device)
        # Before the first request a model may still be loading: follow the fill both ways.
        idle = self._idle[key] = min(self._idle.get(key, used), used) if load.ever else used
        if idle >= (self._target - BLIND_MARGIN) * total:
            return None
        return _Device(used, idle, total)

    def _place(self, found: _Found, load: Load) -> None:
        """Store a new measurement with its basis and its usable memory."""
        self.basis, self.fill, self._told = found.basis, found.fill, found.fill
        self._device, self.usable_bytes = found.device, None
        if found.device is None:
            return
        self.basis, self.usable_bytes = self._kept(found.fill, load), found.device.usable
        if self.basis is Basis.KEPT:
            self.fill, self.usable_bytes = 0.0, found.device.kept().usable

    def _kept(self, fill: float, load: Load) -> Basis:
        """Basis of a device fill: retained if it stayed although at least half of the requests ended.

        The requests are those in flight when the fill rose. A fill observed with nothing in flight twice in a
        row is retained as well: it does not belong to requests.
        """
        if abs(fill - self._top) > RISE:
            self._top, self._held = fill, max(load.held, load.peak)
            return Basis.DEVICE
        if fill > RISE and load.held <= self._held / 2:
            return Basis.KEPT
        self._held = max(self._held, load.held)
        return Basis.DEVICE

    def _learn_slope(self, rise: float, load: Load) -> None:
        if self.usable_bytes:
            rise -= (load.stated_bytes - self._bytes) / self.usable_bytes
        more = load.cost - self._cost
        if more:
            self._products += SLOPE_GAIN * (rise * more - self._products)
            self._squares += SLOPE_GAIN * (more * more - self._squares)
            self._slope = max(0.0, self._products / self._squares)

    def _note(self, load: Load, measured_s: float, now: float) -> None:
        passed_s = now - self.sampled_s
        if 0.0 < passed_s < math.inf:
            self.release_rate = _nearer(self.release_rate, (load.released - self._released) / passed_s)
            self.end_rate = _nearer(self.end_rate, (load.ended - self._ended) / passed_s)
        self._cost, self._bytes, self._released = load.cost, load.stated_bytes, load.released
        self._ended = load.ended
        self._measured_s, self.sampled_s = measured_s, now
        load.peak = load.held

    def _forget(self) -> None:
        """Discard the learned values: those of another basis say nothing about this one."""
        self._products = self._squares = self._slope = 0.0
        self._top, self._held, self._told = 0.0, 0, None


def _nearer(old: float | None, new: float) -> float:
    """Move a rate towards a newer one; negative rates (counts reset in a fork) count as 0."""
    new = max(0.0, new)
    return new if old is None else old + SLOPE_GAIN * (new - old)
