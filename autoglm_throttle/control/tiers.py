"""Policy ``tiers``: strikes, bands and hysteresis, and policies that keep the nominal rates."""

from __future__ import annotations

from autoglm_throttle.control.signal import SignalTracker, VerdictEffect
from autoglm_throttle.control.staleness import SAMPLES_TO_TRUST
from autoglm_throttle.settings.groups.control import ControlSettings, Tiers
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import (
    ControlCause,
    ControlState,
    GpuView,
    LimiterReport,
    MissingTelemetryMode,
    Policy,
    ServiceStats,
)


def tier_factor(tiers: Tiers, signal_pct: float) -> float:
    """Return the factor of the highest edge below the signal, else 1; an edge is not below itself."""
    factor = 1.0
    for edge_pct, step in tiers:
        if signal_pct > edge_pct:
            factor = step
    return factor


class _VerdictCap:
    """The maximum factor that the verdicts allow: it falls at once, and rises by steps."""

    def __init__(self, recovery_step: float) -> None:
        self._recovery_step = recovery_step
        # New samples that must allow more before the maximum rises.
        self.samples_to_rise: int = SAMPLES_TO_TRUST
        self.factor: float = 1.0
        self.cause: ControlCause | None = None  # Cause of the newest reduction

    def follow(self, effect: VerdictEffect) -> None:
        """Apply the effect of the verdicts at a new sample."""
        self.samples_to_rise = self.samples_to_rise - 1 if effect.factor > self.factor else SAMPLES_TO_TRUST
        if effect.factor < self.factor:
            self.factor, self.cause = effect.factor, effect.cause
        elif self.samples_to_rise <= 0:
            self.factor = min(effect.factor, self.factor + self._recovery_step)


class TierController:
    """Applies the table once for each new sample, with or without traffic."""

    def __init__(self, settings: ControlSettings, gpu: GpuSettings, now: float) -> None:
        self.tracker: SignalTracker = SignalTracker(settings, gpu, now)
        # New sample of the last view, and whether it came after an outage; None: the view held none.
        self.sample: tuple[float, bool] | None = None
        self._settings = settings
        self._strikes = 0
        self._calm = 0
        # GPU_UNKNOWN=closed admits nothing before the first sample.
        self._tier = 0.0 if gpu.gpu_unknown is MissingTelemetryMode.CLOSED else 1.0
        self._cause = ControlCause.CALM
        self._held = 1.0  # The factor when the engines vanished, whose signal another one replaces
        self._cap = _VerdictCap(settings.tier_recovery_step)
        self._factor, self._since_s = 1.0, now
        self.control_state(now)

    def observe(self, view: GpuView, _report: LimiterReport, stats: ServiceStats, now: float) -> ControlState:
        """Apply the table to a new view; the limiter's report is ignored."""
        tracker, had_vanished = self.tracker, self.tracker.has_vanished
        held = min(tracker.drifted_factor(self._tier, now), tracker.ceiling(self._held, now))
        sample = self.sample = tracker.observe(view, stats, now)
        if tracker.has_vanished and not had_vanished:
            self._held = self._tier
        if sample is not None:
            pct, after_outage = sample
            if after_outage:
                self._tier = held
                self._strikes = self._calm = 0
            self._step(pct, now)
            self._cap.follow(tracker.effect)
        return self.control_state(now)

    def control_state(self, now: float, _report: LimiterReport | None = None) -> ControlState:
        """Return the ControlState in force, valid until its ``valid_until_s``."""
        tracker = self.tracker
        expects = tracker.expects_source
        state, capacity = tracker.state(now), tracker.capacity(now)
        remaining_share = tracker.drifted_factor(min(self._tier, self._cap.factor), now)
        ceiling = tracker.ceiling(self._held, now)
        cause = ControlCause.HELD if ceiling < remaining_share else self._cause
        remaining_share = min(remaining_share, ceiling)
        factor = capacity * remaining_share if expects else 1.0
        capped = self._cap.cause if self._cap.factor < self._tier else None
        may_rise_at_s = 0.0 if factor else self._may_rise_at(capacity, remaining_share, now)
        valid_until_s = tracker.valid_until(state, now)
        if factor != self._factor:
            self._factor, self._since_s = factor, now
        return ControlState(
            factor=factor,
            tier=min(self._tier, ceiling) if expects else 1.0,
            load=tracker.load(state),
            since_s=self._since_s,
            cause=tracker.cause(state, capacity, capped or cause),
            telemetry=state,
            valid_until_s=valid_until_s if factor else min(valid_until_s, may_rise_at_s),
            may_rise_at_s=may_rise_at_s,
            ceilings=(factor, factor, factor),
            table_factor=factor,
            armed=expects,
            signal=tracker.signal,
            term=tracker.term,
        )

    def _step(self, signal_pct: float, now: float) -> None:
        settings = self._settings
        self._strikes = self._strikes + 1 if signal_pct > settings.tiers[0][0] else 0
        want = tier_factor(settings.tiers, signal_pct) if self._strikes >= settings.tier_samples else 1.0
        up = tier_factor(settings.tiers, signal_pct + settings.tier_release_margin_pct)
        if want < self._tier:
            self._tier, self._calm, self._cause = want, 0, ControlCause.TIER
        elif up > self._tier and self.tracker.may_release(now):
            self._calm += 1
            self._cause = ControlCause.HELD
            if self._calm >= settings.tier_release_samples:
                self._tier = min(up, self._tier + settings.tier_recovery_step)
                self._cause = ControlCause.RELEASED
        else:
            self._calm = 0
            if self._tier == 1.0:
                self._cause = ControlCause.STRIKE if self._strikes else ControlCause.CALM
            else:
                self._cause = ControlCause.TIER if want == self._tier else ControlCause.HELD

    def _may_rise_at(self, capacity: float, remaining_share: float, now: float) -> float:
        """Time of the first sample that could raise a factor of 0, held by a loss, a stall or the table."""
        tracker = self.tracker
        back_s = 0.0 if capacity else tracker.readmits_at(now)
        if remaining_share:
            return back_s
        if self._tier and not self._cap.factor:
            return max(back_s, tracker.sampled_at(self._cap.samples_to_rise, now))
        return max(back_s, tracker.release_at(self._settings.tier_release_samples, self._calm, now))


class NominalController:
    """Policies ``fixed`` and ``concurrency``: the nominal rates stay; the table's factor is only reported.

    Under ``concurrency`` the load is the occupancy of the concurrency limit, under ``fixed`` it is unknown.
    """

    def __init__(self, settings: ControlSettings, gpu: GpuSettings, now: float) -> None:
        self._table = TierController(settings, gpu, now)
        self.tracker: SignalTracker = self._table.tracker
        self._since_s = now
        self._load = 0.0 if settings.policy is Policy.CONCURRENCY else None

    def observe(self, view: GpuView, report: LimiterReport, stats: ServiceStats, now: float) -> ControlState:
        """Process a view, and record the occupancy; the rates stay."""
        self._table.observe(view, report, stats, now)
        return self.control_state(now, report)

    def control_state(self, now: float, report: LimiterReport | None = None) -> ControlState:
        """Return the nominal rates and the occupancy."""
        if report is not None and self._load is not None:
            self._load = occupancy(report)
        table = self._table.control_state(now)
        return ControlState(
            factor=1.0,
            tier=1.0,
            load=self._load,
            since_s=self._since_s,
            cause=ControlCause.POLICY,
            telemetry=table.telemetry,
            valid_until_s=table.valid_until_s,
            table_factor=table.table_factor,
            signal=table.signal,
            term=table.term,
        )


def occupancy(report: LimiterReport) -> float:
    """Share of the concurrency limit in flight, 0..1; 0 without a limit, 1 after it sank below them."""
    return min(1.0, report.in_flight / report.limit)
