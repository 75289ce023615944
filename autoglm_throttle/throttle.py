"""The composition root: admission control, and the GPU telemetry that steers it. Contains no algorithm."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from autoglm_throttle import assembly, journal
from autoglm_throttle.admission import Admission
from autoglm_throttle.desk import Desk
from autoglm_throttle.guardian import Guardian
from autoglm_throttle.limiting.rate_refusal import HasTokens
from autoglm_throttle.model import (
    Clock,
    Evidence,
    GpuProvider,
    GpuSample,
    GpuView,
    Outcome,
    Priority,
    Reason,
    Regime,
    Work,
)
from autoglm_throttle.settings import SETTINGS, Settings, SettingSource
from autoglm_throttle.snapshot import DURATION_BUCKETS_S, FleetView, Rows, Snapshot, decision_name

if TYPE_CHECKING:
    from autoglm_throttle.lookout import Lookout

SWEPT_PER_SAMPLE = 100
"""Users checked for idleness with each GPU sample: tens of microseconds under the lock."""


class Throttle(Admission, Guardian):
    """Owns every limit of a service. Share one object between all apps that are limited together.

    Args:
        settings: the configuration; None: the defaults. ``Throttle.from_env()`` reads the environment.
        gpu: the telemetry source or sources, instead of the ones named by ``settings.gpu``.
        sampling: ``thread`` reads the GPUs on a daemon thread from the first request or lifespan on;
            ``manual`` reads them only in `tick`, for tests and simulators.
        clock: monotonic seconds; the only clock that decisions use.
        redis: makes the Redis client of each event loop, instead of ``settings.redis_url``; for
            tests, ``fakeredis.FakeAsyncRedis``.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        gpu: GpuProvider | Sequence[GpuProvider] | None = None,
        sampling: Literal["thread", "manual"] = "thread",
        clock: Clock = time.monotonic,
        redis: Callable[[], Any] | None = None,
    ) -> None:
        from autoglm_throttle.control.choose import (  # deferred: keeps the import of the package small
            controller,
        )
        from autoglm_throttle.control.latency import LatencyPercentile, SloReachability

        settings = settings if settings is not None else Settings()
        now = clock()
        self._controller = controller(assembly.control_rules(settings), now)
        Admission.__init__(self, settings, clock, self._controller.control_state(now), redis)
        Guardian.__init__(self)
        self._manual = sampling == "manual"
        self._listening = False
        self._p95 = LatencyPercentile(DURATION_BUCKETS_S)
        self._reach = SloReachability()
        self._viewed_s = -math.inf
        self._view: GpuView | None = None
        self._admitted: dict[str, int] = {}
        """Source name -> number of requests admitted at its newest reading."""
        self._sampled_wall_s: float | None = None
        self._configured = False
        self._lookout = self._look_out(gpu)
        if not self._lookout.anywhere:
            self._adopt(self._controller.no_source(now), now)
        if self._fleet is not None:
            # Stop the fleet when the throttle is collected, but not at interpreter exit.
            weakref.finalize(self, self._fleet.stop, 0.0).atexit = False
        _ALL.add(self)

    @classmethod
    def from_env(cls) -> Throttle:
        """Create a throttle from the environment.

        Raises:
            ConfigError: with every problem of the environment and the configuration file.
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
        """Process one reading of all devices of one externally read source.

        Args:
            samples: a row for each device; implausible values become None. A row older than
                the age of a stale sample no longer counts.
        """
        return self._observe(self._lookout.believed(samples), "", None)

    def _observe(self, samples: Sequence[GpuSample], source: str, interval_s: float | None) -> Regime:
        host = self._lookout.host(self._clock())
        desk = self._desk
        with desk.rows.lock:
            # Read the clock under the lock: a source that waited for it would bring a time in the past.
            now = self._clock()
            self._sampled_wall_s = time.time()
            gate = desk.gate
            gate.close_period(now)
            evidence, work = self._shared_out(gate.report()), self._work(now)
            work = replace(work, host_load=host.load, host_iowait=host.iowait)
            view = self._lookout.see(samples, work, now, source=source, interval_s=interval_s)
            self._lines.extend(journal.view_changes(self._view, view))
            self._view = view
            if view.taken_at_s > self._viewed_s:
                # A timestamp in the future would make all later samples look old.
                self._viewed_s = min(view.taken_at_s, now)
                gate.update_memory(view.memory_ratio)
            regime = self._adopt(self._controller.observe(view, evidence, work, now), now)
            if self._quota is not None:
                self._quota.learn(view, now)
            self._rest(view, regime, source, now)
            desk.call(now)
            self._windows.sweep(now, SWEPT_PER_SAMPLE)
            self._lines.extend(
                journal.more_refused(reason, decision_name(reason), count)
                for reason, count in self._refusals.overdue(now)
            )
        self._speak()
        if self._guards is not None:
            self._guards.tend()
        return regime

    def tick(self) -> Regime:
        """Read every source once in the caller, with ``sampling="manual"``."""
        self._lookout.tick()
        return self.regime()

    def regime(self) -> Regime:
        """Return the control state in force now, with the age of telemetry considered."""
        now = self._clock()
        with self._desk.rows.lock:
            regime = self._adopt(self._controller.control_state(now, self._fill()), now)
        self._speak()
        return regime

    def start(self) -> None:
        """Start reading the GPUs and return at once. Idempotent; works again after `stop` and in a fork."""
        if not self._configured:
            self._configured = True
            self._introduce()
        if self._upkeep is not None:
            self._upkeep.greet()
        if self._fleet is not None:
            self._fleet.start()
        if self._guards is not None:
            self._guards.start()
        lookout = self._lookout
        if not self._manual:
            lookout.start()
        now = self._clock()
        with self._desk.rows.lock:
            listens = not lookout.anywhere or self._manual or lookout.reads
            if listens and not self._listening:
                self._controller.started(now)
            self._listening = listens
            self._adopt(self._controller.control_state(now, self._fill()), now)
        self._speak()

    def _introduce(self) -> None:
        """Log the configuration, once."""
        from autoglm_throttle.settings.remarks import startup_advice

        values = {name: self.settings.text_of(name) for name in SETTINGS}
        chosen = [name for name in SETTINGS if self.settings.source_of(name) is not SettingSource.DEFAULT]
        journal.configured(values, chosen).write()
        for problem in startup_advice(self.settings):
            journal.configured_oddly(problem).write()
        if self._upkeep is not None:
            self._upkeep.introduce()

    def stop(self) -> None:
        """Stop reading the GPUs. The next request starts it again. Idempotent."""
        self._lookout.stop()
        if self._guards is not None:
            self._guards.stop()
        if self._fleet is not None:
            self._fleet.stop()
        with self._desk.rows.lock:
            self._listening = False
            self._renew_at_s = -math.inf

    def misfit(self) -> str:
        """Return why the settings cannot work in the running event loop; empty if they can."""
        return "" if self._upkeep is None else self._upkeep.misfit()

    def count_exempt(self) -> None:
        """Count a request that is exempt from the throttle."""
        with self._desk.rows.lock:
            self._desk.rows.exempt += 1

    def hint(self, name: str) -> None:
        """Count a handled oddity under a name from code, never from a request."""
        with self._desk.rows.lock:
            self._desk.rows.hints[name] = self._desk.rows.hints.get(name, 0) + 1

    def snapshot(self) -> Snapshot:
        """Return the complete state as one immutable value; takes tens of microseconds under the lock."""
        now = self._clock()
        with self._desk.rows.lock:
            regime = self._adopt(self._controller.control_state(now, self._fill()), now)
            snapshot = self._picture(regime, now)
        self._speak()
        guards = self._guards
        return snapshot if guards is None else replace(snapshot, guards=guards.view())

    def _picture(self, regime: Regime, now: float) -> Snapshot:
        rows, windows, gate = self._desk.rows, self._windows, self._desk.gate
        buckets: Sequence[HasTokens] = self._buckets.all
        by_class = list(zip(Priority, rows.classes, buckets, strict=True))
        requests = {(p, decision_name(Reason.OK), Reason.OK): row.admitted for p, row, _ in by_class}
        for p, row, _ in by_class:
            requests |= {(p, decision_name(reason), reason): n for reason, n in row.refused.items()}
            requests |= {(p, "degraded", reason): n for reason, n in row.degraded.items()}
        view = gate.view(now) if gate.limit < math.inf else None
        pressure = dict(self._controller.pressure.terms)
        if view is not None:
            pressure["demand"] = view.pressure
        return Snapshot(
            taken_at_s=now,
            taken_at_wall_s=time.time(),
            policy=self.settings.policy,
            regime=regime,
            ready=self._controller.is_ready(now),
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
            view=self._view,
            sources=self._lookout.sources(now),
            last_sample_wall_s=self._sampled_wall_s,
            controller_errors=self._lookout.errors,
            quota=self._quota.view(now) if self._quota is not None else None,
            stale_results=rows.stale_results,
            hints=dict(rows.hints),
        )

    def _fleet_view(self) -> FleetView | None:
        fleet = self._fleet
        if fleet is None:
            return None
        up = fleet.leases.unavailable_since_s is None
        return FleetView(fleet.members, up, fleet.calls, fleet.failures)

    def _renew(self) -> None:
        """Refresh control state and start sampling if needed. Called at most once per interval."""
        if self._listening:
            if not self._manual:
                self._lookout.tend(self._clock())
            self.regime()
        else:
            self.start()

    def _work(self, now: float) -> Work:
        """Measure the service by its own requests."""
        rows, gate = self._desk.rows, self._desk.gate
        counts = [sum(column) for column in zip(*(row.durations.counts for row in rows.classes), strict=True)]
        p95_s, slo_s = self._p95.update(counts, now), self.settings.slo_s
        met = self._reach.update(p95_s, slo_s, now)
        in_reach = not gate.view(now).slo_unreachable if self.settings.policy in assembly.WITH_GATE else met
        ended = sum(row.outcomes[Outcome.SUCCESS] + row.outcomes[Outcome.SLOW] for row in rows.classes)
        return Work(
            p95_s=p95_s,
            slo_s=slo_s if in_reach else None,
            in_flight=gate.in_flight,
            waiting=gate.waiting,
            at_limit=gate.in_flight >= gate.limit,
            completed_total=ended,
            chunks_total=rows.chunks,
        )

    def _rest(self, view: GpuView, regime: Regime, source: str, now: float) -> None:
        """Schedule the next reading of each source."""
        admitted = sum(row.admitted for row in self._desk.rows.classes)
        busy = admitted != self._admitted.get(source, 0)
        self._admitted[source] = admitted
        self._lookout.rest(view, regime, self._load(view), busy=busy, now=now)
        self._plan(regime)

    def _plan(self, regime: Regime) -> None:
        """Set the time of the next refresh by a request: by age, or at once to wake idle samplers."""
        dozes = self._lookout.drowsy and not self._manual
        self._renew_at_s = regime.until_s if self._listening and not dozes else -math.inf

    def _load(self, view: GpuView) -> float | None:
        """Return the maximum of device load, pressure and occupancy; None: only occupancy is known."""
        from autoglm_throttle.control.nominal import occupancy

        pct, pressure = view.utilization_pct, self._controller.pressure.value
        if pct is None and pressure is None:
            return None
        return max((pct or 0.0) / 100.0, pressure or 0.0, occupancy(self._fill()))

    def _shared_out(self, evidence: Evidence) -> Evidence:
        """Add the number of processes: in a fleet they share the nominal rates."""
        return evidence if self._fleet is None else replace(evidence, processes=self._fleet.members)

    def _fill(self) -> Evidence:
        """Return limiter occupancy, without consuming the rejection counter."""
        gate = self._desk.gate
        return Evidence(in_flight=gate.in_flight, limit=gate.limit)

    def _adopt(self, regime: Regime, now: float) -> Regime:
        before, self._regime = self._regime, regime
        self._plan(regime)
        if regime is not before:
            if regime.ceilings != before.ceilings:
                self._buckets.rescale(regime.ceilings, now)
            self._open = regime.factor > 0.0
            if self._quota is not None:
                self._quota.factor = regime.factor
            self._metered = regime.budget_rps is not None
            self._budget.rescale(regime.budget_rps, regime.term, now)
            self._lines.extend(journal.changes(before, regime, self._view, now))
        return regime

    def _look_out(self, gpu: GpuProvider | Sequence[GpuProvider] | None) -> Lookout:
        myself = weakref.ref(self)

        def told(rows: Sequence[GpuSample], source: str, interval_s: float | None) -> None:
            throttle = myself()
            if throttle is not None:
                throttle._observe(rows, source, interval_s)  # noqa: SLF001 - a method of this class

        def silent(gone: bool) -> None:
            throttle = myself()
            if throttle is not None:
                throttle._silent(gone)  # noqa: SLF001 - as above

        from autoglm_throttle.lookout import (  # deferred: keeps the import of the package small
            Ends,
            Lookout,
        )

        sources = assembly.gpu_sources(self.settings, gpu, self._clock, manual=self._manual)
        return Lookout(self.settings, sources, Ends(told, silent), self._clock)

    def _silent(self, gone: bool) -> None:
        """Publish the loss of the last source; ``source_lost``: a source existed or is configured."""
        now = self._clock()
        with self._desk.rows.lock:
            self._adopt(self._controller.source_lost(now) if gone else self._controller.no_source(now), now)
        self._speak()

    def _after_fork(self) -> None:
        """Replace the lock, counters and waiters: a thread of the parent may have held the lock."""
        self._windows.repair()
        rows = Rows(self._clock)
        if self._upkeep is not None:
            self._upkeep.reset_after_fork(rows)
        if self._fleet is not None:
            self._fleet.reset_after_fork(rows.lock)
        # Permits issued by the parent still settle into the old counters, under the new lock.
        self._desk.rows.renew(rows)
        self._desk = Desk(rows, assembly.gate(self.settings, self._clock()))
        if self._quota is not None:
            self._quota.reset_after_fork()
        self._forget_guards()
        self._p95 = type(self._p95)(DURATION_BUCKETS_S)
        self._listening = False
        self._renew_at_s = -math.inf


_ALL: weakref.WeakSet[Throttle] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for throttle in list(_ALL):
        throttle._after_fork()  # noqa: SLF001 - a method of this module's class


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
