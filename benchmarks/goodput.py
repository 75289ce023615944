"""Goodput of one run: completions in time, by class, inside a window."""

from __future__ import annotations

from dataclasses import dataclass, field

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.types import Priority

REJECTIONS = (
    RequestResult.LIMITED,
    RequestResult.SHED,
    RequestResult.CLIENT_ERROR,
    RequestResult.SERVER_ERROR,
)
"""Results that count as rejections, including those of uvicorn itself, which have no Retry-After."""


@dataclass
class ClassCounts:
    """Counts of one class. Completions count at their time, all else at the planned time of the request."""

    completions: int = 0
    """Completions within the objective and inside the window."""
    planned: int = 0
    in_time: int = 0
    """Planned requests that were answered in time."""
    rejected: int = 0
    response: Histogram = field(default_factory=Histogram)
    """Response times of the planned requests that were served, in time or not."""


class GoodputObserver:
    """Observer of the load generator.

    Args:
        plan: the planned requests.
        slo_s: objective; later completions do not count.
        begin_s: start of the window after the first intended start; the time before is warm-up.
        end_s: end of the window.
    """

    def __init__(self, plan: LoadPlan, slo_s: float, begin_s: float, end_s: float) -> None:
        self.classes: dict[Priority, ClassCounts] = {priority: ClassCounts() for priority in Priority}
        self.rejection: Histogram = Histogram()
        """Response times of the rejections that were planned inside the window."""
        self._plan = plan
        self._slo_s = slo_s
        self._begin_s = begin_s
        self._end_s = end_s

    @property
    def length_s(self) -> float:
        """Return the length of the window."""
        return self._end_s - self._begin_s

    def note(self, index: int, result_kind: RequestResult, response_s: float) -> None:
        """Record one result."""
        sent_s = self._plan.offsets[index]
        counts = self.classes[Priority(self._plan.priorities[index])]
        in_time = result_kind.served and response_s <= self._slo_s
        counts.completions += in_time and self._within(sent_s + response_s)
        if not self._within(sent_s):
            return
        counts.planned += 1
        counts.in_time += in_time
        if result_kind.served:
            counts.response.record(response_s)
        elif result_kind in REJECTIONS:
            counts.rejected += 1
            self.rejection.record(response_s)

    def _within(self, at_s: float) -> bool:
        return self._begin_s <= at_s < self._end_s

    def completed_rps(self, priority: Priority | None = None) -> float:
        """Return the completions in time per second of the window, of one class or of all."""
        return sum(counts.completions for counts in self._of(priority)) / self.length_s

    def offered_rps(self, priority: Priority | None = None) -> float:
        """Return the planned requests per second of the window, of one class or of all."""
        return sum(counts.planned for counts in self._of(priority)) / self.length_s

    def _of(self, priority: Priority | None) -> list[ClassCounts]:
        return list(self.classes.values()) if priority is None else [self.classes[priority]]
