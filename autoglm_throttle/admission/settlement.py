"""Settlement of permits: the state that outlives the call which made a permit."""

from __future__ import annotations

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.admission.counters import Counters, PriorityCounters
from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter, Ticket, TicketState
from autoglm_throttle.limiting.fixed_limit import FixedConcurrencyLimit
from autoglm_throttle.limiting.work_class import WorkClass
from autoglm_throttle.types import Clock, Demand, Outcome

# Before Python 3.12 reading a member from its class costs as much as a dictionary look-up.
_NEUTRAL = Outcome.NEUTRAL


class Settlement:
    """Holds what a permit needs when it is settled. Its methods are called under `lock`."""

    __slots__ = ("clock", "counters", "limiter", "lock", "rows", "unclaimed")

    def __init__(
        self, clock: Clock, lock: SerialLock, limiter: AdaptiveConcurrencyLimiter | FixedConcurrencyLimit
    ) -> None:
        self.clock: Clock = clock
        self.lock: SerialLock = lock
        self.limiter: AdaptiveConcurrencyLimiter | FixedConcurrencyLimit = limiter
        self.counters: Counters = Counters()
        self.rows: tuple[PriorityCounters, ...] = self.counters.classes
        # Tickets that became ready or expired and have no waker; returned by `Throttle.called`.
        self.unclaimed: list[Ticket] = []

    def call_ready(self, now: float) -> None:
        """Give free slots to queued tickets, and expire the ones that waited too long.

        Their waiters are woken once the lock is left: they may belong to the event loop of another thread.
        """
        for ticket in self.limiter.pop_ready(now):
            if ticket.on_ready is not None:
                self.lock.pending.append(ticket.on_ready)
            else:
                self.unclaimed.append(ticket)

    def release_unused(self, demand: Demand, now: float, work_class: WorkClass, slot: int) -> None:
        """Return an unused slot, and give it to the next ticket."""
        limiter = self.limiter
        limiter.release(Ticket.with_slot(demand, now, work_class, slot), _NEUTRAL, now)
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
