"""An estimator, with what ends in its periods."""

from __future__ import annotations

from typing import Any

from autoglm_throttle.limiting.service_estimator import ServiceEstimator
from autoglm_throttle.limiting.work_class import MeasurementPeriod, WorkClasses
from autoglm_throttle.settings.groups.control import ConcurrencySettings

LONGEST_S = 2.0
"""Under an objective of 2 s every period ends after two seconds."""

Ends = tuple[str, int, float]
"""Work class, completions, mean seconds."""


class Service:
    """An estimator, with what ends in its periods.

    Args:
        workers: processes in front of the same service.
        objectives: by work class.
        settings: of the limiter; an objective of 2 s unless said otherwise.
    """

    def __init__(self, workers: int = 1, objectives: dict[str, float] | None = None, **settings: Any) -> None:
        group = ConcurrencySettings(**{"latency_budget": 0.25, "slo_s": 2.0} | settings)
        self.classes = WorkClasses(group.slo_s, objectives or {})
        self.tested = ServiceEstimator(group, self.classes, workers)

    def know(self, rate: float | None = None, **unloaded_s: float) -> Service:
        """Set the rate, and the unloaded latencies of classes; ``plain`` is that without a name."""
        self.tested.rate_rps = rate
        for name, known_s in unloaded_s.items():
            self.classes["" if name == "plain" else name].unloaded_s = known_s
        return self

    def learn(
        self,
        limit: float = 64.0,
        *ends: Ends,
        done: int = 50,
        mean_s: float = 0.1,
        lasted_s: float = 0.5,
        arrived: tuple[int, int, int] = (0, 0, 0),
        mean_in_flight: float = 10.0,
        peak: int = 100,
        limited: bool = False,
    ) -> float:
        """Learn from a period, of one class unless others are given; return the next limit."""
        ended = []
        for name, number, each_s in ends or (("", done, mean_s),):
            one = self.classes[name]
            one.done, one.total_s = number, number * each_s
            if number:
                ended.append(one)
        period = MeasurementPeriod(0.0)
        period.lasted_s, period.mean_in_flight, period.peak = lasted_s, mean_in_flight, peak
        period.arrived, period.limited = [*arrived], limited
        period.ended = ended
        return self.tested.learn(period, limit)
