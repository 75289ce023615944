"""Recent results by priority: the numbers of the live view."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.histogram import Histogram

REMEMBERED = 4
"""Turns in the recent window: 2 s at two turns a second, enough for a meaningful percentile."""


@dataclass(slots=True)
class Tally:
    """Result counts of one priority."""

    admitted: int = 0
    limited: int = 0
    rejected: int = 0
    failed: int = 0
    response: Histogram = field(default_factory=Histogram)

    def note(self, ending: Ending, response_s: float) -> None:
        """Count one result."""
        if ending.served:
            self.admitted += 1
            self.response.record(response_s)
        elif ending is Ending.LIMITED:
            self.limited += 1
        elif ending is Ending.REJECTED:
            self.rejected += 1
        else:
            self.failed += 1

    def add(self, other: Tally) -> None:
        """Add other counts to these."""
        self.admitted += other.admitted
        self.limited += other.limited
        self.rejected += other.rejected
        self.failed += other.failed
        self.response.merge(other.response)


class Lately:
    """Counts of the last few turns."""

    def __init__(self, priorities: bytes) -> None:
        self._priorities = priorities
        self._turns: deque[tuple[Tally, ...]] = deque(maxlen=REMEMBERED)
        self._launched: deque[int] = deque(maxlen=REMEMBERED)
        self.turn(0)

    @property
    def turns(self) -> int:
        """Number of turns in the window, including the running one."""
        return len(self._turns)

    def turn(self, launched: int) -> None:
        """Begin a new turn; ``launched`` requests were sent before it."""
        self._turns.append(tuple(Tally() for _ in Priority))
        self._launched.append(launched)

    def offered(self, launched: int) -> int:
        """Requests sent within the window, given the total sent."""
        return launched - self._launched[0]

    def note(self, index: int, ending: Ending, response_s: float) -> None:
        """Count one result; called by the generator."""
        self._turns[-1][self._priorities[index]].note(ending, response_s)

    def of(self, priority: Priority) -> Tally:
        """Sum the counts of a priority over the window."""
        whole = Tally()
        for turn in self._turns:
            whole.add(turn[priority])
        return whole
