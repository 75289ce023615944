"""How full the memory that requests can fill is, and what one more of them will add."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from autoglm_throttle.model import Demand, DeviceKey, GpuSample, GpuView

SLOPE_GAIN = 0.2
"""Weight of the newest pair of samples in what is learned; chosen, as for the learned rates of the gate."""

RISE = 0.02
"""Differences of fill up to this are noise: drivers round, and other work on a card comes and goes."""

BLIND_MARGIN = 0.05
"""An idle device this near to the target belongs to an engine that took its memory in advance: of the rest a
tremor would read as full."""

STALE_INTERVALS = 3.0
STALE_PERIODS = 2.5
"""A fill is not believed when it is older than so many promised intervals of its source, or periods in which
the source measures anew: the ladder that the rates go by."""


class Basis(StrEnum):
    """What the fill rests on: a closed set, also the metric label."""

    CACHE = "cache"
    """The key-value caches of the engines."""
    DEVICE = "device"
    """The fullest device, what it holds without requests taken away."""
    KEPT = "kept"
    """A device whose fill stayed when requests went: an allocator keeps what it once took, or others hold it.
    Until it moves, the caps are shares of what is left beside it."""
    UNKNOWN = "unknown"


class Load:
    """What is in flight now: the books from which a fill is carried on to the next sample."""

    __slots__ = ("cost", "ended", "ever", "held", "peak", "released", "stated_bytes")

    def __init__(self) -> None:
        self.held: int = 0
        """Requests in flight."""
        self.cost: float = 0.0
        """Cost of those of them that did not state their memory."""
        self.stated_bytes: int = 0
        """Bytes that the others stated."""
        self.peak: int = 0
        """The most requests since the last sample."""
        self.released: float = 0.0
        """Cost of those that ended, since the start."""
        self.ended: int = 0
        """Requests that ended, since the start."""
        self.ever: bool = False
        """Whether a request was ever in flight."""

    def add(self, demand: Demand) -> None:
        """Count one that begins."""
        self.ever = True
        self.held += 1
        self.peak = max(self.peak, self.held)
        if demand.memory_bytes is None:
            self.cost += demand.cost
        else:
            self.stated_bytes += demand.memory_bytes

    def drop(self, demand: Demand) -> None:
        """Count one that has ended, and was added before."""
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
    """What one device holds, all told and without requests, in bytes."""

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
        """The same, all that is in use taken for idle; never without a byte to divide by."""
        return self._replace(idle=min(self.used, self.total - 1))


class _Found(NamedTuple):
    basis: Basis
    fill: float
    device: _Device | None
    measured_s: float
    period_s: float


class MemoryFill:
    """Learns how full the memory is, and how much one unit of cost in flight adds to it.

    The fill is that of the engines' caches where engines tell it. Else it is (used - idle) / (total - idle)
    of the fullest device, idle being the least that was ever used: weights would otherwise read as "full"
    for ever. Before the first request idle is what is used now, whichever way it moves, for a model may
    still be loading; from then on it only falls.

    A fill that stays when requests go is not theirs. While it stays, what is in use counts as idle, so the
    fill is 0 and shares are of the rest; what a unit of cost adds is a larger share of the smaller rest.

    The slope is the mean of d fill / d cost over pairs of samples, each weighted by the square of its d cost,
    and forgotten exponentially; never below 0.

    Args:
        target: share of a whole device that may be full; an idle device near to it tells nothing.
        interval_s: seconds between samples, where a view does not promise otherwise.
        stale_after_s: age from which a fill is not known any more, unless its source is slower.
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
        """0..1 at the last sample; None: it does not tell."""
        self.usable_bytes: int | None = None
        """What requests can fill of the device that was fullest then."""
        self.sampled_s: float = -math.inf
        """When the last new measurement came."""
        self.release_rate: float | None = None
        """Cost that ends per second; None: not known yet."""
        self.end_rate: float | None = None
        """Requests that end per second; None: not known yet."""
        self.renewal_s: float = interval_s
        """Seconds from one measurement to the next, > 0."""
        self._products = self._squares = self._slope = 0.0
        self._top, self._held = 0.0, 0  # a fill, and how many requests were in flight when it came

    def idle_bytes(self, device: DeviceKey) -> int | None:
        """What a device holds without requests, as far as is known."""
        return self._idle.get(device)

    @property
    def slope(self) -> float:
        """Fill that one unit of cost adds, >= 0."""
        if self.basis is not Basis.KEPT or self._device is None:
            return self._slope
        return self._slope * self._device.usable / self._device.kept().usable

    @property
    def ceiling(self) -> float:
        """The fill, 0..1, at which the whole device is as full as the target; 1 where no device was asked.

        0: what stays in use is above the target by itself.
        """
        if self._device is None:
            return 1.0
        base = self._device.kept() if self.basis is Basis.KEPT else self._device
        return max(0.0, (self._target * base.total - base.idle) / base.usable)

    def most_bytes(self, cap: float) -> float | None:
        """What one request under a cap can ever get, were all that is not idle free; None: not known."""
        device = self._device
        if device is None:
            return None
        return min(cap * device.usable, self._target * device.total - device.idle)

    def learn(self, view: GpuView, load: Load, now: float) -> None:
        """Take in a view; one that holds no new measurement changes nothing.

        Args:
            view: what the devices and engines say.
            load: what is in flight here at this moment.
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
        if before is not None and self.basis is not Basis.KEPT:
            self._learn_slope(found.fill - before, load)
        self._note(load, found.measured_s, now)

    def projected(self, load: Load, now: float) -> float | None:
        """The fill carried on from the last sample to what is in flight now, >= 0; None: not known."""
        fill = self.fill
        if fill is None or now - self._measured_s > self._fresh_s:
            return None
        fill += self.slope * (load.cost - self._cost)
        if self.usable_bytes:
            fill += (load.stated_bytes - self._bytes) / self.usable_bytes
        return max(0.0, fill)

    def state(self, now: float) -> Basis:
        """What is known at ``now``: a fill that is too old is not."""
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
        """What one device holds; what it holds without requests is learned on the way."""
        used, total = row.memory_used_bytes, row.memory_total_bytes
        if row.kind == "engine" or row.health == "lost" or used is None or not total:
            return None
        key = (row.host, row.device)
        idle = self._idle[key] = min(self._idle.get(key, used), used) if load.ever else used
        if idle >= (self._target - BLIND_MARGIN) * total:
            return None
        return _Device(used, idle, total)

    def _place(self, found: _Found, load: Load) -> None:
        """Take over a new measurement: what it rests on, and what it is a share of."""
        self.basis, self.fill, self._told = found.basis, found.fill, found.fill
        self._device, self.usable_bytes = found.device, None
        if found.device is None:
            return
        self.basis, self.usable_bytes = self._kept(found.fill, load), found.device.usable
        if self.basis is Basis.KEPT:
            self.fill, self.usable_bytes = 0.0, found.device.kept().usable

    def _kept(self, fill: float, load: Load) -> Basis:
        """Whether a fill has stayed although at least half of the requests went that were there when it rose.

        What is found with nothing in flight twice in a row is kept as well: it is not the work of requests.
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
        """Begin anew: the figures of another basis say nothing about this one."""
        self._products = self._squares = self._slope = 0.0
        self._top, self._held, self._told = 0.0, 0, None


def _nearer(old: float | None, new: float) -> float:
    """A rate, moved towards a newer one; books begun anew in a fork count as none."""
    new = max(0.0, new)
    return new if old is None else old + SLOPE_GAIN * (new - old)
