"""The composition root: the order of the limits, the refunds, the clock and the lock; no algorithm."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Sequence
from typing import Final, Literal, overload

import anyio

from autoglm_throttle import assembly, journal
from autoglm_throttle.control.choose import controller
from autoglm_throttle.control.latency import P95
from autoglm_throttle.desk import Desk
from autoglm_throttle.doorbell import Leaves, doorbell
from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.gpu.none import NoSource
from autoglm_throttle.gpu.sampler import Sampler
from autoglm_throttle.gpu.select import select
from autoglm_throttle.identity import Identity, is_identity
from autoglm_throttle.limiting.gate import Ticket, TicketState
from autoglm_throttle.limiting.token_bucket import TokenBucket
from autoglm_throttle.model import (
    Clock,
    Decision,
    Demand,
    Evidence,
    GpuProvider,
    GpuSample,
    Priority,
    ProviderMisconfigured,
    Reason,
    Regime,
    Why,
    Work,
)
from autoglm_throttle.permit import Permit, Rejection
from autoglm_throttle.settings import SETTINGS, Settings
from autoglm_throttle.snapshot import DURATION_BUCKETS_S, Rows, Snapshot, decision_name

SWEPT_PER_SAMPLE = 100
"""Users looked at for idleness with each GPU sample: tens of microseconds under the lock."""

ADMITTED: Final = Decision(True, Reason.OK)
"""The decision where no user limit applies: there is nothing to say about it."""

_WAITING, _CALLED, _LEFT = TicketState.WAITING, TicketState.CALLED, TicketState.LEFT


class Throttle:
    """Owns every limit of a service. Share one object between all that is to be limited together.

    Args:
        settings: what to enforce; None: the defaults. ``Throttle.from_env()`` reads the environment.
        gpu: where samples come from, instead of what ``settings.gpu`` names.
        sampling: ``thread`` reads the GPUs on a daemon thread from the first request or lifespan on;
            ``manual`` reads them only in `tick`, for tests and simulators.
        clock: monotonic seconds; the only clock that decisions see.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        gpu: GpuProvider | None = None,
        sampling: Literal["thread", "manual"] = "thread",
        clock: Clock = time.monotonic,
    ) -> None:
        settings = settings if settings is not None else Settings()
        self.settings: Settings = settings
        self._clock = clock
        self._manual = sampling == "manual"
        self._listening = False
        now = clock()
        self._desk = Desk(Rows(clock), assembly.gate(settings, now))
        self._dry_run = settings.dry_run
        self._buckets = assembly.priority_buckets(settings, now)
        self._budget = assembly.shared_budget(settings, now)
        self._windows = assembly.user_windows(settings)
        self._controller = controller(assembly.control_rules(settings), now)
        self._aggregator = Aggregator(settings.gpu_aggregate)
        self._p95 = P95(DURATION_BUCKETS_S)
        self._regime = self._controller.regime(now)
        self._open = self._regime.factor > 0.0
        self._metered = False
        """Whether all classes share one budget beside their own rates."""
        self._viewed_s = -math.inf
        self._renew_at_s = -math.inf
        """When a request must first do what is due; at once while nothing listens."""
        self._devices: tuple[GpuSample, ...] = ()
        self._sampled_wall_s: float | None = None
        secret = settings.key_secret
        self._identity = Identity(secret.get_secret_value().encode() if secret else None)
        self._configured = False
        self._full = False
        self._refusals = journal.RefusalSampler(settings.log_refused_every_s)
        self._lines: list[journal.Line] = []
        self._sampler = self._make_sampler(gpu)
        if self._sampler is None:
            self._adopt(self._controller.silent(now), now)
        _ALL.add(self)

    @classmethod
    def from_env(cls) -> Throttle:
        """A throttle as the environment configures it.

        Raises:
            ConfigError: with every fault of the environment and the configuration file.
        """
        return cls(Settings.from_env())

    def __repr__(self) -> str:
        regime = self._regime
        rates = "/".join(f"{bucket.rate:g}" for bucket in self._buckets.all)
        return (
            f"Throttle({self.settings.policy}, factor={regime.factor:.2f} ({regime.why}), "
            f"telemetry={regime.telemetry}, rates={rates}/s, "
            f"active={sum(row.active for row in self._desk.rows.classes)})"
        )

    async def admit(self, demand: Demand) -> Permit | Rejection:
        """Ask for leave to run a request, and wait in line where its turn can come in time.

        Raises nothing of its own. A caller that is cancelled leaves the line and is charged nothing.
        """
        verdict = self.try_admit(demand)
        return await self.wait(verdict) if isinstance(verdict, Ticket) else verdict

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
            paid = self._buckets.take(demand, now) if self._open else _door_shut(self._regime, now)
            verdict: Permit | Ticket | Rejection
            if isinstance(paid, Decision):
                if demand.holds_slot:
                    desk.gate.count(demand.priority, now)
                verdict = self._refuse(demand, paid, now)
            elif not demand.holds_slot or (not self._metered and desk.gate.enter(demand, now)):
                decision = self._windows.hit(demand, now) or ADMITTED
                if decision.allowed:
                    rows.classes[demand.priority].admitted += 1
                    return Permit(desk, demand, decision, now, now)
                if demand.holds_slot:
                    desk.free(now)
                paid.give_back(demand.cost, now)
                verdict = self._refuse(demand, decision, now)
            else:
                verdict = self._line_up(demand, paid, now)
        finally:
            rows.release()
        self._speak()
        return verdict

    @overload
    async def wait(self, ticket: Ticket) -> Permit | Rejection: ...
    @overload
    async def wait(self, ticket: Ticket, leaves: Leaves) -> Permit | Rejection | None: ...
    async def wait(self, ticket: Ticket, leaves: Leaves = anyio.sleep_forever) -> Permit | Rejection | None:
        """Wait until the turn of a ticket from `try_admit` has come, or cannot come in time any more.

        Args:
            ticket: a place in line.
            leaves: comes to its end when the client has gone; it is cancelled when the turn comes.

        Returns:
            The Permit; the Rejection of one who has waited in vain; None after ``leaves`` has ended.

        Raises:
            ValueError: the ticket was given up, or handed out by `called`.
        """
        try:
            bell = doorbell()
            ring = bell.ring  # made here: what allocates under the lock may settle another permit
            with self._desk.rows.lock:
                if ticket.state is _WAITING:
                    ticket.wake = ring
                else:  # another thread was faster
                    self._desk.hear(ticket)
            while (verdict := self._look(ticket)) is None:
                if await bell.wait(ticket.arrived_s + ticket.patience_s - self._clock(), leaves):
                    self.leave(ticket)
                    return None
        except BaseException:
            self.leave(ticket)
            raise
        return verdict

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
                desk.rows.hints["left_in_line"] += 1
                self._note_wait(ticket, now)
                self._refund(ticket, now)
        self._speak()

    def observe(self, samples: Sequence[GpuSample]) -> Regime:
        """Take in one reading of all devices: the sampler's entrance, and that of tests."""
        now = self._clock()
        desk = self._desk
        with desk.rows.lock:
            view = self._aggregator.update(samples, now)
            self._lines.extend(journal.device_changes(self._devices, view.devices))
            self._devices = view.devices
            self._sampled_wall_s = time.time()
            gate = desk.gate
            gate.advance(now)
            if view.taken_at_s > self._viewed_s:
                self._viewed_s = view.taken_at_s
                gate.memory(view.memory_ratio)
            evidence, work = gate.evidence(), self._work(now)
            regime = self._adopt(self._controller.observe(view, evidence, work, now), now)
            desk.call(now)
            self._windows.sweep(now, SWEPT_PER_SAMPLE)
            self._lines.extend(
                journal.more_refused(reason, decision_name(reason), count)
                for reason, count in self._refusals.overdue(now)
            )
        self._speak()
        return regime

    def tick(self) -> Regime:
        """Read the GPUs once in the caller, with ``sampling="manual"``."""
        if self._sampler is not None:
            self._sampler.tick()
        return self.regime()

    def regime(self) -> Regime:
        """The Regime in force now, its age considered."""
        now = self._clock()
        with self._desk.rows.lock:
            regime = self._adopt(self._controller.regime(now, self._fill()), now)
        self._speak()
        return regime

    def start(self) -> None:
        """Start reading the GPUs; returns at once. Idempotent, and good again after `stop` and in a fork."""
        if not self._configured:
            self._configured = True
            journal.configured({name: self.settings.text_of(name) for name in SETTINGS}).write()
        sampler = self._sampler
        if sampler is not None and not self._manual:
            sampler.start()
        now = self._clock()
        with self._desk.rows.lock:
            listens = sampler is None or self._manual or sampler.running
            if listens and not self._listening:
                self._controller.started(now)
            self._listening = listens
            self._adopt(self._controller.regime(now, self._fill()), now)
        self._speak()

    def stop(self) -> None:
        """Stop reading the GPUs. The next request starts it again. Idempotent."""
        if self._sampler is not None:
            self._sampler.stop()
        with self._desk.rows.lock:
            self._listening = False
            self._renew_at_s = -math.inf

    def count_exempt(self) -> None:
        """Count a request that is not subject to the throttle."""
        with self._desk.rows.lock:
            self._desk.rows.exempt += 1

    def hint(self, name: str) -> None:
        """Count something odd that was dealt with, under a name from code, never from a request."""
        with self._desk.rows.lock:
            self._desk.rows.hints[name] = self._desk.rows.hints.get(name, 0) + 1

    def snapshot(self) -> Snapshot:
        """Everything there is to see, as one immutable value; tens of microseconds under the lock."""
        now = self._clock()
        with self._desk.rows.lock:
            regime = self._adopt(self._controller.regime(now, self._fill()), now)
            snapshot = self._picture(regime, now)
        self._speak()
        return snapshot

    def _picture(self, regime: Regime, now: float) -> Snapshot:
        rows, windows, gate = self._desk.rows, self._windows, self._desk.gate
        by_class = list(zip(Priority, rows.classes, self._buckets.all, strict=True))
        requests = {(p, decision_name(Reason.OK), Reason.OK): row.admitted for p, row, _ in by_class}
        for p, row, _ in by_class:
            requests |= {(p, decision_name(reason), reason): n for reason, n in row.refused.items()}
        view = gate.view(now) if gate.limit < math.inf else None
        pressure = dict(self._controller.pressure.terms)
        if view is not None:
            pressure["demand"] = view.pressure
        return Snapshot(
            taken_at_s=now,
            taken_at_wall_s=time.time(),
            policy=self.settings.policy,
            regime=regime,
            ready=regime.why is not Why.LOST,
            requests=requests,
            exempt=rows.exempt,
            active={p: row.active for p, row, _ in by_class},
            outcomes={(p, outcome): n for p, row, _ in by_class for outcome, n in row.outcomes.items()},
            durations={p: row.durations.copy() for p, row, _ in by_class},
            gate=view,
            queue_time={p: row.queue_time.copy() for p, row, _ in by_class},
            pressure=pressure,
            would_refuse={(p, reason): n for p, row, _ in by_class for reason, n in row.would_refuse.items()},
            dry_run=self._dry_run,
            rate_limit_rps={p: bucket.rate for p, _, bucket in by_class},
            tokens={p: bucket.tokens(now) for p, _, bucket in by_class},
            users=windows.users,
            devices=self._devices,
            last_sample_wall_s=self._sampled_wall_s,
            controller_errors=_errors(self._sampler),
            stale_results=rows.stale_results,
            hints=dict(rows.hints),
        )

    def _renew(self) -> None:
        """Do what a request finds due: start the sampling, and ask the controller about an older sample."""
        if self._listening:
            self.regime()
        else:
            self.start()

    def _line_up(self, demand: Demand, paid: TokenBucket, now: float) -> Permit | Ticket | Rejection:
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
            return Permit(desk, demand, decision, now, now)
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
            return Permit(desk, demand, Decision(True, Reason.OK, would=decision), now, now)
        row.refused[decision.reason] += 1
        self._note_refusal(demand, decision, now)
        return Rejection(demand, decision)

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
        waited_s = self._note_wait(ticket, now)
        if ticket.called_s is not None and ticket.decision is not None:
            ticket.state = _LEFT
            desk.rows.classes[demand.priority].admitted += 1
            decision = _later(ticket.decision, waited_s)
            return Permit(desk, demand, decision, ticket.arrived_s, ticket.called_s)
        decision = desk.gate.refusal(ticket, now)
        self._refund(ticket, now)
        return self._refuse(demand, decision, now)

    def _note_wait(self, ticket: Ticket, now: float) -> float:
        """Record how long a ticket has stood in line; returns that."""
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
        self._windows.give_back(ticket.demand, ticket.arrived_s, now)

    def _note_refusal(self, demand: Demand, decision: Decision, now: float) -> None:
        reason = decision.reason
        count = self._refusals.note(reason, now)
        if count:
            user = demand.user
            client = user if is_identity(user) else self._identity.of("user", user)
            self._lines.append(journal.refused(demand, decision, decision_name(reason), count, client))
            if not self._full and self._windows.overflowed:
                self._full = True
                self._lines.append(journal.users_full(self.settings.max_users))

    def _work(self, now: float) -> Work:
        """What our own requests tell about the service."""
        by_class = (row.durations.counts for row in self._desk.rows.classes)
        counts = [sum(column) for column in zip(*by_class, strict=True)]
        in_reach = not self._desk.gate.view(now).slo_unreachable
        return Work(self._p95.update(counts, now), self.settings.slo_s if in_reach else None)

    def _fill(self) -> Evidence:
        """How full the gate is, without the word that only an observation may take."""
        gate = self._desk.gate
        return Evidence(in_flight=gate.in_flight, limit=gate.limit)

    def _adopt(self, regime: Regime, now: float) -> Regime:
        before, self._regime = self._regime, regime
        self._renew_at_s = regime.until_s if self._listening else -math.inf
        if regime is not before:
            if regime.ceilings != before.ceilings:
                self._buckets.rescale(regime.ceilings, now)
            self._open = regime.factor > 0.0
            self._metered = regime.budget_rps is not None
            self._budget.rescale(regime.budget_rps, regime.term, now)
            self._lines.extend(journal.changes(before, regime))
        return regime

    def _speak(self) -> None:
        """Write the lines and ring the bells that were due under the lock; a handler may be slow."""
        desk = self._desk
        if desk.bells:
            desk.ring()
        while self._lines:
            with desk.rows.lock:
                lines, self._lines = self._lines, []
            for line in lines:
                line.write()

    def _make_sampler(self, gpu: GpuProvider | None) -> Sampler | None:
        settings = self.settings
        provider = (
            gpu
            if gpu is not None
            else select(settings.gpu, devices=settings.gpu_devices, clock=self._clock, manual=self._manual)
        )
        if provider is None:
            return None
        myself = weakref.ref(self)

        def samples(rows: Sequence[GpuSample]) -> None:
            throttle = myself()
            if throttle is not None:
                throttle.observe(rows)

        def failure(error: Exception) -> None:
            throttle = myself()
            if throttle is not None:
                throttle._failed(error)  # noqa: SLF001 - a method of this class, reached through a weak reference

        sampler = Sampler(
            provider, samples, failure, interval_s=settings.sample_interval_s, clock=self._clock
        )
        weakref.finalize(self, sampler.stop, 0.0).atexit = False
        return sampler

    def _failed(self, error: Exception) -> None:
        now = self._clock()
        with self._desk.rows.lock:
            if isinstance(error, NoSource):
                self._adopt(self._controller.silent(now), now)
            elif isinstance(error, ProviderMisconfigured):
                self._adopt(self._controller.gone(now), now)
        self._speak()

    def _after_fork(self) -> None:
        """The parent's thread may have held the lock, and its counts and waiters are not the child's."""
        self._windows.mend()
        rows = Rows(self._clock)
        self._desk.rows.renew(rows)  # where permits that the parent gave are settled
        self._desk = Desk(rows, assembly.gate(self.settings, self._clock()))
        self._p95 = P95(DURATION_BUCKETS_S)
        self._listening = False
        self._renew_at_s = -math.inf


def _errors(sampler: Sampler | None) -> int:
    if sampler is None:
        return 0
    return sampler.failures + sampler.overruns + sampler.implausible + sampler.callback_errors


def _later(decision: Decision, seconds: float) -> Decision:
    """What a user window said, as of so many seconds later."""
    if decision.window_s:
        decision.reset_after_s = max(0.0, decision.reset_after_s - seconds)
        for other in decision.others:
            other.reset_s = max(0.0, other.reset_s - seconds)
    return decision


def _door_shut(regime: Regime, now: float) -> Decision:
    wait = regime.reopens_s - now
    lost = regime.why is Why.LOST
    return Decision(
        allowed=False,
        reason=Reason.GPU,
        detail="gpu:lost" if lost else "gpu:stop",
        policy="gpu",
        limit=0.0,
        remaining=0.0,
        retry_after_s=wait,
        reset_after_s=wait,
    )


_ALL: weakref.WeakSet[Throttle] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for throttle in list(_ALL):
        throttle._after_fork()  # noqa: SLF001 - a method of this module's class


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
