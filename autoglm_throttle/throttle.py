"""The composition root: an admission, and the GPU telemetry that steers it; no algorithm."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from autoglm_throttle import assembly, journal
from autoglm_throttle.admission import Admission
from autoglm_throttle.control.choose import controller
from autoglm_throttle.control.latency import P95
from autoglm_throttle.desk import Desk
from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.gpu.none import NoSource
from autoglm_throttle.gpu.sampler import Sampler
from autoglm_throttle.gpu.select import select
from autoglm_throttle.limiting.rate_refusal import Rated
from autoglm_throttle.model import (
    Clock,
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
from autoglm_throttle.settings import SETTINGS, Settings, Source
from autoglm_throttle.settings.remarks import at_start
from autoglm_throttle.snapshot import DURATION_BUCKETS_S, FleetView, Rows, Snapshot, decision_name

SWEPT_PER_SAMPLE = 100
"""Users looked at for idleness with each GPU sample: tens of microseconds under the lock."""


class Throttle(Admission):
    """Owns every limit of a service. Share one object between all that is to be limited together.

    Args:
        settings: what to enforce; None: the defaults. ``Throttle.from_env()`` reads the environment.
        gpu: where samples come from, instead of what ``settings.gpu`` names.
        sampling: ``thread`` reads the GPUs on a daemon thread from the first request or lifespan on;
            ``manual`` reads them only in `tick`, for tests and simulators.
        clock: monotonic seconds; the only clock that decisions see.
        redis: makes the Redis client of each event loop, instead of what ``settings.redis_url`` names; for
            tests, ``fakeredis.FakeAsyncRedis``.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        gpu: GpuProvider | None = None,
        sampling: Literal["thread", "manual"] = "thread",
        clock: Clock = time.monotonic,
        redis: Callable[[], Any] | None = None,
    ) -> None:
        settings = settings if settings is not None else Settings()
        now = clock()
        self._controller = controller(assembly.control_rules(settings), now)
        super().__init__(settings, clock, self._controller.regime(now), redis)
        self._manual = sampling == "manual"
        self._listening = False
        self._aggregator = Aggregator(settings.gpu_aggregate)
        self._p95 = P95(DURATION_BUCKETS_S)
        self._viewed_s = -math.inf
        self._devices: tuple[GpuSample, ...] = ()
        self._sampled_wall_s: float | None = None
        self._configured = False
        self._sampler = self._make_sampler(gpu)
        if self._sampler is None:
            self._adopt(self._controller.silent(now), now)
        if self._fleet is not None:
            weakref.finalize(self, self._fleet.stop, 0.0).atexit = False
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
        rates = "/".join(f"{rate:g}" for rate in self._buckets.rates)
        return (
            f"Throttle({self.settings.policy}, factor={regime.factor:.2f} ({regime.why}), "
            f"telemetry={regime.telemetry}, rates={rates}/s, "
            f"active={sum(row.active for row in self._desk.rows.classes)})"
        )

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
            evidence, work = self._shared_out(gate.evidence()), self._work(now)
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
            values = {name: self.settings.text_of(name) for name in SETTINGS}
            chosen = [name for name in SETTINGS if self.settings.source_of(name) is not Source.DEFAULT]
            journal.configured(values, chosen).write()
            for problem in at_start(self.settings):
                journal.configured_oddly(problem).write()
            if self._upkeep is not None:
                self._upkeep.introduce()
        if self._upkeep is not None:
            self._upkeep.greet()
        if self._fleet is not None:
            self._fleet.start()
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
        if self._fleet is not None:
            self._fleet.stop()
        with self._desk.rows.lock:
            self._listening = False
            self._renew_at_s = -math.inf

    def misfit(self) -> str:
        """Why the settings cannot work in the event loop that runs here; empty if they can."""
        return "" if self._upkeep is None else self._upkeep.misfit()

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
        buckets: Sequence[Rated] = self._buckets.all
        by_class = list(zip(Priority, rows.classes, buckets, strict=True))
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
            rate_limit_rps=dict(zip(Priority, self._buckets.rates, strict=True)),
            tokens={p: bucket.tokens(now) for p, _, bucket in by_class},
            users=windows.users,
            fleet=self._fleet_view(),
            store=self._upkeep.view() if self._upkeep is not None else None,
            devices=self._devices,
            last_sample_wall_s=self._sampled_wall_s,
            controller_errors=_errors(self._sampler),
            stale_results=rows.stale_results,
            hints=dict(rows.hints),
        )

    def _fleet_view(self) -> FleetView | None:
        fleet = self._fleet
        if fleet is None:
            return None
        up = fleet.leases.away_since_s is None
        return FleetView(fleet.members, up, fleet.calls, fleet.failures)

    def _renew(self) -> None:
        """Do what a request finds due: start the sampling, and ask the controller about an older sample."""
        if self._listening:
            self.regime()
        else:
            self.start()

    def _work(self, now: float) -> Work:
        """What our own requests tell about the service."""
        by_class = (row.durations.counts for row in self._desk.rows.classes)
        counts = [sum(column) for column in zip(*by_class, strict=True)]
        in_reach = not self._desk.gate.view(now).slo_unreachable
        return Work(self._p95.update(counts, now), self.settings.slo_s if in_reach else None)

    def _shared_out(self, evidence: Evidence) -> Evidence:
        """In a fleet the nominal rates are those of all its processes."""
        return evidence if self._fleet is None else replace(evidence, processes=self._fleet.members)

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

    def _make_sampler(self, gpu: GpuProvider | None) -> Sampler | None:
        settings = self.settings
        provider = (
            gpu
            if gpu is not None
            else select(settings.gpu, devices=settings.gpu_devices, clock=self._clock, manual=self._manual)
        )
        if settings.fleet_gpu:
            provider = assembly.fleet_gpu(settings, provider, self._clock)
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
        if self._upkeep is not None:
            self._upkeep.forget(rows)
        if self._fleet is not None:
            self._fleet.forget(rows.lock)
        self._desk.rows.renew(rows)  # where permits that the parent gave are settled
        self._desk = Desk(rows, assembly.gate(self.settings, self._clock()))
        self._p95 = P95(DURATION_BUCKETS_S)
        self._listening = False
        self._renew_at_s = -math.inf


def _errors(sampler: Sampler | None) -> int:
    if sampler is None:
        return 0
    return sampler.failures + sampler.overruns + sampler.implausible + sampler.callback_errors


_ALL: weakref.WeakSet[Throttle] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for throttle in list(_ALL):
        throttle._after_fork()  # noqa: SLF001 - a method of this module's class


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
