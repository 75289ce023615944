"""Defines how far an old signal can be believed, and the assumption that replaces it.

A signal that stopped is first held, then blended into an assumption, then replaced by it:
it never admits or rejects all requests at once.
"""

from __future__ import annotations

from autoglm_throttle.settings.groups.gpu import GpuSettings, stale_at_least_s
from autoglm_throttle.types import MissingTelemetryMode, TelemetryState

STARTING_S = 5.0
"""Seconds from the start in which a missing first sample is not yet a fault."""

CONSERVATIVE = 0.7
"""The factor assumed by ``conservative``: the mildest default tier."""

PERIODS_TO_STALE = 2.5
"""A source that measures anew every 30 s is stale after 75: one measurement may be missed, a second not."""


class Staleness:
    """Maps the age of the newest sample to fresh, late, stale or blind.

    Args:
        settings: the interval, the age limits, and the assumption once telemetry is blind.
        interval_s: current time between samples, if it is another; a longer one makes a signal stale no
            sooner than after 2.5 of it.
        period_s: time between two measurements of the source itself; the same holds for it.
    """

    def __init__(self, settings: GpuSettings, interval_s: float | None = None, period_s: float = 0.0) -> None:
        self._settings = settings
        configured_s = settings.sample_interval_s
        sample_interval_s = configured_s if interval_s is None else interval_s
        longest_s = max(sample_interval_s if sample_interval_s > configured_s else 0.0, period_s)
        self._intervals = (sample_interval_s, period_s)
        self.sample_interval_s: float = sample_interval_s
        """Seconds after which the next view is due."""
        self.interval_s: float = max(sample_interval_s, period_s)
        """Seconds after which the next new measurement is due."""
        stale_s = settings.gpu_stale_after_s or stale_at_least_s(sample_interval_s)
        self.stale_s: float = max(stale_s, PERIODS_TO_STALE * longest_s)
        """Age from which the factor drifts."""
        self.fresh_s: float = min(max(2.0 * sample_interval_s, sample_interval_s + period_s), self.stale_s)
        """Maximum age of a fresh signal: one missed tick is visible."""
        self.blind_s: float = max(settings.gpu_blind_after_s, 2.0 * self.stale_s)
        """Age at which the drift has ended."""

    def for_intervals(self, interval_s: float | None, period_s: float | None) -> Staleness:
        """Return the same limits for a source with other intervals; itself if they are the same."""
        configured_s = self._settings.sample_interval_s
        intervals = (configured_s if interval_s is None else interval_s, period_s or 0.0)
        return self if intervals == self._intervals else Staleness(self._settings, *intervals)

    def state(self, age_s: float) -> TelemetryState:
        """Telemetry state for a signal of this age."""
        if age_s <= self.fresh_s:
            return TelemetryState.FRESH
        if age_s <= self.stale_s:
            return TelemetryState.LATE
        if age_s <= self.blind_s:
            return TelemetryState.STALE
        return TelemetryState.BLIND

    def assumed(self, held: float) -> float:
        """Factor of a blind controller that last held ``held``."""
        if self._settings.gpu_unknown is MissingTelemetryMode.LAST:
            return held
        return {
            MissingTelemetryMode.OPEN: 1.0,
            MissingTelemetryMode.CONSERVATIVE: CONSERVATIVE,
            MissingTelemetryMode.CLOSED: 0.0,
        }[self._settings.gpu_unknown]

    def factor(self, held: float, age_s: float) -> float:
        """Factor at this age: held while fresh or late, then linear to the assumed one."""
        return held + (self.assumed(held) - held) * self._drift_progress(age_s)

    def capacity(self, held: float, age_s: float) -> float:
        """Usable share of the devices: as last observed, and once telemetry is blind, all of them.

        A loss is believed only while reads go on: a broken sensor must not cause a permanent outage.
        """
        return (
            held
            if self._settings.gpu_unknown is MissingTelemetryMode.LAST
            else held + (1.0 - held) * self._drift_progress(age_s)
        )

    def _drift_progress(self, age_s: float) -> float:
        """Progress of the drift: 0 until stale, 1 from blind on."""
        return min(1.0, max(0.0, (age_s - self.stale_s) / (self.blind_s - self.stale_s)))
