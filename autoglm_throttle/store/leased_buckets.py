"""The priority rates of a fleet: tokens leased by this process, and the next request for more.

It has the interface of ``PriorityBuckets``. It is used under the throttle's lock and makes no calls:
`next_request` returns the figures of the next call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from autoglm_throttle.limiting.decisions import rate_rejection, seconds_until
from autoglm_throttle.store.token_lease import TokenLease
from autoglm_throttle.types import Decision, Demand, Priority

if TYPE_CHECKING:
    from autoglm_throttle.settings.groups.control import RateSettings
    from autoglm_throttle.settings.groups.store import FleetSettings

DEADLINE_S: Final = 0.05
"""Longest wait for an answer: after it the store counts as unavailable."""

TIMER_S: Final = 0.001
"""Seconds by which a timer may fire too early."""

MAX_MEMBERS: Final = 10_000
"""A member count is clamped to 1..this: no mistake in a store may reduce the rates to nothing."""

_HEAD: Final = 2
_EACH: Final = 2


def _no_wake() -> None:
    return None


def _ignore_loss(now: float) -> None:  # noqa: ARG001 - a listener's interface
    return None


class LeasedBuckets:
    """Tokens of a fleet that one process may spend, one `TokenLease` for each priority.

    Args:
        rates: the rates of the whole fleet; a bucket holds at least one token. If ``workers`` is not 1, it is
            the number of processes that divide the rates while the store is unavailable; else that is the
            last member count of the store.
        fleet: the time after which unspent tokens are returned.
        now: monotonic seconds.
    """

    def __init__(self, rates: RateSettings, fleet: FleetSettings, now: float) -> None:
        self.all: tuple[TokenLease, ...] = tuple(
            TokenLease(rate, max(1.0, rate * rates.burst_s), now, priority.label, fleet.fleet_lease_s)
            for priority, rate in zip(Priority, rates.rates_rps, strict=True)
        )
        self.members: int = 1
        """Living processes, counted by the store; 1 before its first answer."""
        self.unavailable_since_s: float | None = None
        """Start of the store's outage; None: it is available."""
        self.is_request_pending: bool = False
        """Whether a call is under way."""
        self.wake: Callable[[], None] = _no_wake
        """Called under the lock when a request is pending; must not block."""
        self.on_store_lost: Callable[[float], None] = _ignore_loss
        """Called under the lock when the store is lost, for other users of the same store."""
        self._workers = rates.workers
        self._wake_requested = False
        self._awaiting_since_s: float | None = None
        """Start of the wait for an answer: of a call, or of a waiter without a call."""

    def __repr__(self) -> str:
        state = "leased" if self.unavailable_since_s is None else "local"
        pools = "/".join(f"{lease.tokens(0.0):g}" for lease in self.all)
        return f"LeasedBuckets({state}, {self.members} members, {pools} tokens)"

    @property
    def rates(self) -> tuple[float, ...]:
        """Current tokens per second: of the fleet, or of this process while the store is unavailable."""
        return tuple(lease.in_force for lease in self.all)

    @property
    def processes(self) -> int:
        """Number of processes that divide the rates while the store is unavailable."""
        return self._workers if self._workers > 1 else self.members

    def take(self, demand: Demand, now: float) -> TokenLease | Decision:
        """Take the demand's cost; returns the lease that paid, or the rejection."""
        lease = self.all[demand.priority]
        wait = lease.take(demand.cost, now)
        if not self._wake_requested and self.unavailable_since_s is None and lease.is_short(now):
            self._wake_requested = True
            self.wake()
        return rate_rejection(lease, demand.cost, wait, now) if wait else lease

    def rescale(self, ceilings: Sequence[float], now: float) -> None:
        """Refill each bucket at its nominal rate times its ceiling, 0..1, given for high, mid, low."""
        for lease, ceiling in zip(self.all, ceilings, strict=True):
            lease.rescale(ceiling, now)

    def is_decidable(self, demand: Demand, now: float) -> bool:
        """Whether `take` can decide now without a call to the store.

        True if the lease holds enough, if the store is known to be short, and without a store. A store
        without an answer for longer than the deadline counts as unavailable from here on.
        """
        lease = self.all[demand.priority]
        if lease.is_decidable(demand.cost, now):
            return True
        if self._awaiting_since_s is not None and now >= self._awaiting_since_s + DEADLINE_S:
            self._report_timeout(now)  # the thread's call may hang: requests must not wait for it again
            return True
        return False

    def add_waiter(self, waiter: object, demand: Demand, now: float) -> float:
        """Register a waiter for the store's next answer.

        Returns:
            Seconds after which `is_decidable` should be called again, with or without an answer.
        """
        if self._awaiting_since_s is None:
            self._awaiting_since_s = now
        self.all[demand.priority].add_waiter(waiter, demand.cost)
        if not self._wake_requested:
            self._wake_requested = True
            self.wake()
        return seconds_until(self._awaiting_since_s + DEADLINE_S, now)

    def remove_waiter(self, waiter: object, demand: Demand, now: float) -> None:
        """Remove a waiter. Idempotent.

        A waiter that leaves after the deadline without an answer reports the store as lost.
        """
        self.all[demand.priority].remove_waiter(waiter)
        if self._awaiting_since_s is None:
            return
        if now >= self._awaiting_since_s + DEADLINE_S - TIMER_S:
            self._report_timeout(now)
        elif not self.is_request_pending and not any(lease.waiters for lease in self.all):
            self._awaiting_since_s = None

    @property
    def waiters(self) -> list[object]:
        """All waiters without an answer."""
        return [waiter for lease in self.all for waiter in lease.waiters]

    def due_s(self) -> float:
        """Return the time of the next request even without waiters: unspent tokens are returned then."""
        return math.inf if self.unavailable_since_s is not None else min(lease.due_s() for lease in self.all)

    def next_request(self, now: float, *, beat: bool) -> list[int] | None:
        """Return the figures of the next call, five for each priority; None if no call is due.

        Args:
            now: monotonic seconds.
            beat: a heartbeat is due, so the call is made in any case; while the store is unavailable it is
                the only call.
        """
        self._wake_requested = False
        if not beat and (
            self.unavailable_since_s is not None or not any(lease.is_call_due(now) for lease in self.all)
        ):
            return None
        requests = [lease.request(now) for lease in self.all]
        if not (beat or self.waiters or any(request.want or request.returned for request in requests)):
            return None
        self.is_request_pending = True
        if self._awaiting_since_s is None:
            self._awaiting_since_s = now
        return [figure for request in requests for figure in request]

    def final_request(self) -> list[int]:
        """Return the figures of the last call: all unspent tokens are returned."""
        return [figure for lease in self.all for figure in lease.final_request()]

    def apply_reply(self, reply: Sequence[int], now: float) -> None:
        """Apply the store's answer: its clock, the members, then grant and remaining tokens by priority.

        All waiters are released. A waiter with too few tokens registers again: a stall of the event loop
        between the answer and its reader is no failure of the store.

        Raises:
            ValueError: the reply has another shape; nothing has changed then.
        """
        valid = all(isinstance(value, int) and value >= 0 for value in reply)
        if len(reply) != _HEAD + _EACH * len(self.all) or not valid:
            raise ValueError(f"the fleet's script answered {reply!r:.80}")
        self.members = min(max(1, reply[1]), MAX_MEMBERS)
        for lease, at in zip(self.all, range(_HEAD, len(reply), _EACH), strict=True):
            lease.apply_grant(reply[at], reply[at + 1], now)
        self.unavailable_since_s = None
        self.is_request_pending = False
        self._awaiting_since_s = None

    def store_lost(self, now: float) -> None:
        """Mark the store as lost: each process uses its part of the rates until `apply_reply`. Idempotent."""
        self.is_request_pending = False
        self._awaiting_since_s = None
        if self.unavailable_since_s is None:
            self.unavailable_since_s = now
            for lease in self.all:
                lease.use_local_share(self.processes, now)
            self.on_store_lost(now)

    def report_failure(self, now: float) -> None:
        """Mark the store as lost after another user's timeout, until a call succeeds. Idempotent."""
        if self.unavailable_since_s is None:
            self._report_timeout(now)

    def _report_timeout(self, now: float) -> None:
        """Mark the store as lost after a waiter's timeout, and wake the thread that calls it."""
        self.store_lost(now)
        self.wake()
