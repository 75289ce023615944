"""The control rule: if the machine is too slow for the control of a row, its round does not count.

In every round, a control of each app runs beside the rows under test: the same server command, generator,
plan and connections, without a limiter in between. A round counts for the rows of an app if its control
passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

DONE = 0.99
"""Least share of the planned requests that must be answered."""

P99_S = 0.5
"""Upper bound, exclusive, for the p99 of served requests; a founding figure."""

ERRORS = 0.005
"""Upper bound, exclusive, for the share of errors; a founding figure."""


@dataclass(frozen=True, slots=True)
class Point:
    """One row in one round, at one load level."""

    done_ratio: float | None
    """Answers divided by planned requests; None: no request was planned."""
    p99_s: float | None
    """The p99 of served requests; None: no request was served."""
    error_ratio: float | None
    rejects_too_many: bool = False
    """Whether it rejected more than its load asks for."""

    @property
    def passes(self) -> bool:
        """Whether all bounds hold; a missing number fails, and so does a row that rejects nearly all."""
        if self.done_ratio is None or self.p99_s is None or self.error_ratio is None:
            return False
        is_within = self.done_ratio >= DONE and self.p99_s < P99_S and self.error_ratio < ERRORS
        return is_within and not self.rejects_too_many


Round = Mapping[str, Point]
"""Rows of one round by name, including the controls."""

ControlOutcome = Literal["pass", "fail", "inconclusive"]

STATUS: Mapping[ControlOutcome, int] = {"pass": 0, "fail": 1, "inconclusive": 3}
"""The exit status of each outcome."""


@dataclass(frozen=True, slots=True)
class ControlResult:
    """Result of a row over all rounds."""

    outcome: ControlOutcome
    rounds: int
    counted: int
    """Rounds with a passed control."""
    passed: int
    """Counted rounds in which the row passed."""
    needed: int

    @property
    def status(self) -> int:
        """The exit status: 0, 1 or 3."""
        return STATUS[self.outcome]

    @property
    def text(self) -> str:
        """The result in one sentence; an inconclusive result begins with that word."""
        if self.outcome == "inconclusive":
            return (
                f"inconclusive: the control passed in {self.counted} of {self.rounds} rounds and"
                f" {self.needed} are needed; the machine, not the row, was too slow"
            )
        return f"{self.outcome}: {self.passed} of {self.counted} counted rounds passed, {self.needed} needed"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Median, minimum and maximum of a ratio over the rounds."""

    median: float
    least: float
    greatest: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.least:.3f}..{self.greatest:.3f})"


def majority(rounds: int) -> int:
    """Number of rounds that must pass: 3 of 5, and more than half of any other number."""
    return rounds // 2 + 1


def is_counted(one: Round, control: str) -> bool:
    """Whether a round counts for the rows of a control: it ran and passed."""
    return control in one and one[control].passes


def evaluate(rounds: Sequence[Round], row: str, control: str, needed: int | None = None) -> ControlResult:
    """Evaluate a row over the rounds.

    Args:
        rounds: all rounds, counted or not; a row that is missing from a round did not pass it.
        row: its name; a control is evaluated like any other row.
        control: name of its control.
        needed: counted rounds that must pass; None: more than half of all rounds.
    """
    wanted = majority(len(rounds)) if needed is None else needed
    counted = [one for one in rounds if is_counted(one, control)]
    passed = sum(1 for one in counted if row in one and one[row].passes)
    outcome: ControlOutcome = "pass" if passed >= wanted else "fail"
    if len(counted) < wanted:
        outcome = "inconclusive"
    return ControlResult(outcome, len(rounds), len(counted), passed, wanted)


def done_ratio(rounds: Sequence[Round], row: str, control: str) -> Quantiles | None:
    """Answers of a row divided by answers of its control, over all rounds that have both."""
    return _quantiles([(one[row].done_ratio, one[control].done_ratio) for one in _both(rounds, row, control)])


def p99_ratio(rounds: Sequence[Round], row: str, control: str) -> Quantiles | None:
    """The p99 of a row divided by the p99 of its control, over all rounds that have both."""
    return _quantiles([(one[row].p99_s, one[control].p99_s) for one in _both(rounds, row, control)])


def order(rows: Sequence[str], number: int) -> list[str]:
    """Order of the rows in round ``number``: each round starts with another row."""
    first = number % len(rows)
    return [*rows[first:], *rows[:first]]


def _both(rounds: Sequence[Round], row: str, control: str) -> list[Round]:
    return [one for one in rounds if row in one and control in one]


def _quantiles(pairs: Sequence[tuple[float | None, float | None]]) -> Quantiles | None:
    ratios = [mine / theirs for mine, theirs in pairs if mine is not None and theirs]
    return Quantiles(median(ratios), min(ratios), max(ratios)) if ratios else None
