"""Permits and rejections: makes and counts them, and returns what a ticket holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from autoglm_throttle.admission.counters import REPLACEABLE
from autoglm_throttle.admission.permit import Permit, ProvisionalDemand, Rejection
from autoglm_throttle.events import EventQueue
from autoglm_throttle.limiting.ticket import Ticket, TicketState
from autoglm_throttle.limiting.work_class import NO_SLOT, WorkClass
from autoglm_throttle.types import Decision, Demand, Reason

if TYPE_CHECKING:
    from autoglm_throttle.admission.factory import AdmissionParts

_LEFT = TicketState.CANCELLED


class Verdicts:
    """Turns decisions into permits and rejections. All methods but `flush` are called under the lock.

    Args:
        parts: the limits.
        events: the queue of log events.
        dry_run: whether rejections are only counted.
    """

    def __init__(self, parts: AdmissionParts, events: EventQueue, *, dry_run: bool) -> None:
        self.permit: Callable[..., Permit] = Permit  # Makes a permit, with the arguments of `Permit`
        if parts.quota is not None:
            from autoglm_throttle.admission.quota_check import QuotaPermit

            self.permit = partial(QuotaPermit, parts.quota)
        self.dry_run: bool = dry_run  # Whether rejections are only counted
        self.events: EventQueue = events
        self._settlement = parts.settlement
        self._lock = parts.settlement.lock
        self._user_limits = parts.user_limits
        self._shared_budget = parts.shared_budget
        self._quota = parts.quota
        self._store = parts.store

    def permit_of(self, ticket: Ticket, decision: Decision, called_s: float) -> Permit:
        """Turn a called ticket into its permit."""
        ticket.state = _LEFT
        self._settlement.counters.classes[ticket.demand.priority].admitted += 1
        return self.permit(
            self._settlement,
            ticket.demand,
            decision,
            ticket.arrived_s,
            called_s,
            ticket.work_class,
            ticket.slot,
        )

    def refund(self, ticket: Ticket, now: float) -> None:
        """Return all resources that a ticket holds."""
        self._settlement.cancel(ticket, now)
        charges = ticket.charges
        if charges.payer is not None:
            charges.payer.give_back(ticket.demand.cost, now)
        if charges.budget_charged:
            self._shared_budget.give_back(now)
        if charges.pending_check is not None:
            charges.pending_check.undo(now)
        else:
            self._user_limits.give_back(ticket.demand, charges.charged_s, now)

    def reject(self, demand: Demand, decision: Decision, now: float, kind: WorkClass) -> Permit | Rejection:
        """Reject a demand; in a dry run count the rejection and admit it."""
        settlement = self._settlement
        row = settlement.counters.classes[demand.priority]
        if self.dry_run:
            row.would_reject[decision.reason] += 1
            row.admitted += 1
            slot = settlement.limiter.occupy_over_limit(demand, kind) if demand.holds_slot else NO_SLOT
            self.log_rejection(demand, decision, now)
            admitted = Decision(True, Reason.OK, would_reject=decision)
            return self.permit(settlement, demand, admitted, now, now, kind, slot)
        if decision.reason not in REPLACEABLE or not isinstance(demand, ProvisionalDemand):
            row.rejected[decision.reason] += 1
            self.log_rejection(demand, decision, now)
        return Rejection(demand, decision)

    def log_rejection(self, demand: Demand, decision: Decision, now: float) -> None:
        """Queue the log events of a rejection."""
        if self.events.record_rejection(demand, decision, now) and self._user_limits.overflowed:
            self.events.record_full_user_table()

    def quota_rejection(self, ticket: Ticket, now: float) -> Decision | None:
        """Reject a ticket if its memory quota was used up while it waited."""
        rejection = None if self._quota is None else self._quota.rejection(ticket.demand, now)
        if rejection is not None:
            self.refund(ticket, now)
        return rejection

    def record_queue_time(self, ticket: Ticket, now: float) -> float:
        """Record the queue time of a ticket, and return it."""
        if not ticket.was_queued:
            return 0.0
        called_s = ticket.called_s
        waited_s = (now if called_s is None else called_s) - ticket.arrived_s
        self._settlement.counters.classes[ticket.demand.priority].queue_time.record(waited_s)
        return waited_s

    def flush(self) -> None:
        """Run pending wake-ups, poll the store and write pending log events; inside the lock, do nothing."""
        if self._lock.is_held():
            return
        if self._lock.pending:
            self._lock.run_pending()
        if self._store is not None:
            self._store.poll()
        if self.events.waiting:
            self.events.write()
