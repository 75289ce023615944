"""Manual clock for tests."""

from __future__ import annotations

import math


class ManualClock:
    """Monotonic seconds that stand still until `advance` is called.

    Args:
        start_s: the first reading. It is not 0, so that a forgotten zero shows in a test.
    """

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        """The time now, in seconds."""
        return self._now_s

    def advance(self, by_s: float) -> float:
        """Advance the clock.

        Args:
            by_s: seconds, 0 or more.

        Returns:
            The time afterwards.

        Raises:
            ValueError: ``by_s`` is negative or not finite: a monotonic clock never goes back.
        """
        if not 0.0 <= by_s < math.inf:
            raise ValueError(f"by_s must be a finite number of seconds, 0 or more, not {by_s!r}")
        self._now_s += by_s
        return self._now_s

    def __repr__(self) -> str:
        return f"ManualClock({self._now_s:g} s)"
