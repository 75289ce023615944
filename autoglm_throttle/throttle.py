"""The composition root: admission control, and the GPU telemetry that steers it. Contains no algorithm."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from autoglm_throttle import events
from autoglm_throttle.admission import factory
from autoglm_throttle.admission.queued_admission import QueuedAdmission
from autoglm_throttle.admission.settlement import Settlement
from autoglm_throttle.admission.snapshot import (
    DURATION_BUCKETS_S,
    Counters,
    FleetView,
    Snapshot,
    decision_label,
)
from autoglm_throttle.guard_facade import GuardFacade
from autoglm_throttle.limiting.rate_rejection import HasTokens
from autoglm_throttle.settings import SETTINGS, Settings, SettingSource
from autoglm_throttle.types import (
    Clock,
    ControlState,
    GpuProvider,
    GpuSample,
    GpuView,
    LimiterReport,
    Outcome,
    Priority,
    Reason,
    ServiceStats,
)

if TYPE_CHECKING:
    from autoglm_throttle.gpu.monitor import GpuMonitor

SWEPT_PER_SAMPLE = 100
"""Users checked for idleness with each GPU sample: tens of microseconds under the lock."""


class Throttle(QueuedAdmission, GuardFacade):
    """Owns every limit of a service. Share one object between all apps that are limited together.

    There are three ways to request admission without the middleware:

    - ``async with throttle.slot(demand) as permit:`` waits in the queue and raises `Rejected`.
    - ``await throttle.admit(demand)`` waits in the queue and returns a Permit or a Rejection.
    - ``throttle.try_admit(demand)`` returns at once, with a Permit, a Rejection or a Ticket for `wait`.

    A union is no context manager: test ``isinstance(verdict, Permit)`` before ``with verdict:``.

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
        # Deferred: keeps the import of the package small.
        from autoglm_throttle.control.controller_factory import controller
        from autoglm_throttle.control.latency import LatencyPercentile, SloReachability

        settings = settings if settings is not None else Settings()
        now = clock()
        self._controller = controller(factory.control_rules(settings), now)
        QueuedAdmission.__init__(self, settings, clock, self._controller.control_state(now), redis)
        GuardFacade.__init__(self)
        self._manual = sampling == "manual"
        self._is_sampling = False
        self._latency = LatencyPercentile(DURATION_BUCKETS_S)
        self._slo_tracker = SloReachability()
        self._gpu_view_s = -math.inf
        self._gpu_view: GpuView | None = None
        self._admitted_by_source: dict[str, int] = {}
        """Source name -> number of requests admitted at its newest reading."""
        self._sampled_wall_s: float | None = None
        self._configuration_logged = False
        self._gpu_monitor = self._create_gpu_monitor(gpu)
        if not self._gpu_monitor.has_sources:
            self._publish(self._controller.no_source(now), now)
        if self._fleet is not None:
            # Stop the fleet when the throttle is collected, but not at interpreter exit.
            weakref.finalize(self, self._fleet.stop, 0.0).atexit = False
        _THROTTLES.add(self)

    @classmethod
    def from_env(cls) -> Throttle:
        """Create a throttle from the environment.

        Raises:
            ConfigError: with every problem of the environment and the configuration file.
        """
        return cls(Settings.from_env())

    def __repr__(self) -> str:
        state = self._control_state
        rates = "/".join(f"{rate:g}" for rate in self._buckets.rates)
        return (
            f"Throttle({self.settings.policy}, factor={state.factor:.2f} ({state.cause}), "
            f"telemetry={state.telemetry}, rates={rates}/s, "
            f"active={sum(row.active for row in self._settlement.counters.classes)})"
        )

    def observe(self, samples: Sequence[GpuSample]) -> ControlState:
        """Process one reading of all devices of one externally read source.

        Args:
            samples: a row for each device; implausible values become None. A row older than
                the age of a stale sample no longer counts.
        """
        return self._observe(self._gpu_monitor.drop_implausible(samples), "", None)

    def _observe(self, samples: Sequence[GpuSample], source: str, interval_s: float | None) -> ControlState:
        host = self._gpu_monitor.host(self._clock())
        settlement = self._settlement
        with settlement.counters.lock:
            # Read the clock under the lock: a source that waited for it would bring a time in the past.
            now = self._clock()
            self._sampled_wall_s = time.time()
            limiter = settlement.limiter
            limiter.close_period(now)
            report, stats = self._for_fleet(limiter.report()), self._service_stats(now)
            stats = replace(stats, host_load=host.load, host_iowait=host.iowait)
            view = self._gpu_monitor.merge(samples, stats, now, source=source, interval_s=interval_s)
            self._events.extend(events.gpu_view_events(self._gpu_view, view))
            self._gpu_view = view
            if view.taken_at_s > self._gpu_view_s:
                # A timestamp in the future would make all later samples look old.
                self._gpu_view_s = min(view.taken_at_s, now)
                limiter.update_memory(view.memory_ratio)
            state = self._publish(self._controller.observe(view, report, stats, now), now)
            if self._quota is not None:
                self._quota.learn(view, now)
            self._schedule_next_read(view, state, source, now)
            settlement.call_ready(now)
            self._user_limits.sweep(now, SWEPT_PER_SAMPLE)
            self._events.extend(
                events.rejections_summary(reason, decision_label(reason), count)
                for reason, count in self._rejection_sampler.overdue(now)
            )
        self._flush_events()
        if self._guards is not None:
            self._guards.poll()
        return state

    def tick(self) -> ControlState:
        """Read every source once in the caller, with ``sampling="manual"``."""
        self._gpu_monitor.tick()
        return self.control_state()

    def control_state(self) -> ControlState:
        """Return the control state in force now, with the age of telemetry considered."""
        now = self._clock()
        with self._settlement.counters.lock:
            state = self._publish(self._controller.control_state(now, self._occupancy()), now)
        self._flush_events()
        return state

    def start(self) -> None:
        """Start reading the GPUs and return at once. Idempotent; works again after `stop` and in a fork."""
        if not self._configuration_logged:
            self._configuration_logged = True
            self._log_configuration()
        if self._store_monitor is not None:
            self._store_monitor.connect()
        if self._fleet is not None:
            self._fleet.start()
        if self._guards is not None:
            self._guards.start()
        monitor = self._gpu_monitor
        if not self._manual:
            monitor.start()
        now = self._clock()
        with self._settlement.counters.lock:
            sampling = not monitor.has_sources or self._manual or monitor.is_running
            if sampling and not self._is_sampling:
                self._controller.started(now)
            self._is_sampling = sampling
            self._publish(self._controller.control_state(now, self._occupancy()), now)
        self._flush_events()

    def _log_configuration(self) -> None:
        """Log the configuration, once."""
        from autoglm_throttle.settings.advice import startup_advice

        values = {name: self.settings.text_of(name) for name in SETTINGS}
        chosen = [name for name in SETTINGS if self.settings.source_of(name) is not SettingSource.DEFAULT]
        events.configured(values, chosen).write()
        for problem in startup_advice(self.settings):
            events.configuration_advice(problem).write()
        if self._store_monitor is not None:
            self._store_monitor.log_configuration()

    def stop(self) -> None:
        """Stop reading the GPUs. The next request starts it again. Idempotent."""
        self._gpu_monitor.stop()
        if self._guards is not None:
            self._guards.stop()
        if self._fleet is not None:
            self._fleet.stop()
        with self._settlement.counters.lock:
            self._is_sampling = False
            self._refresh_due_s = -math.inf

    def unsupported_loop(self) -> str:
        """Return why the settings cannot work in the running event loop; empty if they can."""
        return "" if self._store_monitor is None else self._store_monitor.unsupported_loop()

    def record_exempt(self) -> None:
        """Count a request that is exempt from the throttle."""
        with self._settlement.counters.lock:
            self._settlement.counters.exempt += 1

    def record_oddity(self, name: str) -> None:
        """Count a handled oddity under a name from code, never from a request."""
        with self._settlement.counters.lock:
            self._settlement.counters.oddities[name] = self._settlement.counters.oddities.get(name, 0) + 1

    def snapshot(self) -> Snapshot:
        """Return the complete state as one immutable value; takes tens of microseconds under the lock."""
        now = self._clock()
        with self._settlement.counters.lock:
            state = self._publish(self._controller.control_state(now, self._occupancy()), now)
            snapshot = self._build_snapshot(state, now)
        self._flush_events()
        guards = self._guards
        return snapshot if guards is None else replace(snapshot, guards=guards.view())

    def _build_snapshot(self, state: ControlState, now: float) -> Snapshot:
        counters, windows, limiter = self._settlement.counters, self._user_limits, self._settlement.limiter
        buckets: Sequence[HasTokens] = self._buckets.all
        by_class = list(zip(Priority, counters.classes, buckets, strict=True))
        requests = {(p, decision_label(Reason.OK), Reason.OK): row.admitted for p, row, _ in by_class}
        for p, row, _ in by_class:
            requests |= {(p, decision_label(reason), reason): n for reason, n in row.rejected.items()}
            requests |= {(p, "degraded", reason): n for reason, n in row.degraded.items()}
        view = limiter.view(now) if limiter.limit < math.inf else None
        pressure = dict(self._controller.pressure.terms)
        if view is not None:
            pressure["demand"] = view.pressure
        return Snapshot(
            taken_at_s=now,
            taken_at_wall_s=time.time(),
            policy=self.settings.policy,
            control=state,
            ready=self._controller.is_ready(now),
            requests=requests,
            exempt=counters.exempt,
            active={p: row.active for p, row, _ in by_class},
            outcomes={(p, outcome): n for p, row, _ in by_class for outcome, n in row.outcomes.items()},
            durations={p: row.durations.copy() for p, row, _ in by_class},
            concurrency=view,
            queue_time={p: row.queue_time.copy() for p, row, _ in by_class},
            pressure=pressure,
            would_reject={(p, reason): n for p, row, _ in by_class for reason, n in row.would_reject.items()},
            dry_run=self._dry_run,
            rate_limit_rps=dict(zip(Priority, self._buckets.rates, strict=True)),
            tokens={p: bucket.tokens(now) for p, _, bucket in by_class},
            users=windows.users,
            fleet=self._fleet_view(),
            store=self._store_monitor.view() if self._store_monitor is not None else None,
            view=self._gpu_view,
            sources=self._gpu_monitor.views(now),
            last_sample_wall_s=self._sampled_wall_s,
            controller_errors=self._gpu_monitor.error_count,
            quota=self._quota.view(now) if self._quota is not None else None,
            stale_results=counters.stale_results,
            oddities=dict(counters.oddities),
        )

    def _fleet_view(self) -> FleetView | None:
        fleet = self._fleet
        if fleet is None:
            return None
        up = fleet.leases.unavailable_since_s is None
        return FleetView(fleet.members, up, fleet.calls, fleet.failures)

    def _refresh(self) -> None:
        """Refresh control state and start sampling if needed. Called at most once per interval."""
        if self._is_sampling:
            if not self._manual:
                self._gpu_monitor.wake(self._clock())
            self.control_state()
        else:
            self.start()

    def _service_stats(self, now: float) -> ServiceStats:
        """Measure the service by its own requests."""
        counters, limiter = self._settlement.counters, self._settlement.limiter
        counts = [
            sum(column) for column in zip(*(row.durations.counts for row in counters.classes), strict=True)
        ]
        p95_s, slo_s = self._latency.update(counts, now), self.settings.slo_s
        met = self._slo_tracker.update(p95_s, slo_s, now)
        in_reach = (
            not limiter.view(now).slo_unreachable
            if self.settings.policy in factory.WITH_CONCURRENCY_LIMIT
            else met
        )
        ended = sum(row.outcomes[Outcome.SUCCESS] + row.outcomes[Outcome.SLOW] for row in counters.classes)
        return ServiceStats(
            p95_s=p95_s,
            slo_s=slo_s if in_reach else None,
            in_flight=limiter.in_flight,
            waiting=limiter.waiting,
            at_limit=limiter.in_flight >= limiter.limit,
            completed_total=ended,
            chunks_total=counters.chunks,
        )

    def _schedule_next_read(self, view: GpuView, state: ControlState, source: str, now: float) -> None:
        """Schedule the next reading of each source."""
        admitted = sum(row.admitted for row in self._settlement.counters.classes)
        busy = admitted != self._admitted_by_source.get(source, 0)
        self._admitted_by_source[source] = admitted
        self._gpu_monitor.schedule_next(view, state, self._load(view), busy=busy, now=now)
        self._set_refresh_due(state)

    def _set_refresh_due(self, state: ControlState) -> None:
        """Set the time of the next refresh by a request: by age, or at once to wake idle samplers."""
        idle = self._gpu_monitor.is_idle and not self._manual
        self._refresh_due_s = state.valid_until_s if self._is_sampling and not idle else -math.inf

    def _load(self, view: GpuView) -> float | None:
        """Return the maximum of device load, pressure and occupancy; None: only occupancy is known."""
        from autoglm_throttle.control.nominal import occupancy

        pct, pressure = view.utilization_pct, self._controller.pressure.value
        if pct is None and pressure is None:
            return None
        return max((pct or 0.0) / 100.0, pressure or 0.0, occupancy(self._occupancy()))

    def _for_fleet(self, report: LimiterReport) -> LimiterReport:
        """Add the number of processes: in a fleet they share the nominal rates."""
        return report if self._fleet is None else replace(report, processes=self._fleet.members)

    def _occupancy(self) -> LimiterReport:
        """Return limiter occupancy, without consuming the rejection counter."""
        limiter = self._settlement.limiter
        return LimiterReport(in_flight=limiter.in_flight, limit=limiter.limit)

    def _publish(self, state: ControlState, now: float) -> ControlState:
        before, self._control_state = self._control_state, state
        self._set_refresh_due(state)
        if state is not before:
            if state.ceilings != before.ceilings:
                self._buckets.rescale(state.ceilings, now)
            self._is_open = state.factor > 0.0
            if self._quota is not None:
                self._quota.factor = state.factor
            self._budget_active = state.budget_rps is not None
            self._shared_budget.rescale(state.budget_rps, state.term, now)
            self._events.extend(events.control_events(before, state, self._gpu_view, now))
        return state

    def _create_gpu_monitor(self, gpu: GpuProvider | Sequence[GpuProvider] | None) -> GpuMonitor:
        self_ref = weakref.ref(self)

        def on_samples(rows: Sequence[GpuSample], source: str, interval_s: float | None) -> None:
            throttle = self_ref()
            if throttle is not None:
                throttle._observe(rows, source, interval_s)  # noqa: SLF001 - a method of this class

        def on_sources_lost(source_lost: bool) -> None:
            throttle = self_ref()
            if throttle is not None:
                throttle._on_sources_lost(source_lost)  # noqa: SLF001 - as above

        from autoglm_throttle.gpu.monitor import (  # deferred: keeps the import of the package small
            GpuMonitor,
            SampleListener,
        )

        sources = factory.gpu_sources(self.settings, gpu, self._clock, manual=self._manual)
        return GpuMonitor(self.settings, sources, SampleListener(on_samples, on_sources_lost), self._clock)

    def _on_sources_lost(self, source_lost: bool) -> None:
        """Publish the loss of the last source; ``source_lost``: a source existed or is configured."""
        now = self._clock()
        with self._settlement.counters.lock:
            self._publish(
                self._controller.source_lost(now) if source_lost else self._controller.no_source(now), now
            )
        self._flush_events()

    def _after_fork(self) -> None:
        """Replace the lock, counters and waiters: a thread of the parent may have held the lock."""
        self._user_limits.repair()
        counters = Counters(self._clock)
        if self._store_monitor is not None:
            self._store_monitor.reset_after_fork(counters)
        if self._fleet is not None:
            self._fleet.reset_after_fork(counters.lock)
        # Permits issued by the parent still settle into the old counters, under the new lock.
        self._settlement.counters.adopt_lock(counters)
        self._settlement = Settlement(counters, factory.concurrency_limiter(self.settings, self._clock()))
        if self._quota is not None:
            self._quota.reset_after_fork()
        self._reset_guards_after_fork()
        self._latency = type(self._latency)(DURATION_BUCKETS_S)
        self._is_sampling = False
        self._refresh_due_s = -math.inf


_THROTTLES: weakref.WeakSet[Throttle] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for throttle in list(_THROTTLES):
        throttle._after_fork()  # noqa: SLF001 - a method of this module's class


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
