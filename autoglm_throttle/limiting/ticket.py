"""A place in the waiting line."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Literal

from autoglm_throttle.limiting.shared.question import Question
from autoglm_throttle.limiting.token_bucket import Payer
from autoglm_throttle.model import Decision, Demand


class TicketState(IntEnum):
    """Where a waiting request stands. A ticket changes its state once, except that a called one may leave."""

    WAITING = 0
    CALLED = 1
    """It has a slot."""
    DROPPED = 2
    """It waited for as long as waiting was of use to it."""
    LEFT = 3
    """The waiter went away, from the line or with the slot it had been called to."""


WAITING, CALLED, DROPPED, LEFT = TicketState
"""Before Python 3.12 reading a member from its class costs as much as a look into a dictionary."""


NO_LANE = -1
"""Of a ticket that never stood in line."""


class Ticket:
    """One waiting request. All but the last six fields are written by the gate alone.

    Args:
        demand: what it asks for.
        arrived_s: monotonic seconds.
        patience_s: seconds it waits at most, > 0.
        lane: index of its line: 0 the lane of the guaranteed share, then high, mid, low.
    """

    __slots__ = (
        "arrived_s",
        "called_s",
        "decision",
        "demand",
        "home",
        "lane",
        "metered",
        "paid",
        "patience_s",
        "question",
        "state",
        "wake",
    )

    admitted: Literal[False] = False

    def __init__(self, demand: Demand, arrived_s: float, patience_s: float, lane: int) -> None:
        self.demand: Demand = demand
        self.arrived_s: float = arrived_s
        self.patience_s: float = patience_s
        self.lane: int = lane
        self.state: TicketState = WAITING
        self.called_s: float | None = None
        """When it got its slot."""
        self.wake: Callable[[], None] | None = None
        """Tells the waiter that the state has changed."""
        self.paid: Payer | None = None
        """What has paid, for the refund."""
        self.metered: bool = False
        """Whether the shared budget paid, too."""
        self.decision: Decision | None = None
        """What the user window said."""
        self.home: object = None
        """Where it is given back: in a forked process that is not where it was given out."""
        self.question: Question | None = None
        """What a shared store must be asked before it may begin."""

    @classmethod
    def entered(cls, demand: Demand, now: float) -> Ticket:
        """One that has its slot, if it holds one, and never stood in line."""
        ticket = cls(demand, now, 0.0, NO_LANE)
        ticket.state = CALLED
        ticket.called_s = now
        return ticket

    @property
    def stood(self) -> bool:
        """Whether it has stood in line."""
        return self.lane != NO_LANE

    @property
    def deadline_s(self) -> float:
        """The instant at which its patience is over."""
        return self.arrived_s + self.patience_s

    def __repr__(self) -> str:
        return f"Ticket({self.state.name}, lane {self.lane}, {self.demand!r})"
