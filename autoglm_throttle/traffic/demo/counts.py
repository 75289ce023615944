"""Recent results by priority: the numbers of the live view."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.request_result import RequestResult
from autoglm_throttle.types import Priority

RECENT_TURNS = 4
"""Turns in the recent window: 2 s at two turns a second, enough for a meaningful percentile."""


@dataclass(slots=True)
class DemoCounts:
    """Result counts of one priority."""

    admitted: int = 0
    limited: int = 0
    shed: int = 0
    failed: int = 0
    response: Histogram = field(default_factory=Histogram)

    def record(self, outcome: RequestResult, response_s: float) -> None:
        """Count one result."""
        if outcome.served:
            self.admitted += 1
            self.response.record(response_s)
        elif outcome is RequestResult.LIMITED:
            self.limited += 1
        elif outcome is RequestResult.SHED:
            self.shed += 1
        else:
            self.failed += 1

    def add(self, other: DemoCounts) -> None:
        """Add other counts to these."""
        self.admitted += other.admitted
        self.limited += other.limited
        self.shed += other.shed
        self.failed += other.failed
        self.response.merge(other.response)


class RecentCounts:
    """Counts of the last few turns."""

    def __init__(self, priorities: bytes) -> None:
        self._priorities = priorities
        self._turns: deque[tuple[DemoCounts, ...]] = deque(maxlen=RECENT_TURNS)
        self._launched: deque[int] = deque(maxlen=RECENT_TURNS)
        self.turn(0)

    @property
    def turns(self) -> int:
        """Number of turns in the window, including the running one."""
        return len(self._turns)

    def turn(self, launched: int) -> None:
        """Begin a new turn; ``launched`` requests were sent before it."""
        self._turns.append(tuple(DemoCounts() for _ in Priority))
        self._launched.append(launched)

    def offered(self, launched: int) -> int:
        """Requests sent within the window, given the total sent."""
        return launched - self._launched[0]

    def record(self, index: int, outcome: RequestResult, response_s: float) -> None:
        """Count one result; called by the generator."""
        self._turns[-1][self._priorities[index]].record(outcome, response_s)

    def of(self, priority: Priority) -> DemoCounts:
        """Sum the counts of a priority over the window."""
        whole = DemoCounts()
        for turn in self._turns:
            whole.add(turn[priority])
        return whole
