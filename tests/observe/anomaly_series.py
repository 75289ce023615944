"""Series of one-minute means for dynamic thresholds, and the events that are found in them."""

from __future__ import annotations

import math
import random

from autoglm_throttle.observe.anomalies import AnomalyDetector, Baseline


def walk(correlation: float, minutes: int, seed: int) -> list[float | None]:
    """One-minute means of a series of samples every 15 s with this correlation, 0.5 +- 0.05."""
    chance, value, samples = random.Random(seed), 0.0, list[float]()
    for _ in range(minutes * 4):
        value = correlation * value + math.sqrt(1.0 - correlation**2) * chance.gauss(0.0, 1.0)
        samples.append(0.5 + 0.05 * value)
    return [sum(samples[at : at + 4]) / 4.0 for at in range(0, len(samples), 4)]


def events(means: list[float | None], baseline: Baseline) -> list[int]:
    """The minutes at which an event began."""
    detector, found = AnomalyDetector(baseline), list[int]()
    for minute in range(len(means)):
        was = detector.is_active
        detector.update(means[max(0, minute - 40) : minute + 1])
        if detector.is_active and not was:
            found.append(minute)
    return found
