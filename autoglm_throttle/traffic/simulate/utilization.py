"""Utilization of the last second, as a duty cycle.

NVML defines utilization this way: the share of time in which any kernel ran, however small.
It saturates below capacity, on this model as on real devices.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 1.0
"""NVML documents its sampling period as between 1/6 s and 1 s, depending on the product."""


class UtilizationMeter:
    """Measures the busy time of the last second."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float, float]] = deque()
        self._since_s: float | None = None
        self._fill = 0.0

    def begin(self, now: float, fill: float) -> None:
        """Record the start of work; ``fill`` is the share 0..1 of the device it occupies."""
        self._since_s = now
        self._fill = fill

    def end(self, now: float) -> None:
        """Record the end of the work begun last, if any."""
        if self._since_s is None:
            return
        self._ended.append((self._since_s, now, self._fill))
        self._since_s = None
        while self._ended[0][1] < now - WINDOW_S:
            self._ended.popleft()

    def shares(self, now: float) -> tuple[float, float]:
        """Return busy share and fill-weighted busy share of the second before ``now``, both 0..1."""
        horizon = now - WINDOW_S
        spans = list(self._ended)
        if self._since_s is not None:
            spans.append((self._since_s, now, self._fill))
        busy = weighted = 0.0
        for begin_s, end_s, fill in spans:
            length = max(0.0, min(end_s, now) - max(begin_s, horizon))
            busy += length
            weighted += length * fill
        return min(1.0, busy / WINDOW_S), min(1.0, weighted / WINDOW_S)
