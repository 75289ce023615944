"""Scheduler of events in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Call = Callable[[Any], None]


class EventScheduler:
    """Runs calls in the order of their times; equal times in the order of scheduling."""

    __slots__ = ("_heap", "_serial", "now")

    def __init__(self) -> None:
        self.now: float = 0.0
        """Virtual seconds."""
        self._heap: list[tuple[float, int, Call, Any]] = []
        self._serial = 0

    def at(self, when_s: float, call: Call, argument: object = None) -> None:
        """Schedule ``call(argument)`` at an instant, now at the earliest."""
        self._serial += 1
        heapq.heappush(self._heap, (max(when_s, self.now), self._serial, call, argument))

    def until(self, end_s: float) -> None:
        """Run all calls due before an instant, and advance the time to it."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] < end_s:
            self.now, _, call, argument = pop(heap)
            call(argument)
        self.now = end_s

    def clock(self) -> float:
        """Return the virtual time."""
        return self.now
