"""The path of a request: the order of the limits, the refunds and the lock; no algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, overload

import anyio

from autoglm_throttle import assembly, journal
from autoglm_throttle.desk import Desk
from autoglm_throttle.doorbell import Leaves, doorbell
from autoglm_throttle.identity import Identity
from autoglm_throttle.limiting.gate import Ticket, TicketState
from autoglm_throttle.limiting.rate_refusal import door_shut
from autoglm_throttle.limiting.shared.question import Question
from autoglm_throttle.limiting.shared.store import Trouble
from autoglm_throttle.limiting.shared.windows import SharedWindows
from autoglm_throttle.limiting.ticket import NO_LANE
from autoglm_throttle.limiting.token_bucket import Payer
from autoglm_throttle.limiting.verdict import later
from autoglm_throttle.model import Clock, Decision, Demand, Reason, Regime
from autoglm_throttle.permit import Permit, Rejection
from autoglm_throttle.quoted import QuotedBuckets, QuotedPermit
from autoglm_throttle.settings import Settings
from autoglm_throttle.snapshot import Rows, decision_name
from autoglm_throttle.upkeep import Upkeep

ADMITTED: Final = Decision(True, Reason.OK)
"""The decision where no user limit applies: there is nothing to say about it."""

_WAITING, _CALLED, _LEFT = TicketState.WAITING, TicketState.CALLED, TicketState.LEFT


class Admission:
    """What a request meets, from its arrival to its permit or refusal.

    Whoever inherits keeps the Regime, and says in `_renew` what a request finds due.

    Args:
        settings: what to enforce.
        clock: monotonic seconds; the only clock that decisions see.
        regime: the one to begin with.
        redis: makes the client of each event loop, instead of what ``settings.redis_url`` names.
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
        self._till = self._buckets if quota is None else QuotedBuckets(self._buckets, quota)
        self._permit: Callable[..., Permit] = Permit if quota is None else partial(QuotedPermit, quota)
        rows = self._desk.rows
        self._fleet = assembly.fleet(settings, self._buckets, rows.lock, clock)
        self.leased: bool = self._fleet is not None
        """Whether the rates are those of a fleet, so that `cover` should be awaited before `try_admit`."""
        self._budget = assembly.shared_budget(settings, now)
        self._identity = Identity(settings.identity_key)
        self._windows = assembly.user_windows(settings, self._identity, redis, self._fleet)
        shared = self._windows if isinstance(self._windows, SharedWindows) else None
        self._upkeep = Upkeep(shared, self._desk.rows) if shared is not None else None
        self._regime = regime
        self._open = regime.factor > 0.0
        self._metered = False
        """Whether all classes share one budget beside their own rates."""
        self._renew_at_s = -math.inf
        """When a request must first do what is due; at once while nothing listens."""
        self._full = False
        self._refusals = journal.RefusalSampler(settings.log_refused_every_s)
        self._lines: list[journal.Line] = []

    async def admit(self, demand: Demand) -> Permit | Rejection:
        """Ask for leave to run a request, and wait in line where its turn can come in time.

        Raises nothing of its own. A caller that is cancelled leaves the line and is charged nothing.
        """
        if self.leased:
            await self.cover(demand)
        verdict = self.try_admit(demand)
        return await self.wait(verdict) if isinstance(verdict, Ticket) else verdict

    async def cover(self, demand: Demand) -> None:
        """Have a fleet lease enough for a demand, if it can; to be awaited before `try_admit`.

        Returns at once where there is no fleet or enough is leased, else within 50 ms.
        """
        fleet = self._fleet
        if fleet is None or not self._open:
            return
        now = self._clock()
        if now >= self._renew_at_s:
            self._renew()
        with self._desk.rows.lock:
            covered = fleet.leases.covers(demand, now)
        if not covered:
            await fleet.cover(demand)

    def try_admit(self, demand: Demand) -> Permit | Ticket | Rejection:
        """The same without waiting: a Ticket is a place in line.

        Whoever gets one must `wait` for it, look for it in `called`, or `leave` it.
        """
        now = self._clock()
        if now >= self._renew_at_s:
            self._renew()
        desk = self._desk
        rows = desk.rows
        rows.acquire()  # `with rows.lock` takes twice as long
        try:
            paid = self._till.take(demand, now) if self._open else door_shut(self._regime, now)
            verdict: Permit | Ticket | Rejection
            if isinstance(paid, Decision):
                if demand.holds_slot:
                    desk.gate.count(demand.priority, now)
                verdict = self._refuse(demand, paid, now)
            elif not demand.holds_slot or (not self._metered and desk.gate.enter(demand, now)):
                decision = self._windows.hit(demand, now) or ADMITTED
                if decision.allowed:
                    rows.classes[demand.priority].admitted += 1
                    verdict = self._permit(desk, demand, decision, now, now)
                    if self._upkeep is None:
                        return verdict
                elif isinstance(decision, Question):
                    return _ask_first(Ticket.entered(demand, now), paid, decision, desk)
                else:
                    verdict = self._turn_back(demand, paid, decision, now)
            else:
                verdict = self._line_up(demand, paid, now)
        finally:
            rows.release()
        self._speak()
        return verdict

    @overload
    def wait(self, ticket: Ticket) -> Coroutine[Any, Any, Permit | Rejection]: ...
    @overload
    def wait(self, ticket: Ticket, leaves: Leaves) -> Coroutine[Any, Any, Permit | Rejection | None]: ...
    def wait(
        self, ticket: Ticket, leaves: Leaves = anyio.sleep_forever
    ) -> Coroutine[Any, Any, Permit | Rejection | None]:
        """Wait until the turn of a ticket from `try_admit` has come, or cannot come in time any more.

        Args:
            ticket: a place in line, or one that needs but the word of the shared store.
            leaves: comes to its end when the client has gone; it is cancelled when the turn comes.

        Returns:
            Awaited, the Permit; the Rejection of one who has waited in vain; None after ``leaves`` has ended.

        Raises:
            ValueError: when awaited: the ticket was given up, or handed out by `called`.
        """
        alone = ticket.state is _CALLED and ticket.question is not None
        return self._ask(ticket) if alone else self._stand(ticket, leaves)

    async def _stand(self, ticket: Ticket, leaves: Leaves) -> Permit | Rejection | None:
        try:
            bell = doorbell()
            waits = self._sign_up(ticket, bell.ring)
            if ticket.question is not None:
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
        """Whose turn has come and who has waited in vain, of those who do not `wait`."""
        now = self._clock()
        desk = self._desk
        with desk.rows.lock:
            desk.call(now)
            tickets, desk.unheard = desk.unheard, []
            found = [(ticket, self._turn(ticket, now)) for ticket in tickets if ticket.state is not _LEFT]
        self._speak()
        return found

    def leave(self, ticket: Ticket) -> None:
        """Give up a place in line; nothing is charged. Idempotent.

        A task that waits for the ticket is not woken: cancel the task instead.
        """
        now = self._clock()
        desk = self._desk
        with desk.rows.lock:
            if ticket.state is not _LEFT and ticket.home is desk:
                if ticket.stood:
                    desk.rows.hints["left_in_line"] += 1
                self._note_wait(ticket, now)
                self._refund(ticket, now)
        self._speak()

    def _renew(self) -> None:
        """Do what a request finds due."""
        raise NotImplementedError

    def _line_up(self, demand: Demand, paid: Payer, now: float) -> Permit | Ticket | Rejection:
        """What becomes of a demand for which there is no free place, or that must share a budget first."""
        desk = self._desk
        gate, metered = desk.gate, self._metered
        refusal = self._budget.take(demand.priority, now) if metered else None
        place: Ticket | Decision | None
        if refusal is not None:
            gate.count(demand.priority, now)
            place = gate.rescue(demand, now) or refusal
            metered = False
        else:
            place = None if metered and gate.enter(demand, now) else gate.line_up(demand, now)
        if isinstance(place, Decision):
            paid.give_back(demand.cost, now)
            return self._refuse(demand, place, now)
        place = self._settled_at_once(place, now)
        decision = self._windows.hit(demand, now if place is None else place.arrived_s) or ADMITTED
        if isinstance(decision, Question):
            asks = place if place is not None else Ticket.entered(demand, now)
            asks.metered = metered
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
        place.paid, place.metered, place.decision, place.home = paid, metered, decision, desk
        desk.call(now)
        return place

    def _settled_at_once(self, place: Ticket | None, now: float) -> Ticket | None:
        """None for a ticket that has its slot already; in a dry run nobody waits."""
        if place is not None:
            if place.state is _CALLED:
                place.state = _LEFT
                self._desk.hear(place)  # whom another request, settled by the garbage collector, has called
                return None
            if self._dry_run:
                self._desk.gate.leave(place, now)
                self._desk.gate.charge()
                return None
        return place

    def _turn_back(self, demand: Demand, paid: Payer, decision: Decision, now: float) -> Permit | Rejection:
        """Refuse one who has paid and entered."""
        if demand.holds_slot:
            self._desk.free(now)
        paid.give_back(demand.cost, now)
        return self._refuse(demand, decision, now)

    def _refuse(self, demand: Demand, decision: Decision, now: float) -> Permit | Rejection:
        """Refuse, or in a dry run only say so."""
        desk = self._desk
        row = desk.rows.classes[demand.priority]
        if self._dry_run:
            row.would_refuse[decision.reason] += 1
            row.admitted += 1
            if demand.holds_slot:
                desk.gate.charge()
            self._note_refusal(demand, decision, now)
            return self._permit(desk, demand, Decision(True, Reason.OK, would=decision), now, now)
        row.refused[decision.reason] += 1
        self._note_refusal(demand, decision, now)
        return Rejection(demand, decision)

    def _sign_up(self, ticket: Ticket, ring: Callable[[], None]) -> bool:
        """Have a waiter told; False if its turn has come, or its wait is over, already.

        The ring was made before: what allocates under the lock may settle another permit.
        """
        with self._desk.rows.lock:
            waits = ticket.state is _WAITING
            if waits:
                ticket.wake = ring
            else:  # another thread was faster
                self._desk.hear(ticket)
        return waits

    async def _ask(self, ticket: Ticket) -> Permit | Rejection | None:
        """Ask the shared store about a ticket; None: it is allowed, and stands in line."""
        question = ticket.question
        if question is None:
            raise ValueError(f"{ticket!r} has nothing to ask")
        if ticket.lane != NO_LANE:
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
            decision = ticket.decision = question.answered(answer, now)
            if ticket.state is _LEFT:  # given up by somebody else
                question.undo(now)
                raise ValueError(f"{ticket!r} was given up or handed out")
            verdict = self._heard(ticket, decision, now)
        finally:
            rows.release()
        if question.answer is None:  # else the store has let it in, and nothing is due
            self._speak()
        return verdict

    def _heard(self, ticket: Ticket, decision: Decision, now: float) -> Permit | Rejection | None:
        """What the store's word makes of a ticket."""
        if decision.allowed and ticket.lane == NO_LANE and ticket.called_s is not None:
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
        """What has become of a ticket; None while it waits."""
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
        """Turn a ticket that was called into a permit, one that was dropped into a refusal."""
        desk, demand = self._desk, ticket.demand
        if ticket.decision is None and ticket.question is not None:  # nobody waits who could ask
            ticket.decision = ticket.question.answered(Trouble.LOOP, now)
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
            decision = later(ticket.decision, waited_s)
            return self._permit(desk, demand, decision, ticket.arrived_s, ticket.called_s)
        decision = desk.gate.refusal(ticket, now)
        self._refund(ticket, now)
        return self._refuse(demand, decision, now)

    def _crowded(self, ticket: Ticket, now: float) -> Decision | None:
        """The refusal of one for whom there is no memory any more, now that its turn has come."""
        refusal = None if self._quota is None else self._quota.refusal(ticket.demand, now)
        if refusal is not None:
            self._refund(ticket, now)
        return refusal

    def _note_wait(self, ticket: Ticket, now: float) -> float:
        """Record how long a ticket has stood in line; returns that."""
        if not ticket.stood:
            return 0.0
        called_s = ticket.called_s
        waited_s = (now if called_s is None else called_s) - ticket.arrived_s
        self._desk.rows.classes[ticket.demand.priority].queue_time.record(waited_s)
        return waited_s

    def _refund(self, ticket: Ticket, now: float) -> None:
        """Give back all that a ticket holds."""
        self._desk.withdraw(ticket, now)
        if ticket.paid is not None:
            ticket.paid.give_back(ticket.demand.cost, now)
        if ticket.metered:
            self._budget.give_back(now)
        if ticket.question is not None:
            ticket.question.undo(now)
        else:
            self._windows.give_back(ticket.demand, ticket.arrived_s, now)

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
        """Write the lines and ring the bells that were due under the lock; a handler may be slow."""
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


def _ask_first(ticket: Ticket, paid: Payer, question: Question, home: object) -> Ticket:
    """A ticket that has all but the word of the shared store."""
    ticket.paid, ticket.question, ticket.home = paid, question, home
    return ticket
