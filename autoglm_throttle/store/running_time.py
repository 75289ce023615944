"""The time of a process without the seconds in which its event loop was late.

A late loop cannot read an answer that has come. So a deadline in running time is missed by the store alone.
"""

from __future__ import annotations

import math
from typing import Final

# Ticks in a deadline, and so the fewest turns of the loop before it expires. A call in flight and one queued
# behind it take ten: each starts a task, sends, reads and wakes the task.
TICKS: Final = 20
TICK_LEAST_S: Final = 0.001  # The resolution of a selector

# Seconds by which a timer of a healthy loop may be late; deadlines that close together also share one tick.
GRAIN_S: Final = 0.002


class RunningTime:
    """Measures by how much ticks end late; its owner sets a timer for each tick, and ends it when that fires.

    Args:
        deadline_s: the shortest wait in running time that must end on time.
    """

    __slots__ = ("_tick_s", "late_s", "tick_ends_s")

    def __init__(self, deadline_s: float) -> None:
        self.tick_ends_s: float = math.inf  # By the loop's clock; infinite: nothing waits
        self._tick_s = max(deadline_s / TICKS, TICK_LEAST_S)
        self.late_s: float = 0.0  # Seconds by which all ticks together were late

    def at(self, now: float) -> float:
        """Return the running time at a time of the loop's clock; it stands still from the end of a tick."""
        return min(now, self.tick_ends_s) - self.late_s

    def start_tick(self, running_s: float, due_s: float) -> float:
        """Start a tick at a running time, to end at ``due_s`` at the latest; returns its end by the clock."""
        self.tick_ends_s = self.late_s + min(running_s + self._tick_s, max(running_s, due_s))
        return self.tick_ends_s

    def end_tick(self, now: float) -> float:
        """End the tick, and return the running time."""
        late_s = now - self.tick_ends_s
        self.late_s += late_s if late_s > GRAIN_S else 0.0
        self.tick_ends_s = math.inf
        return now - self.late_s
