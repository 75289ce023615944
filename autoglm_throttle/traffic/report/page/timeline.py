"""The course of a run, in as many steps as a page can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from autoglm_throttle.traffic.report.page import units
from autoglm_throttle.traffic.report.schema import Document

MOST = 240
"""Steps: 3 pixels each on a wide screen."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch of the run that has a name."""

    start_s: float
    end_s: float
    name: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steps of equal length, whole seconds each, from the start of the run; the last may be shorter."""

    seconds: int
    """Of the plan, at least one."""
    marks: tuple[Mark, ...] = ()

    @classmethod
    def of(cls, document: Document) -> Timeline:
        """The timeline of a report; a single segment needs no mark."""
        parts = document["segments"] if len(document["segments"]) > 1 else []
        marks = tuple(Mark(part["start_s"], part["end_s"], part["name"]) for part in parts)
        return cls(max(1, len(document["seconds"]["planned"])), marks)

    @property
    def step_s(self) -> int:
        """Length of a step."""
        return -(-self.seconds // MOST)

    @property
    def edges_s(self) -> list[float]:
        """Where the steps begin, and where the last one ends."""
        return [*map(float, range(0, self.seconds, self.step_s)), float(self.seconds)]

    @property
    def middles_s(self) -> list[float]:
        """The middle of each step."""
        return [(start + end) / 2.0 for start, end in pairwise(self.edges_s)]

    @property
    def names(self) -> list[str]:
        """What each step is called."""
        return [units.clock(start) for start in self.edges_s[:-1]]

    @property
    def note(self) -> str:
        """How the numbers of a step are to be read; empty if each is one second."""
        if self.step_s == 1:
            return ""
        return f"Each step is {self.step_s} s: counts are means per second, all else is the worst second."

    def mean(self, counts: Sequence[float]) -> list[float]:
        """The mean per second of each step."""
        steps = (counts[start : start + self.step_s] for start in range(0, len(counts), self.step_s))
        return [sum(step) / len(step) for step in steps]

    def worst(self, numbers: Sequence[float | None]) -> list[float | None]:
        """The greatest number of each step; None where there is none."""
        steps = (numbers[start : start + self.step_s] for start in range(0, len(numbers), self.step_s))
        return [max((number for number in step if number is not None), default=None) for step in steps]
