"""Measures the load of the host: requests may wait for the host instead of the GPU.

The load average is that of a minute and of the whole host. On Linux it counts processes that wait for a
disk, too, so the share of time spent waiting for input and output is reported beside it.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

STAT: Final = Path("/proc/stat")
_TIMES: Final = 8
"""user nice system idle iowait irq softirq steal; the guests' times after them are within user and nice."""
_IOWAIT: Final = 4
_LINE_BYTES: Final = 256
"""The first line in full: ten numbers of at most 20 digits."""

MIN_INTERVAL_S: Final = 0.5
"""Seconds for which a reading counts. Several sources report within one interval, and the load average
covers a minute.
"""


class HostStats(NamedTuple):
    """Load of the host; None: not known."""

    load: float | None
    """Processes that want a core, per core, over the last minute; >= 0, above 1 they wait."""
    iowait: float | None
    """Share of the cores' time since the reading before in which they only waited for a disk, 0..1."""


class HostSampler:
    """Reads the host's load; blocking, for some tens of microseconds. Call it from one thread.

    Args:
        average: returns the load averages of 1, 5 and 15 min, or raises ``OSError``; None: use that of the
            system, if there is one (not on Windows).
        cores: processors of the whole host, as the load average counts them, too.
        stat: the kernel's table of processor times; where there is none (macOS), iowait is None.
    """

    __slots__ = ("_average", "_cores", "_due_s", "_last", "_newest", "_stat")

    def __init__(
        self,
        average: Callable[[], tuple[float, float, float]] | None = None,
        cores: int | None = None,
        stat: Path = STAT,
    ) -> None:
        self._average = average if average is not None else getattr(os, "getloadavg", None)
        self._cores = cores if cores is not None else os.cpu_count()
        self._stat = stat
        self._last: tuple[int, int] | None = None
        self._newest = HostStats(None, None)
        self._due_s = -math.inf

    def current(self, now: float) -> HostStats:
        """Return the load, read at most twice a second.

        Args:
            now: monotonic seconds.
        """
        if now >= self._due_s:
            self._due_s = now + MIN_INTERVAL_S
            self._newest = self.read()
        return self._newest

    def read(self) -> HostStats:
        """Return the load now, and iowait since the call before; the first call returns no iowait."""
        return HostStats(self._load(), self._iowait())

    def _load(self) -> float | None:
        try:
            return self._average()[0] / self._cores if self._average and self._cores else None
        except OSError:
            return None

    def _iowait(self) -> float | None:
        last, self._last = self._last, self._times()
        if last is None or self._last is None:
            return None
        total, waited = self._last[0] - last[0], self._last[1] - last[1]
        # The kernel's counter of iowait may fall; see the manual page proc_stat(5).
        return waited / total if 0 <= waited <= total and total else None

    def _times(self) -> tuple[int, int] | None:
        """Return all cores' ticks, and those spent in iowait."""
        try:
            with self._stat.open("rb", buffering=0) as file:  # 20 us; 33 as text
                tokens = file.read(_LINE_BYTES).split(b"\n", 1)[0].split()
            times = [int(word) for word in tokens[1 : 1 + _TIMES]]
        except (OSError, ValueError):
            return None
        return (sum(times), times[_IOWAIT]) if tokens[:1] == [b"cpu"] and len(times) > _IOWAIT else None
