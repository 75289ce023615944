"""Availability of a store, and the schedule of probes while it is unavailable.

| state       | entered                                        | left by                                   |
|-------------|------------------------------------------------|-------------------------------------------|
| up          | at the start; by a reply                       | consecutive failures, or a permanent one  |
| unavailable | from up; while it lasts, by each further probe | the reply to a probe                      |

The store of user limits is probed once a second. This one is probed with increasing pauses, since only
updates wait for it, and a breaker works without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FAILURES: Final = 3
"""Consecutive failures: one late reply is no outage, and three deadlines of 50 ms pass soon."""

FIRST_PROBE_S: Final = 1.0
MAX_PROBE_S: Final = 10.0
"""Seconds to the first probe; the pause doubles up to the maximum."""

JITTER: Final = 0.2
"""Share by which each pause varies, so that a fleet does not probe in step."""


def _random_jitter() -> float:
    return random.uniform(1.0 - JITTER, 1.0 + JITTER)


class BreakerStoreHealth:
    """Tracks the availability of one store. Not locked: its owner's lock guards it.

    Args:
        jitter: factor of each pause.
    """

    def __init__(self, jitter: Callable[[], float] = _random_jitter) -> None:
        self.is_up: bool = True
        self.probe_due_s: float = 0.0
        """Monotonic seconds from which on a probe may be sent, while the store is unavailable."""
        self.lost_since_s: float = 0.0
        """Monotonic seconds at which the store became unavailable."""
        self._jitter = jitter
        self._consecutive_failures = 0
        self._pause_s = FIRST_PROBE_S

    def __repr__(self) -> str:
        return (
            "BreakerStoreHealth(up)"
            if self.is_up
            else f"BreakerStoreHealth(since {self.lost_since_s:.3f}, next probe at {self.probe_due_s:.3f})"
        )

    def record_failure(self, now: float, *, final: bool = False) -> bool:
        """Record a failure or a missed deadline.

        Args:
            now: monotonic seconds.
            final: the next call would fail in the same way, so one failure is enough.

        Returns:
            Whether the store becomes unavailable by this failure.
        """
        if not self.is_up:
            if now >= self.probe_due_s:  # a probe; earlier failures were sent before the loss
                self._pause_s = min(2.0 * self._pause_s, MAX_PROBE_S)
                self.probe_due_s = now + self._pause_s * self._jitter()
            return False
        self._consecutive_failures += 1
        if self._consecutive_failures < FAILURES and not final:
            return False
        self.is_up, self.lost_since_s, self._pause_s = False, now, FIRST_PROBE_S
        self.probe_due_s = now + FIRST_PROBE_S * self._jitter()
        return True

    def record_success(self) -> bool:
        """Record a reply.

        Returns:
            Whether the store becomes available by this reply.
        """
        recovered = not self.is_up
        self.is_up, self._consecutive_failures = True, 0
        return recovered
