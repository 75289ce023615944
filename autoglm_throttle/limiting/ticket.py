"""Tickets of queued requests."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

from autoglm_throttle.limiting.decisions import HasTokens, Usages
from autoglm_throttle.limiting.work_class import NO_SLOT, WorkClass
from autoglm_throttle.types import Decision, Demand

if TYPE_CHECKING:
    from autoglm_throttle.limiting.token_limits import Reservation


class TicketState(IntEnum):
    """State of a queued request. It changes once, except that a called ticket may be cancelled."""

    WAITING = 0
    CALLED = 1  # It has a slot
    EXPIRED = 2  # It waited for its maximum wait, or another user has its place
    CANCELLED = 3  # The waiter was cancelled, in the queue or with the slot it had been called to


# Module constants: before Python 3.12, reading an enum member costs as much as a dictionary lookup.
WAITING, CALLED, EXPIRED, CANCELLED = TicketState


NOT_QUEUED = -1  # Index of a ticket that was never queued


class TicketCharges:
    """Charges of a request that waits, for its permit or for their refund."""

    __slots__ = (
        *("answer", "budget_charged", "charged_s", "decision", "owner", "payer", "pending_check"),
        "reservation",
    )

    def __init__(
        self, owner: object, payer: HasTokens | None, *, budget_charged: bool = False, charged_s: float = 0.0
    ) -> None:
        # `Settlement` that the ticket is returned to; that of a parent process is another one.
        self.owner: object = owner
        self.payer: HasTokens | None = payer  # Bucket that paid
        self.budget_charged: bool = budget_charged  # Whether the shared budget was charged, too
        self.decision: Usages | Decision | None = None  # Of the user limit; None: there is none yet
        # Check of the shared store that must end before the request may begin.
        self.pending_check: Any = None
        self.answer: Any = None  # The store's answer that has admitted it, for the refund
        self.charged_s: float = charged_s  # When the user limits were charged
        self.reservation: Reservation | None = None  # Tokens that are reserved and to be settled


UNCHARGED = TicketCharges(None, None)  # Charges of a ticket that only the limiter knows


class Ticket:
    """One waiting request. All but the last two fields are written by the limiter alone."""

    __slots__ = (
        *("arrived_s", "called_s", "charges", "demand", "max_wait_s", "on_ready", "queue_index", "slot"),
        *("started_s", "state", "was_queued", "work_class"),
    )

    admitted: Literal[False] = False

    def __init__(
        self, demand: Demand, arrived_s: float, max_wait_s: float, queue_index: int, work_class: WorkClass
    ) -> None:
        self.demand: Demand = demand
        self.arrived_s: float = arrived_s
        self.max_wait_s: float = max_wait_s  # Seconds it waits at most, > 0
        self.queue_index: int = queue_index  # 0 for the reserved share, then high, mid, low
        self.was_queued: bool = queue_index != NOT_QUEUED
        self.state: TicketState = WAITING
        self.called_s: float | None = None  # When it got its slot
        self.work_class: WorkClass = work_class
        self.slot: int = NO_SLOT  # What it holds, once it was called
        self.started_s: float = arrived_s
        # Callback that wakes the waiter after a change of state.
        self.on_ready: Callable[[], None] | None = None
        self.charges: TicketCharges = UNCHARGED

    @classmethod
    def with_slot(cls, demand: Demand, now: float, work_class: WorkClass, slot: int) -> Ticket:
        """Make a ticket that has its slot, if it holds one, and was never queued."""
        ticket = cls(demand, now, 0.0, NOT_QUEUED, work_class)
        ticket.call(slot, now)
        return ticket

    def call(self, slot: int, now: float) -> None:
        """Give it what it will hold."""
        self.slot = slot
        self.state = CALLED
        self.called_s = self.started_s = now

    @property
    def deadline_s(self) -> float:
        """The instant at which its maximum wait is over."""
        return self.arrived_s + self.max_wait_s

    def __repr__(self) -> str:
        return f"Ticket({self.state.name}, queue {self.queue_index}, {self.demand!r})"
