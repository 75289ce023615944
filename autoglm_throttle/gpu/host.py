"""Measures the load of the host: requests may wait for the host instead of the GPU.

On Linux the load average counts processes that wait for a disk, too: hence the share of that time beside it.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import Any, Final

MIN_INTERVAL_S: Final = 0.5  # Seconds for which a reading counts: several sources report within one interval
# user nice system idle iowait irq softirq steal; the guests' times after them are within user and nice.
_TIMES: Final = 8


# Processes that want a core, per core, over the last minute (above 1 they wait), and iowait: the share of the
# cores' time since the reading before in which they only waited for a disk, 0..1. None: not known.
HostLoad = tuple[float | None, float | None]


class HostSampler:
    """Reads the host's load; blocking, for some tens of microseconds. Call it from one thread."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._newest: HostLoad = (None, None)
        self._due_s = -math.inf

    def current(self, now: float) -> HostLoad:
        """Return load and iowait, read at most twice a second of the monotonic clock."""
        if now >= self._due_s:
            self._due_s = now + MIN_INTERVAL_S
            self._newest = self.read()
        return self._newest

    def read(self) -> HostLoad:
        """Return the load now, and iowait since the call before; the first call returns no iowait."""
        cores = os.cpu_count()
        try:
            load = os.getloadavg()[0] / cores if cores else None
        except (AttributeError, OSError):  # Windows has no load average
            load = None
        return load, self._iowait()

    def _iowait(self) -> float | None:
        read = _cpu_times_of_psutil()
        times: Any = read() if read else None
        last, self._last = self._last, None
        if not hasattr(times, "iowait"):
            return None
        self._last = (sum(times[:_TIMES]), times.iowait)
        if last is None:
            return None
        total, waited = self._last[0] - last[0], self._last[1] - last[1]
        # The kernel's counter of iowait may fall; see the manual page proc_stat(5).
        return waited / total if 0 <= waited <= total and total else None


@functools.cache
def _cpu_times_of_psutil() -> Callable[[], Any] | None:
    try:
        import psutil
    except ImportError:
        return None
    cpu_times: Callable[[], Any] = psutil.cpu_times
    return cpu_times
