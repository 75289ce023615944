"""Clocks that are advanced explicitly."""

from __future__ import annotations

from typing import Protocol

START_S = 1000.0
"""Not 0, so that a forgotten zero is detected."""


class MovableClock(Protocol):
    """Clock interface of the virtual loop; ``autoglm_throttle.testing.ManualClock`` is one."""

    def __call__(self) -> float:
        """Return the current time in seconds."""
        ...

    def advance(self, by_s: float) -> object:
        """Advance the clock by ``by_s`` seconds, 0 or more."""
        ...


class VirtualClock:
    """Monotonic seconds that change only through `advance`."""

    def __init__(self) -> None:
        self._now_s = START_S

    def __call__(self) -> float:
        """Return the current time in seconds."""
        return self._now_s

    def advance(self, by_s: float) -> None:
        """Advance the clock by ``by_s`` seconds, 0 or more."""
        self._now_s += by_s
