"""Dynamic thresholds: how far a minute is from the half hour before, in deviations of this half hour.

It informs and takes part in no decision: load is correlated in time, and on such load no test is both quiet
and sharp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import Final

BASELINE_MIN: Final = (
    30  # one-minute means; they ended GAP_MIN before, so that a fault is not its own baseline
)
GAP_MIN: Final = 5
LEAST_MIN: Final = 10  # known means of the baseline; with fewer a deviation is chance
HOLD_MIN: Final = 5  # minutes for which a score holds before it is an event: shorter ones are chance
LEAVE_Z: Final = 1.5
EVENT_EVERY_MIN: Final = 60
CEILING_SHARE: Final = 0.9  # of the baseline at the ceiling: its deviation says nothing

_MAD_TO_DEVIATION: Final = 1.4826  # of a normal distribution
_MOST_CORRELATION: Final = 0.98  # a half hour cannot tell more from a walk without a mean


@dataclass(frozen=True, slots=True)
class Score:
    """The distance of the newest minute from its baseline."""

    z: float
    """In deviations, negative below the baseline."""
    threshold: float
    """Value at which ``z`` would be the threshold."""
    correlation: float
    """Correlation of neighbouring minutes, 0..0.98: the more, the less a large ``z`` says."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The settings of the test of one series."""

    floor: float  # smallest deviation, in the unit of the series
    ceiling: float = math.inf
    both_sides: bool = False  # whether values below the baseline are unusual, too
    enter_z: float = 3.0
    plain: bool = False
    """Mean and population deviation, without regard to correlation: the textbook test."""

    def score(self, means: Sequence[float | None]) -> Score | None:
        """Return the score of the newest of one-minute means; None where it would say nothing."""
        baseline = [mean for mean in means[-BASELINE_MIN - GAP_MIN : -GAP_MIN] if mean is not None]
        newest = means[-1] if means else None
        at_ceiling = sum(mean >= self.ceiling for mean in baseline)
        if newest is None or len(baseline) < LEAST_MIN or at_ceiling >= CEILING_SHARE * len(baseline):
            return None
        centre, deviation, correlation = fmean(baseline), pstdev(baseline), _correlation(baseline)
        if not self.plain:
            centre = median(baseline)
            spread = _MAD_TO_DEVIATION * median(abs(mean - centre) for mean in baseline)
            deviation = spread / math.sqrt(1.0 - correlation**2)
        deviation = max(deviation, self.floor)
        return Score((newest - centre) / deviation, centre + self.enter_z * deviation, correlation)


class AnomalyDetector:
    """Follows the score of one series, minute by minute, and says when it is unusual."""

    def __init__(self, baseline: Baseline) -> None:
        self.baseline: Baseline = baseline
        self.score: Score | None = None
        self.is_active: bool = False
        self._above_min = 0
        self._since_event_min = EVENT_EVERY_MIN

    def update(self, means: Sequence[float | None]) -> None:
        """Take in the newest of one-minute means; to be called once a minute."""
        self.score = self.baseline.score(means)
        z = 0.0 if self.score is None else self.score.z
        z = abs(z) if self.baseline.both_sides else z
        self._since_event_min += 1
        self._above_min = self._above_min + 1 if z > self.baseline.enter_z else 0
        hold_min = 1 if self.baseline.plain else HOLD_MIN
        if self.is_active:
            self.is_active = z >= LEAVE_Z
        elif self._above_min >= hold_min and self._since_event_min >= EVENT_EVERY_MIN:
            self.is_active = True
            self._since_event_min = 0


def _correlation(values: Sequence[float]) -> float:
    """Return the correlation of each value with the next one, 0..0.98."""
    centre = fmean(values)
    variance = math.fsum((value - centre) ** 2 for value in values)
    if not variance:
        return 0.0
    common = math.fsum((before - centre) * (after - centre) for before, after in pairwise(values))
    return min(max(common / variance, 0.0), _MOST_CORRELATION)
