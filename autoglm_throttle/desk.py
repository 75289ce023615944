"""Settlement of permits: the counters, the concurrency limiter and the pending wake-ups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from autoglm_throttle.limiting.cap import FixedConcurrencyLimit
from autoglm_throttle.limiting.gate import AdaptiveConcurrencyLimiter, Ticket, TicketState
from autoglm_throttle.model import Outcome
from autoglm_throttle.snapshot import Rows

_NEUTRAL = Outcome.NEUTRAL
"""Before Python 3.12 reading a member from its class costs as much as a dictionary look-up."""


class Desk:
    """Holds the state that a permit needs when it is settled.

    Everything here is used under ``counters.lock``, except `run_wakeups`.

    Args:
        counters: the counters, the lock and the clock.
        limiter: the limit on requests in flight.
    """

    __slots__ = ("bells", "gate", "rows", "unheard")

    def __init__(self, rows: Rows, gate: AdaptiveConcurrencyLimiter | FixedConcurrencyLimit) -> None:
        self.rows: Rows = rows
        self.gate: AdaptiveConcurrencyLimiter | FixedConcurrencyLimit = gate
        self.unheard: list[Ticket] = []
        """Tickets that became ready or expired and have no waker; returned by `Throttle.called`."""
        self.bells: deque[Callable[[], None]] = deque()
        """Callbacks to run once the lock is released."""

    def call(self, now: float) -> None:
        """Give free slots to queued tickets, and expire the ones that waited too long."""
        for ticket in self.gate.pop_ready(now):
            if ticket.on_ready is not None:
                self.bells.append(ticket.on_ready)
            elif ticket.state is not TicketState.CANCELLED:  # a finalizer may have cancelled it
                self.unheard.append(ticket)

    def free(self, now: float) -> None:
        """Return an unused slot, and give it to the next ticket."""
        gate = self.gate
        gate.release(now, _NEUTRAL, now)
        if gate.waiting:
            self.call(now)

    def withdraw(self, ticket: Ticket, now: float) -> None:
        """Cancel a ticket: remove it from the queue, or release its slot."""
        if ticket.demand.holds_slot:
            self.gate.cancel(ticket, now)
        ticket.state = TicketState.CANCELLED
        self.hear(ticket)
        self.call(now)

    def hear(self, ticket: Ticket) -> None:
        """Remove the ticket from `unclaimed`."""
        if ticket in self.unheard:
            self.unheard.remove(ticket)

    def ring(self) -> None:
        """Run the pending wake-ups, without the lock: a waiter may belong to the loop of another thread."""
        bells = self.bells
        while bells:
            try:
                bell = bells.popleft()
            except IndexError:  # another thread took the last one
                return
            bell()
