"""A fixed concurrency limit, without a queue.

For the policies that measure no service rate. It has the methods of `AdaptiveConcurrencyLimiter`, so that
both share one request path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoglm_throttle.limiting.service_estimator import FIRST_LATENCY_S
from autoglm_throttle.limiting.ticket import Ticket, TicketState
from autoglm_throttle.types import ConcurrencyView, Decision, Demand, LimiterReport, Outcome, Priority, Reason

LATENCY_GAIN = 0.1
"""Weight of the newest request in the mean holding time of a slot."""

_NO_TICKETS: Sequence[Ticket] = ()


class FixedConcurrencyLimit:
    """Limit the requests in flight to a fixed number, and reject the others.

    Not thread-safe: callers hold one lock.

    Args:
        limit: requests in flight, >= 1; infinite: they are only counted.
    """

    __slots__ = ("_held_s", "_rejected", "in_flight", "limit", "waiting")

    def __init__(self, limit: float) -> None:
        self.limit: float = limit
        self.in_flight: int = 0
        """Slots in use."""
        self.waiting: int = 0
        """Always 0: there is no queue."""
        self._held_s = FIRST_LATENCY_S
        self._rejected = 0

    def __repr__(self) -> str:
        return f"FixedConcurrencyLimit({self.in_flight} of {self.limit:g} in flight)"

    def record_arrival(self, priority: Priority, now: float) -> None:
        """Do nothing: a fixed limit needs no demand."""

    def try_acquire(self, demand: Demand, now: float) -> bool:  # noqa: ARG002 - interface
        """Acquire a slot, if one is free."""
        if self.in_flight >= self.limit:
            return False
        self.in_flight += 1
        return True

    def enqueue(self, demand: Demand, now: float) -> Ticket | Decision:  # noqa: ARG002 - interface
        """Reject: a slot becomes free after the mean holding time divided by the limit."""
        self._rejected += 1
        return self._build_rejection()

    def rejection(self, ticket: Ticket, now: float) -> Decision:  # noqa: ARG002 - interface
        """Build the same rejection: there are no tickets."""
        return self._build_rejection()

    def _build_rejection(self) -> Decision:
        retry_s = self._held_s / self.limit
        return Decision(False, Reason.QUEUE, "queue:cap", "queue", self.limit, 0, retry_s, retry_s)

    def enqueue_reserved(self, demand: Demand, now: float) -> Ticket | None:  # noqa: ARG002 - interface
        """Return None: without a measured rate there is no reserved share."""
        return None

    def release(self, started_s: float, outcome: Outcome, now: float) -> None:  # noqa: ARG002 - interface
        """Release the slot of a request that ended."""
        self.in_flight -= 1
        self._held_s += LATENCY_GAIN * (max(0.0, now - started_s) - self._held_s)

    def cancel(self, ticket: Ticket, now: float) -> None:  # noqa: ARG002 - interface
        """Release the slot of a ticket that has not begun to use it; there is no queue."""
        if ticket.state is TicketState.CALLED:
            ticket.state = TicketState.CANCELLED
            self.in_flight -= 1

    def expire(self, ticket: Ticket, now: float) -> bool:  # noqa: ARG002 - interface
        """Return False: there are no tickets."""
        return False

    def pop_ready(self, now: float) -> Sequence[Ticket]:  # noqa: ARG002 - interface
        """Return no tickets."""
        return _NO_TICKETS

    def occupy_over_limit(self, priority: Priority) -> None:  # noqa: ARG002 - as the adaptive limiter
        """Count a request in flight above the limit: in a dry run it runs in spite of its rejection."""
        self.in_flight += 1

    def close_period(self, now: float) -> None:
        """Do nothing: there are no periods."""

    def update_memory(self, ratio: float | None) -> None:
        """Do nothing: the limit is fixed."""

    def report(self) -> LimiterReport:
        """Report rejections since the last report; without a service rate."""
        rejected, self._rejected = self._rejected, 0
        return LimiterReport(rejected > 0, None, self.in_flight, self.limit)

    def view(self, now: float) -> ConcurrencyView:  # noqa: ARG002 - interface
        """Return the limit and the requests in flight; the other figures mean "not measured"."""
        return ConcurrencyView(
            limit=self.limit,
            in_flight=self.in_flight,
            waiting=(0, 0, 0),
            service_rps=None,
            demand_rps=(0.0, 0.0, 0.0),
            latency_s=self._held_s,
            unloaded_s=None,
            budget_s=math.inf,
            memory_cap=math.inf,
            memory_blind=False,
            slo_unreachable=False,
            pressure=self.in_flight / self.limit,
        )
