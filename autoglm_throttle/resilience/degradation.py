"""How far the service degrades under load: the ladder, and what each level means for a feature."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from autoglm_throttle.model import Criticality, Level
from autoglm_throttle.resilience.feature import UNSET, Feature


class Choice(StrEnum):
    """What is done with a call under the load of the moment."""

    SERVE = "serve"
    """Make the call, if the breaker lets it through."""
    STALE = "stale"
    """Answer with what was kept."""
    STATIC = "static"
    """Answer without the call, with whatever there is."""
    SHED = "shed"
    """Answer without the call, and refuse if there is nothing to answer with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRules:
    """The figures of the ladder. Loads are ratios 0..1.

    The thresholds are those that operators of overloaded services are advised to begin with; three samples,
    the margin and the time are the controller's own habits.

    Raises:
        ValueError: what is given cannot work; all faults in one message.
    """

    shed_at: float = 0.80
    stale_at: float = 0.90
    static_at: float = 0.95
    margin: float = 0.05
    """A level is kept until the load has fallen this far below its threshold."""
    samples: int = 3
    """Samples in a row that must say the same."""
    load_stale_s: float = 3.0
    """Seconds for which an unknown load is taken for the last known one."""

    def __post_init__(self) -> None:
        faults = []
        if not 0.0 < self.shed_at < self.stale_at < self.static_at < math.inf:
            faults.append("the thresholds must be above 0 and rise from shed_at to static_at")
        if not 0.0 <= self.margin < self.shed_at:
            faults.append(f"margin must be at least 0 and below shed_at, is {self.margin!r}")
        if self.samples < 1:
            faults.append(f"samples must be at least 1, is {self.samples!r}")
        if not 0.0 < self.load_stale_s < math.inf:
            faults.append(f"load_stale_s must be above 0 and finite, is {self.load_stale_s!r}")
        if faults:
            raise ValueError("LadderRules: " + "; ".join(faults))


@dataclass(frozen=True, slots=True)
class LadderView:
    """The ladder at one moment."""

    level: Level
    load: float | None
    """The newest sample; None: unknown."""
    since_s: float
    """Monotonic seconds at which the level began."""
    samples: tuple[float, ...]
    """Those that the level rests on, oldest first."""


class Ladder:
    """Turns samples of the load into a level, slowly enough that it does not flap.

    Each threshold is a latch of its own: it closes when all of the last ``samples`` samples are above it, and
    opens when all of them are below it by more than the margin. The level is the highest latch that is
    closed, so the ladder may go up or down by several steps at once.

    Args:
        rules: the figures.
        now: monotonic seconds; so in all methods.
    """

    __slots__ = ("_latches", "_load", "_now_s", "_rules", "_sampled_s", "_samples", "_since_s", "level")

    def __init__(self, rules: LadderRules, now: float) -> None:
        self._rules = rules
        self._samples: deque[float] = deque(maxlen=rules.samples)
        self._sampled_s = now
        self._now_s = now
        self._since_s = now
        self._load: float | None = None
        self._latches = dict.fromkeys((rules.shed_at, rules.stale_at, rules.static_at), False)
        self.level: Level = Level.FULL
        """As of the last sample."""

    def __repr__(self) -> str:
        load = "unknown" if self._load is None else f"{self._load:.2f}"
        return f"<Ladder {self.level.label} load={load} for {self._now_s - self._since_s:.0f} s>"

    def watch(self, threshold: float) -> None:
        """Keep a latch for one more threshold, which moves no level.

        Raises:
            ValueError: no load could ever fall far enough below it.
        """
        if not threshold > self._rules.margin:
            raise ValueError(f"a threshold must be above the margin of {self._rules.margin}, is {threshold}")
        self._latches.setdefault(threshold, False)
        self._turn(threshold)

    def holds(self, threshold: float) -> bool:
        """Whether the load holds a threshold that is watched.

        Raises:
            KeyError: it is not.
        """
        return self._latches[threshold]

    def observe(self, load: float | None, now: float) -> Level:
        """Take in one sample.

        Args:
            load: 0..1; None, or no number, is unknown. An unknown load keeps the level for
                ``load_stale_s``, then the level is full and the samples start anew.
            now: monotonic seconds.

        Returns:
            The level from here on.
        """
        if now - self._sampled_s > self._rules.load_stale_s:
            self._samples.clear()
            self._latches = dict.fromkeys(self._latches, False)
        self._load = None if load is None or math.isnan(load) else load
        self._now_s = now
        if self._load is not None:
            self._sampled_s = now
            self._samples.append(self._load)
            for threshold in self._latches:
                self._turn(threshold)
        level = self._highest()
        if level is not self.level:
            self.level = level
            self._since_s = now
        return level

    def view(self) -> LadderView:
        """What the ladder stands on. Changes nothing."""
        return LadderView(self.level, self._load, self._since_s, tuple(self._samples))

    def _turn(self, threshold: float) -> None:
        samples = self._samples
        if not samples:
            return
        if len(samples) == self._rules.samples and min(samples) > threshold:
            self._latches[threshold] = True
        elif max(samples) < threshold - self._rules.margin:
            self._latches[threshold] = False

    def _highest(self) -> Level:
        rules = self._rules
        thresholds = {
            Level.STATIC: rules.static_at,
            Level.STALE: rules.stale_at,
            Level.SHED: rules.shed_at,
        }
        return next((level for level, at in thresholds.items() if self._latches[at]), Level.FULL)


_CORE: Final[Mapping[Level, tuple[Choice, ...]]] = {
    Level.FULL: (),
    Level.SHED: (),
    Level.STALE: (Choice.STALE,),
    Level.STATIC: (Choice.STATIC, Choice.STALE),
}
"""What a feature that is not shed is answered with: the first that there is, else the call is made."""


def choose(level: Level, feature: Feature, entry_usable: bool, shed: bool | None = None) -> Choice:
    """Say what is done with a call of a feature.

    Args:
        level: of the ladder.
        feature: whose call it is.
        entry_usable: whether an answer is kept that is not too old.
        shed: whether the load holds the feature's own threshold; None: it has none, the level decides.
    """
    if feature.criticality is not Criticality.CORE and (level >= Level.SHED if shed is None else shed):
        return Choice.SHED
    able = {Choice.STALE: entry_usable, Choice.STATIC: _answers_at_once(feature)}
    return next((choice for choice in _CORE[level] if able[choice]), Choice.SERVE)


def _answers_at_once(feature: Feature) -> bool:
    fallback = feature.fallback
    return fallback is not None and (fallback.static is not UNSET or fallback.under_load)
