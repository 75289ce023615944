"""What one run of a load did for its clients: completions in time, by class, inside a window."""

from __future__ import annotations

from dataclasses import dataclass, field

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.request_result import RequestResult
from autoglm_throttle.types import Priority

REJECTIONS = (
    RequestResult.LIMITED,
    RequestResult.SHED,
    RequestResult.CLIENT_ERROR,
    RequestResult.SERVER_ERROR,
)
"""Refusals, the uncouth ones included: uvicorn's own has no Retry-After."""


@dataclass
class ClassCounts:
    """One class. Completions count where they happen, all else where the request was to be sent."""

    completions: int = 0
    """Within the objective, inside the window, whenever they were sent."""
    planned: int = 0
    in_time: int = 0
    """Of the planned."""
    refused: int = 0
    response: Histogram = field(default_factory=Histogram)
    """Of the planned that were served, in time or not."""


class GoodputObserver:
    """The generator's observer.

    Args:
        plan: what is sent.
        slo_s: a completion that takes longer is worth nothing to anybody.
        begin_s: of the window, from the first intended start; what comes before is the warm-up.
        end_s: of the window.
    """

    def __init__(self, plan: LoadPlan, slo_s: float, begin_s: float, end_s: float) -> None:
        self.classes: dict[Priority, ClassCounts] = {priority: ClassCounts() for priority in Priority}
        self.refusal: Histogram = Histogram()
        """How long a refusal took, of all planned inside the window."""
        self._plan = plan
        self._slo_s = slo_s
        self._begin_s = begin_s
        self._end_s = end_s

    @property
    def length_s(self) -> float:
        """Of the window."""
        return self._end_s - self._begin_s

    def note(self, index: int, result_kind: RequestResult, response_s: float) -> None:
        """Enter one ending."""
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
            counts.refused += 1
            self.refusal.record(response_s)

    def _within(self, at_s: float) -> bool:
        return self._begin_s <= at_s < self._end_s

    def completed_rps(self, priority: Priority | None = None) -> float:
        """Completions in time per second of the window, of one class or of all."""
        return sum(counts.completions for counts in self._of(priority)) / self.length_s

    def offered_rps(self, priority: Priority | None = None) -> float:
        """Requests that were to be sent per second of the window."""
        return sum(counts.planned for counts in self._of(priority)) / self.length_s

    def _of(self, priority: Priority | None) -> list[ClassCounts]:
        return list(self.classes.values()) if priority is None else [self.classes[priority]]
