"""Tracks the usable share of the devices: it falls at once, and rises once three samples agree."""

from __future__ import annotations

import math
from collections import deque

from autoglm_throttle.control.staleness import Staleness

SAMPLES_TO_TRUST = 3
"""New samples after a fault before their values may act: the number that triggers the table."""

NEW_AFTER = 0.5
"""Share of the sampling interval that must lie between two samples: several sources that are read in
turn, each with new numbers, are one sample in each interval, or one interval would make three strikes.
"""

BLEND_STEP_S = 0.25
"""Seconds between two steps of the factor while telemetry is stale."""


class CapacityTracker:
    """Tracks one share in force, 0..1, as reported by the views.

    The first view sets the share. Later ones lower it at once. It rises only after three new samples in a
    row that report more than the share in force, to the least of them: a device that comes and goes
    counts as lost. While no view comes it drifts, by its age, to the assumption for missing telemetry.

    Args:
        staleness: the interval as configured, and its age limits.
        now: monotonic seconds.
    """

    def __init__(self, staleness: Staleness, now: float) -> None:
        self._spacing_s = NEW_AFTER * staleness.interval_s
        self._staleness = staleness
        self._share = 1.0
        """The share at the last view."""
        self._viewed_s = now
        self._is_first = True
        self._higher: deque[float] = deque(maxlen=SAMPLES_TO_TRUST)
        """Values of the last new samples, while all of them in a row report more than the share in force."""
        self._measured_s = -math.inf
        """Time of the newest sample that reported more."""

    def reset(self) -> None:
        """Accept the next view as it is, like the first one."""
        self._is_first = True

    def observe(self, reported: float, measured_s: float, staleness: Staleness, now: float) -> None:
        """Process the share that a view reports.

        A view that reports more and is no new sample counts as no view at all: it neither confirms the loss
        nor restores a device, and if nothing else comes the share drifts.

        Args:
            reported: 0..1.
            measured_s: monotonic seconds of its measurement.
            staleness: age limits for this view.
            now: monotonic seconds.
        """
        held = self.at(now)
        if now - self._viewed_s > self._staleness.stale_s:
            self._higher.clear()
        self._staleness = staleness
        if self._is_first or reported <= held:
            self._is_first, self._share, self._viewed_s = False, reported, now
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
        """Time of the first sample that could raise it, if from the next one on all report more.

        If the next view is overdue, one interval from now.
        """
        first_s = self._due_s(now)
        counted = len(self._higher) if first_s - self._viewed_s <= self._staleness.stale_s else 0
        wanted = max(1, SAMPLES_TO_TRUST - counted)
        return first_s + (wanted - 1) * self._staleness.interval_s

    def _due_s(self, now: float) -> float:
        """Time of the next view; once one has reported more, of the next new measurement."""
        step_s = self._staleness.interval_s if self._higher else self._staleness.sample_interval_s
        due_s = self._viewed_s + step_s
        return due_s if due_s > now else now + step_s
