"""The age of telemetry: its state, the drift of the factor, and the usable share of the devices."""

from __future__ import annotations

import math
from collections import deque

from autoglm_throttle.settings.groups.gpu import GpuSettings, stale_at_least_s
from autoglm_throttle.types import MissingTelemetryMode, TelemetryState

STARTING_S = 5.0  # Seconds from the start in which a missing first sample is not yet a fault
CONSERVATIVE = 0.7  # The factor assumed by ``conservative``: the mildest default tier
# A source that measures anew every 30 s is stale after 75: one measurement may be missed, a second not.
PERIODS_TO_STALE = 2.5
# New samples after a fault before their values may act: the number that triggers the table.
SAMPLES_TO_TRUST = 3
# Least share of the sampling interval between two samples: sources read in turn make one strike.
NEW_AFTER = 0.5
# States in which the newest sample is recent enough to act.
CURRENT_STATES = frozenset({TelemetryState.FRESH, TelemetryState.LATE})
BLEND_STEP_S = 0.25  # Seconds between two steps of the factor while telemetry is stale


class Staleness:
    """Maps the age of the newest sample to fresh, late, stale or blind.

    ``interval_s`` is the current time between samples, ``period_s`` that between two measurements of the
    source: a signal is stale no sooner than after 2.5 of a longer one. ``default`` is the assumption where
    none is set.
    """

    def __init__(
        self,
        settings: GpuSettings,
        interval_s: float | None = None,
        period_s: float = 0.0,
        default: MissingTelemetryMode = MissingTelemetryMode.OPEN,
    ) -> None:
        self._settings = settings
        self._default = default
        self._unknown = settings.gpu_unknown or default
        configured_s = settings.sample_interval_s
        sample_interval_s = configured_s if interval_s is None else interval_s
        longest_s = max(sample_interval_s if sample_interval_s > configured_s else 0.0, period_s)
        self._intervals = (sample_interval_s, period_s)
        self.sample_interval_s: float = sample_interval_s  # Seconds after which the next view is due
        # Seconds after which the next new measurement is due.
        self.interval_s: float = max(sample_interval_s, period_s)
        stale_s = settings.gpu_stale_after_s or stale_at_least_s(sample_interval_s)
        self.stale_s: float = max(stale_s, PERIODS_TO_STALE * longest_s)  # Age from which the factor drifts
        # Maximum age of a fresh signal: one missed tick is visible.
        self.fresh_s: float = min(max(2.0 * sample_interval_s, sample_interval_s + period_s), self.stale_s)
        # Age at which the drift has ended.
        self.blind_s: float = max(settings.gpu_blind_after_s, 2.0 * self.stale_s)

    def for_intervals(self, interval_s: float | None, period_s: float | None) -> Staleness:
        """Return the same limits for a source with other intervals; itself if they are the same."""
        configured_s = self._settings.sample_interval_s
        intervals = (configured_s if interval_s is None else interval_s, period_s or 0.0)
        return self if intervals == self._intervals else Staleness(self._settings, *intervals, self._default)

    def state(self, age_s: float) -> TelemetryState:
        """Telemetry state for a signal of this age."""
        if age_s <= self.fresh_s:
            return TelemetryState.FRESH
        if age_s <= self.stale_s:
            return TelemetryState.LATE
        return TelemetryState.STALE if age_s <= self.blind_s else TelemetryState.BLIND

    def changes_at(self, measured_s: float, now: float) -> float:
        """Time at which the state or the drift of a signal measured at ``measured_s`` changes next."""
        due_s = {
            TelemetryState.FRESH: measured_s + self.fresh_s,
            TelemetryState.LATE: measured_s + self.stale_s,
            TelemetryState.STALE: min(now + BLEND_STEP_S, measured_s + self.blind_s),
        }
        return due_s.get(self.state(now - measured_s), math.inf)

    def assumed(self, held: float) -> float:
        """Factor of a blind controller that last held ``held``."""
        return {
            MissingTelemetryMode.LAST: held,
            MissingTelemetryMode.OPEN: 1.0,
            MissingTelemetryMode.CONSERVATIVE: CONSERVATIVE,
            MissingTelemetryMode.CLOSED: 0.0,
        }[self._unknown]

    def factor(self, held: float, age_s: float) -> float:
        """Factor at this age: held while fresh or late, then linear to the assumed one."""
        return held + (self.assumed(held) - held) * self._drift_progress(age_s)

    def capacity(self, held: float, age_s: float) -> float:
        """Usable share of the devices: as last observed, and once telemetry is blind, all of them."""
        # A loss is believed only while reads go on: a broken sensor must not cause a permanent outage.
        if self._unknown is MissingTelemetryMode.LAST:
            return held
        return held + (1.0 - held) * self._drift_progress(age_s)

    def _drift_progress(self, age_s: float) -> float:
        return min(1.0, max(0.0, (age_s - self.stale_s) / (self.blind_s - self.stale_s)))


class CapacityTracker:
    """Tracks one share in force, 0..1, as reported by the views.

    It falls at once. It rises only after three new samples in a row that report more, to the least of them: a
    device that comes and goes counts as lost. While no view comes it drifts to the assumption.
    """

    def __init__(self, staleness: Staleness, now: float) -> None:
        self._spacing_s = NEW_AFTER * staleness.interval_s
        self._staleness = staleness
        self._share = 1.0
        self._viewed_s = now
        self.is_first: bool = True  # Whether the next view is accepted as it is
        # Values of the last new samples, while all of them in a row report more than the share in force.
        self._higher: deque[float] = deque(maxlen=SAMPLES_TO_TRUST)
        self._measured_s = -math.inf  # Time of the newest sample that reported more

    def observe(self, reported: float, measured_s: float, staleness: Staleness, now: float) -> None:
        """Process the share that a view reports; more, in no new sample, counts as no view."""
        held = self.at(now)
        if now - self._viewed_s > self._staleness.stale_s:
            self._higher.clear()
        self._staleness = staleness
        if self.is_first or reported <= held:
            self.is_first, self._share, self._viewed_s = False, reported, now
            self._higher.clear()
        elif min(measured_s, now) - self._measured_s > self._spacing_s:
            self._higher.append(reported)
            self._measured_s = min(measured_s, now)
            self._share = min(self._higher) if len(self._higher) == SAMPLES_TO_TRUST else held
            self._viewed_s = now

    def at(self, now: float) -> float:
        """The share in force."""
        return self._staleness.capacity(self._share, now - self._viewed_s)

    def valid_until(self, now: float) -> float:
        """Time until which the share holds without a new view; at 0, until the next view is due."""
        if not self.at(now):
            return self._due_s(now)
        if self._share == 1.0 or now - self._viewed_s > self._staleness.blind_s:
            return math.inf
        return max(now + BLEND_STEP_S, self._viewed_s + self._staleness.stale_s)

    def rises_at(self, now: float) -> float:
        """Time of the first sample that could raise it, if all from the next one on report more."""
        first_s = self._due_s(now)
        counted = len(self._higher) if first_s - self._viewed_s <= self._staleness.stale_s else 0
        return first_s + (max(1, SAMPLES_TO_TRUST - counted) - 1) * self._staleness.interval_s

    def _due_s(self, now: float) -> float:
        """Time of the next view; once one has reported more, of the next new measurement."""
        step_s = self._staleness.interval_s if self._higher else self._staleness.sample_interval_s
        due_s = self._viewed_s + step_s
        return due_s if due_s > now else now + step_s
