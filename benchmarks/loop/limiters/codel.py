"""CoDel: a queue kept short by its waiting time, behind a concurrency limit set by hand."""

from __future__ import annotations

import math
from collections import deque

from benchmarks.loop.limiters.limiter import BaseLimiter, LimiterContext
from benchmarks.loop.request import Request

IN_FLIGHT = 32
"""Two full batches of the standard service: the right value, which is unknown beforehand in practice."""


class CodelLimiter(BaseLimiter):
    """Controlled delay with a queue for each class.

    If the shortest wait of an interval (SLO / 4) was above the target (SLO / 20), the queue is overloaded:
    until the next interval no request waits longer than twice the target; else none waits longer than an
    interval.
    """

    def __init__(self, context: LimiterContext) -> None:
        self._context = context
        self._interval_s = context.slo_s / 4.0
        self._target_s = context.slo_s / 20.0
        self._queues: tuple[deque[Request], ...] = (deque(), deque(), deque())
        self._in_flight = 0
        self._ends_s = self._interval_s
        self._least_s = math.inf
        self._overloaded = False

    def arrive(self, request: Request) -> None:
        """Admit the request below the limit, else enqueue it."""
        if self._in_flight < IN_FLIGHT and not any(self._queues):
            self._waited(0.0)
            self._start(request)
        else:
            self._queues[request.priority].append(request)
            self.settled(0)

    def ended(self, request: Request, *, ok: bool) -> None:  # noqa: ARG002
        """Release the slot."""
        self._in_flight -= 1

    def settled(self, replica: int) -> None:  # noqa: ARG002
        """Fill the free slots, high first, and reject requests that waited too long."""
        now = self._context.scheduler.now
        for queue in self._queues:
            while queue:
                waited_s = now - queue[0].sent_s
                if waited_s > (2.0 * self._target_s if self._overloaded else self._interval_s):
                    self._waited(waited_s)
                    self._context.reject(queue.popleft())
                elif self._in_flight < IN_FLIGHT:
                    self._waited(waited_s)
                    self._start(queue.popleft())
                else:
                    break

    def _start(self, request: Request) -> None:
        self._in_flight += 1
        self._context.admit(request)

    def _waited(self, waited_s: float) -> None:
        now = self._context.scheduler.now
        if now >= self._ends_s:
            self._overloaded = self._target_s < self._least_s < math.inf
            self._ends_s, self._least_s = now + self._interval_s, math.inf
        self._least_s = min(self._least_s, waited_s)
