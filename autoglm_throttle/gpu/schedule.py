"""Schedules the reads of a source: interval, retries and back-off.

The next read is due one interval after the start of the last one.
A read that took longer skips the ticks it missed. They are never made up,
because a burst of reads does not help a slow driver.
The interval may change at any time: a shorter one counts from the start of the last read,
a longer one from the next read on, so that no read comes later than was promised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from autoglm_throttle._runtime import backoff_s

RETRIES: Final = 3
"""Failed reads that are repeated at the normal interval: a single hiccup needs no drastic step."""

NO_SOURCE_PAUSE_S: Final = 60.0
"""Pause before the next search for a source that was not there at all, such as a driver loaded later."""


@dataclass(frozen=True, slots=True)
class NextRead:
    """Plan of the next read."""

    due_s: float
    """Time of the next read, on the clock of the times passed in."""
    reopen: bool = False
    """Whether the provider should close and reopen the driver first."""
    from_s: float | None = None
    """Start of the read that the tick is counted from; None: a pause, which no shorter interval ends."""


class Schedule:
    """Turns the outcome of a read into the time of the next one; the first is due at once.

    One thread reads and records. `set_interval` and `wake` may be called from any thread: each is one
    assignment, and the times that follow from it are computed on demand.

    Args:
        interval_s: seconds from start to start of two reads; > 0.

    Raises:
        ValueError: ``interval_s`` is not a finite number above 0.
    """

    __slots__ = ("_is_woken", "_started_s", "consecutive_failures", "interval_s", "next_read")

    def __init__(self, interval_s: float) -> None:
        self.interval_s: float = _checked(interval_s)
        """Change it with ``set_interval``."""
        self.consecutive_failures: int = 0
        """Failed reads in a row."""
        self.next_read: NextRead = NextRead(-math.inf)
        """The plan in force; see ``due_s`` for the time of the read."""
        self._started_s = -math.inf
        self._is_woken = False

    @property
    def due_s(self) -> float:
        """Time of the next read. A tick comes sooner if the interval became shorter, never later."""
        plan = self.next_read
        return plan.due_s if plan.from_s is None else min(plan.due_s, plan.from_s + self.interval_s)

    def wait_s(self, now: float, min_interval_s: float) -> float:
        """Return the seconds until the next read; 0: now.

        Args:
            now: the present time.
            min_interval_s: seconds from the start of the last read within which even `wake` starts none.
        """
        due_s = self.due_s
        if self._is_woken:
            due_s = min(due_s, self._started_s + min_interval_s)
        return max(0.0, due_s - now)

    def begin(self, now: float) -> None:
        """Record the start of a read."""
        self._started_s = now
        self._is_woken = False

    def succeeded(self, now: float) -> None:
        """Plan the read after one that gave samples."""
        self.consecutive_failures = 0
        self._plan_tick(now)

    def failed(self, now: float) -> None:
        """Plan the read after one that raised.

        Three times at the normal interval, then back off 1, 2, 4 ... 60 s, each with a reopened driver.
        """
        self.consecutive_failures += 1
        nth = self.consecutive_failures - RETRIES
        if nth <= 0:
            self._plan_tick(now)
        else:
            self.next_read = NextRead(now + max(self.interval_s, backoff_s(nth)), reopen=True)

    def no_source(self, now: float) -> None:
        """Plan the read after one that found no source; this is not a failure."""
        self.consecutive_failures = 0
        self.next_read = NextRead(now + max(self.interval_s, NO_SOURCE_PAUSE_S))

    def read_at_once(self) -> None:
        """Make the next read due now."""
        self.next_read = NextRead(-math.inf)

    def end(self) -> None:
        """Plan no further read."""
        self.next_read = NextRead(math.inf)

    def wake(self) -> None:
        """Make the next read due, but not faster than the provider allows."""
        self._is_woken = True

    def set_interval(self, interval_s: float) -> None:
        """Change the interval; pauses after failures stay as they are.

        Args:
            interval_s: as at construction.

        Raises:
            ValueError: ``interval_s`` is not a finite number above 0; nothing has changed.
        """
        self.interval_s = _checked(interval_s)

    def _plan_tick(self, now: float) -> None:
        """Plan the first tick of the grid begun with the last read that is not over."""
        started_s, interval_s = self._started_s, self.interval_s
        ticks = max(1, math.ceil((now - started_s) / interval_s))
        self.next_read = NextRead(started_s + interval_s * ticks, from_s=started_s)


def _checked(interval_s: float) -> float:
    if not 0.0 < interval_s < math.inf:
        raise ValueError(f"interval_s must be a finite number above 0, not {interval_s!r}")
    return interval_s
