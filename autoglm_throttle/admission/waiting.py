"""Waiting for the result of a ticket: in the queue, for the shared store, or polled."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, overload

import anyio

from autoglm_throttle._runtime.wakeup import DisconnectWait, new_wakeup
from autoglm_throttle.admission.permit import Permit, Rejection
from autoglm_throttle.admission.settlement import Settlement
from autoglm_throttle.admission.verdicts import Verdicts
from autoglm_throttle.limiting.decisions import latest
from autoglm_throttle.limiting.ticket import Ticket, TicketState
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.types import Decision

_WAITING, _CALLED, _LEFT = TicketState.WAITING, TicketState.CALLED, TicketState.CANCELLED


class TicketWaiter:
    """Gives the holders of tickets their results.

    Args:
        settlement: the limiter and its tickets.
        verdicts: makes the results.
    """

    def __init__(self, settlement: Settlement, verdicts: Verdicts) -> None:
        self._settlement = settlement
        self._clock = settlement.clock
        self._lock = settlement.lock
        self._verdicts = verdicts

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
            waits = self._register_waker(ticket, wakeup.set)
            charges = ticket.charges
            if charges.pending_check is not None and charges.decision is None:  # not asked at the head
                verdict = await self._check_store(ticket)
                if verdict is not None:
                    return verdict
            while True:
                if waits and await wakeup.wait(ticket.deadline_s - self._clock(), disconnected):
                    self.leave(ticket)
                    return None
                verdict = self.poll(ticket)
                if verdict is not None:
                    return verdict
        except BaseException:
            self.leave(ticket)
            raise

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
        self._verdicts.flush()
        return results

    def leave(self, ticket: Ticket) -> None:
        """Cancel a ticket; nothing is charged. Idempotent.

        A task that waits for the ticket is not woken: cancel the task instead.
        """
        self._lock.run(partial(self._leave, ticket))
        self._verdicts.flush()

    def _leave(self, ticket: Ticket) -> None:
        if ticket.state is not _LEFT and ticket.charges.owner is self._settlement:
            now = self._clock()
            if ticket.was_queued:
                self._settlement.counters.oddities["disconnected_in_queue"] += 1
            self._verdicts.record_queue_time(ticket, now)
            self._verdicts.refund(ticket, now)

    def _register_waker(self, ticket: Ticket, on_ready: Callable[[], None]) -> bool:
        """Register the wake-up of a waiter; False if the ticket is ready or expired already."""
        with self._lock:
            waits = ticket.state is _WAITING
            if waits:
                ticket.on_ready = on_ready
            else:  # another thread made it ready first
                self._settlement.mark_claimed(ticket)
        return waits

    async def _check_store(self, ticket: Ticket) -> Permit | Rejection | None:
        """Check a ticket with the shared store; None: it is allowed, and still waits in the queue."""
        check = ticket.charges.pending_check
        if check is None:
            raise ValueError(f"{ticket!r} has no pending store check")
        if ticket.was_queued:
            with self._lock:
                self._settlement.mark_claimed(ticket)
        try:
            reply = await check.send()
        except BaseException:
            self.leave(ticket)
            raise
        now = self._clock()
        lock = self._lock
        lock.acquire()
        try:
            decision = ticket.charges.decision = check.resolve(reply, now)
            if ticket.state is _LEFT:  # cancelled during the store check: refund its units
                check.undo(now)
                raise ValueError(f"{ticket!r} was cancelled or already returned")
            verdict = self._apply_store_decision(ticket, decision, now)
        finally:
            lock.release()
            if lock.pending:
                lock.run_pending()
        if check.answer is None:  # otherwise the store allowed it, and no event is pending
            self._verdicts.flush()
        return verdict

    def _apply_store_decision(
        self, ticket: Ticket, decision: Decision, now: float
    ) -> Permit | Rejection | None:
        """Apply the decision of the shared store to a ticket."""
        if decision.allowed and not ticket.was_queued:
            if ticket.called_s is None:  # its body is awaited, and then its slot
                return None
            rejection = self._verdicts.quota_rejection(ticket, now)
            if rejection is not None:
                return self._verdicts.reject(ticket.demand, rejection, now, ticket.work_class)
            return self._verdicts.permit_of(ticket, decision, ticket.called_s)
        if not decision.allowed:
            self._verdicts.record_queue_time(ticket, now)
            self._verdicts.refund(ticket, now)
            return self._verdicts.reject(ticket.demand, decision, now, ticket.work_class)
        return self._permit_for(ticket, now) if ticket.state is not _WAITING else None

    def poll(self, ticket: Ticket) -> Permit | Rejection | None:
        """Return the result of a ticket; None while it waits."""
        now = self._clock()
        with self._lock:
            if ticket.state is _LEFT:
                raise ValueError(f"{ticket!r} was cancelled or already returned")
            if ticket.state is _WAITING and not self._settlement.limiter.expire(ticket, now):
                return None
            verdict = self._permit_for(ticket, now)
        self._verdicts.flush()
        return verdict

    def _permit_for(self, ticket: Ticket, now: float) -> Permit | Rejection:
        """Turn a ready ticket into a permit, and an expired one into a rejection."""
        demand, charges = ticket.demand, ticket.charges
        if charges.decision is None and charges.pending_check is not None:  # no waiter sent the check
            charges.decision = charges.pending_check.resolve(StoreErrorKind.LOOP, now)
            if not charges.decision.allowed:
                self._verdicts.refund(ticket, now)
                return self._verdicts.reject(demand, charges.decision, now, ticket.work_class)
        waited_s = self._verdicts.record_queue_time(ticket, now)
        if ticket.called_s is not None and charges.decision is not None:
            rejection = self._verdicts.quota_rejection(ticket, now)
            if rejection is not None:
                return self._verdicts.reject(demand, rejection, now, ticket.work_class)
            return self._verdicts.permit_of(ticket, latest(charges.decision, waited_s), ticket.called_s)
        decision = self._settlement.limiter.rejection(ticket, now)
        self._verdicts.refund(ticket, now)
        return self._verdicts.reject(demand, decision, now, ticket.work_class)
