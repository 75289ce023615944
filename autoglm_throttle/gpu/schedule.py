"""Schedules the reads of a sampler: interval, retries and back-off.

The next read is due one interval after the start of the last one.
A read that took longer skips the ticks it missed. They are never made up,
because a burst of reads does not help a slow driver.
The interval may change at any time: a shorter one counts from the start of the last read,
a longer one from the next read on, so that no read comes later than was promised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

RETRIES: Final = 3
"""Failed reads that are repeated at the normal interval: a single hiccup needs no drastic step."""

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
"""Pauses after the retries: 1, 2, 4 ... 60 s. A driver initialisation can cost seconds of CPU."""

NO_SOURCE_PAUSE_S: Final = 60.0
"""Pause before the next search for a source that was not there at all, such as a driver loaded later."""

HEALTHY_RUN_S: Final = 60.0
"""A thread that ran at least as long as the longest pause begins with the shortest one again."""


def backoff_s(nth: int) -> float:
    """Return the pause after the ``nth`` failure in a row, from 1 on: 1, 2, 4 ... 60 s."""
    return min(BACKOFF_FIRST_S * 2.0 ** min(nth - 1, 6), BACKOFF_MAX_S)  # 2**6 > 60: keeps the power small


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
    """Turns the outcome of a read into the time of the next one.

    Args:
        interval_s: seconds from start to start of two reads; > 0.

    Raises:
        ValueError: ``interval_s`` is not a finite number above 0.
    """

    __slots__ = ("consecutive_failures", "interval_s")

    def __init__(self, interval_s: float) -> None:
        self.interval_s: float = _checked(interval_s)
        """Change it with ``set_interval``."""
        self.consecutive_failures: int = 0
        """Failed reads in a row."""

    def succeeded(self, started_s: float, now: float) -> NextRead:
        """Plan the read after one that began at ``started_s`` and gave samples."""
        self.consecutive_failures = 0
        return self._tick_after(started_s, now)

    def failed(self, started_s: float, now: float) -> NextRead:
        """Plan the read after one that began at ``started_s`` and raised.

        Three times at the normal interval, then back off 1, 2, 4 ... 60 s, each with a reopened driver.
        """
        self.consecutive_failures += 1
        if self.consecutive_failures <= RETRIES:
            return self._tick_after(started_s, now)
        return NextRead(
            now + max(self.interval_s, backoff_s(self.consecutive_failures - RETRIES)), reopen=True
        )

    def no_source(self, now: float) -> NextRead:
        """Plan the read after one that found no source; this is not a failure."""
        self.consecutive_failures = 0
        return NextRead(now + max(self.interval_s, NO_SOURCE_PAUSE_S))

    def set_interval(self, interval_s: float, planned: NextRead) -> NextRead:
        """Change the interval, and return the updated plan.

        Args:
            interval_s: as at construction.
            planned: the plan in force; a tick comes sooner if the new interval is shorter, never later.

        Raises:
            ValueError: ``interval_s`` is not a finite number above 0; nothing has changed.
        """
        self.interval_s = _checked(interval_s)
        if planned.from_s is None:
            return planned
        return replace(planned, due_s=min(planned.due_s, planned.from_s + interval_s))

    def _tick_after(self, started_s: float, now: float) -> NextRead:
        """Plan the first tick of the grid begun at ``started_s`` that is not over."""
        ticks = max(1, math.ceil((now - started_s) / self.interval_s))
        return NextRead(started_s + self.interval_s * ticks, from_s=started_s)


class RestartPolicy:
    """Limits the restarts of a crashed thread: after 1, 2, 4 ... 60 s."""

    __slots__ = ("_crashes", "_started_s", "due_s")

    def __init__(self) -> None:
        self.due_s: float = -math.inf
        """When the pause after the newest crash is over."""
        self._crashes = 0
        self._started_s = -math.inf

    def record_start(self, now: float) -> None:
        """Record the start of the thread."""
        self._started_s = now

    def postpone(self, now: float) -> float:
        """Record a crash, or a failed start, and return the seconds to wait."""
        if now - self._started_s >= HEALTHY_RUN_S:
            self._crashes = 0
        self._crashes += 1
        pause_s = backoff_s(self._crashes)
        self.due_s = now + pause_s
        return pause_s


def _checked(interval_s: float) -> float:
    if not 0.0 < interval_s < math.inf:
        raise ValueError(f"interval_s must be a finite number above 0, not {interval_s!r}")
    return interval_s
