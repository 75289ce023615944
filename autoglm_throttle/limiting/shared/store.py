"""What a shared store of user limits is asked, and what it answers.

All times are integer microseconds: a store's own clock counts them, and they are exact until the year 2255.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from autoglm_throttle.model import UserLimit


class Trouble(StrEnum):
    """Why a store gave no answer: a closed set, also the metric label."""

    TIMEOUT = "timeout"
    """No answer before the deadline; the units may have been spent."""
    QUEUE_FULL = "queue_full"
    """Too many decisions wait for the store in this event loop already; it was not asked."""
    UNREACHABLE = "unreachable"
    """Nobody listens there; nothing was spent."""
    LOST = "lost"
    """The connection broke after the question was sent; the units may have been spent."""
    READONLY = "readonly"
    """Only a replica answers."""
    BUSY = "busy"
    """Loading, a long script, a cluster without a quorum: it answers, but not this."""
    FULL = "full"
    """Its memory is used up."""
    FORBIDDEN = "forbidden"
    """It wants another password or more rights."""
    FOREIGN = "foreign"
    """Something else stands under our key."""
    CONFUSED = "confused"
    """An error or a reply that nothing above explains."""
    LOOP = "loop"
    """The event loop is one in which the store's client cannot run (trio)."""


class Charge:
    """What one caller is charged under one set of limits.

    Args:
        kind: name of the set and whose limits they are: ``user``, ``address``, ``plan-gold``.
        limits: 1 to 4.
        user: identity text of 16 hex digits.
        units: >= 0; 0 reads without spending.
    """

    __slots__ = ("kind", "limits", "units", "user")

    def __init__(self, kind: str, limits: tuple[UserLimit, ...], user: str, units: int) -> None:
        self.kind: str = kind
        self.limits: tuple[UserLimit, ...] = limits
        self.user: str = user
        self.units: int = units


WORST_WINDOW = 1.97
"""Times the limit that two counters, an approximate store, let through at worst; measured under attack."""

VALUES = 5
"""Integers for each limit in an answer: ok, remaining, retry_after, reset, stamp."""

Answer = Sequence[int]
"""`VALUES` integers for each limit of each charge, in the order asked.

ok 1: this limit allows, 0: refuses. The request is allowed only if all are 1.
remaining: units left, after spending if the request was allowed.
retry_after: microseconds until it fits if nobody else spends; 0 if ok, -1 if it never can.
reset: microseconds until the oldest counted unit leaves; 0 if nothing is counted.
stamp: opaque; what the units are given back by.
"""


@dataclass(frozen=True, slots=True)
class Health:
    """What the counters of a store say; all but the last only grow."""

    calls: int = 0
    """Round trips."""
    asked: int = 0
    """Decisions that were sent."""
    late: int = 0
    """Replies that nobody waited for any more."""
    waiting: int = 0
    """Decisions that wait or are in flight now."""

    def __add__(self, other: Health) -> Health:
        """Both together, as of several event loops."""
        return Health(
            self.calls + other.calls,
            self.asked + other.asked,
            self.late + other.late,
            self.waiting + other.waiting,
        )


class Store(Protocol):
    """A shared store of user limits. It never raises but for a caller's cancellation."""

    kind: str
    """``redis``, or the scheme of the storage: for logs and metrics."""

    approximate: bool
    """Whether more than a limit may pass in a window, up to `WORST_WINDOW` times as much."""

    @property
    def last_error(self) -> str:
        """What the server or its client said of the present trouble; empty if there is none."""
        ...

    def charge(self, charges: Sequence[Charge]) -> Awaitable[Answer | Trouble]:
        """Spend all units of all charges, or none; answered before the deadline, one way or the other."""
        ...

    def listen(self, report: Callable[[Trouble | None], None]) -> None:
        """Have ``report`` called once for each round trip and each firing of the deadline; None: it answered.

        Not once for each caller: one silent server would count as many failures as it has askers.
        """
        ...

    def give_back(self, charges: Sequence[Charge], answer: Answer) -> None:
        """Take back what an answer has allowed; returns at once, and a loss is conservative."""
        ...

    def probe(self) -> Awaitable[Trouble | None]:
        """Ask for nothing, to learn whether it answers; on a new connection."""
        ...

    def drop(self) -> None:
        """Let go of the connections, so that none of them stays blocked; returns at once."""
        ...

    def forget(self) -> None:
        """In a forked process: the parent's connections are not ours."""
        ...

    def health(self) -> Health:
        """The counters of all event loops together."""
        ...
