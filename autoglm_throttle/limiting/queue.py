"""Priority queues of the concurrency limiter."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from autoglm_throttle.limiting.reserved_share import ReservedShare
from autoglm_throttle.limiting.ticket import Ticket
from autoglm_throttle.types import Priority

TicketQueue: TypeAlias = "OrderedDict[Ticket, None]"
"""Tickets in order of arrival. Removal takes constant time and frees its memory."""

RESERVED_QUEUE = 0
"""Index of the queue that is served first; the queue of a priority is the one after its number."""

_LOW = Priority.LOW


class PriorityQueues:
    """One queue for the reserved share, then one for each priority, in the order of service.

    Args:
        reserved: the credit that the tickets of the first queue have spent.
    """

    __slots__ = ("all", "reserved", "would_wait")

    def __init__(self, reserved: ReservedShare) -> None:
        self.reserved: ReservedShare = reserved
        self.all: tuple[TicketQueue, ...] = (OrderedDict(), OrderedDict(), OrderedDict(), OrderedDict())
        self.would_wait: list[int] = [0, 0, 0]
        """Requests in flight, by priority, that would be tickets without the dry run."""

    def count_ahead(self, priority: Priority) -> int:
        """Count the tickets ahead of a new request of this class."""
        share, high, mid, low = self.all
        ahead = len(share) + len(high)
        if priority:
            ahead += len(mid)
            if priority is _LOW:
                ahead += len(low)
        return ahead

    def waiting(self) -> tuple[int, int, int]:
        """Count the tickets of high, mid and low, in all queues."""
        share, high, mid, low = self.all
        shared = [ticket.demand.priority for ticket in share]
        return len(high), len(mid) + shared.count(Priority.MID), len(low) + shared.count(Priority.LOW)

    def call_would_wait(self, over: int) -> None:
        """Give free slots of a dry run to the most important requests above the capacity.

        Args:
            over: requests in flight above the capacity now.
        """
        free = sum(self.would_wait) - over
        for priority in Priority:
            called = max(0, min(self.would_wait[priority], free))
            self.would_wait[priority] -= called
            free -= called
