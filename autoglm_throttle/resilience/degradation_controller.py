"""Degradation level of the running process: samples the load and notifies a listener of changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.degradation import (
    DegradationAction,
    DegradationLevels,
    DegradationView,
    choose_action,
)
from autoglm_throttle.resilience.feature import Feature
from autoglm_throttle.resilience.notification_queue import NotificationQueue
from autoglm_throttle.settings.groups.breaker import DegradationSettings
from autoglm_throttle.types import Clock, Criticality, DegradationLevel

LoadSource = Callable[[], float | None]
"""Returns the load, 0..1, or None if it is unknown."""

LevelListener = Callable[[DegradationLevel, DegradationLevel, float | None], None]
"""Called with each change: old level, new level, load."""

TICK_TOLERANCE = 0.9
"""Share of the interval after which a tick takes a sample: ticks jitter, and an early one must count."""


class DegradationController:
    """Degradation level of the process, updated by its callers: a call samples the load if that is due.

    It has no thread of its own. A slow load source blocks only the caller that samples it; for all others the
    load is unknown meanwhile.

    Args:
        settings: thresholds of the levels.
        load: returns the load; called at most once per interval, never under the lock.
        interval_s: seconds between two samples.
        clock: monotonic seconds.
        on_change: called once for each change, in order, never under the lock.
    """

    __slots__ = (
        "_clock",
        "_interval_s",
        "_is_sampling",
        "_levels",
        "_load",
        "_lock",
        "_log",
        "_notifications",
        "_on_change",
        "_sampled_s",
        "retry_after_s",
    )

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
        self.retry_after_s: float = settings.samples * interval_s
        """Seconds after which a shed feature can be served again at the earliest."""
        self._is_sampling = False
        self._log = RateLimitedLogger("degradation", clock)
        self._notifications = NotificationQueue(self._log)

    def __repr__(self) -> str:
        return repr(self._levels)

    def register(self, feature: Feature) -> None:
        """Register a feature's own threshold, if it has one.

        Raises:
            ValueError: its ``shed_above`` is not above the margin of the levels.
        """
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

    def sheds(self, feature: Feature) -> bool:
        """Whether the current load sheds a feature. Core features are never shed."""
        return self._sheds(feature, self.level())

    def action(self, feature: Feature, entry_usable: bool) -> DegradationAction:
        """Return the action for a call of a feature; ``entry_usable``: whether its result is cached."""
        level = self.level()
        return choose_action(level, feature, entry_usable, self._sheds(feature, level))

    def view(self) -> DegradationView:
        """Return an immutable view of the level. Takes no sample."""
        with self._lock:
            return self._levels.view()

    def _sheds(self, feature: Feature, level: DegradationLevel) -> bool:
        if feature.criticality is Criticality.CORE:
            return False
        above = feature.shed_above
        return level >= DegradationLevel.SHED if above is None else self._levels.is_above(above)

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
        self._notifications.deliver()

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
            self._notifications.put(partial(self._on_change, before, after, load))
