"""Measures the host for operators: cores, memory, swap, disks, network and pressure.

In a container with limits the figures of cores and memory are those of its control group: the host's would
mislead. Without psutil (extra ``[host]``) the pressure and the group's figures remain.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from autoglm_throttle.gpu.host import ControlGroup, CpuQuota, share, throttled_share

if TYPE_CHECKING:
    from autoglm_throttle.types import Clock

MIN_INTERVAL_S: Final = 1.0  # Shortest time between two readings; readers in between get the last one
RESOURCES: Final = ("cpu", "io", "memory")

Reading: TypeAlias = Any  # A named tuple of psutil; its fields depend on the system

# Fields of psutil by direction, and the order of the times of a core in `_core`.
_SWAP: Final = {"in": "sin", "out": "sout"}
_DISK: Final = {"read": "read_bytes", "write": "write_bytes"}
_NETWORK: Final = {"receive": "bytes_recv", "transmit": "bytes_sent"}
_WHOLE, _BUSY, _IOWAIT = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """The host at one moment; None, or a missing key: not known. Rates hold since the reading before."""

    cpu_ratio: float | None = None
    """Busy share of all cores, or of the limit on them."""
    cpu_busiest_ratio: float | None = None
    """Busy share of the busiest core: an event loop uses one."""
    cpu_throttled_ratio: float | None = None
    iowait_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    pressure_ratio: Mapping[str, float] = field(default_factory=dict)
    swap_bytes_per_second: Mapping[str, float] = field(default_factory=dict)
    disk_bytes_per_second: Mapping[str, float] = field(default_factory=dict)
    network_bytes_per_second: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Counters:
    """One reading of counters that only grow, except for a restart of the host or a device."""

    at_s: float
    quota: CpuQuota | None
    pressure_s: Mapping[str, float]
    cores: list[tuple[float, float, float]]  # whole, busy and iowait seconds of each core
    swap: Mapping[str, float]
    disk: Mapping[str, float]
    network: Mapping[str, float]


class HostMonitor:
    """Reads the host when asked, at most once a second. It has no thread: without a reader it costs nothing.

    Blocking, for some hundred microseconds. Two threads may call it.
    """

    def __init__(self, clock: Clock = time.monotonic, group: ControlGroup | None = None) -> None:
        self._clock = clock
        self._group = group or ControlGroup()
        self._psutil = _psutil()
        self._last: _Counters | None = None
        self._newest = HostView()

    def current(self) -> HostView:
        """Return the host now; the first call returns no rates."""
        now, last = self._clock(), self._last
        if last is None or now - last.at_s >= MIN_INTERVAL_S:
            self._last = counters = self._read(now)
            self._newest = self._view(last or counters, counters)
        return self._newest

    def _read(self, now: float) -> _Counters:
        stalls = ((name, self._group.pressure(name)) for name in RESOURCES)
        return _Counters(
            at_s=now,
            quota=self._group.cpu(),
            pressure_s={name: stall.total_s for name, stall in stalls if stall is not None},
            cores=[_core(times) for times in self._call("cpu_times", percpu=True) or ()],
            swap=_named(self._call("swap_memory"), _SWAP),
            disk=_named(self._call("disk_io_counters", nowrap=False), _DISK),
            network=_named(self._call("net_io_counters", nowrap=False), _NETWORK),
        )

    def _view(self, last: _Counters, now: _Counters) -> HostView:
        passed_s = now.at_s - last.at_s
        used, total = self._memory()
        busy, waiting = _shares(last.cores, now.cores, _BUSY), _shares(last.cores, now.cores, _IOWAIT)
        return HostView(
            cpu_ratio=_mean(busy) if now.quota is None else _quota_share(last.quota, now.quota, passed_s),
            cpu_busiest_ratio=max(busy, default=None),
            cpu_throttled_ratio=throttled_share(last.quota, now.quota),
            iowait_ratio=_mean(waiting),
            memory_used_bytes=used,
            memory_total_bytes=total,
            pressure_ratio={
                name: min(1.0, rate) for name, rate in _rates(last.pressure_s, now.pressure_s, passed_s)
            },
            swap_bytes_per_second=dict(_rates(last.swap, now.swap, passed_s)),
            disk_bytes_per_second=dict(_rates(last.disk, now.disk, passed_s)),
            network_bytes_per_second=dict(_rates(last.network, now.network, passed_s)),
        )

    def _memory(self) -> tuple[float | None, float | None]:
        limited = self._group.memory()
        host = self._call("virtual_memory")
        if limited is not None and (host is None or limited[1] < host.total):
            return limited
        return (None, None) if host is None else (host.total - host.available, host.total)

    def _call(self, name: str, **arguments: object) -> Reading:
        """Call a function of psutil; None: it is missing, or the system does not have the figure."""
        try:
            return getattr(self._psutil, name)(**arguments)
        except Exception:  # noqa: BLE001 - by system: no such file, no such function, no right to read
            return None


def _psutil() -> object | None:
    try:
        import psutil
    except ImportError:
        return None
    module: object = psutil
    return module


def _named(found: Reading, fields: Mapping[str, str]) -> Mapping[str, float]:
    return {} if found is None else {name: float(getattr(found, key)) for name, key in fields.items()}


def _rates(
    last: Mapping[str, float], now: Mapping[str, float], passed_s: float
) -> Iterator[tuple[str, float]]:
    """Yield the growth of each counter per second; one that has fallen has none."""
    for name in last.keys() & now.keys():
        if passed_s > 0 and now[name] >= last[name]:
            yield name, (now[name] - last[name]) / passed_s


def _core(times: Reading) -> tuple[float, float, float]:
    """Return whole, busy and iowait seconds; iowait is NaN where the system does not count it."""
    both = times._asdict()
    # The times of a guest are within user and nice.
    whole = sum(passed for name, passed in both.items() if not name.startswith("guest"))
    return whole, whole - both["idle"] - both.get("iowait", 0.0), both.get("iowait", math.nan)


def _shares(last: Sequence[tuple[float, ...]], now: Sequence[tuple[float, ...]], at: int) -> list[float]:
    """Return the share of one of its times of each core; without the cores of which it is not known."""
    pairs = zip(last, now, strict=False)  # a core may be switched off
    found = (share(after[at] - before[at], after[_WHOLE] - before[_WHOLE]) for before, after in pairs)
    return [one for one in found if one is not None]


def _quota_share(last: CpuQuota | None, now: CpuQuota, passed_s: float) -> float | None:
    """Return the share of the limit that was used. The kernel admits a little more than the limit."""
    if last is None or passed_s <= 0 or now.usage_s < last.usage_s:
        return None
    return min(1.0, (now.usage_s - last.usage_s) / (now.cores * passed_s))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


@functools.cache
def _monitor() -> HostMonitor:
    return HostMonitor()


def host_view() -> HostView:
    """Return the host of this process now."""
    return _monitor().current()
