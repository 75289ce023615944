"""Where permits are given out and settled: the counts, the gate, and those whose turn has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from autoglm_throttle.limiting.cap import Cap
from autoglm_throttle.limiting.gate import Gate, Ticket, TicketState
from autoglm_throttle.model import Outcome
from autoglm_throttle.snapshot import Rows

_NEUTRAL = Outcome.NEUTRAL
"""Before Python 3.12 reading a member from its class costs as much as a look into a dictionary."""


class Desk:
    """What a permit needs when it is settled. Everything here is touched under ``rows.lock``, `ring` apart.

    Args:
        rows: the counts, the lock and the clock.
        gate: the limit on requests in flight.
    """

    __slots__ = ("bells", "gate", "rows", "unheard")

    def __init__(self, rows: Rows, gate: Gate | Cap) -> None:
        self.rows: Rows = rows
        self.gate: Gate | Cap = gate
        self.unheard: list[Ticket] = []
        """Called or dropped, with nobody to wake: for ``Throttle.called``."""
        self.bells: deque[Callable[[], None]] = deque()
        """To be rung once the lock is released."""

    def call(self, now: float) -> None:
        """Let in who may come in, and let go who has waited in vain."""
        for ticket in self.gate.ready(now):
            if ticket.wake is not None:
                self.bells.append(ticket.wake)
            elif ticket.state is not TicketState.LEFT:  # the garbage collector may have been here
                self.unheard.append(ticket)

    def free(self, now: float) -> None:
        """Give back a slot that was not used, perhaps to somebody who waits for it."""
        gate = self.gate
        gate.finish(now, _NEUTRAL, now)
        if gate.waiting:
            self.call(now)

    def withdraw(self, ticket: Ticket, now: float) -> None:
        """Take a ticket out of the line, or free the slot it was called to; then nobody hears of it again."""
        if ticket.demand.holds_slot:
            self.gate.leave(ticket, now)
        ticket.state = TicketState.LEFT
        self.hear(ticket)
        self.call(now)

    def hear(self, ticket: Ticket) -> None:
        """Somebody has come for this one."""
        if ticket in self.unheard:
            self.unheard.remove(ticket)

    def ring(self) -> None:
        """Wake them, without the lock: a bell may belong to another thread's loop."""
        bells = self.bells
        while bells:
            try:
                bell = bells.popleft()
            except IndexError:  # another thread was faster
                return
            bell()
