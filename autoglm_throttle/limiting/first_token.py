"""Predicts the time to the first token of a request from the work that waits ahead of it."""

from __future__ import annotations

import math

# Requests that must have left the queue, and first tokens that must have been seen, before it predicts.
OBSERVATIONS_MIN = 20

RATE_GAIN_PER_S = 0.2  # Weight of a second in the rate, as long as something waits
MEASURED_S = 1.0  # Shortest time over which the rate is measured
ENGINE_GAIN = 0.02  # Weight of the newest first token in the mean time that the engine takes for it

# Multiples of that mean which are left to the engine: prompts differ in length. [simulated: with 1 more first
# tokens are late, with 4 high loses 0.1]
ENGINE_MARGIN = 2.0


class FirstTokenEstimator:
    """Learns how fast waiting work starts, and how long the engine takes from a start to a first token.

    Work is counted in any one unit: prompt tokens where they are known, else requests. The rate is learned
    only while something waits: otherwise it would be that of the arrivals.
    """

    __slots__ = ("_measured_s", "_units", "engine_s", "rate", "seen", "started")

    def __init__(self) -> None:
        self.rate: float | None = None  # Work that starts per second; None until it has been measured
        self.engine_s: float = 0.0  # Recent mean time from a start to the first token
        self.started: int = 0  # Starts while something waited
        self.seen: int = 0  # First tokens
        self._units = 0.0  # Work that has started since ``_measured_s``
        self._measured_s: float | None = None  # None: nothing waits

    @property
    def is_ready(self) -> bool:
        """Whether it has seen enough to predict."""
        return min(self.started, self.seen) >= OBSERVATIONS_MIN and self.rate is not None

    def record_start(self, units: float, now: float, *, waiting: bool) -> None:
        """Record that ``units`` of waiting work have started; ``waiting``: more work waits behind it."""
        if self._measured_s is not None and now >= self._measured_s:
            self.started += 1
            self._units += units
            lasted_s = now - self._measured_s
            if lasted_s >= MEASURED_S:
                measured = self._units / lasted_s
                if self.rate is None:
                    self.rate = measured
                self.rate += -math.expm1(-RATE_GAIN_PER_S * lasted_s) * (measured - self.rate)
                self._units, self._measured_s = 0.0, now
        if not waiting:
            self._units, self._measured_s = 0.0, None
        elif self._measured_s is None:
            self._measured_s = now

    def record_first_token(self, engine_s: float) -> None:
        """Record the seconds from the start of a request to its first token."""
        self.seen += 1
        gain = max(ENGINE_GAIN, 1.0 / self.seen)
        self.engine_s += gain * (max(0.0, engine_s) - self.engine_s)

    def longest_wait_s(self, objective_s: float) -> float:
        """Return the longest wait in seconds after which a first token is in time."""
        return max(0.0, objective_s - ENGINE_MARGIN * self.engine_s)

    def late_s(self, ahead: float, objective_s: float, share: float = 1.0) -> float:
        """Return the seconds by which the first token would miss its objective; 0: it would not.

        These are the seconds after which the same request would be in time, if no other one arrived.

        Args:
            ahead: work that waits ahead, in units, >= 0.
            objective_s: longest time to the first token, in seconds.
            share: of the rate that starts this work, 0..1; the rest is for work that may overtake it.
        """
        if not self.is_ready or ahead <= 0.0 or self.rate is None:
            return 0.0
        wait_s = ahead / (share * self.rate) if share * self.rate > 0.0 else math.inf
        return max(0.0, wait_s - self.longest_wait_s(objective_s))
