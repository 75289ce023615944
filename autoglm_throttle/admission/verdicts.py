"""Permits and rejections: at once, or for the holder of a ticket that waits in the queue or for the store."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import anyio

from autoglm_throttle._runtime.wakeup import DisconnectWait, Wakeup, new_wakeup
from autoglm_throttle.admission.counters import REPLACEABLE
from autoglm_throttle.admission.permit import Permit, ProvisionalDemand, Rejection, ResourcePermit
from autoglm_throttle.limiting.decisions import Usages, decision_of, latest, rate_rejection
from autoglm_throttle.limiting.decisions import rejection as limit_rejection
from autoglm_throttle.limiting.ticket import Ticket, TicketCharges, TicketState
from autoglm_throttle.limiting.work_class import NO_SLOT, WorkClass
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.types import Decision, Demand, Reason, TokenCost

if TYPE_CHECKING:
    from autoglm_throttle.admission.factory import AdmissionParts
    from autoglm_throttle.limiting.token_limits import TokenLimits
    from autoglm_throttle.store.shared_tokens import SharedTokenLimits

# Seconds before disconnect detection starts: most waits are shorter, and detection doubles their cost.
DISCONNECT_WATCH_DELAY_S = 0.05

_WAITING, _CALLED, _LEFT = TicketState.WAITING, TicketState.CALLED, TicketState.CANCELLED
_USER = Reason.USER  # A global name: an attribute of an enumeration takes twice as long.
_new = object.__new__  # Before Python 3.13 an ``__init__`` costs as much as fifteen stores.


class Verdicts:
    """Turns decisions into permits and rejections, and gives the holders of tickets their results."""

    def __init__(self, parts: AdmissionParts) -> None:
        self.permit: Callable[..., Permit] = Permit.of  # Makes a permit, with these arguments
        quota, slots = parts.quota, parts.user_slots
        if quota is not None or slots is not None:
            self.permit = lambda *arguments: ResourcePermit.of(*arguments).reserve(quota, slots)
        self._dry_run = parts.dry_run
        self._events = parts.events
        self._sampled = parts.events.rejections
        self._settlement = parts.settlement
        self._clock = parts.settlement.clock
        self._lock = parts.settlement.lock
        self._user_limits = parts.user_limits
        self._shared_budget = parts.shared_budget
        self._quota = parts.quota
        self._store = parts.store
        self._buckets = parts.buckets
        self._limit_sets = parts.limit_sets
        self.token_limits: TokenLimits | SharedTokenLimits | None = parts.token_limits

    # Under the lock

    def refund(self, ticket: Ticket, now: float) -> None:
        """Return all resources that a ticket holds."""
        self._settlement.cancel(ticket, now)
        self._give_back(ticket.demand, ticket.charges, now)

    def _give_back(self, demand: Demand, charges: TicketCharges, now: float) -> None:
        if charges.payer is not None:
            charges.payer.give_back(demand.cost, now)
        if charges.budget_charged:
            self._shared_budget.give_back(now)
        self._refund_limits(demand, charges, now)

    def _refund_limits(self, demand: Demand, charges: TicketCharges, now: float) -> None:
        if charges.reservation is not None and self.token_limits is not None:
            self.token_limits.cancel(charges.reservation, now)
        if self._store is not None:
            self._store.refund(demand, charges, now)
        else:
            self._user_limits.give_back(demand, charges.charged_s, now)

    def charges_of(self, permit: Permit) -> list[tuple[Demand, TicketCharges]]:
        """Return the charges of an admitted request, its own first."""
        charges = permit.charges
        if not isinstance(charges, list):
            if not isinstance(charges, TicketCharges):
                charges = TicketCharges(self._settlement, charges, charged_s=permit.arrived_s)
            charges = permit.charges = [(permit.demand, charges)]
        return charges

    def add_charge(self, permit: Permit, ticket: Ticket) -> None:
        """Use up a ticket without a slot for a further charge of an admitted request."""
        ticket.state = _LEFT
        self.charges_of(permit).append((ticket.demand, ticket.charges))
        decision = ticket.charges.decision
        if decision and decision_of(decision).window_s:
            permit.verdict = decision

    def refund_permit(self, permit: Permit, now: float) -> None:
        """Return all charges of an admitted request that is rejected after all; once, and before it ends."""
        if permit.settled:  # its slot of the user is free already
            return
        for demand, charges in self.charges_of(permit):
            if charges.owner is self._settlement:  # not of a parent process
                self._give_back(demand, charges, now)
        permit.charges = []

    def too_large(self, permit: Permit, demand: Demand, now: float) -> Decision | None:
        """Return the rejection of a charge that can never fit beside the earlier ones of its request."""
        earlier = [other for other, _ in self.charges_of(permit)]
        bucket = self._buckets.all[demand.rank]
        cost = demand.cost + sum(other.cost for other in earlier if other.priority is demand.priority)
        if cost > bucket.burst and not self._buckets.borrows:
            return rate_rejection(bucket, cost, math.inf, now)
        limits = self._limit_sets.of(demand)
        counted = sum(math.ceil(other.cost) for other in earlier if self._limit_sets.of(other) is limits)
        units = counted + math.ceil(demand.cost)
        small = next((limit for limit in limits.users if units > limit.limit), None) if limits else None
        if small is None:
            return None
        status = {known.name: known for known in permit.decision.limits}.get(small.name)
        used, reset_s = (0, 0.0) if status is None else (small.limit - status.remaining, status.reset_s)
        return limit_rejection(small, max(0, used - counted), reset_s, math.inf)

    def reject(self, demand: Demand, decision: Decision, now: float, kind: WorkClass) -> Permit | Rejection:
        """Reject a demand; in a dry run count the rejection and admit it."""
        settlement = self._settlement
        row, reason = settlement.rows[demand.rank], decision.reason
        if reason is _USER or reason is Reason.CONCURRENCY:
            settlement.counters.limited_users.append(demand.user)
        if self._dry_run:
            row.would_reject[reason] += 1
            row.admitted += 1
            slot = settlement.limiter.occupy_over_limit(demand, kind) if demand.holds_slot else NO_SLOT
            self.log_rejection(demand, decision, now)
            admitted = Decision(True, Reason.OK, would_reject=decision)
            return self.permit(settlement, demand, admitted, now, now, kind, slot)
        if not isinstance(demand, ProvisionalDemand) or reason not in REPLACEABLE:
            row.rejected[reason] += 1
            rejections = settlement.counters.rejections
            try:  # `count_rejection`, without the call
                rejections[demand.route][decision.policy] += 1
            except KeyError:
                settlement.counters.count_rejection(demand.route, decision.policy)
            sampled = self._sampled[reason]
            if now < sampled[0]:  # `record_rejection`, without the call
                sampled[1] += 1
            else:
                self.log_rejection(demand, decision, now)
        rejection = _new(Rejection)
        rejection.demand, rejection.decision = demand, decision
        return rejection

    def log_rejection(self, demand: Demand, decision: Decision, now: float) -> None:
        """Queue the log events of a rejection."""
        if self._events.record_rejection(demand, decision, now) and self._user_limits.overflowed:
            self._events.record_full_user_table()

    def quota_rejection(self, ticket: Ticket, now: float) -> Decision | None:
        """Return why a ticket is rejected, and refund it, if its memory quota was used up while it waited."""
        rejection = None if self._quota is None else self._quota.rejection(ticket.demand, now)
        if rejection is not None:
            self.refund(ticket, now)
        return rejection

    def _permit_of(
        self, ticket: Ticket, decision: Usages | Decision, called_s: float, now: float
    ) -> Permit | Rejection:
        """Turn a called ticket into its permit, unless its memory quota is used up."""
        demand, kind = ticket.demand, ticket.work_class
        rejection = None if self._quota is None else self.quota_rejection(ticket, now)
        if rejection is not None:
            return self.reject(demand, rejection, now, kind)
        ticket.state = _LEFT
        self._settlement.rows[demand.rank].admitted += 1
        return self.permit(
            self._settlement, demand, decision, ticket.arrived_s, called_s, kind, ticket.slot, ticket.charges
        )

    def _record_queue_time(self, ticket: Ticket, now: float) -> float:
        """Record the queue time of a ticket, and return it."""
        if not ticket.was_queued:
            return 0.0
        called_s = ticket.called_s
        waited_s = (now if called_s is None else called_s) - ticket.arrived_s
        self._settlement.rows[ticket.demand.rank].queue_time.record(waited_s)
        return waited_s

    # Without the lock

    def settle_tokens(self, charges: TicketCharges, actual: TokenCost) -> None:
        """Replace the reserved tokens of a request by those that it has used; once. Never waits."""
        self._lock.run(partial(self._settle_tokens, charges, actual))

    def extend_tokens(self, charges: TicketCharges, output_tokens: int, *, within_limits: bool) -> None:
        """Charge more output tokens of a running request, as `TokenLimits.extend`."""
        self._lock.run(partial(self._extend_tokens, charges, output_tokens, within_limits))

    def _settle_tokens(self, charges: TicketCharges, actual: TokenCost) -> None:
        reservation, limits = charges.reservation, self.token_limits
        # A request of a parent process has reserved nothing here.
        if reservation is not None and limits is not None and charges.owner is self._settlement:
            if reservation.queue is not None and reservation.charges:
                extra = actual.work - reservation.charges[0][1].work
                reservation.queue.charge(reservation.demand.user, extra)
            limits.settle(reservation, actual, self._clock())

    def _extend_tokens(self, charges: TicketCharges, output_tokens: int, within_limits: bool) -> None:
        reservation, limits = charges.reservation, self.token_limits
        if reservation is not None and limits is not None and charges.owner is self._settlement:
            limits.extend(reservation, output_tokens, self._clock(), within_limits=within_limits)

    def flush(self) -> None:
        """Run pending wake-ups, poll the store and write pending log events; inside the lock, do nothing."""
        if self._lock.is_held():
            return
        if self._lock.pending:
            self._lock.run_pending()
        if self._store is not None:
            self._store.poll()
        if self._events.waiting:
            self._events.write()

    @overload
    def wait(self, ticket: Ticket) -> Coroutine[Any, Any, Permit | Rejection]: ...
    @overload
    def wait(
        self, ticket: Ticket, disconnected: DisconnectWait
    ) -> Coroutine[Any, Any, Permit | Rejection | None]: ...
    def wait(
        self, ticket: Ticket, disconnected: DisconnectWait = anyio.sleep_forever
    ) -> Coroutine[Any, Any, Permit | Rejection | None]:
        """Wait for the result of a ticket; arguments, results and errors are those of `Throttle.wait`."""
        alone = ticket.state is _CALLED and ticket.charges.pending_check is not None
        return self._check_store(ticket) if alone else self._wait_in_queue(ticket, disconnected)

    async def _wait_in_queue(self, ticket: Ticket, disconnected: DisconnectWait) -> Permit | Rejection | None:
        try:
            wakeup = new_wakeup()
            waits = self._registers(wakeup, ticket)
            charges = ticket.charges
            if charges.pending_check is not None and charges.decision is None:  # not asked at the head
                verdict = await self._check_store(ticket)
                if verdict is not None:
                    return verdict
            while True:
                if waits:
                    seconds = ticket.deadline_s - self._clock()
                    await wakeup.sleep(min(seconds, DISCONNECT_WATCH_DELAY_S))
                    if seconds > DISCONNECT_WATCH_DELAY_S and not wakeup.is_set:
                        with wakeup.until(seconds - DISCONNECT_WATCH_DELAY_S):
                            await disconnected()
                            self.leave(ticket)
                            return None
                verdict = self.poll(ticket)
                if verdict is not None:
                    return verdict
        except BaseException:
            self.leave(ticket)
            raise

    def _registers(self, wakeup: Wakeup, ticket: Ticket) -> bool:
        """Register the wake-up of a ticket; False if another thread made it ready first."""
        lock = self._lock
        lock.acquire()  # `with lock` takes twice as long
        try:
            if ticket.state is _WAITING:
                ticket.on_ready = wakeup
                return True
            self._settlement.mark_claimed(ticket)
            return False
        finally:
            lock.release()

    def called(self) -> list[tuple[Ticket, Permit | Rejection]]:
        """Return the tickets that became ready or expired without a waiter, with their results."""
        now = self._clock()
        settlement = self._settlement
        with self._lock:
            settlement.call_ready(now)
            tickets, settlement.unclaimed = settlement.unclaimed, []
            results = [
                (ticket, self._permit_for(ticket, now)) for ticket in tickets if ticket.state is not _LEFT
            ]
        self.flush()
        return results

    def leave(self, ticket: Ticket) -> None:
        """Cancel a ticket, as `Throttle.leave`."""
        self._lock.run(partial(self._leave, ticket))
        self.flush()

    def _leave(self, ticket: Ticket) -> None:
        if ticket.state is not _LEFT and ticket.charges.owner is self._settlement:
            now = self._clock()
            if ticket.was_queued:
                self._settlement.counters.oddities["disconnected_in_queue"] += 1
            self._record_queue_time(ticket, now)
            self.refund(ticket, now)

    async def _check_store(self, ticket: Ticket) -> Permit | Rejection | None:
        """Check a ticket with the shared store; None: it is allowed, and still waits in the queue."""
        limits, charges = self._store, ticket.charges
        check = charges.pending_check
        if limits is None or check is None:
            raise ValueError(f"{ticket!r} has no pending store check")
        if ticket.was_queued:
            with self._lock:
                self._settlement.mark_claimed(ticket)
        reply = limits.store.charge(check)  # it ends before the deadline, with or without an answer
        try:
            answer = await reply
        except BaseException:
            limits.store.abandon(check, reply)
            self.leave(ticket)
            raise
        now = self._clock()
        lock = self._lock
        lock.acquire()
        try:
            decision = charges.decision = limits.resolve(ticket.demand, charges, answer, now)
            if ticket.state is _LEFT:  # cancelled during the store check: refund its units
                self._refund_limits(ticket.demand, charges, now)
                raise ValueError(f"{ticket!r} was cancelled or already returned")
            verdict = self._apply_store_decision(ticket, decision, now)
        finally:
            lock.release()
            if lock.pending:
                lock.run_pending()
        if charges.answer is None:  # otherwise the store allowed it, and no event is pending
            self.flush()
        return verdict

    def _apply_store_decision(
        self, ticket: Ticket, decision: Usages | Decision, now: float
    ) -> Permit | Rejection | None:
        """Apply the decision of the shared store to a ticket."""
        if isinstance(decision, Decision) and not decision.allowed:
            self._record_queue_time(ticket, now)
            self.refund(ticket, now)
            return self.reject(ticket.demand, decision, now, ticket.work_class)
        if ticket.was_queued:
            return self._permit_for(ticket, now) if ticket.state is not _WAITING else None
        # Without a slot its body is awaited, and then its slot.
        return None if ticket.called_s is None else self._permit_of(ticket, decision, ticket.called_s, now)

    def poll(self, ticket: Ticket) -> Permit | Rejection | None:
        """Return the result of a ticket; None while it waits."""
        now = self._clock()
        with self._lock:
            if ticket.state is _LEFT:
                raise ValueError(f"{ticket!r} was cancelled or already returned")
            if ticket.state is _WAITING and not self._settlement.limiter.expire(ticket, now):
                return None
            verdict = self._permit_for(ticket, now)
        self.flush()
        return verdict

    def _permit_for(self, ticket: Ticket, now: float) -> Permit | Rejection:
        """Turn a ready ticket into a permit, and an expired one into a rejection."""
        demand, charges = ticket.demand, ticket.charges
        # No waiter has sent the check.
        if charges.decision is None and charges.pending_check is not None and self._store is not None:
            charges.decision = decision = self._store.resolve(demand, charges, StoreErrorKind.LOOP, now)
            if isinstance(decision, Decision) and not decision.allowed:
                self.refund(ticket, now)
                return self.reject(demand, decision, now, ticket.work_class)
        waited_s = self._record_queue_time(ticket, now)
        if ticket.called_s is not None and charges.decision is not None:
            return self._permit_of(ticket, latest(charges.decision, waited_s), ticket.called_s, now)
        decision = self._settlement.limiter.rejection(ticket, now)
        self.refund(ticket, now)
        return self.reject(demand, decision, now, ticket.work_class)
