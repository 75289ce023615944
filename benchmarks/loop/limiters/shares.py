"""Concurrency limits that reject at once and guarantee each class a share: AIMD and a gradient.

Both are reimplementations of public rules, with the default constants of their libraries.
"""

from __future__ import annotations

import math
from typing import Protocol

from benchmarks.loop.limiters.limiter import BaseLimiter, LimiterContext
from benchmarks.loop.request import Request
from benchmarks.loop.scheduler import EventScheduler

SHARES = (0.6, 0.3, 0.1)
"""Shares of the limit for high, mid and low; a class may use more while the limit is not reached."""


class Limit(Protocol):
    """A concurrency limit, adapted to the results of requests."""

    value: float

    def update(self, latency_s: float, in_flight: int, *, ok: bool) -> None:
        """Record the end of a request."""
        ...


class Aimd:
    """Additive increase, multiplicative decrease: plus one after a success, minus a tenth after a failure.

    It grows only while at least half of the limit is in use. A late response counts as a failure.

    Start and floor 20, ceiling 200, factor 0.9: the constants of Netflix concurrency-limits.
    A response is late after the objective.
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
    """A limit that follows the ratio of a long mean of the latency to the present one.

    Tolerance 1.5, smoothing 0.2, long window 600, queue 4, 20 to 200: the public constants of Gradient2,
    fed with the mean of each second that has 10 samples or more, as its library's windowed limit does.
    """

    def __init__(self, scheduler: EventScheduler) -> None:
        self.value: float = 20.0
        self._scheduler = scheduler
        self._long_s = 0.0
        self._seen = 0
        self._begun_s = scheduler.now
        self._window: list[float] = []
        self._most = 0

    def update(self, latency_s: float, in_flight: int, *, ok: bool) -> None:
        """Collect a second's latencies."""
        if not ok:
            return
        self._window.append(latency_s)
        self._most = max(self._most, in_flight)
        if len(self._window) >= 10 and self._scheduler.now >= self._begun_s + 1.0:
            self._move(sum(self._window) / len(self._window), self._most)
            self._begun_s, self._window, self._most = self._scheduler.now, [], 0

    def _move(self, latency_s: float, in_flight: int) -> None:
        """Move the limit by a fifth of the distance to the value of the gradient."""
        self._remember(latency_s)
        if in_flight < self.value / 2.0:
            return
        gradient = max(0.5, min(1.0, 1.5 * self._long_s / max(latency_s, 1e-9)))
        wanted = self.value * gradient + 4.0
        self.value = min(200.0, max(20.0, 0.8 * self.value + 0.2 * wanted))

    def _remember(self, latency_s: float) -> None:
        """Update the long mean: plain for ten samples, then exponential over 600; faster while too long."""
        self._seen += 1
        if self._seen <= 10:
            self._long_s += (latency_s - self._long_s) / self._seen
        else:
            self._long_s += (latency_s - self._long_s) * 2.0 / 601.0
        if self._long_s > 2.0 * latency_s:
            self._long_s *= 0.95


class SharesLimiter(BaseLimiter):
    """Rejects a class that is above its share once the limit is reached."""

    def __init__(self, context: LimiterContext, limit: Limit) -> None:
        self._context = context
        self._limit = limit
        self._busy = [0, 0, 0]

    def arrive(self, request: Request) -> None:
        """Admit the request while the limit, or the share of its class, is not used up."""
        limit = int(self._limit.value)
        p = request.priority
        if sum(self._busy) >= limit and self._busy[p] >= math.ceil(limit * SHARES[p]):
            self._context.reject(request)
            return
        self._busy[p] += 1
        request.tag = self._context.scheduler.now
        self._context.admit(request)

    def ended(self, request: Request, *, ok: bool) -> None:
        """Update the limit with the latency of the request."""
        in_flight = sum(self._busy)
        self._busy[request.priority] -= 1
        self._limit.update(self._context.scheduler.now - request.tag, in_flight, ok=ok)

    def state(self) -> tuple[float | None, float | None]:
        """Return the limit."""
        return None, self._limit.value
