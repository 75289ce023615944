"""Policy ``adaptive``: the tier table, stabilized by the concurrency limiter.

The table acts only while the limiter reports queued or rejected requests, and never cuts the rates
below the measured throughput. So a GPU busy with full batches keeps its rates, and no cut empties the GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoglm_throttle.control.signal import SignalTracker
from autoglm_throttle.control.staleness import BLEND_STEP_S, CURRENT_STATES
from autoglm_throttle.control.tiers import NominalController, TierController, occupancy, tier_factor
from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import (
    ControlCause,
    ControlState,
    GpuView,
    LimiterReport,
    ServiceStats,
    TelemetryState,
)


@dataclass(slots=True)
class _OverloadStreak:
    """Samples in a row with and without overload that the limiter confirms."""

    strikes: int = 0  # Hot samples in a row with confirmed overload
    calm: int = 0  # Samples in a row without confirmed overload
    confirmed: bool = False  # Whether the newest report confirms overload
    # Whether a report beside no new sample confirmed overload: the limiter reports each only once.
    is_pending: bool = False

    def step(self, *, is_hot: bool, is_explained: bool) -> None:
        """Count a new sample; nothing counts as confirmed that is explained by another cause than load."""
        confirmed = (self.confirmed or self.is_pending) and not is_explained
        self.is_pending = False
        self.strikes = self.strikes + 1 if confirmed and is_hot else 0
        self.calm = 0 if confirmed else self.calm + 1


class _Budget:
    """One budget for all classes, with the ceiling of each class as a share of its rate."""

    def __init__(self, rates: tuple[float, float, float]) -> None:
        self._undivided = rates
        self._rates = rates
        self.nominal_rps: float = sum(rates)
        self.rps: float = self.nominal_rps
        self.ceilings: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def divide(self, processes: int) -> None:
        """Use this process's part of the nominal rates: the limiter's report covers this process alone."""
        high, mid, low = (rate / processes for rate in self._undivided)
        self._rates = (high, mid, low)
        self.nominal_rps = high + mid + low

    def cut(self, share: float) -> None:
        """Set the budget and each ceiling to a share of the nominal rates."""
        self.rps = share * self.nominal_rps
        self.ceilings = (share, share, share)

    def raise_to(self, floor_rps: float, capacity: float) -> None:
        """Raise the budget and each ceiling to a rate, but not above the usable share of the devices."""
        self.rps = min(capacity * self.nominal_rps, max(self.rps, floor_rps))
        high, mid, low = (
            min(1.0, max(ceiling, floor_rps / rate))
            for ceiling, rate in zip(self.ceilings, self._rates, strict=True)
        )
        self.ceilings = (high, mid, low)


class AdaptiveController:
    """Strikes only while the limiter confirms overload; one budget for all classes while it cuts or holds.

    Rejections of the token buckets and of the budget never confirm: such a cut stays in force by itself. The
    ``rates`` are the nominal requests per second for high, mid and low of this process, each > 0.
    """

    def __init__(
        self, settings: ControlSettings, gpu: GpuSettings, rates: tuple[float, float, float], now: float
    ) -> None:
        self._settings = settings
        self._table = TierController(settings, gpu, now)
        self.tracker: SignalTracker = self._table.tracker
        self._overload = _OverloadStreak()
        self._budget = _Budget(rates)
        self._acts = False
        self._tier = 1.0
        self._cause = ControlCause.CALM
        self._occupancy = 0.0
        self._confirmed_s = -math.inf  # Time of the newest report that confirmed overload
        self._release_s = settings.adaptive_release_samples * gpu.sample_interval_s
        self._factor, self._since_s = 1.0, now
        self.control_state(now)

    def observe(self, view: GpuView, report: LimiterReport, stats: ServiceStats, now: float) -> ControlState:
        """Strike, cut, hold or release, once for each new sample."""
        self._overload.confirmed = report.confirmed
        self._take(report, now)
        self._budget.divide(report.processes)
        self._table.observe(view, report, stats, now)
        sample = self._table.sample
        # A service that admits nothing, since all devices were lost, cannot confirm overload.
        if sample is not None and self.tracker.admitted_share(now):
            pct, after_outage = sample
            if after_outage:
                self._overload.strikes, self._overload.is_pending = 0, False
            self._step(pct, report.service_rps, now)
        else:
            self._overload.is_pending = self._overload.is_pending or report.confirmed
            if self._acts:
                self._hold(report.service_rps, now)
        return self.control_state(now)

    def control_state(self, now: float, report: LimiterReport | None = None) -> ControlState:
        """Return the ControlState in force, valid until its ``valid_until_s``."""
        if report is not None:
            self._take(report, now)
            self._overload.is_pending = self._overload.is_pending or report.confirmed
        tracker, table_state = self.tracker, self._table.control_state(now)
        state, share = tracker.state(now), tracker.admitted_share(now)
        is_old = state in {TelemetryState.STALE, TelemetryState.BLIND}
        # Without samples only the limiter's own reports show whether the overload lasts.
        if self._acts and is_old and share and now - self._confirmed_s > self._release_s:
            self._acts, self._cause = False, ControlCause.CALM
        acts = self._acts and (is_old or state in CURRENT_STATES) and share == 1.0
        budget_rps = self._budget.rps if acts else None
        factor = share if budget_rps is None else budget_rps / self._budget.nominal_rps
        valid_until_s = tracker.valid_until(state, now)
        if acts and is_old:
            valid_until_s = min(valid_until_s, now + BLEND_STEP_S)
        may_rise_at_s = 0.0 if factor else tracker.readmits_at(now)
        if factor != self._factor:
            self._factor, self._since_s = factor, now
        # The load of the GPU counts alone only if the limiter confirms it.
        load = tracker.load(state)
        if load is None or not self._overload.confirmed:
            load = self._occupancy if load is None else min(load, self._occupancy)
        return ControlState(
            factor=factor,
            tier=self._tier if acts else 1.0,
            load=load,
            since_s=self._since_s,
            cause=tracker.cause(state, share, self._cause),
            telemetry=state,
            valid_until_s=valid_until_s if factor else min(valid_until_s, may_rise_at_s),
            may_rise_at_s=may_rise_at_s,
            ceilings=self._budget.ceilings if acts else (share, share, share),
            budget_rps=budget_rps,
            table_factor=table_state.factor,
            armed=acts,
            signal=tracker.signal,
            term=tracker.term,
        )

    def _take(self, report: LimiterReport, now: float) -> None:
        self._occupancy = occupancy(report)
        if report.confirmed:
            self._confirmed_s = now

    def _step(self, signal_pct: float, service_rps: float | None, now: float) -> None:
        settings, tracker, overload = self._settings, self.tracker, self._overload
        # Underfed or stalled devices read hot without load: no strike then.
        overload.step(
            is_hot=signal_pct > settings.tiers[0][0], is_explained=tracker.effect.explains(tracker.signal)
        )
        if overload.strikes >= settings.tier_samples and tracker.is_trusted:
            self._acts, self._cause = True, ControlCause.TIER
            self._tier = tier_factor(settings.tiers, signal_pct)
            self._budget.cut(self._tier * tracker.capacity(now))
            self._hold(service_rps, now)
        elif overload.calm >= settings.adaptive_release_samples or not self._acts:
            resting = ControlCause.STRIKE if overload.strikes else ControlCause.CALM
            self._cause = ControlCause.RELEASED if self._acts else resting
            self._acts = False
        else:
            self._hold(service_rps, now)
            self._cause = ControlCause.HELD

    def _hold(self, service_rps: float | None, now: float) -> None:
        """Raise the budget and each ceiling to the measured service rate times the headroom."""
        # Until a request has ended the service rate is unknown: assume 1 per second.
        floor_rps = self._settings.adaptive_headroom * (service_rps or 1.0)
        self._budget.raise_to(floor_rps, self.tracker.capacity(now))


# All policies: each decides, from every view of the GPUs, the share of the nominal rates to refill.
Controller = AdaptiveController | TierController | NominalController
