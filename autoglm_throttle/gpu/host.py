"""Measures the load of the host: requests may wait for the host instead of the GPU.

On Linux the load average is a minute old and counts processes that wait for a disk, too. Hence three further
figures: the share of that time, the pressure on the cores, and the throttling of the control group.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

MIN_INTERVAL_S: Final = 0.5  # Seconds for which a reading counts: several sources report within one interval
# user nice system idle iowait irq softirq steal; the guests' times after them are within user and nice.
_TIMES: Final = 8
_MOST_BYTES: Final = 65_536  # the kernel returns a file of up to a page, such as memory.stat, in one call
CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")


class HostLoad(NamedTuple):
    """Load of the host of this process; None: not known."""

    load: float | None = None
    """Processes that want a core, per core, over the last minute; above 1 they wait."""
    iowait: float | None = None
    """Share of the cores' time since the reading before in which they only waited for a disk, 0..1."""
    pressure: float | None = None
    """Share of the last 10 s in which a process of the control group waited for a core, 0..1."""
    throttled: float | None = None
    """Share of the periods since the reading before in which the group used up its cores, 0..1."""


class PressureStall(NamedTuple):
    """Stalls of one resource: some process waited for it."""

    avg10: float  # share of the last 10 s, 0..1
    total_s: float  # seconds since the boot, or since the control group was made


class CpuQuota(NamedTuple):
    """The tightest limit on the cores of a control group; the counters only grow."""

    cores: float
    usage_s: float
    periods: int
    throttled_periods: int


class ControlGroup:
    """Reads the limits of the control group (cgroup v2) of this process, and of the groups around it.

    In a container the figures of the whole host mislead: its limits are those of its group. A group without
    the files, such as one of version 1, has no limits here.
    """

    def __init__(self, root: Path = CGROUP_ROOT, proc: Path = PROC) -> None:
        self._proc = proc
        self._folders = _group_folders(root, proc)

    def pressure(self, resource: str) -> PressureStall | None:
        """Return the stalls of ``cpu``, ``io`` or ``memory``: of the own group, else of the host."""
        # Texts: to join a path takes as long as to read the file.
        own = [f"{folder}/{resource}.pressure" for folder in self._folders[:1]]
        for path in (*own, f"{self._proc}/pressure/{resource}"):
            # The first line: the word some, averages in percent and the total in microseconds, as name=value
            with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
                values = dict(word.split("=") for word in _text(path).partition("\n")[0].split()[1:])
                return PressureStall(float(values["avg10"]) / 100.0, float(values["total"]) * 1e-6)
        return None

    def cpu(self) -> CpuQuota | None:
        """Return the tightest limit on cores; None: there is none."""
        found: list[CpuQuota] = []
        for folder in self._folders:
            with contextlib.suppress(OSError, ValueError, KeyError):
                quota, period = _text(folder / "cpu.max").split()
                if quota != "max":
                    stat = _table(folder / "cpu.stat")
                    counts = stat["nr_periods"], stat["nr_throttled"]
                    found.append(CpuQuota(int(quota) / int(period), stat["usage_usec"] * 1e-6, *counts))
        return min(found, default=None)

    def memory(self) -> tuple[int, int] | None:
        """Return used and allowed bytes of the group with the least left; None: there is no limit.

        File pages that the kernel can drop at once are not used ones.
        """
        found: list[tuple[int, int]] = []
        for folder in self._folders:
            with contextlib.suppress(OSError, ValueError, KeyError):
                allowed = int(_text(folder / "memory.max"))  # "max" is no number
                used = int(_text(folder / "memory.current"))
                found.append((max(0, used - _table(folder / "memory.stat")["inactive_file"]), allowed))
        return min(found, key=lambda pair: pair[1] - pair[0], default=None)


def _group_folders(root: Path, proc: Path) -> list[Path]:
    """Return the folder of the own control group, and of each group around it."""
    with contextlib.suppress(OSError):
        if (root / "cgroup.controllers").exists():
            lines = (proc / "self" / "cgroup").read_text().splitlines()
            path = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
            # Without a namespace of its own a container has the path on the host: its group is the root then.
            own = root / path if path and (root / path).is_dir() else root
            return [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return []


def _text(path: str | Path) -> str:
    """Read a short file of the kernel, in a third of the time that a file object takes."""
    number = os.open(path, os.O_RDONLY)
    try:
        return os.read(number, _MOST_BYTES).decode()
    finally:
        os.close(number)


def _table(path: Path) -> dict[str, int]:
    """Read a file with a name and a count in each line."""
    return {name: int(count) for name, count in (line.split() for line in _text(path).splitlines())}


def share(part: float, whole: float) -> float | None:
    """Return the share of one difference in another, 0..1; None if a counter fell or nothing has passed."""
    return part / whole if 0 <= part <= whole and whole else None


class HostSampler:
    """Reads the host's load; blocking, for some hundred microseconds. Call it from one thread."""

    def __init__(self, group: ControlGroup | None = None) -> None:
        self._group = group or ControlGroup()
        self._last: tuple[float, float] | None = None
        self._last_quota: CpuQuota | None = None
        self._newest = HostLoad()
        self._due_s = -math.inf

    def current(self, now: float) -> HostLoad:
        """Return the load, read at most twice a second of the monotonic clock."""
        if now >= self._due_s:
            self._due_s = now + MIN_INTERVAL_S
            self._newest = self.read()
        return self._newest

    def read(self) -> HostLoad:
        """Return the load now; the first call returns no figure that is a difference of two readings."""
        cores = os.cpu_count()
        try:
            load = os.getloadavg()[0] / cores if cores else None
        except (AttributeError, OSError):  # Windows has no load average
            load = None
        pressure = self._group.pressure("cpu")
        return HostLoad(load, self._iowait(), pressure and pressure.avg10, self._throttled())

    def _iowait(self) -> float | None:
        read = _cpu_times_of_psutil()
        times: Any = read() if read else None
        last, self._last = self._last, None
        if not hasattr(times, "iowait"):
            return None
        self._last = (sum(times[:_TIMES]), times.iowait)
        # The kernel's counter of iowait may fall; see the manual page proc_stat(5).
        return None if last is None else share(self._last[1] - last[1], self._last[0] - last[0])

    def _throttled(self) -> float | None:
        last, self._last_quota = self._last_quota, self._group.cpu()
        return throttled_share(last, self._last_quota)


def throttled_share(last: CpuQuota | None, now: CpuQuota | None) -> float | None:
    """Return the share of periods between two readings in which the group used up its cores."""
    if last is None or now is None:
        return None
    if now.periods == last.periods:  # none of its processes wanted a core
        return 0.0
    return share(now.throttled_periods - last.throttled_periods, now.periods - last.periods)


@functools.cache
def _cpu_times_of_psutil() -> Callable[[], Any] | None:
    try:
        import psutil
    except ImportError:
        return None
    cpu_times: Callable[[], Any] = psutil.cpu_times
    return cpu_times
