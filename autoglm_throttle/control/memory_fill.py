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
    """A device whose fill stayed when requests went: an allocator keeps what it once took, so the fill says
    nothing until it moves."""
    UNKNOWN = "unknown"


class Load:
    """What is in flight now: the books from which a fill is carried on to the next sample."""

    __slots__ = ("cost", "ever", "held", "peak", "released", "stated_bytes")

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
        if demand.memory_bytes is None:
            self.cost = max(0.0, self.cost - demand.cost)
            self.released += demand.cost
        else:
            self.stated_bytes -= demand.memory_bytes
        if not self.held:
            self.cost = 0.0  # what adding and taking away of fractions has left


class _Found(NamedTuple):
    basis: Basis
    fill: float
    usable_bytes: int | None
    measured_s: float
    period_s: float


class MemoryFill:
    """Learns how full the memory is, and how much one unit of cost in flight adds to it.

    The fill is that of the engines' caches where engines tell it. Else it is (used - idle) / (total - idle)
    of the fullest device, idle being the least that was ever used: weights would otherwise read as "full"
    for ever. Before the first request idle is what is used now, whichever way it moves, for a model may
    still be loading; from then on it only falls.

    The slope is the mean of d fill / d cost over pairs of samples, each weighted by the square of its d cost,
    and forgotten exponentially; never below 0.

    Args:
        target: share of a device that may be full; an idle device near to it tells nothing.
        interval_s: seconds between samples, where a view does not promise otherwise.
        stale_after_s: age from which a fill is not known any more, unless its source is slower.
    """

    __slots__ = (
        "_bytes",
        "_cost",
        "_fresh_s",
        "_held",
        "_idle",
        "_interval_s",
        "_measured_s",
        "_products",
        "_released",
        "_squares",
        "_stale_after_s",
        "_target",
        "_top",
        "basis",
        "fill",
        "release_rate",
        "sampled_s",
        "slope",
        "usable_bytes",
    )

    def __init__(self, target: float, interval_s: float, stale_after_s: float) -> None:
        self._target = target
        self._interval_s = interval_s
        self._stale_after_s = stale_after_s
        self._idle: dict[DeviceKey, int] = {}
        self._measured_s = -math.inf
        self._fresh_s = stale_after_s
        self._cost, self._bytes, self._released = 0.0, 0, 0.0
        self.basis: Basis = Basis.UNKNOWN
        self.fill: float | None = None
        """0..1 at the last sample; None: it does not tell."""
        self.usable_bytes: int | None = None
        """What requests can fill of the device that was fullest then."""
        self.sampled_s: float = -math.inf
        """When the last new measurement came."""
        self.slope: float = 0.0
        """Fill that one unit of cost adds, >= 0."""
        self.release_rate: float | None = None
        """Cost that ends per second; None: not known yet."""
        self._products = self._squares = 0.0
        self._top, self._held = 0.0, 0  # a fill, and how many requests were in flight when it came

    def idle_bytes(self, device: DeviceKey) -> int | None:
        """What a device holds without requests, as far as is known."""
        return self._idle.get(device)

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
            self.basis, self.fill, self.usable_bytes = Basis.UNKNOWN, None, None
            self._forget()
            return
        known = self.basis is found.basis or (self.basis is Basis.KEPT and found.basis is Basis.DEVICE)
        if known and found.measured_s <= self._measured_s:
            return
        self._fresh_s = max(self._stale_after_s, STALE_INTERVALS * interval_s, STALE_PERIODS * found.period_s)
        before, self.fill = self.fill, found.fill
        if not known:
            self._forget()
            before = None
        self.basis = self._kept(found.fill, load) if found.basis is Basis.DEVICE else found.basis
        self.usable_bytes = found.usable_bytes
        if before is not None and self.basis is not Basis.KEPT:
            self._learn_slope(found.fill - before, load)
        self._note(load, found.measured_s, now)

    def projected(self, load: Load, now: float) -> float | None:
        """The fill carried on from the last sample to what is in flight now, >= 0; None: not known."""
        fill = self.fill
        if fill is None or self.basis is Basis.KEPT or now - self._measured_s > self._fresh_s:
            return None
        fill += self.slope * (load.cost - self._cost)
        if self.usable_bytes:
            fill += (load.stated_bytes - self._bytes) / self.usable_bytes
        return max(0.0, fill)

    def state(self, now: float) -> Basis:
        """What is known at ``now``: a fill that is too old is not."""
        return Basis.UNKNOWN if now - self._measured_s > self._fresh_s else self.basis

    def next_sample_s(self, now: float) -> float:
        """Seconds until the next measurement may be expected, > 0."""
        due_s = self.sampled_s + self._interval_s - now
        return due_s if due_s > 0 else self._interval_s

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
            told = self._fill_of(row, load)
            if told is not None and (fullest is None or told[0] > fullest.fill):
                fullest = _Found(Basis.DEVICE, *told, measured_s, period_s)
        return fullest

    def _fill_of(self, row: GpuSample, load: Load) -> tuple[float, int] | None:
        """Fill and usable bytes of one device; what it holds without requests is learned on the way."""
        used, total = row.memory_used_bytes, row.memory_total_bytes
        if row.kind == "engine" or row.health == "lost" or used is None or not total:
            return None
        key = (row.host, row.device)
        idle = self._idle[key] = min(self._idle.get(key, used), used) if load.ever else used
        if idle >= (self._target - BLIND_MARGIN) * total:
            return None
        return min(1.0, (used - idle) / (total - idle)), total - idle

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
            self.slope = max(0.0, self._products / self._squares)

    def _note(self, load: Load, measured_s: float, now: float) -> None:
        passed_s = now - self.sampled_s
        if 0.0 < passed_s < math.inf:
            rate = (load.released - self._released) / passed_s
            old = rate if self.release_rate is None else self.release_rate
            self.release_rate = old + SLOPE_GAIN * (rate - old)
        self._cost, self._bytes, self._released = load.cost, load.stated_bytes, load.released
        self._measured_s, self.sampled_s = measured_s, now
        load.peak = load.held

    def _forget(self) -> None:
        """Begin anew: the figures of another basis say nothing about this one."""
        self._products = self._squares = self.slope = 0.0
        self._top, self._held = 0.0, 0
