"""What happens when, in virtual seconds."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Call = Callable[[Any], None]


class Agenda:
    """Calls in the order of their times; equal times in the order in which they were made."""

    __slots__ = ("_heap", "_serial", "now")

    def __init__(self) -> None:
        self.now: float = 0.0
        """Virtual seconds."""
        self._heap: list[tuple[float, int, Call, Any]] = []
        self._serial = 0

    def at(self, when_s: float, call: Call, what: object = None) -> None:
        """Let ``call(what)`` happen at an instant, now at the earliest."""
        self._serial += 1
        heapq.heappush(self._heap, (max(when_s, self.now), self._serial, call, what))

    def until(self, end_s: float) -> None:
        """Let everything happen that is due before an instant, and be there."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] < end_s:
            self.now, _, call, what = pop(heap)
            call(what)
        self.now = end_s

    def clock(self) -> float:
        """The time, for those who want a clock."""
        return self.now
