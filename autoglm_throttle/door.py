"""Request arrival: the order of the limits, the refunds and the lock. Contains no algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle import assembly, journal
from autoglm_throttle.desk import Desk
from autoglm_throttle.identity import Identity
from autoglm_throttle.limiting.gate import Ticket, TicketState
from autoglm_throttle.limiting.rate_refusal import all_rejected
from autoglm_throttle.limiting.shared.question import PendingCheck
from autoglm_throttle.limiting.shared.windows import SharedUserLimits
from autoglm_throttle.limiting.token_bucket import Refundable
from autoglm_throttle.model import Clock, Decision, Demand, Reason, Regime
from autoglm_throttle.permit import Permit, Provisional, Rejection
from autoglm_throttle.settings import Settings
from autoglm_throttle.snapshot import REPLACEABLE, Rows, decision_name
from autoglm_throttle.upkeep import Upkeep

if TYPE_CHECKING:
    from autoglm_throttle.limiting.shared.leases import LeasedBuckets
    from autoglm_throttle.limiting.token_bucket import PriorityBuckets
    from autoglm_throttle.quoted import QuotedBuckets

ADMITTED: Final = Decision(True, Reason.OK)
"""The decision where no user limit applies."""

_CALLED, _LEFT = TicketState.CALLED, TicketState.CANCELLED


class Door:
    """Admits a request, rejects it, or gives it a ticket.

    A subclass maintains the control state and implements `_refresh`.

    Args:
        settings: the configuration.
        clock: monotonic seconds; the only clock that decisions use.
        control_state: the initial one.
        redis: makes the client of each event loop, instead of ``settings.redis_url``.
    """

    def __init__(
        self, settings: Settings, clock: Clock, regime: Regime, redis: Callable[[], Any] | None = None
    ) -> None:
        now = clock()
        self.settings: Settings = settings
        self._clock = clock
        self._desk = Desk(Rows(clock), assembly.gate(settings, now))
        self._dry_run = settings.dry_run
        self._buckets = assembly.priority_buckets(settings, now)
        self._quota = quota = assembly.quota(settings)
        self._till: PriorityBuckets | LeasedBuckets | QuotedBuckets = self._buckets
        self._permit: Callable[..., Permit] = Permit
        if quota is not None:
            from autoglm_throttle.quoted import QuotedBuckets, QuotedPermit

            self._till = QuotedBuckets(self._buckets, quota)
            self._permit = partial(QuotedPermit, quota)
        rows = self._desk.rows
        self._fleet = assembly.fleet(settings, self._buckets, rows.lock, clock)
        self.leased: bool = self._fleet is not None
        """Whether the rates belong to a fleet: then await `ensure_lease` before `try_admit`."""
        self._budget = assembly.shared_budget(settings, now)
        self._identity = Identity(settings.identity_key)
        self._windows = assembly.user_windows(settings, self._identity, redis, self._fleet)
        shared = self._windows if isinstance(self._windows, SharedUserLimits) else None
        self._upkeep = Upkeep(shared, self._desk.rows) if shared is not None else None
        self._regime = regime
        self._open = regime.factor > 0.0
        self._metered = False
        """Whether all classes share one budget beside their own rates."""
        self._renew_at_s = -math.inf
        """When a request must refresh the control state; at once while sampling is stopped."""
        self._full = False
        self._refusals = journal.RefusalSampler(settings.log_refused_every_s)
        self._lines: list[journal.Line] = []

    async def cover(self, demand: Demand) -> None:
        """Lease enough tokens for a demand if the fleet has them. Await this before `try_admit`.

        Returns at once where there is no fleet or enough is leased, else within 50 ms.
        """
        fleet = self._fleet
        if fleet is None or not self._open:
            return
        now = self._clock()
        if now >= self._renew_at_s:
            self._renew()
        with self._desk.rows.lock:
            covered = fleet.leases.is_decidable(demand, now)
        if not covered:
            await fleet.ensure(demand)

    def try_admit(self, demand: Demand) -> Permit | Ticket | Rejection:
        """Request admission without waiting. A Ticket is a position in the queue.

        Call `wait` for the ticket, poll it with `called`, or `leave` it.
        """
        now = self._clock()
        if now >= self._renew_at_s:
            self._renew()
        desk = self._desk
        rows = desk.rows
        rows.acquire()  # `with rows.lock` takes twice as long
        try:
            paid = self._till.take(demand, now) if self._open else all_rejected(self._regime, now)
            verdict: Permit | Ticket | Rejection
            if isinstance(paid, Decision):
                if demand.holds_slot:
                    desk.gate.record_arrival(demand.priority, now)
                verdict = self._refuse(demand, paid, now)
            elif not demand.holds_slot or (not self._metered and desk.gate.try_acquire(demand, now)):
                decision = self._windows.hit(demand, now) or ADMITTED
                if decision.allowed:
                    rows.classes[demand.priority].admitted += 1
                    verdict = self._permit(desk, demand, decision, now, now)
                    if self._upkeep is None:
                        return verdict
                elif isinstance(decision, PendingCheck):
                    return _ask_first(Ticket.with_slot(demand, now), paid, decision, desk)
                else:
                    verdict = self._turn_back(demand, paid, decision, now)
            else:
                verdict = self._line_up(demand, paid, now)
        finally:
            rows.release()
        self._speak()
        return verdict

    def _renew(self) -> None:
        """Refresh control state and start sampling if needed. Called at most once per interval."""
        raise NotImplementedError

    def _line_up(self, demand: Demand, paid: Refundable, now: float) -> Permit | Ticket | Rejection:
        """Queue a demand for which no slot is free, or which must take from the shared budget first."""
        desk = self._desk
        gate, metered = desk.gate, self._metered
        refusal = self._budget.take(demand.priority, now) if metered else None
        place: Ticket | Decision | None
        if refusal is not None:
            gate.record_arrival(demand.priority, now)
            place = gate.enqueue_reserved(demand, now) or refusal
            metered = False
        else:
            place = None if metered and gate.try_acquire(demand, now) else gate.enqueue(demand, now)
        if isinstance(place, Decision):
            paid.give_back(demand.cost, now)
            return self._refuse(demand, place, now)
        place = self._settled_at_once(place, now)
        decision = self._windows.hit(demand, now if place is None else place.arrived_s) or ADMITTED
        if isinstance(decision, PendingCheck):
            asks = place if place is not None else Ticket.with_slot(demand, now)
            asks.budget_charged = metered
            return _ask_first(asks, paid, decision, desk)
        if not decision.allowed:
            if place is None:
                desk.free(now)
            else:
                desk.withdraw(place, now)
            paid.give_back(demand.cost, now)
            if metered:
                self._budget.give_back(now)
            return self._refuse(demand, decision, now)
        if place is None:
            desk.rows.classes[demand.priority].admitted += 1
            return self._permit(desk, demand, decision, now, now)
        place.payer, place.budget_charged, place.decision, place.owner = paid, metered, decision, desk
        desk.call(now)
        return place

    def _settled_at_once(self, place: Ticket | None, now: float) -> Ticket | None:
        """Return a ticket that must wait; None if it has its slot, or in a dry run."""
        if place is not None:
            if place.state is _CALLED:
                place.state = _LEFT
                # The garbage collector settled another permit, which made this ticket ready.
                self._desk.hear(place)
                return None
            if self._dry_run:
                self._desk.gate.cancel(place, now)
                self._desk.gate.occupy_over_limit()
                return None
        return place

    def _turn_back(
        self, demand: Demand, paid: Refundable, decision: Decision, now: float
    ) -> Permit | Rejection:
        """Reject a demand that has taken tokens and a slot, and return both."""
        if demand.holds_slot:
            self._desk.free(now)
        paid.give_back(demand.cost, now)
        return self._refuse(demand, decision, now)

    def _refuse(self, demand: Demand, decision: Decision, now: float) -> Permit | Rejection:
        """Reject a demand; in a dry run count the rejection and admit it."""
        desk = self._desk
        row = desk.rows.classes[demand.priority]
        if self._dry_run:
            row.would_refuse[decision.reason] += 1
            row.admitted += 1
            if demand.holds_slot:
                desk.gate.occupy_over_limit()
            self._note_refusal(demand, decision, now)
            return self._permit(desk, demand, Decision(True, Reason.OK, would=decision), now, now)
        if decision.reason not in REPLACEABLE or not isinstance(demand, Provisional):
            row.refused[decision.reason] += 1
            self._note_refusal(demand, decision, now)
        return Rejection(demand, decision)

    def turn_away(self, demand: Demand, decision: Decision, *, degraded: bool = False) -> Rejection | None:
        """Count a request that was rejected before the throttle, or answered by a fallback.

        Args:
            demand: the demand of the request.
            decision: the rejection; its reason must be ``gpu``, ``queue`` or ``breaker``.
            degraded: whether a fallback answers in its place; in a dry run none should.

        Returns:
            The rejection; None in a dry run, which only counts it and admits the request.
        """
        if self._dry_run:
            with self._desk.rows.lock:
                self._desk.rows.classes[demand.priority].would_refuse[decision.reason] += 1
                self._note_refusal(demand, decision, self._clock())
            self._speak()
            return None
        if demand.holds_slot:
            with self._desk.rows.lock:
                self._desk.gate.record_arrival(demand.priority, self._clock())
        rejection = Rejection(demand, decision)
        self.turned_away(rejection, degraded=degraded)
        return rejection

    def turned_away(self, rejection: Rejection, *, degraded: bool) -> None:
        """Count the load rejection of a `ProvisionalDemand`, once.

        Args:
            rejection: as the throttle returned it; its reason must be ``gpu``, ``queue`` or ``breaker``.
            degraded: whether a fallback answers in its place.
        """
        demand, decision = rejection.demand, rejection.decision
        with self._desk.rows.lock:
            row = self._desk.rows.classes[demand.priority]
            if degraded:
                row.degraded[decision.reason] += 1
            else:
                row.refused[decision.reason] += 1
                self._note_refusal(demand, decision, self._clock())
        self._speak()

    def _note_refusal(self, demand: Demand, decision: Decision, now: float) -> None:
        reason = decision.reason
        count = self._refusals.note(reason, now)
        if count:
            client = self._identity.text(demand.user)
            self._lines.append(journal.refused(demand, decision, decision_name(reason), count, client))
            if not self._full and self._windows.overflowed:
                self._full = True
                self._lines.append(journal.users_full(self.settings.max_users))

    def _speak(self) -> None:
        """Write pending log events and run pending wake-ups, without the lock: a log handler may be slow."""
        desk = self._desk
        if desk.bells:
            desk.ring()
        if self._upkeep is not None:
            self._upkeep.tend()
        while self._lines:
            with desk.rows.lock:
                lines, self._lines = self._lines, []
            for line in lines:
                line.write()


def _ask_first(ticket: Ticket, paid: Refundable, question: PendingCheck, home: object) -> Ticket:
    """Prepare a ticket that holds a slot and waits only for the shared user-limit check."""
    ticket.payer, ticket.pending_check, ticket.owner = paid, question, home
    return ticket
