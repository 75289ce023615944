"""The control loop: GPU samples and the limiter's own measurements become the control state in force."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from autoglm_throttle._runtime import weak_method
from autoglm_throttle.admission.controller import AdmissionController
from autoglm_throttle.admission.counters import DURATION_BUCKETS_S
from autoglm_throttle.control.latency import LatencyPercentile
from autoglm_throttle.control.scaling import ReplicasRatio
from autoglm_throttle.control.staleness import CURRENT_STATES
from autoglm_throttle.control.tiers import occupancy
from autoglm_throttle.events import device_events, objective_learned, verdict_events
from autoglm_throttle.gpu.host import HostLoad
from autoglm_throttle.gpu.monitor import GpuMonitor
from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter
from autoglm_throttle.settings import Settings
from autoglm_throttle.types import (
    ControlState,
    GpuProvider,
    GpuSample,
    GpuView,
    LimiterReport,
    Outcome,
    Policy,
    ServiceStats,
)

if TYPE_CHECKING:
    from autoglm_throttle.admission.nginx_flags import NginxFlags
    from autoglm_throttle.control.adaptive import Controller

# Factor between the learned objective and the first one from which an event reports it.
LEARNED_SLO_CHANGE = 1.5

# Longest time between two looks at a learned objective that was not reported yet, while requests arrive.
OBJECTIVE_CHECK_S = 10.0

SWEPT_PER_SAMPLE = 100  # Users checked for idleness with each GPU sample: tens of microseconds under the lock


class ControlLoop:
    """Passes each reading of the GPUs to the controller, and puts its answer into force.

    Readings arrive on the threads of the `GpuMonitor`; this is its listener. A request wakes idle samplers
    if it ``wakes_samplers``: not with ``sampling="manual"``.
    """

    def __init__(
        self,
        settings: Settings,
        controller: Controller,
        admission: AdmissionController,
        providers: Sequence[GpuProvider],
        *,
        wakes_samplers: bool,
    ) -> None:
        self.controller: Controller = controller
        self.gpu_view: GpuView | None = None  # The newest view of the devices
        self.sampled_wall_s: float | None = None  # Unix time of the newest sample
        # Whether the control state is kept up to date; otherwise each request asks for the start.
        self.is_sampling: bool = False
        self.after_sample: Callable[[], object] | None = None  # Called after each sample, without the lock
        self._admission = admission
        self._settlement = admission.parts.settlement
        self._latency = LatencyPercentile(DURATION_BUCKETS_S)
        self._replicas = ReplicasRatio()
        self._wakes_samplers = wakes_samplers
        limits = self._settlement.limiter.view(self._clock())
        # Objective until one is learned; None: one is set, or the event that it was learned was queued.
        self._first_slo_s: float | None = limits.slo_s if limits.slo_learned else None
        self._memory_s = -math.inf  # When the memory last passed to the limiter was measured
        self._engines_s: float | None = None  # The same of the cache of the engines
        # Source name -> number of requests admitted at its newest reading.
        self._admitted_by_source: dict[str, int] = {}
        self.monitor: GpuMonitor = GpuMonitor(
            settings.gpu, settings.verdict, providers, self.observe, self.source_lost, self._settlement.clock
        )
        # Not with ``sampling="manual"``, which runs no threads.
        self.nginx_flags: NginxFlags | None = self._create_flags(settings) if wakes_samplers else None
        if not self.monitor.has_sources:
            # With GPU=none a warning is due only where the tier table can never act.
            acts_by_table = settings.control.policy is Policy.TIERS
            admission.expects_gpu = acts_by_table or "none" not in settings.gpu.gpu
            now = self._clock()
            controller.tracker.no_source()
            self._publish(controller.control_state(now), now)

    def observe(self, samples: Sequence[GpuSample], source: str, interval_s: float | None) -> ControlState:
        """Process one reading of one source, a row for each device; return the control state in force.

        The source promises its next reading in ``interval_s``, if it knows.
        """
        parts = self._admission.parts
        host = self.monitor.host(self._clock())
        with parts.settlement.lock:
            # Read the clock under the lock: a source that waited for it would bring a time in the past.
            now = self._clock()
            self.sampled_wall_s = time.time()
            parts.settlement.limiter.close_period(now)
            report = self._limiter_report()
            stats = self._service_stats(host, now)
            view = self.monitor.merge(samples, stats, now, source=source, interval_s=interval_s)
            known = () if self.gpu_view is None else self.gpu_view.devices
            parts.events.waiting += device_events(known, view.devices)
            parts.events.waiting += verdict_events(self.gpu_view, view)
            self._update_memory(view, now)
            self.gpu_view = view
            state = self._publish(self.controller.observe(view, report, stats, now), now)
            if parts.quota is not None:
                parts.quota.learn(view, now)
            self.replicas_ratio(now)
            self._schedule_next_read(view, state, source, now)
            parts.settlement.call_ready(now)
            parts.user_limits.sweep(now, SWEPT_PER_SAMPLE)
            if parts.token_limits is not None:
                parts.token_limits.sweep(now, SWEPT_PER_SAMPLE)
            parts.events.summarize(now)
        self._admission.flush()
        if self.after_sample is not None:
            self.after_sample()
        return state

    def source_lost(self, existed: bool) -> None:
        """Publish the loss of the last source; ``existed``: there was one, or one is configured."""
        now = self._clock()
        with self._settlement.lock:
            tracker = self.controller.tracker
            (tracker.lost if existed else tracker.no_source)()
            self._settlement.limiter.update_cache(None, None)
            self._publish(self.controller.control_state(now), now)
        self._admission.flush()

    def started(self) -> None:
        """Record that the GPUs are read from now on, if they are."""
        now = self._clock()
        with self._settlement.lock:
            # Looked at under the lock: another thread may stop the sampling meanwhile.
            is_sampling = not self._wakes_samplers or not self.monitor.has_sources or self.monitor.is_running
            if is_sampling and not self.is_sampling:
                self.controller.tracker.started(now)
            self.is_sampling = is_sampling
            self.current(now)
        self._admission.flush()
        if self.nginx_flags is not None:
            self.nginx_flags.start()

    def stopped(self) -> None:
        """Record that the GPUs are no longer read; the next request starts it again."""
        if self.nginx_flags is not None:
            self.nginx_flags.stop()
        with self._settlement.lock:
            self.is_sampling = False
            self._publish(self._admission.control_state, self._clock())

    def state(self) -> ControlState:
        """Return the control state in force now, with the age of telemetry considered."""
        with self._settlement.lock:
            state = self.current(self._clock())
        self._admission.flush()
        return state

    def current(self, now: float) -> ControlState:
        """Return the control state in force now; called under the lock."""
        # Without new samples only this report shows whether the overload lasts.
        is_old = self.controller.tracker.state(now) not in CURRENT_STATES
        report = self._limiter_report() if is_old else self._occupancy()
        return self._publish(self.controller.control_state(now, report), now)

    def refresh(self, now: float) -> None:
        """Refresh the control state, and wake idle or crashed samplers. Called at most once per interval."""
        if self._wakes_samplers:
            self.monitor.wake(now)
        if self.nginx_flags is not None:
            self.nginx_flags.restart_if_dead(now)
        self.state()

    def factor_for_nginx(self) -> float:
        """Return the factor by which nginx may reject requests; in a dry run it may reject none."""
        if self._admission.parts.dry_run:
            return 1.0
        factor = self.state().factor
        if factor < 1.0:  # nginx may let no request through that would restart a crashed sampler
            self.monitor.wake(self._clock())
        return factor

    def pressure(self, now: float) -> dict[str, float]:
        """Return the known terms of the pressure: load over its target."""
        terms = dict(self.controller.tracker.pressure.terms)
        limiter = self._settlement.limiter
        if limiter.limit < math.inf:
            terms["demand"] = limiter.view(now).pressure
        return terms

    def replicas_ratio(self, now: float) -> float | None:
        """Return the wanted replicas over the present ones; None: not known. Called under the lock."""
        ratio = self._replicas.update(terms := self.pressure(now), now)
        # Without the demand the other terms would mislead: they are low while requests are rejected.
        return ratio if "demand" in terms else None

    def _create_flags(self, settings: Settings) -> NginxFlags | None:
        if settings.control.nginx_flags_dir is None:
            return None
        from autoglm_throttle.admission.nginx_flags import NginxFlags, tier_factors

        flags = NginxFlags(
            Path(settings.control.nginx_flags_dir),
            tier_factors(settings),
            weak_method(self.factor_for_nginx),
            partial(self._admission.record_oddity, "nginx_flags"),
            f"{settings.store.service}, {tier_factors(settings)}",
            self._settlement.clock,
        )
        flags.stop_with(self)
        return flags

    def _clock(self) -> float:
        return self._settlement.clock()

    def _publish(self, state: ControlState, now: float) -> ControlState:
        idle = self._wakes_samplers and self.monitor.is_idle
        # By age; at once where a request must wake idle samplers or start the sampling.
        due_s = state.valid_until_s if self.is_sampling and not idle else -math.inf
        if self._first_slo_s is not None:  # without a source no sample would look at the objective again
            due_s = min(due_s, now + OBJECTIVE_CHECK_S)
            self._report_objective(self._first_slo_s)
        self._admission.apply(state, self.gpu_view, due_s, now)
        return state

    def _report_objective(self, first_s: float) -> None:
        """Queue the event, once, that the learned objective is far from the first one."""
        slo_s = self._settlement.limiter.slo_s
        if not first_s / LEARNED_SLO_CHANGE <= slo_s <= first_s * LEARNED_SLO_CHANGE:
            self._first_slo_s = None
            self._admission.parts.events.waiting.append(objective_learned(slo_s, first_s))

    def _update_memory(self, view: GpuView, now: float) -> None:
        """Pass the memory and the cache of a view to the limiter, unless newer ones were passed."""
        if view.kv_used_ratio is None or view.engines_at_s != self._engines_s:
            self._engines_s = view.engines_at_s
            self._settlement.limiter.update_cache(view.kv_used_ratio, view.running)
        if view.taken_at_s > self._memory_s:
            # A timestamp in the future would make all later samples look old.
            self._memory_s = min(view.taken_at_s, now)
            self._settlement.limiter.update_memory(view.memory_ratio)

    def _schedule_next_read(self, view: GpuView, state: ControlState, source: str, now: float) -> None:
        """Schedule the next reading of each source."""
        admitted = self._settlement.counters.admitted
        busy = admitted != self._admitted_by_source.get(source, 0)
        self._admitted_by_source[source] = admitted
        self.monitor.schedule_next(view, state, self._load(view), busy=busy, now=now)
        self._publish(state, now)

    def _load(self, view: GpuView) -> float | None:
        """Return the maximum of device load, pressure and occupancy; None: only occupancy is known."""
        pct, pressure = view.utilization_pct, self.controller.tracker.pressure.value
        if pct is None and pressure is None:
            return None
        return max((pct or 0.0) / 100.0, pressure or 0.0, occupancy(self._occupancy()))

    def _limiter_report(self) -> LimiterReport:
        """Return the limiter's report, with the number of processes: a fleet shares the nominal rates."""
        parts = self._admission.parts
        report = parts.settlement.limiter.report()
        return report if parts.fleet is None else replace(report, processes=parts.fleet.leases.members)

    def _occupancy(self) -> LimiterReport:
        """Return limiter occupancy, without consuming the rejection counter."""
        limiter = self._settlement.limiter
        return LimiterReport(in_flight=limiter.in_flight, limit=limiter.limit)

    def _service_stats(self, host: HostLoad, now: float) -> ServiceStats:
        """Measure the service by its own requests; called under the lock, once for each sample."""
        counters, limiter = self._settlement.counters, self._settlement.limiter
        counts = [
            sum(column) for column in zip(*(row.durations.counts for row in counters.classes), strict=True)
        ]
        p95_s = self._latency.update(counts, now)
        slo_s = limiter.slo_s
        in_reach = self._latency.was_met(slo_s, now)
        if isinstance(limiter, AdaptiveConcurrencyLimiter):  # it knows the latency without load
            in_reach = not limiter.view(now).slo_unreachable
        ended = sum(row.outcomes[Outcome.SUCCESS] + row.outcomes[Outcome.SLOW] for row in counters.classes)
        return ServiceStats(
            p95_s=p95_s,
            slo_s=slo_s if in_reach else None,
            in_flight=limiter.in_flight,
            waiting=limiter.waiting,
            at_limit=limiter.in_flight >= limiter.limit,
            completed_total=ended,
            chunks_total=counters.chunks,
            host_load=host.load,
            host_iowait=host.iowait,
            host_pressure=host.pressure,
            host_throttled=host.throttled,
        )
