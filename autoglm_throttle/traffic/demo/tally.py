"""What happened lately, by priority: the numbers of the live view."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.histogram import Histogram

REMEMBERED = 4
"""Turns that count as lately: 2 s at two turns a second, enough for a percentile to mean something."""


@dataclass(slots=True)
class Tally:
    """Endings of one priority."""

    admitted: int = 0
    limited: int = 0
    rejected: int = 0
    failed: int = 0
    response: Histogram = field(default_factory=Histogram)

    def note(self, ending: Ending, response_s: float) -> None:
        """Count one ending."""
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
        """Add another tally to this one."""
        self.admitted += other.admitted
        self.limited += other.limited
        self.rejected += other.rejected
        self.failed += other.failed
        self.response.merge(other.response)


class Lately:
    """The last few turns, oldest forgotten first."""

    def __init__(self, priorities: bytes) -> None:
        self._priorities = priorities
        self._turns: deque[tuple[Tally, ...]] = deque(maxlen=REMEMBERED)
        self._launched: deque[int] = deque(maxlen=REMEMBERED)
        self.turn(0)

    @property
    def turns(self) -> int:
        """How many turns are remembered, the running one included."""
        return len(self._turns)

    def turn(self, launched: int) -> None:
        """Begin a new turn, so many requests having been sent before it."""
        self._turns.append(tuple(Tally() for _ in Priority))
        self._launched.append(launched)

    def offered(self, launched: int) -> int:
        """Requests sent in the remembered turns, so many having been sent in all."""
        return launched - self._launched[0]

    def note(self, index: int, ending: Ending, response_s: float) -> None:
        """The generator's observer."""
        self._turns[-1][self._priorities[index]].note(ending, response_s)

    def of(self, priority: Priority) -> Tally:
        """The sum of the remembered turns."""
        whole = Tally()
        for turn in self._turns:
            whole.add(turn[priority])
        return whole
