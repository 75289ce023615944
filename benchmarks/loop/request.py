"""One attempt of one client to be served."""

from __future__ import annotations

from typing import Any


class Request:
    """A request, or a repetition of one: then ``first`` is the one that it repeats."""

    __slots__ = ("cost", "done", "first", "latest", "number", "priority", "sent_s", "tag", "tries")

    def __init__(self, number: int, sent_s: float, priority: int, cost: float) -> None:
        self.number = number
        """Its place in the plan."""
        self.sent_s = sent_s
        self.priority = priority
        """0 high, 1 mid, 2 low."""
        self.cost = cost
        """Work; 1 on average. No door knows it."""
        self.tries = 0
        """Repetitions before this one."""
        self.first: Request = self
        self.done = False
        """Of the first: whether some attempt was answered in time."""
        self.latest = True
        """Until its client repeats it."""
        self.tag: Any = None
        """The door's own: a permit, or nothing."""

    def again(self, now: float) -> Request:
        """The next attempt."""
        request = Request(self.number, now, self.priority, self.cost)
        request.tries = self.tries + 1
        request.first = self.first
        return request
