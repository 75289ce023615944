"""Protocol of a shared store of user limits: its charges, answers and errors.

All times are integer microseconds: a store's own clock counts them, and they are exact until the year 2255.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from autoglm_throttle.types import UserLimit


class StoreErrorKind(StrEnum):
    """Error of a store call: a closed set, also the metric label."""

    TIMEOUT = "timeout"
    """No answer before the deadline; the units may have been spent."""
    QUEUE_FULL = "queue_full"
    """The queue of this event loop is full; no call was sent."""
    UNREACHABLE = "unreachable"
    """No server listens there; nothing was spent."""
    LOST = "lost"
    """The connection broke after the call was sent; the units may have been spent."""
    READONLY = "readonly"
    """Only a replica answers."""
    BUSY = "busy"
    """Loading, a long script, a cluster without a quorum: it answers, but not this."""
    FULL = "full"
    """Its memory is used up."""
    FORBIDDEN = "forbidden"
    """It requires another password or more rights."""
    FOREIGN = "foreign"
    """Another type of value stands under our key."""
    CONFUSED = "confused"
    """An error or a reply that no other member covers."""
    LOOP = "loop"
    """The event loop is one in which the store's client cannot run (trio)."""


class StoreCharge:
    """Units of one caller under one set of limits.

    Args:
        kind: name of the set and of its subject: ``user``, ``address``, ``plan-gold``.
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


VALUES = 5
"""Integers for each limit in an answer: ok, remaining, retry_after, reset, stamp."""

Answer = Sequence[int]
"""`VALUES` integers for each limit of each charge, in the given order.

ok 1: this limit admits, 0: rejects. The request is admitted only if all are 1.
remaining: units left, after spending if the request was admitted.
retry_after: microseconds until it fits without other charges; 0 if ok, -1 if it never can.
reset: microseconds until the oldest counted unit leaves; 0 if nothing is counted.
stamp: opaque; it identifies the units for a refund.
"""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counters of a store; all but the last only grow."""

    calls: int = 0
    """Round trips."""
    sent: int = 0
    """Decisions that were sent."""
    late: int = 0
    """Replies without a waiting caller."""
    waiting: int = 0
    """Decisions that wait or are in flight now."""

    def __add__(self, other: StoreStats) -> StoreStats:
        """Return the sum, as of several event loops."""
        return StoreStats(
            self.calls + other.calls,
            self.sent + other.sent,
            self.late + other.late,
            self.waiting + other.waiting,
        )


class UserLimitStore(Protocol):
    """A shared store of user limits. It never raises but for a caller's cancellation."""

    kind: str
    """``redis``: for logs."""

    @property
    def last_error(self) -> str:
        """Text of the current error from the server or its client; empty without one."""
        ...

    def charge(self, charges: Sequence[StoreCharge]) -> Awaitable[Answer | StoreErrorKind]:
        """Spend all units of all charges, or none; ends before the deadline, with or without an answer."""
        ...

    def listen(self, report: Callable[[StoreErrorKind | None], None]) -> None:
        """Call ``report`` for each round trip and each firing of the deadline; None: it answered.

        It is not called for each caller: one slow server would count a failure for every waiting request.
        """
        ...

    def give_back(self, charges: Sequence[StoreCharge], answer: Answer) -> None:
        """Refund the units of an admission; returns at once, and a lost refund is conservative."""
        ...

    def probe(self) -> Awaitable[StoreErrorKind | None]:
        """Check if the store answers, without a decision; on a new connection."""
        ...

    def disconnect(self) -> None:
        """Close the connections, so that no call stays blocked; returns at once."""
        ...

    def stats(self) -> StoreStats:
        """Return the counters of all event loops together."""
        ...
