"""Measures a device's power as a share: of its limit at first, later of its own learned range.

The limit is a poor measure of a device that draws 25 % of it while idle, or that no model of the service
ever drives beyond 60 %. The lowest and the highest observed mean of ten seconds are the ends of the scale.
The lowest is taken only while the device is idle and the highest only while it is busy. Otherwise a device
that is never idle would take its lightest load for idleness, and 65 % of the limit for a hang.
"""

from __future__ import annotations

from typing import Final

from autoglm_throttle.gpu.window_mean import WindowMean

LEARN_S: Final = 600.0
"""Seconds of observation before the learned range counts: a warm-up is not the service's load."""

MIN_SPREAD: Final = 0.15
"""Share of the limit by which busy must exceed idle: below that, sensor noise would decide."""


class PowerBaseline:
    """Idle and busy power of one device."""

    __slots__ = ("_busy", "_idle", "_since_s", "busy_w", "idle_w")

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._idle = WindowMean()
        self._busy = WindowMean()
        self.idle_w: float | None = None
        """Lowest mean of ten idle seconds, W; None: not observed yet."""
        self.busy_w: float | None = None
        """Highest mean of ten busy seconds, W; None: not observed yet."""

    def __repr__(self) -> str:
        return f"PowerBaseline(idle_w={self.idle_w}, busy_w={self.busy_w})"

    def learn(self, power_w: float, at_s: float, *, idle: bool, busy: bool) -> None:
        """Add a new measurement.

        Args:
            power_w: mean power since the sample before, W.
            at_s: monotonic seconds at which it was measured.
            idle: whether the device did nothing.
            busy: whether it was busy by its utilization; neither teaches nothing.
        """
        if self._since_s is None:
            self._since_s = at_s
        # Both windows see every sample: one that does not count restarts its window.
        low = _mean(self._idle, power_w, at_s, counts=idle)
        if low is not None and (self.idle_w is None or low < self.idle_w):
            self.idle_w = low
        high = _mean(self._busy, power_w, at_s, counts=busy)
        if high is not None and (self.busy_w is None or high > self.busy_w):
            self.busy_w = high

    def share(self, power_w: float, limit_w: float, at_s: float) -> float:
        """Return the power of the device as a share.

        Args:
            power_w: W.
            limit_w: enforced power limit, W; > 0.
            at_s: monotonic seconds.

        Returns:
            0..1 between the learned idle and busy power after ten minutes of observation, if these lie more
            than 15 % of the limit apart; else the share of the limit, which may pass 1 for a moment.
        """
        idle_w, busy_w = self.idle_w, self.busy_w
        if idle_w is None or busy_w is None or self._since_s is None:
            return power_w / limit_w
        if at_s - self._since_s < LEARN_S or busy_w - idle_w <= MIN_SPREAD * limit_w:
            return power_w / limit_w
        return min(1.0, max(0.0, (power_w - idle_w) / (busy_w - idle_w)))


def _mean(span: WindowMean, power_w: float, at_s: float, *, counts: bool) -> float | None:
    if counts:
        return span.add(power_w, at_s)
    span.restart()
    return None
