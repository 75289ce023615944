"""Degradation levels under load, and the action that each level means for a feature."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from autoglm_throttle.resilience.feature import UNSET, Feature
from autoglm_throttle.settings.groups.breaker import DegradationSettings
from autoglm_throttle.types import Criticality, DegradationLevel


class DegradationAction(StrEnum):
    """Action for a call under the current load."""

    SERVE = "serve"
    """Make the call, if the breaker admits it."""
    STALE = "stale"
    """Answer from the stale cache."""
    STATIC = "static"
    """Answer without the call, by any fallback."""
    SHED = "shed"
    """Answer without the call; reject if no fallback answers."""


@dataclass(frozen=True, slots=True)
class DegradationView:
    """The degradation level at one moment."""

    level: DegradationLevel
    load: float | None
    """The newest sample; None: unknown."""
    since_s: float
    """Monotonic seconds of the newest level change."""
    samples: tuple[float, ...]
    """Samples behind the level, oldest first."""


class DegradationLevels:
    """Maps samples of the load to a level, with hysteresis.

    Each threshold has a latch. It closes when all of the last ``samples`` samples are above the threshold,
    and opens when all of them are below it by more than the margin. The level is that of the highest closed
    latch, so it may change by several steps at once.

    Args:
        settings: thresholds and margin.
        now: monotonic seconds; so in all methods.
    """

    __slots__ = ("_latches", "_load", "_now_s", "_sampled_s", "_samples", "_settings", "_since_s", "level")

    def __init__(self, settings: DegradationSettings, now: float) -> None:
        self._settings = settings
        self._samples: deque[float] = deque(maxlen=settings.samples)
        self._sampled_s = now
        self._now_s = now
        self._since_s = now
        self._load: float | None = None
        self._latches = dict.fromkeys((settings.shed_at, settings.stale_at, settings.static_at), False)
        self.level: DegradationLevel = DegradationLevel.FULL
        """As of the last sample."""

    def __repr__(self) -> str:
        load = "unknown" if self._load is None else f"{self._load:.2f}"
        return f"<DegradationLevels {self.level.label} load={load} for {self._now_s - self._since_s:.0f} s>"

    def add_threshold(self, threshold: float) -> None:
        """Add a latch for one more threshold; it does not affect the level.

        Raises:
            ValueError: no load could fall far enough below it.
        """
        if not threshold > self._settings.margin:
            raise ValueError(
                f"a threshold must be above the margin of {self._settings.margin}, is {threshold}"
            )
        self._latches.setdefault(threshold, False)
        self._update_latch(threshold)

    def is_above(self, threshold: float) -> bool:
        """Whether the latch of a registered threshold is closed.

        Raises:
            KeyError: the threshold is not registered.
        """
        return self._latches[threshold]

    def observe(self, load: float | None, now: float) -> DegradationLevel:
        """Take one sample.

        Args:
            load: 0..1; None or NaN is unknown. An unknown load keeps the level for ``load_stale_s``; then the
                level is full and the samples start anew.
            now: monotonic seconds.

        Returns:
            The new level.
        """
        # After a gap old samples prove nothing: a level must be confirmed by new ones.
        if now - self._sampled_s > self._settings.load_stale_s:
            self._samples.clear()
            self._latches = dict.fromkeys(self._latches, False)
        self._load = None if load is None or math.isnan(load) else load
        self._now_s = now
        if self._load is not None:
            self._sampled_s = now
            self._samples.append(self._load)
            for threshold in self._latches:
                self._update_latch(threshold)
        level = self._highest()
        if level is not self.level:
            self.level = level
            self._since_s = now
        return level

    def view(self) -> DegradationView:
        """Return an immutable view. Changes nothing."""
        return DegradationView(self.level, self._load, self._since_s, tuple(self._samples))

    def _update_latch(self, threshold: float) -> None:
        samples = self._samples
        if not samples:
            return
        if len(samples) == self._settings.samples and min(samples) > threshold:
            self._latches[threshold] = True
        elif max(samples) < threshold - self._settings.margin:
            self._latches[threshold] = False

    def _highest(self) -> DegradationLevel:
        settings = self._settings
        thresholds = {
            DegradationLevel.STATIC: settings.static_at,
            DegradationLevel.STALE: settings.stale_at,
            DegradationLevel.SHED: settings.shed_at,
        }
        return next((level for level, at in thresholds.items() if self._latches[at]), DegradationLevel.FULL)


_CORE_ACTIONS: Final[Mapping[DegradationLevel, tuple[DegradationAction, ...]]] = {
    DegradationLevel.FULL: (),
    DegradationLevel.SHED: (),
    DegradationLevel.STALE: (DegradationAction.STALE,),
    DegradationLevel.STATIC: (DegradationAction.STATIC, DegradationAction.STALE),
}
"""Actions of a feature that is not shed: the first available one; without any the call is made."""


def choose_action(
    level: DegradationLevel, feature: Feature, entry_usable: bool, shed: bool | None = None
) -> DegradationAction:
    """Return the action for a call of a feature.

    Args:
        level: current degradation level.
        feature: the feature that is called.
        entry_usable: whether a result is cached and not too old.
        shed: whether the load is above the feature's own threshold; None: the level decides.
    """
    if feature.criticality is not Criticality.CORE and (
        level >= DegradationLevel.SHED if shed is None else shed
    ):
        return DegradationAction.SHED
    available = {
        DegradationAction.STALE: entry_usable,
        DegradationAction.STATIC: _has_immediate_fallback(feature),
    }
    return next((action for action in _CORE_ACTIONS[level] if available[action]), DegradationAction.SERVE)


def _has_immediate_fallback(feature: Feature) -> bool:
    fallback = feature.fallback
    return fallback is not None and (fallback.static is not UNSET or fallback.under_load)
