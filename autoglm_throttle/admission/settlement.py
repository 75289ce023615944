"""Settlement of permits: the counters, the concurrency limiter and the pending wake-ups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from autoglm_throttle.admission.snapshot import Counters
from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter, Ticket, TicketState
from autoglm_throttle.limiting.fixed_limit import FixedConcurrencyLimit
from autoglm_throttle.types import Outcome

_NEUTRAL = Outcome.NEUTRAL
"""Before Python 3.12 reading a member from its class costs as much as a dictionary look-up."""


class Settlement:
    """Holds the state that a permit needs when it is settled.

    Everything here is used under ``counters.lock``, except `run_wakeups`.

    Args:
        counters: the counters, the lock and the clock.
        limiter: the limit on requests in flight.
    """

    __slots__ = ("counters", "limiter", "pending_wakeups", "unclaimed")

    def __init__(
        self, counters: Counters, limiter: AdaptiveConcurrencyLimiter | FixedConcurrencyLimit
    ) -> None:
        self.counters: Counters = counters
        self.limiter: AdaptiveConcurrencyLimiter | FixedConcurrencyLimit = limiter
        self.unclaimed: list[Ticket] = []
        """Tickets that became ready or expired and have no waker; returned by `Throttle.called`."""
        self.pending_wakeups: deque[Callable[[], None]] = deque()
        """Callbacks to run once the lock is released."""

    def call_ready(self, now: float) -> None:
        """Give free slots to queued tickets, and expire the ones that waited too long."""
        for ticket in self.limiter.pop_ready(now):
            if ticket.on_ready is not None:
                self.pending_wakeups.append(ticket.on_ready)
            elif ticket.state is not TicketState.CANCELLED:  # a finalizer may have cancelled it
                self.unclaimed.append(ticket)

    def release_unused(self, now: float) -> None:
        """Return an unused slot, and give it to the next ticket."""
        limiter = self.limiter
        limiter.release(now, _NEUTRAL, now)
        if limiter.waiting:
            self.call_ready(now)

    def cancel(self, ticket: Ticket, now: float) -> None:
        """Cancel a ticket: remove it from the queue, or release its slot."""
        if ticket.demand.holds_slot:
            self.limiter.cancel(ticket, now)
        ticket.state = TicketState.CANCELLED
        self.mark_claimed(ticket)
        self.call_ready(now)

    def mark_claimed(self, ticket: Ticket) -> None:
        """Remove the ticket from `unclaimed`."""
        if ticket in self.unclaimed:
            self.unclaimed.remove(ticket)

    def run_wakeups(self) -> None:
        """Run the pending wake-ups, without the lock: a waiter may belong to the loop of another thread."""
        wakeups = self.pending_wakeups
        while wakeups:
            try:
                wakeup = wakeups.popleft()
            except IndexError:  # another thread took the last one
                return
            wakeup()
