"""The limit of the requests in flight: learned at the end of each period, below the known bounds."""

from __future__ import annotations

import math

from autoglm_throttle.limiting.engine_limits import EngineLimits
from autoglm_throttle.limiting.memory_cap import MemoryCap
from autoglm_throttle.limiting.quiet_answers import QUIET_MIN, QUIET_SHARE
from autoglm_throttle.limiting.service_estimator import ServiceEstimator
from autoglm_throttle.limiting.work_class import (
    UNCOUNTED_MIN,
    UNCOUNTED_SHARE,
    MeasurementPeriod,
    WorkClasses,
)
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import ConcurrencyView

# First limit, of all workers together, if no objective is set: until one is learned, nothing lowers it.
FIRST_LIMIT_UNSET = 64


class AdaptiveLimit:
    """The limit, with the estimates and bounds that it follows from.

    Args:
        settings: the settings of the limit.
        classes: the measured work classes.
        memory_target: share of the fullest device that may be full, in (0, 1].
        engine: bounds by the engine behind the service.
        workers: processes in front of the same service, which share the first limit.
    """

    __slots__ = (
        *("_classes", "_learned", "_least", "_settings", "engine", "learns_slo", "memory", "quiet"),
        *("service", "uncounted_max", "value"),
    )

    def __init__(
        self,
        settings: ConcurrencySettings,
        classes: WorkClasses,
        memory_target: float,
        engine: EngineLimits,
        workers: int,
    ) -> None:
        self._settings = settings
        self._classes = classes
        self.engine: EngineLimits = engine
        self.memory: MemoryCap = MemoryCap(memory_target)
        self.service: ServiceEstimator = ServiceEstimator(settings, classes, workers)
        self.learns_slo: bool = settings.slo_s is None
        is_given = "inflight_start" in settings.model_fields_set
        of_engine = engine.first_limit
        is_unset = self.learns_slo and not is_given and of_engine is None
        first: float = settings.inflight_start
        if is_unset:
            first = FIRST_LIMIT_UNSET
        elif of_engine is not None and not is_given:
            first = of_engine * workers
        # A batch takes longer for each request than one request alone, and yet does more: only an objective
        # that was set lowers the limit below the slots that an operator has chosen, no learned one.
        self._least: float = of_engine if of_engine is not None and self.learns_slo and not is_given else 0.0
        # Limit once an objective has been learned, if none has reached the first one; 0: nothing to do.
        self._learned: float = max(1.0, settings.inflight_start / workers) if is_unset else 0.0
        # Requests that may be in flight, before the bounds of the present moment apply.
        self.value: float = 0.0
        self._set(float(max(1, settings.inflight_floor // workers, math.ceil(first / workers))))

    def is_over(self, period: MeasurementPeriod, now: float) -> bool:
        """Whether a period has shown enough."""
        least = max(self._settings.period_completions, self.value / 2)
        return self.service.is_over(now - period.opened_s, period.ended) or (
            # The limit was reached, although the answers so far are far below their latency aim.
            period.limited and self.service.is_far_in_time(period.ended, least)
        )

    def learn(self, period: MeasurementPeriod, paused: int) -> None:
        """Update the limit with a period that has ended, in which some requests were ``paused``."""
        self.memory.peak = max(self.memory.peak, period.peak + paused)
        present = min(self.value, self.engine.cached)
        limit = self.service.learn(period, present)
        if limit >= present and not period.limited:  # a few long prompts in an idle engine lower nothing
            limit = max(limit, self.value)
        if self._learned and any(one.learned_slo_s for one in period.ended):
            if not period.limited:  # a first burst must not fill a small service up to the first limit
                limit = min(limit, max(self._learned, 2.0 * period.peak))
            self._learned = 0.0
        limit = max(limit, self._least)
        self._set(self.engine.lowered(limit, present))

    def bound(self, limit: float) -> float:
        """Return a limit below the memory cap, the cache of the engine and the hard limit."""
        return min(limit, self.memory.requests, self.engine.most, self.engine.cached)

    def capacity(self, in_flight: int, paused: int) -> int:
        """Return the slots that may be in use beside ``paused`` requests, which keep their memory."""
        # An engine works on paused requests, too. A wrong count must not close the service.
        others = self.engine.others(in_flight)
        free = max(self.bound(math.inf) - others, self._settings.inflight_floor)
        free = min(self.memory.requests - paused, free)
        return int(min(self.bound(self.value), max(0.0, free)))

    def view(
        self, in_flight: int, paused: int, waiting: tuple[int, int, int], backlog_s: float
    ) -> ConcurrencyView:
        """Return all figures, with the given ones of the limiter."""
        service, memory, limit = self.service, self.memory, self.bound(self.value)
        high, mid, low = service.demand_rps
        rate = service.rate_rps
        return ConcurrencyView(
            limit=limit,
            in_flight=in_flight,
            paused=paused,
            waiting=waiting,
            service_rps=rate,
            demand_rps=(high, mid, low),
            latency_s=service.latency_s,
            unloaded_s=service.unloaded_s,
            budget_s=service.aim_s,
            slo_s=service.slo_s,
            slo_learned=self.learns_slo,
            memory_cap=memory.requests,
            memory_blind=memory.blind,
            slo_unreachable=service.slo_unreachable,
            pressure=(high + mid + low) / rate if rate and service.measured else in_flight / limit,
            retry_backlog_s=backlog_s,
            work_classes=self._classes.view(),
        )

    def _set(self, limit: float) -> None:
        """Set the limit, and what may start without being measured or counted beside it."""
        bounded = min(limit, self.memory.requests, self.engine.most)
        if bounded < limit:  # it cannot grow as its answers would allow: waiting for that is in vain
            self.service.is_unloaded = False
        self.value = bounded
        self.quiet: int = int(max(QUIET_MIN, QUIET_SHARE * bounded))
        self.uncounted_max: float = max(UNCOUNTED_MIN, UNCOUNTED_SHARE * bounded)
