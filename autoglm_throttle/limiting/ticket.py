"""Tickets of queued requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Any, Literal, Protocol, TypeVar

from autoglm_throttle.limiting.token_bucket import Refundable
from autoglm_throttle.limiting.work_class import NO_SLOT, WorkClass
from autoglm_throttle.types import Decision, Demand

Reply = TypeVar("Reply")


class TicketState(IntEnum):
    """State of a queued request. It changes once, except that a called ticket may be cancelled."""

    WAITING = 0
    CALLED = 1  # It has a slot
    EXPIRED = 2  # It waited for its maximum wait
    CANCELLED = 3  # The waiter was cancelled, in the queue or with the slot it had been called to


# Module constants: before Python 3.12, reading an enum member costs as much as a dictionary lookup.
WAITING, CALLED, EXPIRED, CANCELLED = TicketState


NOT_QUEUED = -1  # Index of a ticket that was never queued


class StoreCheck(Protocol[Reply]):
    """Check of a request's user limits in a shared store."""

    @property
    def answer(self) -> object:
        """The answer of an admission; None without one."""
        ...

    def send(self) -> Awaitable[Reply]:
        """Send the check, without the lock; it ends before the deadline, with or without an answer."""
        ...

    def resolve(self, answer: Reply, now: float) -> Decision:
        """Return the decision, under the lock."""
        ...

    def undo(self, now: float) -> None:
        """Refund an admission, under the lock. Idempotent."""
        ...


class TicketCharges:
    """Charges of a request that waits, for its permit or for their refund.

    Args:
        owner: `Settlement` that the ticket is returned to; that of a parent process is another one.
        payer: bucket that paid.
        budget_charged: whether the shared budget was charged, too.
        decision: decision of the user limit; None: there is none yet.
        pending_check: check of the shared store that must end before the request may begin.
        charged_s: when the user limits were charged.
    """

    __slots__ = ("budget_charged", "charged_s", "decision", "owner", "payer", "pending_check")

    def __init__(
        self,
        owner: object,
        payer: Refundable | None,
        *,
        budget_charged: bool = False,
        decision: Decision | None = None,
        pending_check: StoreCheck[Any] | None = None,
        charged_s: float = 0.0,
    ) -> None:
        self.owner: object = owner
        self.payer: Refundable | None = payer
        self.budget_charged: bool = budget_charged
        self.decision: Decision | None = decision
        self.pending_check: StoreCheck[Any] | None = pending_check
        self.charged_s: float = charged_s


UNCHARGED = TicketCharges(None, None)  # Charges of a ticket that only the limiter knows


class Ticket:
    """One waiting request. All but the last two fields are written by the limiter alone.

    Args:
        demand: its demand.
        arrived_s: monotonic seconds.
        max_wait_s: seconds it waits at most, > 0.
        queue_index: index of its queue: 0 for the reserved share, then high, mid, low.
        work_class: class of the request.
    """

    __slots__ = (
        "arrived_s",
        "called_s",
        "charges",
        "demand",
        "max_wait_s",
        "on_ready",
        "queue_index",
        "slot",
        "started_s",
        "state",
        "was_queued",
        "work_class",
    )

    admitted: Literal[False] = False

    def __init__(
        self, demand: Demand, arrived_s: float, max_wait_s: float, queue_index: int, work_class: WorkClass
    ) -> None:
        self.demand: Demand = demand
        self.arrived_s: float = arrived_s
        self.max_wait_s: float = max_wait_s
        self.queue_index: int = queue_index
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
        ticket.slot = slot
        ticket.state = CALLED
        ticket.called_s = now
        return ticket

    @property
    def deadline_s(self) -> float:
        """The instant at which its maximum wait is over."""
        return self.arrived_s + self.max_wait_s

    def __repr__(self) -> str:
        return f"Ticket({self.state.name}, queue {self.queue_index}, {self.demand!r})"
