"""Clocks that move when they are told to."""

from __future__ import annotations

from typing import Protocol

START_S = 1000.0
"""Not 0, so that a forgotten zero shows."""


class MovableClock(Protocol):
    """What the virtual loop needs of a clock; ``autoglm_throttle.testing.ManualClock`` is one."""

    def __call__(self) -> float:
        """The time now, in seconds."""
        ...

    def advance(self, by_s: float) -> object:
        """Let so many seconds pass, 0 or more."""
        ...


class VirtualClock:
    """Monotonic seconds that stand still until somebody moves them."""

    def __init__(self) -> None:
        self._now_s = START_S

    def __call__(self) -> float:
        """The time now, in seconds."""
        return self._now_s

    def advance(self, by_s: float) -> None:
        """Let so many seconds pass, 0 or more."""
        self._now_s += by_s
