"""Admission of requests: the order of the limits, waiting, and the refunds. Contains no algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from autoglm_throttle.admission.permit import Permit, Rejection
from autoglm_throttle.admission.verdicts import Verdicts
from autoglm_throttle.events import control_events
from autoglm_throttle.limiting.concurrency_limiter import Ticket, TicketState
from autoglm_throttle.limiting.decisions import HasTokens, Usages, all_rejected, decision_of, latest
from autoglm_throttle.limiting.ticket import TicketCharges
from autoglm_throttle.limiting.user_limits import NO_LIMIT
from autoglm_throttle.limiting.work_class import NO_SLOT, WorkClass
from autoglm_throttle.store.protocol import WindowEntry
from autoglm_throttle.types import ControlState, Decision, Demand, GpuView, Outcome, TokenCost

if TYPE_CHECKING:
    from autoglm_throttle.admission.factory import AdmissionParts

_WAITING, _CALLED, _LEFT = TicketState.WAITING, TicketState.CALLED, TicketState.CANCELLED


class AdmissionController:
    """Admits a request, rejects it, or gives it a ticket for the queue.

    It calls ``refresh`` with the time, without the lock, when a request finds the control state outdated.
    """

    def __init__(
        self, parts: AdmissionParts, control_state: ControlState, refresh: Callable[[float], object]
    ) -> None:
        self.parts: AdmissionParts = parts
        # Whether the rates belong to a fleet: then await `ensure_lease` before `try_admit`.
        self.has_leases: bool = parts.fleet is not None
        self._settlement = parts.settlement
        self._rows = parts.settlement.rows
        self._clock = parts.settlement.clock
        self._lock = parts.settlement.lock
        self._take_tokens = parts.take_tokens
        # Whether a request only has to take from the bucket of its priority.
        self._takes_only = parts.fleet is None and parts.quota is None and parts.user_slots is None
        self._shared_budget = parts.shared_budget
        self._user_limits = parts.user_limits
        self._has_user_limits = any(parts.limit_sets) or parts.user_slots is not None
        self._store = parts.store
        self._events = parts.events
        self._dry_run = parts.dry_run
        self.verdicts: Verdicts = Verdicts(parts)
        self._permit = self.verdicts.permit
        # Runs pending wake-ups, polls the store, writes log events; call it after leaving the lock.
        self.flush: Callable[[], None] = self.verdicts.flush
        self._refresh = refresh
        # When a request must refresh the control state; at once while sampling is stopped.
        self.refresh_due_s: float = -math.inf
        self.control_state: ControlState = control_state  # The newest one
        self._open(control_state)
        self.expects_gpu: bool = True  # Whether a source of telemetry is configured
        self._budget_active = False  # Whether all classes share one budget beside their own rates

    # Arrival

    async def admit(self, demand: Demand) -> Permit | Rejection:
        """Request admission, and wait in the queue if a slot can be free in time, as `Throttle.admit`."""
        if self.has_leases:
            await self.ensure_lease(demand)
        verdict: Permit | Ticket | Rejection
        if demand.tokens is None or self.verdicts.token_limits is None:
            verdict = self.try_admit(demand, demand.work_class)
        else:
            verdict = await self.charge(demand, demand.work_class, tokens=demand.tokens)
            if isinstance(verdict, Ticket):
                verdict = self.try_slot(verdict)
        return await self.verdicts.wait(verdict) if isinstance(verdict, Ticket) else verdict

    async def ensure_lease(self, demand: Demand) -> None:
        """Lease enough tokens for a demand if the fleet has them. Await this before `try_admit`.

        Returns at once where there is no fleet or enough is leased, else within 50 ms.
        """
        fleet = self.parts.fleet
        if fleet is None or self.control_state.factor <= 0.0:
            return
        now = self._clock()
        if now >= self.refresh_due_s:
            self._refresh(now)
        with self._lock:
            covered = fleet.leases.is_decidable(demand, now)
        if not covered:
            await fleet.ensure(demand)

    def try_admit(self, demand: Demand, work_class: str = "") -> Permit | Ticket | Rejection:  # noqa: C901, PLR0912, PLR0915 - a call costs 1 %
        """Request admission without waiting, as `Throttle.try_admit`.

        A demand that is kept for each caller has no work class: hence the argument.
        """
        # What is no method is called through a local name, as in `Permit.settle`.
        lock, clock, store = self._lock, self._clock, self._store
        acquire, release = lock.acquire, lock.release
        now = clock()
        if now >= self.refresh_due_s:
            self._refresh(now)
        acquire()
        try:
            settlement = self._settlement
            limiter = settlement.limiter
            kind = limiter.work_classes[work_class]
            slot = NO_SLOT
            payer: HasTokens
            rejected: Decision | None = None
            charged: Usages | Decision | WindowEntry = NO_LIMIT
            buckets = self._buckets
            if buckets is None or (payer := buckets[demand.rank]).take(demand.cost, now):
                # Of a bucket that is short, too: another one may lend.
                payment = (
                    self._take_tokens(demand, now) if self._is_open else all_rejected(self.control_state, now)
                )
                if isinstance(payment, Decision):
                    rejected = payment
                else:
                    payer = payment
            if self._has_user_limits and rejected is None:
                charged = self._user_limits.hit(demand, now)
                if type(charged) is Decision and not charged.allowed:
                    payer.give_back(demand.cost, now)
                    rejected = charged
            verdict: Permit | Ticket | Rejection
            if rejected is not None:
                if demand.holds_slot:  # it counts as demand for slots
                    limiter.record_arrival(demand.rank, now)
                verdict = self.verdicts.reject(demand, rejected, now, kind)
                if limiter.waiting and charged is rejected:  # the limit may have grown
                    settlement.call_ready(now)
            elif demand.holds_slot and (
                self._budget_active or not (slot := limiter.try_acquire(demand, kind, now))
            ):
                verdict = self._enqueue(demand, payer, charged, now, kind)
            elif store is not None and isinstance(charged, WindowEntry):
                verdict = Ticket.with_slot(demand, now, kind, slot)
                verdict.charges = TicketCharges(settlement, payer, charged_s=now)
                verdict.charges.pending_check = charged
            else:
                self._rows[demand.rank].admitted += 1
                if buckets is None:
                    verdict = self._permit(settlement, demand, charged, now, now, kind, slot, payer)
                else:  # the usual case, without the call
                    verdict = permit = Permit()
                    permit.owner, permit.demand = settlement, demand
                    permit.verdict = charged  # type: ignore[assignment] # without a store it is no entry
                    permit.arrived_s = permit.admitted_s = permit.started_s = now
                    permit.work_class, permit.slot, permit.charges = kind, slot, payer
                    permit.settled = False
        finally:
            release()
        # With a ticket for a check of the store, the waiter polls the store.
        if lock.pending or self._events.waiting or (store is not None and not isinstance(verdict, Ticket)):
            self.verdicts.flush()
        return verdict

    def _enqueue(
        self,
        demand: Demand,
        payer: HasTokens,
        charged: Usages | Decision | WindowEntry,
        now: float,
        kind: WorkClass,
    ) -> Permit | Ticket | Rejection:
        """Queue a demand for which no slot is free, or which must take from the shared budget first."""
        settlement = self._settlement
        slot, queued, budget_active = self._slot_or_ticket(demand, kind, now)
        if isinstance(queued, Decision):
            payer.give_back(demand.cost, now)
            if not isinstance(charged, WindowEntry):
                self._user_limits.give_back(demand, now, now)
            return self.verdicts.reject(demand, queued, now, kind)
        charges = TicketCharges(settlement, payer, budget_charged=budget_active, charged_s=now)
        if isinstance(charged, WindowEntry):
            pending = queued if queued is not None else Ticket.with_slot(demand, now, kind, slot)
            pending.charges, charges.pending_check = charges, charged
            return pending
        if queued is None:
            self._rows[demand.rank].admitted += 1
            return self.verdicts.permit(settlement, demand, charged, now, now, kind, slot, charges)
        queued.charges, charges.decision = charges, charged
        limiter = settlement.limiter
        if limiter.in_flight < limiter.capacity or limiter.displaced:  # the limit has just grown
            settlement.call_ready(now)
        return queued

    async def top_up(self, permit: Permit, demand: Demand) -> Rejection | None:
        """Charge an admitted request again: all its charges are one, and a rejection refunds them all."""
        if self.has_leases:
            await self.ensure_lease(demand)
        charged = await self.charge(demand, demand.work_class, permit)
        if isinstance(charged, Permit):  # of a dry run, which has counted the rejection
            charged.settle(Outcome.NEUTRAL)
            return None
        with self._lock:
            if isinstance(charged, Ticket):
                self.verdicts.add_charge(permit, charged)
                return None
            self.verdicts.refund_permit(permit, self._clock())
        self.flush()
        return charged

    async def charge(
        self,
        demand: Demand,
        work_class: str = "",
        admitted: Permit | None = None,
        tokens: TokenCost | None = None,
    ) -> Permit | Ticket | Rejection:
        """Charge as `try_charge`, and wait for the store."""
        charged = self.try_charge(demand, work_class, admitted, tokens)
        if isinstance(charged, Ticket) and charged.charges.pending_check is not None:
            charged = await self.verdicts.wait(charged) or charged
        return charged

    def try_charge(
        self,
        demand: Demand,
        work_class: str = "",
        admitted: Permit | None = None,
        tokens: TokenCost | None = None,
    ) -> Permit | Ticket | Rejection:
        """Ask the rates and the user limits alone, for a request whose body is not there yet.

        Or for one that is ``admitted`` and is charged again. ``tokens`` are reserved in the same step.

        Returns:
            A ticket without a slot, to wait for if its check of the store is pending, then to leave or to
            hand to `try_slot`; a rejection; in a dry run, in place of one, a permit.
        """
        now = self._clock()
        if now >= self.refresh_due_s:
            self._refresh(now)
        settlement = self._settlement
        with self._lock:
            kind = settlement.limiter.work_classes[work_class]
            too_large = None if admitted is None else self.verdicts.too_large(admitted, demand, now)
            payer = too_large or (
                self._take_tokens(demand, now) if self._is_open else all_rejected(self.control_state, now)
            )
            verdict: Permit | Ticket | Rejection
            if isinstance(payer, Decision):
                if demand.holds_slot:
                    settlement.limiter.record_arrival(demand.rank, now)
                verdict = self.verdicts.reject(demand, payer, now, kind)
            else:
                charges = TicketCharges(settlement, payer, charged_s=now)
                decision: Usages | Decision | WindowEntry
                token_limits = self.verdicts.token_limits
                if tokens is None or token_limits is None:
                    decision = self._user_limits.hit(demand, now)
                else:
                    decision = token_limits.reserve(demand, tokens, now)
                if isinstance(decision, WindowEntry):
                    charges.pending_check = decision
                else:
                    charges.decision = decision
                    if tokens is not None and token_limits is not None and decision_of(decision).allowed:
                        charges.reservation = token_limits.reservation(demand, tokens, now)
                if isinstance(decision, Decision) and not decision.allowed:
                    payer.give_back(demand.cost, now)
                    verdict = self.verdicts.reject(demand, decision, now, kind)
                else:
                    verdict = Ticket.with_slot(demand, now, kind, NO_SLOT)
                    verdict.called_s, verdict.charges = None, charges
        self.verdicts.flush()
        return verdict

    def try_slot(self, charged: Ticket) -> Permit | Ticket | Rejection:
        """Request a slot for a ticket of `try_charge`, which is used up. The result is as of `try_admit`."""
        now = self._clock()
        settlement = self._settlement
        limiter = settlement.limiter
        demand, kind, charges = charged.demand, charged.work_class, charged.charges
        decision = charges.decision
        if decision is None:
            raise ValueError(f"{charged!r} has a pending store check")
        decision = latest(decision, now - charges.charged_s)
        with self._lock:
            slot = NO_SLOT
            queued: Ticket | Decision | None = self.verdicts.quota_rejection(charged, now)
            if queued is None and (
                self._budget_active or not (slot := limiter.try_acquire(demand, kind, now))
            ):
                slot, queued, charges.budget_charged = self._slot_or_ticket(demand, kind, now)
                if isinstance(queued, Decision):
                    self.verdicts.refund(charged, now)
            verdict: Permit | Ticket | Rejection
            charged.state = _LEFT
            if queued is None:
                self._rows[demand.rank].admitted += 1
                verdict = self.verdicts.permit(settlement, demand, decision, now, now, kind, slot, charges)
            elif isinstance(queued, Decision):
                verdict = self.verdicts.reject(demand, queued, now, kind)
            else:
                queued.charges = charges
                if limiter.in_flight < limiter.capacity or limiter.displaced:
                    settlement.call_ready(now)
                verdict = queued
        self.verdicts.flush()
        return verdict

    def _slot_or_ticket(
        self, demand: Demand, kind: WorkClass, now: float
    ) -> tuple[int, Ticket | Decision | None, bool]:
        """Return a slot, or else a ticket or a rejection; and whether the shared budget was charged."""
        limiter, budget_active = self._settlement.limiter, self._budget_active
        rejection = self._shared_budget.take(demand.priority, now) if budget_active else None
        queued: Ticket | Decision
        if rejection is not None:
            limiter.record_arrival(demand.rank, now)
            queued = limiter.enqueue_reserved(demand, kind, now) or rejection
            budget_active = False
        else:
            if budget_active and (slot := limiter.try_acquire(demand, kind, now)):
                return slot, None, True
            queued = limiter.enqueue(demand, kind, now)
            if budget_active and isinstance(queued, Decision):
                self._shared_budget.give_back(now)
                budget_active = False
        if isinstance(queued, Ticket):
            if queued.state is _CALLED:  # the reserved share had a slot at once
                queued.state = _LEFT
                return queued.slot, None, budget_active
            if self._dry_run:  # which queues nothing
                limiter.cancel(queued, now)
                return limiter.occupy_over_limit(demand, kind), None, budget_active
        return NO_SLOT, queued, budget_active

    # Rejections decided elsewhere

    def peek(self, demand: Demand) -> Rejection | None:
        """Return the rejection that a demand would get now by rates or user limits, as `Throttle.peek`."""
        now = self._clock()
        if now >= self.refresh_due_s:
            self._refresh(now)
        with self._lock:
            payer = self._take_tokens(demand, now) if self._is_open else all_rejected(self.control_state, now)
            if isinstance(payer, Decision):
                return None if self._dry_run else Rejection(demand, payer)
            payer.give_back(demand.cost, now)
            verdict = self._user_limits.hit(demand, now)
            if isinstance(verdict, Decision) and not verdict.allowed:
                return None if self._dry_run else Rejection(demand, verdict)
            if not isinstance(verdict, WindowEntry):  # a check of the store is only sent by its waiter
                self._user_limits.give_back(demand, now, now)
            limits, tokens = self.verdicts.token_limits, demand.tokens
            if tokens is not None and limits is not None:
                decision = limits.peek(demand, tokens, now)
                if not decision.allowed:
                    return None if self._dry_run else Rejection(demand, decision)
        return None

    def reject(self, demand: Demand, decision: Decision, *, degraded: bool = False) -> Rejection | None:
        """Count a request that was rejected before the throttle, or ``degraded``: answered by a fallback.

        The reason must be ``gpu``, ``queue`` or ``breaker``. Returns None in a dry run, which only counts it
        and admits the request; there no fallback should answer.
        """
        if self._dry_run:
            with self._lock:
                self._rows[demand.rank].would_reject[decision.reason] += 1
                self.verdicts.log_rejection(demand, decision, self._clock())
            self.verdicts.flush()
            return None
        if demand.holds_slot:
            with self._lock:
                self._settlement.limiter.record_arrival(demand.rank, self._clock())
        rejection = Rejection(demand, decision)
        self.record_rejection(rejection, degraded=degraded)
        return rejection

    def record_rejection(self, rejection: Rejection, *, degraded: bool) -> None:
        """Count the load rejection of a `ProvisionalDemand`, once; ``degraded``: a fallback answers."""
        demand, decision = rejection.demand, rejection.decision
        with self._lock:
            row = self._rows[demand.rank]
            if degraded:
                row.degraded[decision.reason] += 1
            else:
                row.rejected[decision.reason] += 1
                self._settlement.counters.count_rejection(demand.route, decision.policy)
                self.verdicts.log_rejection(demand, decision, self._clock())
        self.verdicts.flush()

    def retry_after_s(self, demand: Demand) -> float:
        """Return the seconds after which a request that the service itself has rejected may return."""
        with self._lock:
            return self._settlement.limiter.retry_after_s(demand.user, self._clock())

    def record_exempt(self) -> None:
        """Count a request that is exempt from the throttle."""
        with self._lock:
            self._settlement.counters.exempt += 1

    def record_oddity(self, name: str) -> None:
        """Count a handled oddity under a name from code, never from a request."""
        with self._lock:
            oddities = self._settlement.counters.oddities
            oddities[name] = oddities.get(name, 0) + 1

    # Control

    def apply(self, state: ControlState, view: GpuView | None, refresh_due_s: float, now: float) -> None:
        """Put a control state into force, with the newest view for the log; called under the lock."""
        before, self.control_state = self.control_state, state
        self._open(state)
        self.refresh_due_s = refresh_due_s
        if state is before:
            return
        if state.ceilings != before.ceilings:
            self.parts.buckets.rescale(state.ceilings, now)
        if self.parts.quota is not None:
            self.parts.quota.factor = state.factor
        self._budget_active = state.budget_rps is not None
        self._shared_budget.rescale(state.budget_rps, state.term, now)
        changes = control_events(before, state, view, now, expects_gpu=self.expects_gpu)
        self._events.waiting.extend(changes)

    def _open(self, state: ControlState) -> None:
        self._is_open = state.factor > 0.0  # Whether it admits any request
        # The buckets from which a request takes without asking anybody else; None: it must ask.
        self._buckets = self.parts.buckets.all if self._is_open and self._takes_only else None

    def unsupported_loop(self) -> str:
        """Return why the settings cannot work in the running event loop; empty if they can."""
        return "" if self._store is None else self._store.unsupported_loop()
