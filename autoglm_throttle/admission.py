"""Waiting: turns a queued ticket into a Permit or a Rejection. Contains no algorithm."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, overload

import anyio

from autoglm_throttle.door import Door
from autoglm_throttle.doorbell import Leaves, doorbell
from autoglm_throttle.limiting.gate import Ticket, TicketState
from autoglm_throttle.limiting.shared.store import StoreErrorKind
from autoglm_throttle.limiting.ticket import NOT_QUEUED
from autoglm_throttle.limiting.verdict import latest
from autoglm_throttle.model import Decision, Demand
from autoglm_throttle.permit import Permit, Rejection

_WAITING, _CALLED, _LEFT = TicketState.WAITING, TicketState.CALLED, TicketState.CANCELLED


class Admission(Door):
    """Admission with a queue: waits for tickets, polls them and cancels them."""

    async def admit(self, demand: Demand) -> Permit | Rejection:
        """Request admission, and wait in the queue if a slot can be free in time.

        Raises no exception of its own. A cancelled caller leaves the queue and is charged nothing.
        """
        if self.leased:
            await self.cover(demand)
        verdict = self.try_admit(demand)
        return await self.wait(verdict) if isinstance(verdict, Ticket) else verdict

    @overload
    def wait(self, ticket: Ticket) -> Coroutine[Any, Any, Permit | Rejection]: ...
    @overload
    def wait(self, ticket: Ticket, leaves: Leaves) -> Coroutine[Any, Any, Permit | Rejection | None]: ...
    def wait(
        self, ticket: Ticket, leaves: Leaves = anyio.sleep_forever
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
        return self._ask(ticket) if alone else self._stand(ticket, leaves)

    async def _stand(self, ticket: Ticket, leaves: Leaves) -> Permit | Rejection | None:
        try:
            bell = doorbell()
            waits = self._sign_up(ticket, bell.set)
            if ticket.pending_check is not None:
                verdict = await self._ask(ticket)
                if verdict is not None:
                    return verdict
            while True:
                if waits and await bell.wait(ticket.deadline_s - self._clock(), leaves):
                    self.leave(ticket)
                    return None
                verdict = self._look(ticket)
                if verdict is not None:
                    return verdict
        except BaseException:
            self.leave(ticket)
            raise

    def called(self) -> list[tuple[Ticket, Permit | Rejection]]:
        """Return the tickets that became ready or expired without a waiter, with their results."""
        now = self._clock()
        desk = self._desk
        with desk.rows.lock:
            desk.call(now)
            tickets, desk.unheard = desk.unheard, []
            found = [(ticket, self._turn(ticket, now)) for ticket in tickets if ticket.state is not _LEFT]
        self._speak()
        return found

    def leave(self, ticket: Ticket) -> None:
        """Cancel a ticket; nothing is charged. Idempotent.

        A task that waits for the ticket is not woken: cancel the task instead.
        """
        now = self._clock()
        desk = self._desk
        with desk.rows.lock:
            if ticket.state is not _LEFT and ticket.owner is desk:
                if ticket.was_queued:
                    desk.rows.hints["left_in_line"] += 1
                self._note_wait(ticket, now)
                self._refund(ticket, now)
        self._speak()

    def _sign_up(self, ticket: Ticket, ring: Callable[[], None]) -> bool:
        """Register the wake-up of a waiter; False if the ticket is ready or expired already."""
        # The callback was created by the caller: an allocation under the lock may run the garbage collector,
        # and that may settle another permit.
        with self._desk.rows.lock:
            waits = ticket.state is _WAITING
            if waits:
                ticket.on_ready = ring
            else:  # another thread made it ready first
                self._desk.hear(ticket)
        return waits

    async def _ask(self, ticket: Ticket) -> Permit | Rejection | None:
        """Check a ticket with the shared store; None: it is allowed, and still waits in the queue."""
        question = ticket.pending_check
        if question is None:
            raise ValueError(f"{ticket!r} has nothing to ask")
        if ticket.queue_index != NOT_QUEUED:
            with self._desk.rows.lock:
                self._desk.hear(ticket)
        try:
            answer = await question.send()
        except BaseException:
            self.leave(ticket)
            raise
        now = self._clock()
        rows = self._desk.rows
        rows.acquire()
        try:
            decision = ticket.decision = question.resolve(answer, now)
            if ticket.state is _LEFT:  # cancelled during the store check: refund its units
                question.undo(now)
                raise ValueError(f"{ticket!r} was given up or handed out")
            verdict = self._heard(ticket, decision, now)
        finally:
            rows.release()
        if question.answer is None:  # otherwise the store allowed it, and no event is pending
            self._speak()
        return verdict

    def _heard(self, ticket: Ticket, decision: Decision, now: float) -> Permit | Rejection | None:
        """Apply the decision of the shared store to a ticket."""
        if decision.allowed and ticket.queue_index == NOT_QUEUED and ticket.called_s is not None:
            crowded = self._crowded(ticket, now)
            if crowded is not None:
                return self._refuse(ticket.demand, crowded, now)
            ticket.state = _LEFT
            self._desk.rows.classes[ticket.demand.priority].admitted += 1
            return self._permit(self._desk, ticket.demand, decision, ticket.arrived_s, ticket.called_s)
        if not decision.allowed:
            self._note_wait(ticket, now)
            self._refund(ticket, now)
            return self._refuse(ticket.demand, decision, now)
        return self._turn(ticket, now) if ticket.state is not _WAITING else None

    def _look(self, ticket: Ticket) -> Permit | Rejection | None:
        """Return the result of a ticket; None while it waits."""
        now = self._clock()
        desk = self._desk
        with desk.rows.lock:
            if ticket.state is _LEFT:
                raise ValueError(f"{ticket!r} was given up or handed out")
            if ticket.state is _WAITING and not desk.gate.expire(ticket, now):
                return None
            verdict = self._turn(ticket, now)
        self._speak()
        return verdict

    def _turn(self, ticket: Ticket, now: float) -> Permit | Rejection:
        """Turn a ready ticket into a permit, and an expired one into a rejection."""
        desk, demand = self._desk, ticket.demand
        if ticket.decision is None and ticket.pending_check is not None:  # no waiter sent the check
            ticket.decision = ticket.pending_check.resolve(StoreErrorKind.LOOP, now)
            if not ticket.decision.allowed:
                self._refund(ticket, now)
                return self._refuse(demand, ticket.decision, now)
        waited_s = self._note_wait(ticket, now)
        if ticket.called_s is not None and ticket.decision is not None:
            crowded = self._crowded(ticket, now)
            if crowded is not None:
                return self._refuse(demand, crowded, now)
            ticket.state = _LEFT
            desk.rows.classes[demand.priority].admitted += 1
            decision = latest(ticket.decision, waited_s)
            return self._permit(desk, demand, decision, ticket.arrived_s, ticket.called_s)
        decision = desk.gate.rejection(ticket, now)
        self._refund(ticket, now)
        return self._refuse(demand, decision, now)

    def _crowded(self, ticket: Ticket, now: float) -> Decision | None:
        """Reject a ticket if its memory quota was used up while it waited."""
        refusal = None if self._quota is None else self._quota.rejection(ticket.demand, now)
        if refusal is not None:
            self._refund(ticket, now)
        return refusal

    def _note_wait(self, ticket: Ticket, now: float) -> float:
        """Record the queue time of a ticket, and return it."""
        if not ticket.was_queued:
            return 0.0
        called_s = ticket.called_s
        waited_s = (now if called_s is None else called_s) - ticket.arrived_s
        self._desk.rows.classes[ticket.demand.priority].queue_time.record(waited_s)
        return waited_s

    def _refund(self, ticket: Ticket, now: float) -> None:
        """Return all resources that a ticket holds."""
        self._desk.withdraw(ticket, now)
        if ticket.payer is not None:
            ticket.payer.give_back(ticket.demand.cost, now)
        if ticket.budget_charged:
            self._budget.give_back(now)
        if ticket.pending_check is not None:
            ticket.pending_check.undo(now)
        else:
            self._windows.give_back(ticket.demand, ticket.arrived_s, now)
