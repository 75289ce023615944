"""The time steps of a run, limited to the number that a page can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from autoglm_throttle.traffic.report.page import units
from autoglm_throttle.traffic.report.schema import Document

MAX_STEPS = 240
"""Most steps: 3 pixels each on a wide screen."""


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """A named interval of the run."""

    start_s: float
    end_s: float
    name: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steps of equal length, whole seconds each, from the start of the run; the last may be shorter."""

    seconds: int
    """Length of the plan, at least 1."""
    marks: tuple[TimelineMark, ...] = ()

    @classmethod
    def of(cls, document: Document) -> Timeline:
        """Build the timeline of a report; a single segment gets no mark."""
        parts = document["segments"] if len(document["segments"]) > 1 else []
        marks = tuple(TimelineMark(part["start_s"], part["end_s"], part["name"]) for part in parts)
        return cls(max(1, len(document["seconds"]["planned"])), marks)

    @property
    def step_s(self) -> int:
        """Length of a step."""
        return -(-self.seconds // MAX_STEPS)

    @property
    def edges_s(self) -> list[float]:
        """Start of each step, and end of the last."""
        return [*map(float, range(0, self.seconds, self.step_s)), float(self.seconds)]

    @property
    def middles_s(self) -> list[float]:
        """Middle of each step."""
        return [(start + end) / 2.0 for start, end in pairwise(self.edges_s)]

    @property
    def names(self) -> list[str]:
        """Label of each step."""
        return [units.clock(start) for start in self.edges_s[:-1]]

    @property
    def note(self) -> str:
        """Explanation of steps longer than one second; empty otherwise."""
        if self.step_s == 1:
            return ""
        return f"Each step is {self.step_s} s: counts are means per second, all else is the worst second."

    def mean(self, counts: Sequence[float]) -> list[float]:
        """Compute the mean per second of each step."""
        steps = (counts[start : start + self.step_s] for start in range(0, len(counts), self.step_s))
        return [sum(step) / len(step) for step in steps]

    def worst(self, numbers: Sequence[float | None]) -> list[float | None]:
        """Compute the maximum of each step; None where there is no number."""
        steps = (numbers[start : start + self.step_s] for start in range(0, len(numbers), self.step_s))
        return [max((number for number in step if number is not None), default=None) for step in steps]
