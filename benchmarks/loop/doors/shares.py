"""Limits on the number in flight that refuse at once and guarantee each class a share: AIMD and a gradient.

Both are our own writing of public rules, with the constants that their libraries ship with.
"""

from __future__ import annotations

import math
from typing import Protocol

from benchmarks.loop.agenda import Agenda
from benchmarks.loop.doors.door import PlainDoor, Site
from benchmarks.loop.request import Request

SHARES = (0.6, 0.3, 0.1)
"""Of the limit, for high, mid and low; a class may use more as long as the whole is not used up."""


class Limit(Protocol):
    """How much may be in flight, learned from what ends."""

    value: float

    def update(self, latency_s: float, in_flight: int, *, ok: bool) -> None:
        """A request has ended."""
        ...


class Aimd:
    """One more after each success while the limit is in use, a tenth less after a loss or a late answer.

    Start and floor 20, ceiling 200, factor 0.9: the constants of Netflix concurrency-limits.
    An answer is late after the objective.
    """

    def __init__(self, slo_s: float) -> None:
        self.value: float = 20.0
        self._slo_s = slo_s

    def update(self, latency_s: float, in_flight: int, *, ok: bool) -> None:
        """Grow by one or shrink by a tenth."""
        if not ok or latency_s > self._slo_s:
            self.value *= 0.9
        elif in_flight * 2 >= self.value:
            self.value += 1.0
        self.value = min(200.0, max(20.0, math.floor(self.value)))


class Gradient:
    """The limit follows the ratio of a long mean of the latency to the present one.

    Tolerance 1.5, smoothing 0.2, long window 600, queue 4, 20 to 200: the public constants of Gradient2,
    fed with the mean of each second that has 10 samples or more, as its library's windowed limit does.
    """

    def __init__(self, agenda: Agenda) -> None:
        self.value: float = 20.0
        self._agenda = agenda
        self._long_s = 0.0
        self._seen = 0
        self._begun_s = agenda.now
        self._window: list[float] = []
        self._most = 0

    def update(self, latency_s: float, in_flight: int, *, ok: bool) -> None:
        """Collect a second's latencies."""
        if not ok:
            return
        self._window.append(latency_s)
        self._most = max(self._most, in_flight)
        if len(self._window) >= 10 and self._agenda.now >= self._begun_s + 1.0:
            self._move(sum(self._window) / len(self._window), self._most)
            self._begun_s, self._window, self._most = self._agenda.now, [], 0

    def _move(self, latency_s: float, in_flight: int) -> None:
        """Move a fifth of the way to what the gradient says."""
        self._remember(latency_s)
        if in_flight < self.value / 2.0:
            return
        gradient = max(0.5, min(1.0, 1.5 * self._long_s / max(latency_s, 1e-9)))
        wanted = self.value * gradient + 4.0
        self.value = min(200.0, max(20.0, 0.8 * self.value + 0.2 * wanted))

    def _remember(self, latency_s: float) -> None:
        """A plain mean of the first ten, then an exponential one over 600; faster down while far too long."""
        self._seen += 1
        if self._seen <= 10:
            self._long_s += (latency_s - self._long_s) / self._seen
        else:
            self._long_s += (latency_s - self._long_s) * 2.0 / 601.0
        if self._long_s > 2.0 * latency_s:
            self._long_s *= 0.95


class SharesDoor(PlainDoor):
    """Refuses a class that is above its share once the limit is reached."""

    def __init__(self, site: Site, limit: Limit) -> None:
        self._site = site
        self._limit = limit
        self._busy = [0, 0, 0]

    def arrive(self, request: Request) -> None:
        """Let it in while the limit, or its class's share of it, has room."""
        limit = int(self._limit.value)
        p = request.priority
        if sum(self._busy) >= limit and self._busy[p] >= math.ceil(limit * SHARES[p]):
            self._site.refuse(request)
            return
        self._busy[p] += 1
        request.tag = self._site.agenda.now
        self._site.enter(request)

    def ended(self, request: Request, *, ok: bool) -> None:
        """Learn from the latency inside."""
        in_flight = sum(self._busy)
        self._busy[request.priority] -= 1
        self._limit.update(self._site.agenda.now - request.tag, in_flight, ok=ok)

    def state(self) -> tuple[float | None, float | None]:
        """The limit."""
        return None, self._limit.value
