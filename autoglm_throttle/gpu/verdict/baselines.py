"""Learns the usual power, clock and activity of one device, with which its verdicts compare."""

from __future__ import annotations

import math
from typing import Final

from autoglm_throttle.gpu.aggregate import power_w, ratio
from autoglm_throttle.gpu.verdict.table import HELD_SHARE
from autoglm_throttle.types import GpuSample, ThrottleBit

# Length of a window, s: some power sensors cover only a quarter of the time (arXiv 2312.02741).
WINDOW_S: Final = 10.0
# Seconds of observation before the learned range counts: a warm-up is not the service's load.
LEARN_S: Final = 600.0
# Share of the limit by which busy must exceed idle: below that, sensor noise would decide.
MIN_SPREAD: Final = 0.15
# Windows of ten seconds at the limit before the learned clock counts: power control settles within one.
MIN_WINDOWS: Final = 3
# Two power limits that differ by less are one: some drivers report the limit with the sensor's noise.
SAME_LIMIT: Final = 0.05
# Smallest share of the clock returned: a lower one is a wrong reading, and 0 would be an outage.
MIN_SHARE: Final = 0.2
# Time constant of the baseline at work, s: the same as that of the throughput baseline.
TIME_CONSTANT_S: Final = 60.0
# Maximum seconds of one gap: a hang that ends in errors must not become the baseline by itself.
MAX_SECONDS_PER_GAP: Final = 30.0
REST_SAMPLES: Final = 60  # Samples before the first request whose mean is power at rest: about a minute
CAPPED: Final[frozenset[ThrottleBit]] = frozenset({"sw_power_cap"})


class WindowMean:
    """Returns a mean each time ten seconds of samples are full: windows that do not overlap."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Drop the sum: the measured state was interrupted."""
        self._count = 0
        self._sum = 0.0
        self._started_s = 0.0

    def add(self, value: float, at_s: float, *, counts: bool = True) -> float | None:
        """Add a sample; return the mean of a window that it completes. One that does not count restarts."""
        if not counts:
            self.restart()
            return None
        if not self._count:
            self._started_s = at_s
        self._count += 1
        self._sum += value
        if at_s - self._started_s < WINDOW_S:
            return None
        mean = self._sum / self._count
        self.restart()
        return mean


class PowerBaseline:
    """Idle and busy power of one device: the lowest mean of ten idle seconds, the highest of ten busy ones.

    The limit is a poor measure of a device that draws 25 % of it while idle, or never more than 60 %.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._idle = WindowMean()
        self._busy = WindowMean()
        self.idle_w: float | None = None  # Lowest mean of ten idle seconds, W; None: not observed yet
        self.busy_w: float | None = None  # Highest mean of ten busy seconds, W; None: not observed yet
        # Power before the first work, W, which counts until ten idle seconds are known.
        self.rest_w: float | None = None
        self._rest_count = 0

    def learn(self, drawn_w: float, at_s: float, *, idle: bool, busy: bool) -> None:
        """Add the mean power since the sample before; neither idle nor busy teaches nothing."""
        if self._since_s is None:
            self._since_s = at_s
        if not idle:
            self._rest_count = REST_SAMPLES
        elif self._rest_count < REST_SAMPLES:
            self._rest_count += 1
            before_w = self.rest_w or 0.0
            self.rest_w = before_w + (drawn_w - before_w) / self._rest_count
        low = self._idle.add(drawn_w, at_s, counts=idle)
        if low is not None and (self.idle_w is None or low < self.idle_w):
            self.idle_w = low
        high = self._busy.add(drawn_w, at_s, counts=busy)
        if high is not None and (self.busy_w is None or high > self.busy_w):
            self.busy_w = high

    def share(self, power_w: float, limit_w: float, at_s: float) -> float:
        """Return the power between idle and busy, 0..1; as a share of the limit until the two are known."""
        idle_w, busy_w, since_s = self.idle_w, self.busy_w, self._since_s
        if idle_w is None or busy_w is None or since_s is None or at_s - since_s < LEARN_S:
            return power_w / limit_w
        if busy_w - idle_w <= MIN_SPREAD * limit_w:
            return power_w / limit_w
        return min(1.0, max(0.0, (power_w - idle_w) / (busy_w - idle_w)))


class ClockBaseline:
    """Clock of one device that means full speed; not its maximum boost clock.

    A healthy device under dense work sits at its power limit and clocks at 50..95 % of the maximum. Full
    speed is therefore the best 10 s mean of the clock while busy at the limit, after 30 s there; until then
    the maximum clock, which errs towards reporting. Seconds with a bit of heat or hardware, or under a limit
    below the default or an earlier one, teach nothing.
    """

    def __init__(self) -> None:
        self._restart()
        self._limit_w: float | None = None
        self._first_w: float | None = None

    @property
    def learned_mhz(self) -> float | None:
        """Full speed as learned, MHz; None: not yet."""
        return self._best_mhz if self._windows >= MIN_WINDOWS else None

    def _restart(self) -> None:
        self._window = WindowMean()
        self._windows = 0
        self._best_mhz = 0.0

    def learn(self, row: GpuSample, at_s: float, *, busy: bool) -> None:
        """Add a sample, measured at ``at_s``; ``busy`` is by its utilization."""
        lowered, clock_mhz = self._is_lowered(row), row.sm_clock_mhz
        counts = clock_mhz is not None and busy and row.throttle == CAPPED and not lowered
        counts = counts and not _is_held(row)
        mean = self._window.add(clock_mhz or 0.0, at_s, counts=counts)
        if mean is not None:
            self._windows += 1
            self._best_mhz = max(self._best_mhz, mean)

    def at_initial_limit(self, row: GpuSample) -> bool:
        """Return whether only the initial power limit, for which the rates were chosen, slows the device."""
        limit_w, first_w, bits = row.power_limit_w, self._first_w, row.throttle
        if limit_w is None or first_w is None or bits is None or _is_held(row):
            return False
        return bits <= CAPPED and limit_w >= first_w * (1.0 - SAME_LIMIT)

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
        """Return the clock over full speed, 0.2..1; None if either is not known."""
        full = self.learned_mhz or row.sm_clock_max_mhz
        if row.sm_clock_mhz is None or full is None:
            return None
        return min(1.0, max(MIN_SHARE, row.sm_clock_mhz / full))


def _is_held(row: GpuSample) -> bool:
    """Return whether a device at a power cap is far below its limit, so that another limit holds it."""
    share = ratio(power_w(row), row.power_limit_w)
    return share is not None and share < HELD_SHARE and row.throttle is not None and row.throttle >= CAPPED


class WorkBaseline:
    """Average of one signal of one device over the seconds with progress.

    A 700 W device that serves a small model draws 170 W all day: one request of five minutes then looks like
    a hang. Seconds of a long answer count once it is complete; they are dropped if no request is in flight.
    """

    def __init__(self) -> None:
        # In the unit of the signal; None: no progress yet while the device was active.
        self.mean: float | None = None
        self._at_s: float | None = None
        self._progressed_s: float | None = None
        self._sum = 0.0
        self._passed_s = 0.0

    def learn(
        self, value: float | None, at_s: float, *, active: bool, in_flight: bool, progressed_s: float | None
    ) -> None:
        """Add a sample of the signal, while the device is ``active``."""
        # The first sample has no gap: it only dates the next one.
        passed_s = 0.0 if self._at_s is None else min(at_s - self._at_s, MAX_SECONDS_PER_GAP)
        self._at_s = at_s
        # A half-utilized device draws less than a full one: the average errs towards calling nothing a hang.
        if active and value is not None and passed_s > 0.0:
            self._sum += value * passed_s
            self._passed_s += passed_s
        progressed, self._progressed_s = progressed_s != self._progressed_s, progressed_s
        if progressed and self._passed_s > 0.0:
            observed = self._sum / self._passed_s
            # 1 - exp(-t/T): independent of the sampling interval; expm1 keeps small t exact.
            weight = -math.expm1(-min(self._passed_s, MAX_SECONDS_PER_GAP) / TIME_CONSTANT_S)
            self.mean = observed if self.mean is None else self.mean + (observed - self.mean) * weight
        if progressed or not in_flight:
            self._sum = self._passed_s = 0.0
