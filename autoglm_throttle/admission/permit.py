"""Results of `Throttle.admit`: a Permit, settled exactly once, or a Rejection."""

from __future__ import annotations

import copy
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from autoglm_throttle.admission.settlement import Settlement
from autoglm_throttle.limiting.decisions import HasTokens, Usages, decision_of
from autoglm_throttle.limiting.ticket import TicketCharges
from autoglm_throttle.limiting.user_slots import UserSlots
from autoglm_throttle.limiting.work_class import PAUSED, WorkClass
from autoglm_throttle.types import Decision, Demand, GuardRejected, Outcome, Rejected, ResourceAdvice

if TYPE_CHECKING:
    from autoglm_throttle.control.quota import Quota

_SUCCESS: Final = Outcome.SUCCESS
_NEUTRAL: Final = Outcome.NEUTRAL

# Charges of an admitted request: the bucket that paid, if the user limits were charged at its arrival; those
# of its ticket; or all of them, once it was charged again.
Charges = HasTokens | TicketCharges | list[tuple[Demand, TicketCharges]] | None


class Permit:
    """The right to run one request. It must be settled once, most simply by ``with permit:``.

    Leaving the block settles it unless the block has done so: ``success``, ``failure`` after an exception,
    ``neutral`` after a cancellation or another rejection, which say nothing about the service.
    """

    __slots__ = (
        *("admitted_s", "arrived_s", "charges", "demand", "owner", "settled"),
        *("slot", "started_s", "verdict", "work_class"),
    )

    admitted: Literal[True] = True

    owner: Settlement  # What it is settled with
    demand: Demand
    verdict: Usages | Decision  # On the user limits; `decision` is its public form
    arrived_s: float  # When admission was requested, in monotonic seconds
    admitted_s: float  # When it was admitted; the difference is its queue time
    started_s: float  # As ``admitted_s``, later by the time of its pauses
    work_class: WorkClass
    slot: int  # What it holds: `NO_SLOT` to `RESUMED`
    charges: Charges  # Read by `Verdicts.charges_of` only
    settled: bool

    @classmethod
    def of(  # noqa: PLR0913, PLR0917 - one call for each request: no object for its arguments
        cls,
        settlement: Settlement,
        demand: Demand,
        verdict: Usages | Decision,
        arrived_s: float,
        admitted_s: float,
        work_class: WorkClass,
        slot: int,
        charges: Charges = None,
    ) -> Self:
        """Make a permit; before Python 3.13 an ``__init__`` costs twice as much."""
        permit = cls()
        permit.owner, permit.demand, permit.verdict = settlement, demand, verdict
        permit.arrived_s, permit.admitted_s, permit.started_s = arrived_s, admitted_s, admitted_s
        permit.work_class, permit.slot, permit.charges = work_class, slot, charges
        permit.settled = False
        return permit

    def record_chunk(self) -> None:
        """Record a streamed chunk of the response: progress distinguishes a slow service from a hung one."""
        self.owner.counters.chunks += 1

    def record_first_event(self, now: float) -> None:
        """Record the first event with data of a stream."""
        owner = self.owner
        owner.rows[self.demand.rank].first_token.record(now - self.arrived_s)
        if owner.limiter.first_tokens is not None:
            owner.limiter.first_tokens.record_first_token(now - self.admitted_s)

    @property
    def decision(self) -> Decision:
        """The decision on the request."""
        self.verdict = decision = decision_of(self.verdict)
        return decision

    @property
    def advice(self) -> ResourceAdvice | None:
        """Advice on serving the request; None without ``QUOTAS``."""
        return None

    @property
    def is_paused(self) -> bool:
        """Whether it has given its slot back for a while."""
        return self.slot == PAUSED

    def pause(self) -> None:
        """Give the slot back while the request waits for others: another request may run meanwhile.

        Its time in the service stands still. Does nothing if it is paused, settled, or holds no slot.
        May be called from any thread.
        """
        self.owner.lock.run(self._pause)

    def resume(self) -> None:
        """Take the slot again at once, even above the limit, since the request runs already.

        Does nothing unless it is paused. May be called from any thread.
        """
        if self.slot == PAUSED:
            self.owner.lock.run(self._resume)

    def _pause(self) -> None:
        settlement = self.owner
        if not self.settled:
            now = settlement.clock()
            settlement.limiter.pause(self, now)
            settlement.call_ready(now)

    def _resume(self) -> None:
        if not self.settled:
            self.owner.limiter.resume(self, self.owner.clock())

    def settle(self, outcome: Outcome = Outcome.SUCCESS, client_error: bool = False) -> None:  # noqa: C901 - a call costs 1 %
        """Settle the request with its outcome. Never waits; a second call changes nothing and is counted.

        Args:
            outcome: how it ended.
            client_error: whether the app answered with a client error: its time says nothing about the work
                of other requests.
        """
        settlement = self.owner
        lock, clock = settlement.lock, settlement.clock
        # What is no method is called through a local name: `lock.acquire()` costs three times as much.
        is_held, acquire, release = lock.is_held, lock.acquire, lock.release
        if is_held():  # the cleanup of an abandoned coroutine runs amid a change: settle after it
            self._settle_later(outcome, client_error)
            return
        now = clock()
        acquire()
        try:
            if self.settled:
                settlement.counters.stale_results += 1
                return
            self.settled = True
            row = settlement.rows[self.demand.rank]
            if outcome is not _SUCCESS:
                row.others[outcome] += 1
            if outcome is not _NEUTRAL:
                duration_s, durations = now - self.arrived_s, row.durations
                if durations.above_s < duration_s <= durations.up_to_s:  # `record`, without the call
                    durations.counts[durations.last] += 1
                    durations.total_s += duration_s
                else:
                    durations.record(duration_s)
            if self.slot:
                limiter = settlement.limiter
                limiter.release(self, outcome, now, client_error)
                if limiter.waiting:
                    settlement.call_ready(now)
        finally:
            release()
            if lock.pending:
                lock.run_pending()

    def _settle_later(self, outcome: Outcome, client_error: bool) -> None:
        """Hand the settlement to a copy: the cleanup's next steps must find this permit settled."""
        later = copy.copy(self)
        self.settled = True
        self.owner.lock.pending.append(partial(Permit.settle, later, outcome, client_error))

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if kind is None:
            self.settle(Outcome.SUCCESS)
        else:
            is_rejection = issubclass(kind, Rejected) or GuardRejected.find(error) is not None
            failed = issubclass(kind, Exception) and not is_rejection
            self.settle(Outcome.FAILURE if failed else Outcome.NEUTRAL)

    def __repr__(self) -> str:
        return f"Permit({self.demand!r}, {'settled' if self.settled else 'open'})"


class ResourcePermit(Permit):
    """A permit that counts against the quotas and carries their advice, or holds a slot of its user."""

    __slots__ = ("_advice", "_load", "_slots")

    def reserve(self, quota: Quota | None, slots: UserSlots | None) -> Self:
        """Reserve its memory, store the advice of the quota, and take over the slot of its charge."""
        holds = self.demand.holds_slot
        self._advice = None if quota is None else quota.advice(self.demand, self.admitted_s)
        self._load = quota.reserve(self.demand) if quota is not None and holds else None
        # A dry run has charged nothing for a request that it would reject.
        self._slots = slots if holds and self.charges is not None else None
        return self

    @property
    def advice(self) -> ResourceAdvice | None:
        """Advice on serving the request."""
        return self._advice

    def settle(self, outcome: Outcome = Outcome.SUCCESS, client_error: bool = False) -> None:
        """Settle the request with its outcome, and free its reserved memory and its slot."""
        self.owner.lock.run(self._free)
        super().settle(outcome, client_error)

    def _free(self) -> None:
        load, self._load = self._load, None
        if load is not None:
            load.remove(self.demand)
        slots, self._slots = self._slots, None
        charges = self.charges
        if slots is not None and charges != []:  # otherwise they were refunded, and the slot with them
            own = charges[0][1] if isinstance(charges, list) else charges
            slots.release(self.demand, own, self.owner.clock() - self.arrived_s)


class ProvisionalDemand(Demand):
    """A demand with a load rejection that its caller may replace by a fallback.

    It is not counted when it is decided, but in `AdmissionController.record_rejection`: taking a count back
    would look like a restart to readers of the metrics.
    """

    __slots__ = ()

    @classmethod
    def of(cls, demand: Demand) -> ProvisionalDemand:
        """Return the same demand as a provisional one."""
        provisional = cls.__new__(cls)
        for name in Demand.__slots__:
            setattr(provisional, name, getattr(demand, name))
        return provisional


class Rejection:
    """A rejected demand: nothing was taken, nothing needs to be settled."""

    __slots__ = ("decision", "demand")

    admitted: Literal[False] = False

    def __init__(self, demand: Demand, decision: Decision) -> None:
        self.demand: Demand = demand
        self.decision: Decision = decision

    def __repr__(self) -> str:
        return f"Rejection({self.demand!r}, {self.decision.detail})"
