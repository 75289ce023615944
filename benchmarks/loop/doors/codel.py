"""A waiting line kept short by the time spent in it, behind a limit that somebody has chosen by hand."""

from __future__ import annotations

import math
from collections import deque

from benchmarks.loop.doors.door import PlainDoor, Site
from benchmarks.loop.request import Request

IN_FLIGHT = 32
"""Two full batches of the standard service: the right answer, which nobody knows beforehand."""


class CodelDoor(PlainDoor):
    """Controlled delay with a line for each class.

    If the shortest wait of an interval (SLO / 4) was above the target (SLO / 20), the line stands: until the
    next interval nobody waits longer than twice the target; else nobody waits longer than an interval.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._interval_s = site.slo_s / 4.0
        self._target_s = site.slo_s / 20.0
        self._lines: tuple[deque[Request], ...] = (deque(), deque(), deque())
        self._in_flight = 0
        self._ends_s = self._interval_s
        self._least_s = math.inf
        self._standing = False

    def arrive(self, request: Request) -> None:
        """Let it in if there is room, else let it wait."""
        if self._in_flight < IN_FLIGHT and not any(self._lines):
            self._waited(0.0)
            self._start(request)
        else:
            self._lines[request.priority].append(request)
            self.settled(0)

    def ended(self, request: Request, *, ok: bool) -> None:  # noqa: ARG002
        """A place is free."""
        self._in_flight -= 1

    def settled(self, replica: int) -> None:  # noqa: ARG002
        """Fill the free places, high first, and send away who has waited too long."""
        now = self._site.agenda.now
        for line in self._lines:
            while line:
                waited_s = now - line[0].sent_s
                if waited_s > (2.0 * self._target_s if self._standing else self._interval_s):
                    self._waited(waited_s)
                    self._site.refuse(line.popleft())
                elif self._in_flight < IN_FLIGHT:
                    self._waited(waited_s)
                    self._start(line.popleft())
                else:
                    break

    def _start(self, request: Request) -> None:
        self._in_flight += 1
        self._site.enter(request)

    def _waited(self, waited_s: float) -> None:
        now = self._site.agenda.now
        if now >= self._ends_s:
            self._standing = self._target_s < self._least_s < math.inf
            self._ends_s, self._least_s = now + self._interval_s, math.inf
        self._least_s = min(self._least_s, waited_s)
