"""The waiting lines of the gate."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from autoglm_throttle.limiting.ticket import Ticket
from autoglm_throttle.model import Priority

Line: TypeAlias = "OrderedDict[Ticket, None]"
"""Tickets in order of arrival. Any of them leaves in constant time, and keeps no memory after that."""

SHARE_LANE = 0
"""Index of the line that is served first; the line of a priority is the one after its number."""

_LOW = Priority.LOW


class Lines:
    """One line for the guaranteed share, then one for each priority: the order in which they are served."""

    __slots__ = ("all",)

    def __init__(self) -> None:
        self.all: tuple[Line, ...] = (OrderedDict(), OrderedDict(), OrderedDict(), OrderedDict())

    def ahead(self, priority: Priority) -> int:
        """Tickets that a newcomer of this class would find before it."""
        share, high, mid, low = self.all
        ahead = len(share) + len(high)
        if priority:
            ahead += len(mid)
            if priority is _LOW:
                ahead += len(low)
        return ahead

    def waiting(self) -> tuple[int, int, int]:
        """Tickets of high, mid and low, whichever line they stand in."""
        share, high, mid, low = self.all
        shared = [ticket.demand.priority for ticket in share]
        return len(high), len(mid) + shared.count(Priority.MID), len(low) + shared.count(Priority.LOW)
