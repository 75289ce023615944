"""Request arrival: the order of the limits, the refunds and the lock. Contains no algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle import events
from autoglm_throttle.admission import factory
from autoglm_throttle.admission.permit import Permit, ProvisionalDemand, Rejection
from autoglm_throttle.admission.settlement import Settlement
from autoglm_throttle.admission.snapshot import REPLACEABLE, Counters, decision_label
from autoglm_throttle.limiting.concurrency_limiter import Ticket, TicketState
from autoglm_throttle.limiting.rate_rejection import all_rejected
from autoglm_throttle.limiting.token_bucket import Refundable
from autoglm_throttle.settings import Settings
from autoglm_throttle.store.monitor import StoreMonitor
from autoglm_throttle.store.pending_check import PendingCheck
from autoglm_throttle.store.shared_limits import SharedUserLimits
from autoglm_throttle.types import Clock, ControlState, Decision, Demand, Reason
from autoglm_throttle.types.identity import CallerHasher

if TYPE_CHECKING:
    from autoglm_throttle.admission.quota_check import QuotaCheck
    from autoglm_throttle.limiting.token_bucket import PriorityBuckets
    from autoglm_throttle.store.leased_buckets import LeasedBuckets

ADMITTED: Final = Decision(True, Reason.OK)
"""The decision where no user limit applies."""

_CALLED, _LEFT = TicketState.CALLED, TicketState.CANCELLED


class AdmissionController:
    """Admits a request, rejects it, or gives it a ticket.

    A subclass maintains the control state and implements `_refresh`.

    Args:
        settings: the configuration.
        clock: monotonic seconds; the only clock that decisions use.
        control_state: the initial one.
        redis: makes the client of each event loop, instead of ``settings.redis_url``.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        control_state: ControlState,
        redis: Callable[[], Any] | None = None,
    ) -> None:
        now = clock()
        self.settings: Settings = settings
        self._clock = clock
        self._settlement = Settlement(Counters(clock), factory.concurrency_limiter(settings, now))
        self._dry_run = settings.dry_run
        self._buckets = factory.priority_buckets(settings, now)
        self._quota = quota = factory.quota(settings)
        self._rate_limiter: PriorityBuckets | LeasedBuckets | QuotaCheck = self._buckets
        self._permit: Callable[..., Permit] = Permit
        if quota is not None:
            from autoglm_throttle.admission.quota_check import QuotaCheck, QuotaPermit

            self._rate_limiter = QuotaCheck(self._buckets, quota)
            self._permit = partial(QuotaPermit, quota)
        counters = self._settlement.counters
        self._fleet = factory.fleet(settings, self._buckets, counters.lock, clock)
        self.has_leases: bool = self._fleet is not None
        """Whether the rates belong to a fleet: then await `ensure_lease` before `try_admit`."""
        self._shared_budget = factory.shared_budget(settings, now)
        self._hasher = CallerHasher(settings.identity_key)
        self._user_limits = factory.user_limits(settings, self._hasher, redis, self._fleet)
        shared = self._user_limits if isinstance(self._user_limits, SharedUserLimits) else None
        self._store_monitor = StoreMonitor(shared, self._settlement.counters) if shared is not None else None
        self._control_state = control_state
        self._is_open = control_state.factor > 0.0
        self._budget_active = False
        """Whether all classes share one budget beside their own rates."""
        self._refresh_due_s = -math.inf
        """When a request must refresh the control state; at once while sampling is stopped."""
        self._users_full_logged = False
        self._rejection_sampler = events.RejectionSampler(settings.log_refused_every_s)
        self._events: list[events.LogEvent] = []

    async def ensure_lease(self, demand: Demand) -> None:
        """Lease enough tokens for a demand if the fleet has them. Await this before `try_admit`.

        Returns at once where there is no fleet or enough is leased, else within 50 ms.
        """
        fleet = self._fleet
        if fleet is None or not self._is_open:
            return
        now = self._clock()
        if now >= self._refresh_due_s:
            self._refresh()
        with self._settlement.counters.lock:
            covered = fleet.leases.is_decidable(demand, now)
        if not covered:
            await fleet.ensure(demand)

    def try_admit(self, demand: Demand) -> Permit | Ticket | Rejection:
        """Request admission without waiting. A Ticket is a position in the queue.

        Call `wait` for the ticket, poll it with `called`, or `leave` it.
        """
        now = self._clock()
        if now >= self._refresh_due_s:
            self._refresh()
        settlement = self._settlement
        counters = settlement.counters
        counters.acquire()  # `with counters.lock` takes twice as long
        try:
            payer = (
                self._rate_limiter.take(demand, now)
                if self._is_open
                else all_rejected(self._control_state, now)
            )
            verdict: Permit | Ticket | Rejection
            if isinstance(payer, Decision):
                if demand.holds_slot:
                    settlement.limiter.record_arrival(demand.priority, now)
                verdict = self._reject(demand, payer, now)
            elif not demand.holds_slot or (
                not self._budget_active and settlement.limiter.try_acquire(demand, now)
            ):
                decision = self._user_limits.hit(demand, now) or ADMITTED
                if decision.allowed:
                    counters.classes[demand.priority].admitted += 1
                    verdict = self._permit(settlement, demand, decision, now, now)
                    if self._store_monitor is None:
                        return verdict
                elif isinstance(decision, PendingCheck):
                    return _attach_check(Ticket.with_slot(demand, now), payer, decision, settlement)
                else:
                    verdict = self._refund_and_reject(demand, payer, decision, now)
            else:
                verdict = self._enqueue(demand, payer, now)
        finally:
            counters.release()
        self._flush_events()
        return verdict

    def _refresh(self) -> None:
        """Refresh control state and start sampling if needed. Called at most once per interval."""
        raise NotImplementedError

    def _enqueue(self, demand: Demand, payer: Refundable, now: float) -> Permit | Ticket | Rejection:
        """Queue a demand for which no slot is free, or which must take from the shared budget first."""
        settlement = self._settlement
        limiter, budget_active = settlement.limiter, self._budget_active
        rejection = self._shared_budget.take(demand.priority, now) if budget_active else None
        queued: Ticket | Decision | None
        if rejection is not None:
            limiter.record_arrival(demand.priority, now)
            queued = limiter.enqueue_reserved(demand, now) or rejection
            budget_active = False
        else:
            queued = (
                None if budget_active and limiter.try_acquire(demand, now) else limiter.enqueue(demand, now)
            )
        if isinstance(queued, Decision):
            payer.give_back(demand.cost, now)
            return self._reject(demand, queued, now)
        queued = self._still_waiting(queued, now)
        decision = self._user_limits.hit(demand, now if queued is None else queued.arrived_s) or ADMITTED
        if isinstance(decision, PendingCheck):
            pending = queued if queued is not None else Ticket.with_slot(demand, now)
            pending.budget_charged = budget_active
            return _attach_check(pending, payer, decision, settlement)
        if not decision.allowed:
            if queued is None:
                settlement.release_unused(now)
            else:
                settlement.cancel(queued, now)
            payer.give_back(demand.cost, now)
            if budget_active:
                self._shared_budget.give_back(now)
            return self._reject(demand, decision, now)
        if queued is None:
            settlement.counters.classes[demand.priority].admitted += 1
            return self._permit(settlement, demand, decision, now, now)
        queued.payer, queued.budget_charged, queued.decision, queued.owner = (
            payer,
            budget_active,
            decision,
            settlement,
        )
        settlement.call_ready(now)
        return queued

    def _still_waiting(self, ticket: Ticket | None, now: float) -> Ticket | None:
        """Return a ticket that must wait; None if it has its slot, or in a dry run."""
        if ticket is not None:
            if ticket.state is _CALLED:
                ticket.state = _LEFT
                # The garbage collector settled another permit, which made this ticket ready.
                self._settlement.mark_claimed(ticket)
                return None
            if self._dry_run:
                self._settlement.limiter.cancel(ticket, now)
                self._settlement.limiter.occupy_over_limit(ticket.demand.priority)
                return None
        return ticket

    def _refund_and_reject(
        self, demand: Demand, payer: Refundable, decision: Decision, now: float
    ) -> Permit | Rejection:
        """Reject a demand that has taken tokens and a slot, and return both."""
        if demand.holds_slot:
            self._settlement.release_unused(now)
        payer.give_back(demand.cost, now)
        return self._reject(demand, decision, now)

    def _reject(self, demand: Demand, decision: Decision, now: float) -> Permit | Rejection:
        """Reject a demand; in a dry run count the rejection and admit it."""
        settlement = self._settlement
        row = settlement.counters.classes[demand.priority]
        if self._dry_run:
            row.would_reject[decision.reason] += 1
            row.admitted += 1
            if demand.holds_slot:
                settlement.limiter.occupy_over_limit(demand.priority)
            self._log_rejection(demand, decision, now)
            return self._permit(
                settlement, demand, Decision(True, Reason.OK, would_reject=decision), now, now
            )
        if decision.reason not in REPLACEABLE or not isinstance(demand, ProvisionalDemand):
            row.rejected[decision.reason] += 1
            self._log_rejection(demand, decision, now)
        return Rejection(demand, decision)

    def reject(self, demand: Demand, decision: Decision, *, degraded: bool = False) -> Rejection | None:
        """Count a request that was rejected before the throttle, or answered by a fallback.

        Args:
            demand: the demand of the request.
            decision: the rejection; its reason must be ``gpu``, ``queue`` or ``breaker``.
            degraded: whether a fallback answers in its place; in a dry run none should.

        Returns:
            The rejection; None in a dry run, which only counts it and admits the request.
        """
        if self._dry_run:
            with self._settlement.counters.lock:
                self._settlement.counters.classes[demand.priority].would_reject[decision.reason] += 1
                self._log_rejection(demand, decision, self._clock())
            self._flush_events()
            return None
        if demand.holds_slot:
            with self._settlement.counters.lock:
                self._settlement.limiter.record_arrival(demand.priority, self._clock())
        rejection = Rejection(demand, decision)
        self.record_rejection(rejection, degraded=degraded)
        return rejection

    def record_rejection(self, rejection: Rejection, *, degraded: bool) -> None:
        """Count the load rejection of a `ProvisionalDemand`, once.

        Args:
            rejection: as the throttle returned it; its reason must be ``gpu``, ``queue`` or ``breaker``.
            degraded: whether a fallback answers in its place.
        """
        demand, decision = rejection.demand, rejection.decision
        with self._settlement.counters.lock:
            row = self._settlement.counters.classes[demand.priority]
            if degraded:
                row.degraded[decision.reason] += 1
            else:
                row.rejected[decision.reason] += 1
                self._log_rejection(demand, decision, self._clock())
        self._flush_events()

    def _log_rejection(self, demand: Demand, decision: Decision, now: float) -> None:
        reason = decision.reason
        count = self._rejection_sampler.record(reason, now)
        if count:
            client = self._hasher.text(demand.user)
            self._events.append(
                events.rejection_event(demand, decision, decision_label(reason), count, client)
            )
            if not self._users_full_logged and self._user_limits.overflowed:
                self._users_full_logged = True
                self._events.append(events.user_table_full(self.settings.max_users))

    def _flush_events(self) -> None:
        """Write pending log events and run pending wake-ups, without the lock: a log handler may be slow."""
        settlement = self._settlement
        if settlement.pending_wakeups:
            settlement.run_wakeups()
        if self._store_monitor is not None:
            self._store_monitor.poll()
        while self._events:
            with settlement.counters.lock:
                pending, self._events = self._events, []
            for event in pending:
                event.write()


def _attach_check(ticket: Ticket, payer: Refundable, check: PendingCheck, owner: object) -> Ticket:
    """Prepare a ticket that holds a slot and waits only for the shared user-limit check."""
    ticket.payer, ticket.pending_check, ticket.owner = payer, check, owner
    return ticket
