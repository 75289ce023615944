"""Degradation level of the running process: samples the load and notifies a listener of changes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from autoglm_throttle.model import Clock, Criticality, Level
from autoglm_throttle.resilience.degradation import Choice, Ladder, LadderRules, LadderView, choose
from autoglm_throttle.resilience.feature import Feature
from autoglm_throttle.resilience.seldom import Seldom

Load = Callable[[], float | None]
"""Returns the load, 0..1, or None if it is unknown."""

Told = Callable[[Level, Level, float | None], None]
"""Called with each change: old level, new level, load."""

EARLY = 0.9
"""Share of the interval after which a tick takes a sample: ticks jitter, and an early one must count."""


class Degradation:
    """Degradation level of the process, updated by its callers: a call samples the load if that is due.

    It has no thread of its own. A slow load source blocks only the caller that samples it; for all others the
    load is unknown meanwhile.

    Args:
        rules: thresholds of the levels.
        load: returns the load; called at most once per interval, never under the lock.
        interval_s: seconds between two samples.
        clock: monotonic seconds.
        on_change: called once for each change, in order, never under the lock.
    """

    __slots__ = (
        "_clock", "_interval_s", "_ladder", "_level", "_load", "_lock", "_log", "_news", "_pulling",
        "_rules", "_sampled_s", "_telling", "_told",
    )  # fmt: skip

    def __init__(self, rules: LadderRules, load: Load, interval_s: float, clock: Clock, told: Told) -> None:
        now = clock()
        self._rules = rules
        self._load = load
        self._interval_s = interval_s
        self._clock = clock
        self._told = told
        self._ladder = Ladder(rules, now)
        self._level = Level.FULL
        self._sampled_s = now - interval_s
        self._pulling = False
        self._telling = False
        self._news: deque[tuple[Level, Level, float | None]] = deque()
        self._log = Seldom("degradation", clock)
        # Re-entrant: the garbage collector may run under it, and a finalizer may make a guarded call.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return repr(self._ladder)

    @property
    def retry_after_s(self) -> float:
        """Seconds after which a shed feature can be served again at the earliest."""
        return self._rules.samples * self._interval_s

    def watch(self, feature: Feature) -> None:
        """Register a feature's own threshold, if it has one.

        Raises:
            ValueError: its ``shed_above`` is not above the margin of the levels.
        """
        if feature.shed_above is not None:
            with self._lock:
                self._ladder.watch(feature.shed_above)

    def level(self) -> Level:
        """Return the current level; take a sample if it is due."""
        now = self._clock()
        # The lower bound samples again after a clock that stepped back.
        if not 0.0 <= now - self._sampled_s < self._interval_s:
            self._pull(now, self._interval_s)
        return self._level

    def tend(self) -> None:
        """Take a sample if it is due; for a thread that ticks once per interval."""
        self._pull(self._clock(), EARLY * self._interval_s)

    def sheds(self, feature: Feature) -> bool:
        """Whether the current load sheds a feature. Core features are never shed."""
        return self._sheds(feature, self.level())

    def choice(self, feature: Feature, entry_usable: bool) -> Choice:
        """Return the action for a call of a feature; ``entry_usable``: whether its result is cached."""
        level = self.level()
        return choose(level, feature, entry_usable, self._sheds(feature, level))

    def view(self) -> LadderView:
        """Return an immutable view of the level. Takes no sample."""
        with self._lock:
            return self._ladder.view()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: work of other threads is dropped, the level stays until new samples."""
        self._lock = threading.RLock()
        self._pulling = False
        self._telling = False
        self._news.clear()

    def _sheds(self, feature: Feature, level: Level) -> bool:
        if feature.criticality is Criticality.CORE:
            return False
        above = feature.shed_above
        return level >= Level.SHED if above is None else self._ladder.holds(above)

    def _pull(self, now: float, after_s: float) -> None:
        with self._lock:
            if 0.0 <= now - self._sampled_s < after_s:
                return
            self._sampled_s = now
            # A caller that finds another one sampling observes an unknown load instead of waiting.
            alone, self._pulling = not self._pulling, True
        load = None
        if alone:
            try:
                load = self._asked()
            finally:
                self._pulling = False
        self._take(load, now)

    def _asked(self) -> float | None:
        try:
            return self._load()
        except Exception as error:  # noqa: BLE001 - a callback may raise anything
            self._log.say("load", "the load could not be read: it counts as unknown", error)
            return None

    def _take(self, load: float | None, now: float) -> None:
        with self._lock:
            before = self._level
            self._level = after = self._ladder.observe(load, now)
            if before is not after:
                self._news.append((before, after, load))
        self._tell()

    def _tell(self) -> None:
        while self._news:
            with self._lock:
                # One thread delivers at a time, so the listener sees changes in order; it re-checks the
                # queue.
                if self._telling or not self._news:
                    return
                self._telling = True
                news = self._news.popleft()
            try:
                self._told(*news)
            except Exception as error:  # noqa: BLE001 - a callback may raise anything
                self._log.say("told", "an observer has raised, the change stands", error)
            finally:
                self._telling = False
