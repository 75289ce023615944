"""Tracks the control signal: new samples, their age, missing telemetry, and the effect of verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from autoglm_throttle.control.pressure import UNKNOWN_PRESSURE, Pressure, PressureGauge
from autoglm_throttle.control.staleness import (
    CURRENT_STATES,
    NEW_AFTER,
    SAMPLES_TO_TRUST,
    STARTING_S,
    CapacityTracker,
    Staleness,
)
from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import (
    ControlCause,
    GpuCondition,
    GpuView,
    MissingTelemetryMode,
    Policy,
    ServiceStats,
    Signal,
    TelemetryState,
)

# Time after a loss in which the table may not release: a mean without the hot device looks too good.
LOSS_HOLD_S = 30.0

_TELEMETRY_CAUSES: Final = {
    TelemetryState.NONE: ControlCause.NO_DEVICE,
    TelemetryState.STALE: ControlCause.STALE,
    TelemetryState.BLIND: ControlCause.BLIND,
}
_BELIEVED_STATES = CURRENT_STATES | {TelemetryState.STALE}
# Share left to a degraded device, far below its baseline in throughput: the mildest default tier.
DEGRADED_FACTOR: Final = 0.7
_REMAINING_SHARE: Final = {GpuCondition.STALLED: 0.0, GpuCondition.DEGRADED: DEGRADED_FACTOR}
_CAUSES: Final = (
    (GpuCondition.STALLED, ControlCause.STALLED),
    (GpuCondition.DEGRADED, ControlCause.DEGRADED),
)
# Terms of the pressure that only an engine reports. A view without one that was known is no new sample: the
# largest of the other terms would look like relief.
_ENGINE_TERMS: Final = frozenset({"queue", "kv"})
_WITHOUT_WORK: Final = frozenset({GpuCondition.STALLED, GpuCondition.IDLE})
_NO_LOAD: Final = frozenset({GpuCondition.IDLE, GpuCondition.WORKING, GpuCondition.LOST})


class VerdictEffect(NamedTuple):
    """Effect of the verdicts of one view on the controller."""

    factor: float = 1.0  # 0..1, the maximum that policy ``tiers`` admits; each device counts by its weight
    cause: ControlCause | None = None  # The worse of the two conditions behind a factor below 1
    stalled: bool = False  # Whether a usable device is stalled, and no other one works
    # Whether every busy device is underfed, so that its utilization is no reason to reject requests.
    underfed: bool = False

    def explains(self, signal: Signal) -> bool:
        """Whether a high signal is not caused by load, so that policy ``adaptive`` does not strike."""
        return self.stalled or (self.underfed and signal is Signal.UTILIZATION)


NO_EFFECT: Final = VerdictEffect()


def effect(view: GpuView) -> VerdictEffect:
    """Combine the verdicts of all usable devices; without verdicts there is no effect."""
    weighted = [
        (verdict.condition, view.weights.get(key, 1.0))
        for key, verdict in view.verdicts.items()
        if verdict.condition is not GpuCondition.LOST
    ]
    total_weight = math.fsum(weight for _, weight in weighted)
    if not total_weight:
        return NO_EFFECT
    conditions: set[GpuCondition] = {condition for condition, _ in weighted}
    remaining = math.fsum(_REMAINING_SHARE.get(condition, 1.0) * weight for condition, weight in weighted)
    return VerdictEffect(
        factor=min(1.0, remaining / total_weight),
        cause=next((cause for condition, cause in _CAUSES if condition in conditions), None),
        # In a hung collective one device may spin at 100 % while the others wait at 0 % (NVIDIA/nccl#1550).
        stalled=GpuCondition.STALLED in conditions and conditions <= _WITHOUT_WORK,
        underfed=conditions - _NO_LOAD == {GpuCondition.UNDERFED},
    )


@dataclass(slots=True)
class _SampleState:
    """The newest sample of the signal, and the samples that must follow before it is trusted."""

    pct: float | None = None
    measured_s: float | None = None  # Time of the measurement; None before the first sample
    # Time of the newest sample of each signal, whether or not it is in force now.
    newest_s: dict[Signal, float] = field(default_factory=dict)
    untrusted: int = 0  # New samples that must still come after an outage
    # While another signal replaces that of the engines: the age limits and the time of its newest sample.
    vanished: tuple[Staleness, float] | None = None


class _DeviceLosses:
    """Tracks lost devices: the usable share, and how long a report of a loss or a stall holds."""

    def __init__(self, staleness: Staleness, now: float) -> None:
        self.capacity: CapacityTracker = CapacityTracker(staleness, now)
        # Admitted share; any device counts as all of them, so a partial loss does not lower it.
        self.admitted_share: CapacityTracker = CapacityTracker(staleness, now)
        self.release_s: float = -math.inf  # Time before which the table may not release
        self._usable = 1.0
        self._engines = 0
        self.lost_until_s: float = -math.inf  # Time until which the loss of all devices is believed
        self.known_until_s: float = -math.inf

    def observe(self, view: GpuView, staleness: Staleness, now: float) -> None:
        """Process a view; a loss holds the release: a mean without the lost device looks too good."""
        usable = _usable(view)
        # So does the pressure without one of several engines; without the last one another signal counts.
        if usable < self._usable or 0 < view.engines < self._engines:
            self.release_s = now + LOSS_HOLD_S
        self._usable, self._engines = usable, view.engines
        self.capacity.observe(view.capacity, view.taken_at_s, staleness, now)
        self.admitted_share.observe(1.0 if view.capacity else 0.0, view.taken_at_s, staleness, now)
        self.lost_until_s = -math.inf if view.capacity else now + staleness.stale_s
        self.known_until_s = view.taken_at_s + staleness.stale_s


class SignalTracker:
    """Tracks signal, capacity and telemetry state for every policy, from construction or `started` on."""

    def __init__(self, settings: ControlSettings, gpu: GpuSettings, now: float) -> None:
        self._settings = settings
        # The tier table has nothing but the signal; other policies have the concurrency limit as well.
        tiers = settings.policy is Policy.TIERS
        self._configured = Staleness(
            gpu, default=MissingTelemetryMode.LAST if tiers else MissingTelemetryMode.OPEN
        )
        self._staleness: Staleness = self._configured  # Age limits at the newest sample
        self._gauge = PressureGauge(gpu)
        self.expects_source: bool = True  # False once it is known that no source exists
        # The signal in force.
        self.signal: Signal = Signal.PRESSURE if settings.signal is Signal.PRESSURE else Signal.UTILIZATION
        # At the newest view, whether or not it is the signal in force.
        self.pressure: Pressure = UNKNOWN_PRESSURE
        self._engine_terms: frozenset[str] = frozenset()  # Those that were ever known
        self.effect: VerdictEffect = NO_EFFECT  # Effect of the verdicts of the newest view
        self._deadline_s = now + STARTING_S
        self._devices = _DeviceLosses(self._staleness, now)
        self._sample = _SampleState()
        # The term of the signal that decided at the newest sample.
        self.term: str = UNKNOWN_PRESSURE.term if self.signal is Signal.PRESSURE else "utilization"

    def started(self, now: float) -> None:
        """Restart the wait for the first sample: a model may have been loaded since construction."""
        self._deadline_s = now + STARTING_S

    def no_source(self) -> None:
        """Stop expecting samples: without a source none is missing."""
        self.expects_source = False
        self._devices.capacity.is_first = self._devices.admitted_share.is_first = True

    def lost(self) -> None:
        """Count telemetry as blind at once, as after a long outage."""
        self._sample.measured_s = -math.inf

    def observe(self, view: GpuView, stats: ServiceStats, now: float) -> tuple[float, bool] | None:
        """Process a view and return its sample, if it is new and holds the signal in force.

        The sample is the signal, 0..100, and whether the one before was too old to be believed.
        """
        self.expects_source = True
        staleness = self._configured.for_intervals(view.interval_s, view.period_s)
        self._devices.observe(view, staleness, now)
        self.pressure = self._gauge.measure(view, stats)
        self.effect = effect(view)
        self._engine_terms |= self.pressure.terms.keys() & _ENGINE_TERMS
        self._switch(self._in_force(view, now))
        pct, term, measured_s = self._read(view)
        gap_s = measured_s - self._sample.newest_s.get(self.signal, -math.inf)
        is_new = gap_s > NEW_AFTER * self._configured.interval_s
        if pct is None or not 0.0 <= pct <= 100.0 or not is_new:
            return None
        newest = self._sample
        is_back = newest.vanished is not None and self.signal is Signal.PRESSURE
        after_outage = is_back or self.state(now) in {TelemetryState.STALE, TelemetryState.BLIND}
        self._staleness = staleness
        newest.vanished = None if is_back else newest.vanished
        # A timestamp in the future would make all later samples look old.
        newest.newest_s[self.signal] = newest.measured_s = min(measured_s, now)
        newest.pct, self.term = pct, term
        newest.untrusted = max(0, (SAMPLES_TO_TRUST if after_outage else newest.untrusted) - 1)
        return pct, after_outage

    @property
    def is_trusted(self) -> bool:
        """Whether enough new samples have come since the last outage."""
        return not self._sample.untrusted

    def is_ready(self, now: float) -> bool:
        """Whether a device works, or none is stalled; without devices, or by too old telemetry, True."""
        losses = self._devices
        # A lost device reports nothing: its loss is as young as the reading, a stall as its measurement.
        is_stalled = self.effect.stalled and now <= losses.known_until_s
        return not (self.expects_source and (is_stalled or now <= losses.lost_until_s))

    def may_release(self, now: float) -> bool:
        """Whether a better signal may be believed: not directly after an outage or a loss."""
        return self.is_trusted and now >= self._devices.release_s

    def state(self, now: float) -> TelemetryState:
        """Telemetry state by the age of the newest sample."""
        if not self.expects_source:
            return TelemetryState.NONE
        measured_s = self._sample.measured_s
        if measured_s is None:
            return TelemetryState.STARTING if now <= self._deadline_s else TelemetryState.BLIND
        return self._staleness.state(now - measured_s)

    def load(self, state: TelemetryState) -> float | None:
        """The newest signal as 0..1; None once it is too old."""
        pct = self._sample.pct
        return pct / 100.0 if state in _BELIEVED_STATES and pct is not None else None

    def capacity(self, now: float) -> float:
        """Usable share of the devices, 0..1."""
        return self._devices.capacity.at(now)

    def admitted_share(self, now: float) -> float:
        """Admitted share, 0..1: below 1 only after the last device was lost."""
        return self._devices.admitted_share.at(now) if self.expects_source else 1.0

    def drifted_factor(self, held: float, now: float) -> float:
        """Blend a factor towards the assumed one, by the age of its signal."""
        measured_s = self._sample.measured_s
        if measured_s is None:
            return held if now <= self._deadline_s else self._staleness.assumed(held)
        return self._staleness.factor(held, now - measured_s)

    def ceiling(self, held: float, now: float) -> float:
        """Age the factor that the signal of vanished engines held; no other signal may raise it. Else 1."""
        if self._sample.vanished is None:
            return 1.0
        staleness, measured_s = self._sample.vanished
        return staleness.factor(held, now - measured_s)

    @property
    def has_vanished(self) -> bool:
        """Whether the engines are silent, and the devices' utilization replaces their signal."""
        return self._sample.vanished is not None

    def cause(self, state: TelemetryState, capacity: float, otherwise: ControlCause) -> ControlCause:
        """Cause of the factor: telemetry if that is the cause, else ``otherwise``."""
        if not capacity and state is not TelemetryState.NONE:
            return ControlCause.LOST
        return _TELEMETRY_CAUSES.get(state, otherwise)

    def valid_until(self, state: TelemetryState, now: float) -> float:
        """Time until which age alone changes nothing."""
        due_s, measured_s = [self._devices.capacity.valid_until(now)], self._sample.measured_s
        if state is TelemetryState.STARTING:
            due_s.append(self._deadline_s)
        elif measured_s is not None and state is not TelemetryState.NONE:
            due_s.append(self._staleness.changes_at(measured_s, now))
        if self._sample.vanished is not None:
            staleness, newest_s = self._sample.vanished
            due_s.append(staleness.changes_at(newest_s, now))
        return min(due_s)

    def readmits_at(self, now: float) -> float:
        """Time of the first sample that could admit requests again after the last device was lost."""
        return self._devices.admitted_share.rises_at(now)

    def sampled_at(self, samples: int, now: float) -> float:
        """Earliest time at which ``samples`` more samples can have arrived."""
        interval_s, measured_s = self._staleness.interval_s, self._sample.measured_s
        following = now if measured_s is None else measured_s + interval_s
        return self._due(following, now) + (samples - 1) * interval_s

    def release_at(self, samples: int, calm: int, now: float) -> float:
        """Time of the first sample at which ``samples`` calm ones in a row may have been believed.

        Of them ``calm`` were observed already. One interval from now if nothing can be predicted.
        """
        interval_s, measured_s = self._staleness.interval_s, self._sample.measured_s
        if measured_s is None or measured_s == -math.inf:
            return now + interval_s
        following = measured_s + interval_s
        back_s, release_s = self._due(following, now), self._devices.release_s
        if back_s - measured_s > self._staleness.stale_s:
            counts_from = back_s + (SAMPLES_TO_TRUST - 1) * interval_s
        else:
            counts_from = measured_s + max(1, self._sample.untrusted) * interval_s
        if counts_from < release_s:
            counts_from += math.ceil((release_s - counts_from) / interval_s) * interval_s
        # Calm samples count only in an unbroken row up to the next sample.
        counted = calm if counts_from == following else 0
        return self._due(counts_from + (max(1, samples - counted) - 1) * interval_s, now)

    def _in_force(self, view: GpuView, now: float) -> Signal:
        """Resolve ``auto``: the pressure while an engine reports, else the utilization.

        An engine that stopped reporting is replaced by the devices only if their samples are recent.
        """
        if self._settings.signal is not Signal.AUTO:
            return self._settings.signal
        if view.engines_at_s is None:
            return Signal.UTILIZATION
        staleness = self._configured.for_intervals(view.interval_s, None)
        engines_overdue = now - view.engines_at_s > staleness.stale_s
        devices_known = view.utilization_pct is not None and now - view.taken_at_s <= self._staleness.stale_s
        return Signal.UTILIZATION if engines_overdue and devices_known else Signal.PRESSURE

    def _switch(self, signal: Signal) -> None:
        """Put a signal into force."""
        newest_s = self._sample.newest_s.get(Signal.PRESSURE)
        if signal is Signal.UTILIZATION and self.signal is Signal.PRESSURE and newest_s is not None:
            self._sample.vanished = self._staleness, newest_s
        self.signal = signal

    def _read(self, view: GpuView) -> tuple[float | None, str, float]:
        """The signal in %, the deciding term, and the time of measurement."""
        if self.signal is Signal.UTILIZATION:
            return view.utilization_pct, "utilization", view.taken_at_s
        value, engines_at_s = self.pressure.value, view.engines_at_s
        if self._engine_terms - self.pressure.terms.keys():
            value = None
        measured_s = view.taken_at_s if engines_at_s is None else engines_at_s
        return (None if value is None else 100.0 * value), self.pressure.term, measured_s

    def _due(self, at: float, now: float) -> float:
        return at if at > now else now + self._staleness.interval_s


def _usable(view: GpuView) -> float:
    """Share of the devices that are not lost; a slow one is as usable as before."""
    if not view.weights:
        return view.capacity
    lost = {(row.host, row.device) for row in view.devices if row.health == "lost"}
    return math.fsum(weight for key, weight in view.weights.items() if key not in lost)
