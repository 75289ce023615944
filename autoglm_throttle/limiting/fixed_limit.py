"""A fixed concurrency limit, without a queue.

For the policies that measure no service rate, with the methods of `AdaptiveConcurrencyLimiter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from autoglm_throttle.limiting.service_estimator import FIRST_LATENCY_S
from autoglm_throttle.limiting.ticket import Ticket, TicketState
from autoglm_throttle.limiting.work_class import (
    COUNTED,
    LEARNED_SLO_MIN_S,
    NO_SLOT,
    PAUSED,
    RESUMED,
    SlotHolder,
    WorkClass,
    WorkClasses,
)
from autoglm_throttle.types import ConcurrencyView, Decision, Demand, LimiterReport, Outcome, Reason

LATENCY_GAIN = 0.1  # Weight of the newest request in the mean holding time of a slot

_NO_TICKETS: Sequence[Ticket] = ()


class FixedConcurrencyLimit:
    """Limit the requests in flight to a fixed number, and reject the others; infinite: only count them.

    The objective is only reported. Not thread-safe: callers hold one lock.
    """

    __slots__ = (
        *("_held_s", "_rejected", "capacity", "displaced", "in_flight", "limit", "paused", "slo_s"),
        *("waiting", "work_classes"),
    )

    def __init__(self, limit: float, slo_s: float = LEARNED_SLO_MIN_S) -> None:
        self.limit: float = limit
        self.capacity: float = limit  # As `limit`, which no memory cap bounds
        self.slo_s: float = slo_s
        self.work_classes: WorkClasses = WorkClasses(slo_s, {}, most=0)  # One class of all requests
        self.paused: int = 0  # Requests that have given their slot back for a while
        self.in_flight: int = 0  # Slots in use
        self.waiting: int = 0  # Always 0: there is no queue
        self.displaced: Sequence[Ticket] = _NO_TICKETS
        self._held_s = FIRST_LATENCY_S
        self._rejected = 0

    first_tokens: ClassVar[None] = None  # No request waits for its first token
    # Starts are not spread: what is overload is not measured.
    start_interval_s: ClassVar[float] = 0.0

    def record_arrival(self, priority: int, now: float) -> None:
        """Do nothing: a fixed limit needs no demand."""

    def try_acquire(self, demand: Demand, work_class: WorkClass, now: float) -> int:  # noqa: ARG002 - interface
        """Acquire a slot, if one is free."""
        if self.in_flight >= self.limit:
            return NO_SLOT
        self.in_flight += 1
        return COUNTED

    def enqueue(self, demand: Demand, work_class: WorkClass, now: float) -> Ticket | Decision:  # noqa: ARG002 - interface
        """Reject: a slot becomes free after the mean holding time divided by the limit."""
        self._rejected += 1
        return self._build_rejection()

    def rejection(self, ticket: Ticket, now: float) -> Decision:  # noqa: ARG002 - interface
        """Build the same rejection: there are no tickets."""
        return self._build_rejection()

    def retry_after_s(self, user: str, now: float) -> float:  # noqa: ARG002 - interface
        """Return the seconds after which a request that the service itself has rejected may return."""
        return self._build_rejection().retry_after_s

    def _build_rejection(self) -> Decision:
        retry_s = self._held_s / self.limit
        return Decision(False, Reason.QUEUE, "queue:cap", "queue", self.limit, 0, retry_s, retry_s)

    def enqueue_reserved(self, demand: Demand, work_class: WorkClass, now: float) -> Ticket | None:  # noqa: ARG002 - interface
        """Return None: without a measured rate there is no reserved share."""
        return None

    def release(
        self,
        holder: SlotHolder,
        outcome: Outcome,  # noqa: ARG002 - interface
        now: float,
        client_error: bool = False,  # noqa: ARG002 - interface
    ) -> None:
        """Release what a request that ended holds."""
        held_s = now - holder.started_s
        if holder.slot == PAUSED:
            self.paused -= 1
            held_s = holder.started_s
        else:
            self.in_flight -= 1
        holder.slot = NO_SLOT
        self._held_s += LATENCY_GAIN * (max(0.0, held_s) - self._held_s)

    def pause(self, holder: SlotHolder, now: float) -> None:
        """Give the slot of a request back while it waits for others."""
        if holder.slot in (COUNTED, RESUMED):
            holder.slot = PAUSED
            holder.started_s = now - holder.started_s
            self.in_flight -= 1
            self.paused += 1

    def resume(self, holder: SlotHolder, now: float) -> None:
        """Take the slot of a paused request again, even above the limit."""
        if holder.slot == PAUSED:
            holder.slot = RESUMED
            holder.started_s = now - holder.started_s
            self.in_flight += 1
            self.paused -= 1

    def cancel(self, ticket: Ticket, now: float) -> None:  # noqa: ARG002 - interface
        """Release the slot of a ticket that has not begun to use it; there is no queue."""
        if ticket.state is TicketState.CALLED and ticket.slot:
            ticket.slot = NO_SLOT
            self.in_flight -= 1
        ticket.state = TicketState.CANCELLED

    def expire(self, ticket: Ticket, now: float) -> bool:  # noqa: ARG002 - interface
        """Return False: there are no tickets."""
        return False

    def pop_ready(self, now: float) -> Sequence[Ticket]:  # noqa: ARG002 - interface
        """Return no tickets."""
        return _NO_TICKETS

    def occupy_over_limit(self, demand: Demand, work_class: WorkClass) -> int:  # noqa: ARG002 - interface
        """Count a request in flight above the limit: in a dry run it runs in spite of its rejection."""
        self.in_flight += 1
        return COUNTED

    def close_period(self, now: float) -> None:
        """Do nothing: there are no periods."""

    def update_cache(self, used_ratio: float | None, running: int | None) -> None:
        """Do nothing: the limit is fixed."""

    def update_memory(self, ratio: float | None) -> None:
        """Do nothing: the limit is fixed."""

    def report(self) -> LimiterReport:
        """Report rejections since the last report; without a service rate."""
        rejected, self._rejected = self._rejected, 0
        return LimiterReport(rejected > 0, None, self.in_flight, self.limit)

    def view(self, now: float) -> ConcurrencyView:  # noqa: ARG002 - interface
        """Return the limit and the requests in flight."""
        return ConcurrencyView(
            limit=self.limit,
            in_flight=self.in_flight,
            paused=self.paused,
            latency_s=self._held_s,
            slo_s=self.slo_s,
            pressure=self.in_flight / self.limit,
        )
