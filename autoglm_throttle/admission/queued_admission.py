"""Waiting: turns a queued ticket into a Permit or a Rejection. Contains no algorithm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, overload

import anyio

from autoglm_throttle._runtime.wakeup import DisconnectWait, new_wakeup
from autoglm_throttle.admission.controller import AdmissionController
from autoglm_throttle.admission.permit import Permit, Rejection
from autoglm_throttle.limiting.concurrency_limiter import Ticket, TicketState
from autoglm_throttle.limiting.limit_decision import latest
from autoglm_throttle.limiting.ticket import NOT_QUEUED
from autoglm_throttle.store.user_limit_store import StoreErrorKind
from autoglm_throttle.types import Decision, Demand, Rejected

_WAITING, _CALLED, _LEFT = TicketState.WAITING, TicketState.CALLED, TicketState.CANCELLED


class QueuedAdmission(AdmissionController):
    """Admission with a queue: waits for tickets, polls them and cancels them."""

    async def admit(self, demand: Demand) -> Permit | Rejection:
        """Request admission, and wait in the queue if a slot can be free in time.

        Raises no exception of its own. A cancelled caller leaves the queue and is charged nothing.
        """
        if self.has_leases:
            await self.ensure_lease(demand)
        verdict = self.try_admit(demand)
        return await self.wait(verdict) if isinstance(verdict, Ticket) else verdict

    @asynccontextmanager
    async def slot(self, demand: Demand) -> AsyncIterator[Permit]:
        """Run a block with a slot, or raise: ``async with throttle.slot(demand) as permit:``.

        It waits in the queue as `admit` does. Leaving the block settles the permit as its own context manager
        does: ``success``, ``failure`` after an exception, ``neutral`` after a cancellation.
        Do not use it inside a request that the middleware of the same throttle has admitted: at the
        limit all requests in flight would wait for each other.

        Raises:
            Rejected: when entered: the demand was rejected; the exception carries the Decision.
        """
        verdict = await self.admit(demand)
        if isinstance(verdict, Rejection):
            raise Rejected(verdict.decision)
        with verdict:
            yield verdict

    @overload
    def wait(self, ticket: Ticket) -> Coroutine[Any, Any, Permit | Rejection]: ...
    @overload
    def wait(
        self, ticket: Ticket, disconnected: DisconnectWait
    ) -> Coroutine[Any, Any, Permit | Rejection | None]: ...
    def wait(
        self, ticket: Ticket, disconnected: DisconnectWait = anyio.sleep_forever
    ) -> Coroutine[Any, Any, Permit | Rejection | None]:
        """Wait until a ticket from `try_admit` gets its slot, or can no longer get it in time.

        Args:
            ticket: a queued ticket, or one that needs only the shared user-limit check.
            disconnected: ends when the client has disconnected; it is cancelled when the slot is ready.

        Returns:
            Awaited, the Permit; the Rejection after a timeout; None after ``disconnected`` has ended.

        Raises:
            ValueError: when awaited: the ticket was cancelled, or returned by `called`.
        """
        alone = ticket.state is _CALLED and ticket.pending_check is not None
        return self._check_store(ticket) if alone else self._wait_in_queue(ticket, disconnected)

    async def _wait_in_queue(self, ticket: Ticket, disconnected: DisconnectWait) -> Permit | Rejection | None:
        try:
            wakeup = new_wakeup()
            waits = self._register_waker(ticket, wakeup.set)
            if ticket.pending_check is not None:
                verdict = await self._check_store(ticket)
                if verdict is not None:
                    return verdict
            while True:
                if waits and await wakeup.wait(ticket.deadline_s - self._clock(), disconnected):
                    self.leave(ticket)
                    return None
                verdict = self._poll_ticket(ticket)
                if verdict is not None:
                    return verdict
        except BaseException:
            self.leave(ticket)
            raise

    def called(self) -> list[tuple[Ticket, Permit | Rejection]]:
        """Return the tickets that became ready or expired without a waiter, with their results."""
        now = self._clock()
        settlement = self._settlement
        with settlement.counters.lock:
            settlement.call_ready(now)
            tickets, settlement.unclaimed = settlement.unclaimed, []
            results = [
                (ticket, self._permit_for(ticket, now)) for ticket in tickets if ticket.state is not _LEFT
            ]
        self._flush_events()
        return results

    def leave(self, ticket: Ticket) -> None:
        """Cancel a ticket; nothing is charged. Idempotent.

        A task that waits for the ticket is not woken: cancel the task instead.
        """
        now = self._clock()
        settlement = self._settlement
        with settlement.counters.lock:
            if ticket.state is not _LEFT and ticket.owner is settlement:
                if ticket.was_queued:
                    settlement.counters.oddities["disconnected_in_queue"] += 1
                self._record_queue_time(ticket, now)
                self._refund(ticket, now)
        self._flush_events()

    def _register_waker(self, ticket: Ticket, on_ready: Callable[[], None]) -> bool:
        """Register the wake-up of a waiter; False if the ticket is ready or expired already."""
        # The callback was created by the caller: an allocation under the lock may run the garbage collector,
        # and that may settle another permit.
        with self._settlement.counters.lock:
            waits = ticket.state is _WAITING
            if waits:
                ticket.on_ready = on_ready
            else:  # another thread made it ready first
                self._settlement.mark_claimed(ticket)
        return waits

    async def _check_store(self, ticket: Ticket) -> Permit | Rejection | None:
        """Check a ticket with the shared store; None: it is allowed, and still waits in the queue."""
        check = ticket.pending_check
        if check is None:
            raise ValueError(f"{ticket!r} has no pending store check")
        if ticket.queue_index != NOT_QUEUED:
            with self._settlement.counters.lock:
                self._settlement.mark_claimed(ticket)
        try:
            reply = await check.send()
        except BaseException:
            self.leave(ticket)
            raise
        now = self._clock()
        counters = self._settlement.counters
        counters.acquire()
        try:
            decision = ticket.decision = check.resolve(reply, now)
            if ticket.state is _LEFT:  # cancelled during the store check: refund its units
                check.undo(now)
                raise ValueError(f"{ticket!r} was cancelled or already returned")
            verdict = self._apply_store_decision(ticket, decision, now)
        finally:
            counters.release()
        if check.answer is None:  # otherwise the store allowed it, and no event is pending
            self._flush_events()
        return verdict

    def _apply_store_decision(
        self, ticket: Ticket, decision: Decision, now: float
    ) -> Permit | Rejection | None:
        """Apply the decision of the shared store to a ticket."""
        if decision.allowed and ticket.queue_index == NOT_QUEUED and ticket.called_s is not None:
            rejection = self._quota_rejection(ticket, now)
            if rejection is not None:
                return self._reject(ticket.demand, rejection, now)
            ticket.state = _LEFT
            self._settlement.counters.classes[ticket.demand.priority].admitted += 1
            return self._permit(self._settlement, ticket.demand, decision, ticket.arrived_s, ticket.called_s)
        if not decision.allowed:
            self._record_queue_time(ticket, now)
            self._refund(ticket, now)
            return self._reject(ticket.demand, decision, now)
        return self._permit_for(ticket, now) if ticket.state is not _WAITING else None

    def _poll_ticket(self, ticket: Ticket) -> Permit | Rejection | None:
        """Return the result of a ticket; None while it waits."""
        now = self._clock()
        settlement = self._settlement
        with settlement.counters.lock:
            if ticket.state is _LEFT:
                raise ValueError(f"{ticket!r} was cancelled or already returned")
            if ticket.state is _WAITING and not settlement.limiter.expire(ticket, now):
                return None
            verdict = self._permit_for(ticket, now)
        self._flush_events()
        return verdict

    def _permit_for(self, ticket: Ticket, now: float) -> Permit | Rejection:
        """Turn a ready ticket into a permit, and an expired one into a rejection."""
        settlement, demand = self._settlement, ticket.demand
        if ticket.decision is None and ticket.pending_check is not None:  # no waiter sent the check
            ticket.decision = ticket.pending_check.resolve(StoreErrorKind.LOOP, now)
            if not ticket.decision.allowed:
                self._refund(ticket, now)
                return self._reject(demand, ticket.decision, now)
        waited_s = self._record_queue_time(ticket, now)
        if ticket.called_s is not None and ticket.decision is not None:
            rejection = self._quota_rejection(ticket, now)
            if rejection is not None:
                return self._reject(demand, rejection, now)
            ticket.state = _LEFT
            settlement.counters.classes[demand.priority].admitted += 1
            decision = latest(ticket.decision, waited_s)
            return self._permit(settlement, demand, decision, ticket.arrived_s, ticket.called_s)
        decision = settlement.limiter.rejection(ticket, now)
        self._refund(ticket, now)
        return self._reject(demand, decision, now)

    def _quota_rejection(self, ticket: Ticket, now: float) -> Decision | None:
        """Reject a ticket if its memory quota was used up while it waited."""
        rejection = None if self._quota is None else self._quota.rejection(ticket.demand, now)
        if rejection is not None:
            self._refund(ticket, now)
        return rejection

    def _record_queue_time(self, ticket: Ticket, now: float) -> float:
        """Record the queue time of a ticket, and return it."""
        if not ticket.was_queued:
            return 0.0
        called_s = ticket.called_s
        waited_s = (now if called_s is None else called_s) - ticket.arrived_s
        self._settlement.counters.classes[ticket.demand.priority].queue_time.record(waited_s)
        return waited_s

    def _refund(self, ticket: Ticket, now: float) -> None:
        """Return all resources that a ticket holds."""
        self._settlement.cancel(ticket, now)
        if ticket.payer is not None:
            ticket.payer.give_back(ticket.demand.cost, now)
        if ticket.budget_charged:
            self._shared_budget.give_back(now)
        if ticket.pending_check is not None:
            ticket.pending_check.undo(now)
        else:
            self._user_limits.give_back(ticket.demand, ticket.arrived_s, now)
