"""Policy ``tiers``: strikes, bands and hysteresis, taken literally."""

from __future__ import annotations

from autoglm_throttle.control.capacity import SAMPLES_TO_TRUST
from autoglm_throttle.control.pressure import Pressure
from autoglm_throttle.control.signal import SignalTracker
from autoglm_throttle.control.table import TierTable
from autoglm_throttle.control.verdict_effect import VerdictEffect
from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import (
    ControlCause,
    ControlState,
    GpuView,
    LimiterReport,
    MissingTelemetryMode,
    ServiceStats,
)


class _VerdictCap:
    """The maximum factor that the verdicts allow: it falls at once, and rises by steps."""

    def __init__(self, recovery_step: float) -> None:
        self._recovery_step = recovery_step
        self._calm = 0
        self.factor: float = 1.0
        self.cause: ControlCause | None = None
        """Cause of the newest reduction."""

    @property
    def samples_to_rise(self) -> int:
        """New samples that must allow more before the maximum rises."""
        return SAMPLES_TO_TRUST - self._calm

    def follow(self, effect: VerdictEffect) -> None:
        """Apply the effect of the verdicts at a new sample."""
        self._calm = self._calm + 1 if effect.factor > self.factor else 0
        if effect.factor < self.factor:
            self.factor, self.cause = effect.factor, effect.cause
        elif self._calm >= SAMPLES_TO_TRUST:
            self.factor = min(effect.factor, self.factor + self._recovery_step)


class TierController:
    """Applies the table once for each new sample, with or without traffic.

    Args:
        settings: the signal, the table and its hysteresis.
        gpu: targets of the pressure, and the handling of late samples.
        now: monotonic seconds.
    """

    def __init__(self, settings: ControlSettings, gpu: GpuSettings, now: float) -> None:
        self._tracker = SignalTracker(settings, gpu, now)
        self._table = TierTable(settings.tiers)
        self._settings = settings
        self._strikes = 0
        self._calm = 0
        # GPU_UNKNOWN=closed admits nothing before the first sample.
        self._tier = 0.0 if gpu.gpu_unknown is MissingTelemetryMode.CLOSED else 1.0
        self._cause = ControlCause.CALM
        self._cap = _VerdictCap(settings.tier_recovery_step)
        self._control_state = self._publish(now, since_s=now)

    @property
    def pressure(self) -> Pressure:
        """The pressure at the newest view."""
        return self._tracker.pressure

    def is_ready(self, now: float) -> bool:
        """Whether at least one device is not stalled, by telemetry that is not too old."""
        return self._tracker.is_ready(now)

    def started(self, now: float) -> None:
        """Restart the wait for the first sample."""
        self._tracker.started(now)

    def observe(self, view: GpuView, _report: LimiterReport, stats: ServiceStats, now: float) -> ControlState:
        """Apply the table to a new view; the limiter's report is ignored."""
        held = self._tracker.drifted_factor(self._tier, now)
        sample = self._tracker.observe(view, stats, now)
        if sample is not None:
            if sample.after_outage:
                self._tier = held
                self._strikes = self._calm = 0
            self._step(sample.pct, now)
            self._cap.follow(self._tracker.effect)
        return self._publish(now)

    def control_state(self, now: float, _report: LimiterReport | None = None) -> ControlState:
        """Return the ControlState in force, valid until its ``valid_until_s``."""
        return self._publish(now)

    def no_source(self, now: float) -> ControlState:
        """Continue without a source: the nominal rates, since no sample is missing."""
        self._tracker.no_source()
        return self._publish(now)

    def source_lost(self, now: float) -> ControlState:
        """Count telemetry as blind at once, as after a long outage."""
        self._tracker.lost()
        return self._publish(now)

    def _step(self, signal_pct: float, now: float) -> None:
        table, settings = self._table, self._settings
        self._strikes = self._strikes + 1 if signal_pct > table.edge_pct else 0
        want = table.factor(signal_pct) if self._strikes >= settings.tier_samples else 1.0
        up = table.factor(signal_pct + settings.tier_release_margin_pct)
        if want < self._tier:
            self._tier, self._calm, self._cause = want, 0, ControlCause.TIER
        elif up > self._tier and self._tracker.may_release(now):
            self._calm += 1
            self._cause = ControlCause.HELD
            if self._calm >= settings.tier_release_samples:
                self._tier = min(up, self._tier + settings.tier_recovery_step)
                self._cause = ControlCause.RELEASED
        else:
            self._calm = 0
            self._cause = self._resting(want)

    def _resting(self, want: float) -> ControlCause:
        if self._tier == 1.0:
            return ControlCause.STRIKE if self._strikes else ControlCause.CALM
        return ControlCause.TIER if want == self._tier else ControlCause.HELD

    def _may_rise_at(self, capacity: float, remaining_share: float, now: float) -> float:
        """Time of the first sample that could raise a factor of 0, held by a loss, a stall or the table."""
        tracker = self._tracker
        back_s = 0.0 if capacity else tracker.readmits_at(now)
        if remaining_share:
            return back_s
        if self._tier and not self._cap.factor:
            return max(back_s, tracker.sampled_at(self._cap.samples_to_rise, now))
        return max(back_s, tracker.release_at(self._settings.tier_release_samples, self._calm, now))

    def _publish(self, now: float, since_s: float | None = None) -> ControlState:
        tracker = self._tracker
        expects = tracker.expects_source
        state, capacity = tracker.state(now), tracker.capacity(now)
        remaining_share = tracker.drifted_factor(min(self._tier, self._cap.factor), now)
        factor = capacity * remaining_share if expects else 1.0
        capped = self._cap.cause if self._cap.factor < self._tier else None
        may_rise_at_s = 0.0 if factor else self._may_rise_at(capacity, remaining_share, now)
        valid_until_s = tracker.valid_until(state, now)
        if since_s is None:
            since_s = self._control_state.since_s if self._control_state.factor == factor else now
        self._control_state = ControlState(
            factor=factor,
            tier=self._tier if expects else 1.0,
            load=tracker.load(state),
            since_s=since_s,
            cause=tracker.cause(state, capacity, capped or self._cause),
            telemetry=state,
            valid_until_s=valid_until_s if factor else min(valid_until_s, may_rise_at_s),
            may_rise_at_s=may_rise_at_s,
            ceilings=(factor, factor, factor),
            table_factor=factor,
            armed=expects,
            signal=tracker.signal,
            term=tracker.term,
        )
        return self._control_state
