"""One attempt of one client."""

from __future__ import annotations

from typing import Any


class Request:
    """A request, or a retry of one: then ``first`` is the original."""

    __slots__ = ("cost", "done", "first", "latest", "number", "priority", "sent_s", "tag", "tries")

    def __init__(self, number: int, sent_s: float, priority: int, cost: float) -> None:
        self.number = number
        """Index in the plan."""
        self.sent_s = sent_s
        self.priority = priority
        """0 high, 1 mid, 2 low."""
        self.cost = cost
        """Work; 1 on average. It is hidden from limiters."""
        self.tries = 0
        """Number of earlier attempts."""
        self.first: Request = self
        self.done = False
        """Whether some attempt was answered in time; set on the first one."""
        self.latest = True
        """True until its client sends a retry."""
        self.tag: Any = None
        """Data of the limiter: a permit, or nothing."""

    def again(self, now: float) -> Request:
        """Return the next attempt."""
        request = Request(self.number, now, self.priority, self.cost)
        request.tries = self.tries + 1
        request.first = self.first
        return request
