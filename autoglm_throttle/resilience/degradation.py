"""Degradation levels under load, the action that each level means for a feature, and the level in force."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.fallback import UNSET, DegradationAction, Feature
from autoglm_throttle.settings.groups.breaker import DegradationSettings
from autoglm_throttle.types import Clock, Criticality, DegradationLevel

LoadSource = Callable[[], float | None]  # Returns the load, 0..1, or None if it is unknown

# Called with each change: old level, new level, load.
LevelListener = Callable[[DegradationLevel, DegradationLevel, float | None], None]

# Share of the interval after which a tick takes a sample: ticks jitter, and an early one must count.
TICK_TOLERANCE = 0.9


class DegradationLevels:
    """Maps samples of the load to a level, with hysteresis.

    Each threshold has a latch. It closes when all of the last ``samples`` samples are above the threshold,
    and opens when all of them are below it by more than the margin. The level is that of the highest closed
    latch, so it may change by several steps at once.
    """

    def __init__(self, settings: DegradationSettings, now: float) -> None:
        self._settings = settings
        self.samples: deque[float] = deque(maxlen=settings.samples)  # behind the level, oldest first
        self.load: float | None = None  # the newest sample; None: unknown
        self._sampled_s = now
        self._latches = dict.fromkeys((settings.shed_at, settings.stale_at, settings.static_at), False)
        self.level: DegradationLevel = DegradationLevel.FULL  # as of the last sample

    def add_threshold(self, threshold: float) -> None:
        """Add a latch for one more threshold, which does not affect the level."""
        if not threshold > self._settings.margin:
            raise ValueError(
                f"a threshold must be above the margin of {self._settings.margin}, is {threshold}"
            )
        self._latches.setdefault(threshold, False)
        self._update_latch(threshold)

    def is_above(self, threshold: float) -> bool:
        """Whether the latch of a registered threshold is closed."""
        return self._latches[threshold]

    def observe(self, load: float | None, now: float) -> DegradationLevel:
        """Take one sample and return the new level."""
        # After a gap old samples prove nothing: a level must be confirmed by new ones.
        if now - self._sampled_s > self._settings.load_stale_s:
            self.samples.clear()
            self._latches = dict.fromkeys(self._latches, False)
        self.load = None if load is None or math.isnan(load) else load
        if self.load is not None:
            self._sampled_s = now
            self.samples.append(self.load)
            for threshold in self._latches:
                self._update_latch(threshold)
        self.level = self._highest()
        return self.level

    def _update_latch(self, threshold: float) -> None:
        samples = self.samples
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


# Actions of a feature that is not shed: the first available one; without any the call is made.
_CORE_ACTIONS: Final[Mapping[DegradationLevel, tuple[DegradationAction, ...]]] = {
    DegradationLevel.FULL: (),
    DegradationLevel.SHED: (),
    DegradationLevel.STALE: (DegradationAction.STALE,),
    DegradationLevel.STATIC: (DegradationAction.STATIC, DegradationAction.STALE),
}


class DegradationController:
    """Degradation level of the process, updated by its callers: a call samples the load if that is due.

    It has no thread of its own. A slow load source blocks only the caller that samples it; for all others the
    load is unknown meanwhile.
    """

    def __init__(
        self,
        settings: DegradationSettings,
        load: LoadSource,
        interval_s: float,
        clock: Clock,
        on_change: LevelListener,
    ) -> None:
        now = clock()
        self._load = load
        self._interval_s = interval_s
        self._clock = clock
        self._on_change = on_change
        self._lock = SerialLock()
        self._levels = DegradationLevels(settings, now)
        self._sampled_s = now - interval_s
        # Seconds after which a shed feature can be served again at the earliest.
        self.retry_after_s: float = settings.samples * interval_s
        self._is_sampling = False
        self._log = RateLimitedLogger("degradation", clock)

    def register(self, feature: Feature) -> None:
        """Register a feature's own threshold, if it has one."""
        if feature.shed_above is not None:
            with self._lock:
                self._levels.add_threshold(feature.shed_above)

    def level(self) -> DegradationLevel:
        """Return the current level; take a sample if it is due."""
        now = self._clock()
        # The lower bound samples again after a clock that stepped back.
        if not 0.0 <= now - self._sampled_s < self._interval_s:
            self._sample(now, self._interval_s)
        return self._levels.level

    def poll(self) -> None:
        """Take a sample if it is due; for a thread that ticks once per interval."""
        self._sample(self._clock(), TICK_TOLERANCE * self._interval_s)

    def sheds(self, feature: Feature, level: DegradationLevel | None = None) -> bool:
        """Whether a feature is shed at a level, or under the current load. Core features are never shed."""
        if feature.criticality is Criticality.CORE:
            return False
        level, above = self.level() if level is None else level, feature.shed_above
        return level >= DegradationLevel.SHED if above is None else self._levels.is_above(above)

    def action(self, feature: Feature, entry_usable: bool) -> DegradationAction:
        """Return the action for a call of a feature; ``entry_usable``: whether its result is cached."""
        level = self.level()
        if self.sheds(feature, level):
            return DegradationAction.SHED
        fallback = feature.fallback
        is_static = fallback is not None and (fallback.static is not UNSET or fallback.under_load)
        available = {DegradationAction.STALE: entry_usable, DegradationAction.STATIC: is_static}
        return next((each for each in _CORE_ACTIONS[level] if available[each]), DegradationAction.SERVE)

    def view(self) -> tuple[DegradationLevel, float | None]:
        """Return the level and the newest load, without a sample."""
        with self._lock:
            return self._levels.level, self._levels.load

    def _sample(self, now: float, after_s: float) -> None:
        if self._lock.is_held():  # this thread is updating the level
            return
        with self._lock:
            if 0.0 <= now - self._sampled_s < after_s:
                return
            self._sampled_s = now
            # A caller that finds another one sampling observes an unknown load instead of waiting.
            is_first, self._is_sampling = not self._is_sampling, True
        load = None
        if is_first:
            try:
                load = self._read_load()
            finally:
                self._is_sampling = False
        with self._lock:
            self._observe(load, now)

    def _read_load(self) -> float | None:
        try:
            return self._load()
        except Exception as error:  # noqa: BLE001 - a callback may raise anything
            self._log.warn("load", "the load could not be read: it counts as unknown", error=error)
            return None

    def _observe(self, load: float | None, now: float) -> None:
        before = self._levels.level
        after = self._levels.observe(load, now)
        if before is not after:
            self._lock.pending.append(partial(self._on_change, before, after, load))
