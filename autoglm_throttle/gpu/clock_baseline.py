"""Learns the clock of a device that means full speed.

It is not the maximum boost clock. A healthy device under dense matrix work sits at its power limit and
clocks well below: by published figures 65..95 % of the maximum on data centre devices and half of it on
70 W devices. NVML calls that ``sw_power_cap`` too, so the bit alone does not reveal a lowered limit.
The default limit of the device does, if it is known.

Full speed is therefore the best 10 s mean of the clock while busy at the power limit, after 30 s there: the
everyday speed under full load. Two kinds of seconds teach nothing: those with a bit of heat or hardware,
and those under a lowered limit. A limit is lowered if it is below the default, or below an earlier one;
it stays visible as long as it lasts. Until then full speed is the maximum clock, which errs towards
reporting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoglm_throttle.gpu.window_mean import WindowMean

if TYPE_CHECKING:
    from autoglm_throttle.types import GpuSample, ThrottleBit

MIN_WINDOWS: Final = 3
"""Windows of ten seconds at the limit before the learned clock counts: power control settles within one."""

SAME_LIMIT: Final = 0.05
"""Two power limits that differ by less are one: some drivers report the limit with the sensor's noise."""

_CAPPED: Final[frozenset[ThrottleBit]] = frozenset({"sw_power_cap"})

MIN_SHARE: Final = 0.2
"""Smallest share returned. A lower clock is that of an idle device or a wrong reading, and 0 would be an
outage.
"""


class ClockBaseline:
    """Clock of one device under full load."""

    __slots__ = ("_best_mhz", "_first_w", "_limit_w", "_window", "_windows")

    def __init__(self) -> None:
        self._restart()
        self._limit_w: float | None = None
        self._first_w: float | None = None

    def __repr__(self) -> str:
        return f"ClockBaseline(learned_mhz={self.learned_mhz})"

    @property
    def learned_mhz(self) -> float | None:
        """Full speed as learned, MHz; None: not yet."""
        return self._best_mhz if self._windows >= MIN_WINDOWS else None

    def _restart(self) -> None:
        self._window = WindowMean()
        self._windows = 0
        self._best_mhz = 0.0

    def learn(self, row: GpuSample, at_s: float, *, busy: bool) -> None:
        """Add a new measurement.

        Args:
            row: the device's sample.
            at_s: monotonic seconds at which it was measured.
            busy: whether the device was busy by its utilization.
        """
        lowered = self._is_lowered(row)
        capped = row.throttle == _CAPPED
        if row.sm_clock_mhz is None or not busy or not capped or lowered:
            self._window.restart()
            return
        mean = self._window.add(row.sm_clock_mhz, at_s)
        if mean is not None:
            self._windows += 1
            self._best_mhz = max(self._best_mhz, mean)

    def at_initial_limit(self, row: GpuSample) -> bool:
        """Return whether only the initial power limit, or a higher one, slows the device.

        The configured rates were chosen for a device with this limit.
        """
        limit_w, first_w, bits = row.power_limit_w, self._first_w, row.throttle
        if limit_w is None or first_w is None or bits is None:
            return False
        return bits <= _CAPPED and limit_w >= first_w * (1.0 - SAME_LIMIT)

    def _is_lowered(self, row: GpuSample) -> bool:
        """Return whether the limit is below the highest known one; a new maximum resets the baseline."""
        limit_w = row.power_limit_w
        if limit_w is None:
            return False
        if self._first_w is None:
            self._first_w = limit_w
        highest_w = max(limit_w, row.power_limit_default_w or 0.0)
        # Means learned under a lower limit are too slow for a raised one.
        if self._limit_w is None or highest_w > self._limit_w * (1.0 + SAME_LIMIT):
            self._limit_w = highest_w
            self._restart()
        return limit_w < self._limit_w * (1.0 - SAME_LIMIT)

    def share(self, row: GpuSample) -> float | None:
        """Return the speed of the device as a share of full speed.

        Args:
            row: the device's sample.

        Returns:
            0.2..1; None if the clock, or full speed, is not known.
        """
        full = self.learned_mhz or row.sm_clock_max_mhz
        if row.sm_clock_mhz is None or full is None:
            return None
        return min(1.0, max(MIN_SHARE, row.sm_clock_mhz / full))
