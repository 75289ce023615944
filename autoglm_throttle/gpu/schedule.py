"""When to read next: the rhythm of a sampler, its retries and its back-off.

The next read is due one interval after the start of the last one.
A read that took longer skips the ticks it missed: they are never made up,
because a driver that is slow already is not helped by a burst of reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

RETRIES: Final = 3
"""Failed reads that are repeated at the normal interval: a single hiccup needs no drastic step."""

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
"""Pauses after the retries: 1, 2, 4 ... 60 s. A driver initialisation can cost seconds of CPU."""

ABSENT_S: Final = 60.0
"""Pause before looking again for a source that was not there at all, such as a driver loaded later."""


@dataclass(frozen=True, slots=True)
class Next:
    """What follows a read."""

    due_s: float
    """When to read again, on the clock of the times passed in."""
    fresh: bool = False
    """Whether the provider should let go of the driver and open it anew first."""


class Schedule:
    """Turns the outcome of a read into the time of the next one.

    Args:
        interval_s: seconds from start to start of two reads; > 0.

    Raises:
        ValueError: ``interval_s`` is not a finite number above 0.
    """

    __slots__ = ("interval_s", "strikes")

    def __init__(self, interval_s: float) -> None:
        if not 0.0 < interval_s < math.inf:
            raise ValueError(f"interval_s must be a finite number above 0, not {interval_s!r}")
        self.interval_s: float = interval_s
        self.strikes: int = 0
        """Failed reads in a row."""

    def succeeded(self, started_s: float, now: float) -> Next:
        """Plan the read after one that began at ``started_s`` and gave samples."""
        self.strikes = 0
        return Next(self._tick_after(started_s, now))

    def failed(self, started_s: float, now: float) -> Next:
        """Plan the read after one that began at ``started_s`` and raised.

        Three times at the normal interval, then back off 1, 2, 4 ... 60 s, each with a fresh opening.
        """
        self.strikes += 1
        if self.strikes <= RETRIES:
            return Next(self._tick_after(started_s, now))
        doublings = min(self.strikes - RETRIES - 1, 6)  # 2**6 > 60: keeps the power small for ever
        pause = max(self.interval_s, min(BACKOFF_FIRST_S * 2**doublings, BACKOFF_MAX_S))
        return Next(now + pause, fresh=True)

    def absent(self, now: float) -> Next:
        """Plan the read after one that found no source; this is not a failure."""
        self.strikes = 0
        return Next(now + max(self.interval_s, ABSENT_S))

    def _tick_after(self, started_s: float, now: float) -> float:
        """Return the first tick of the grid begun at ``started_s`` that is not over."""
        return started_s + self.interval_s * max(1, math.ceil((now - started_s) / self.interval_s))
