"""The control rule: a run on a machine that could not have done it judges the machine, not the row.

In every round, beside the rows under test, runs a control: the same server command, generator, plan and
connections, with nothing in the way. A round counts only if its control passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from autoglm_throttle.traffic.report.schema import Tally

CONTROL = "control"
"""The name of the control row."""

DONE = 0.99
"""Least share of the planned that must be answered."""

P99_S = 0.5
"""The p99 of the served must be below; a founding figure."""

ERRORS = 0.005
"""The share of errors must be below; a founding figure."""


@dataclass(frozen=True, slots=True)
class Point:
    """One row in one round, at one level of load."""

    done_ratio: float | None
    """Answers by planned requests; None: nothing was planned."""
    p99_s: float | None
    """Of the served; None: nothing was served."""
    error_ratio: float | None

    @classmethod
    def of(cls, tally: Tally) -> Point:
        """What a report says of a stretch."""
        return cls(tally["done_ratio"], tally["response"]["p99_s"], tally["error_ratio"])

    @property
    def passes(self) -> bool:
        """Whether it holds all three bounds; a number that is missing holds none."""
        if self.done_ratio is None or self.p99_s is None or self.error_ratio is None:
            return False
        return self.done_ratio >= DONE and self.p99_s < P99_S and self.error_ratio < ERRORS


Round = Mapping[str, Point]
"""The rows of one round by name, the control among them."""

Outcome = Literal["pass", "fail", "inconclusive"]

STATUS: Mapping[Outcome, int] = {"pass": 0, "fail": 1, "inconclusive": 3}
"""The exit status of each outcome."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rounds say of a row."""

    outcome: Outcome
    rounds: int
    counted: int
    """Rounds whose control passed."""
    passed: int
    """Counted rounds in which the row passed."""
    needed: int

    @property
    def status(self) -> int:
        """The exit status: 0, 1 or 3."""
        return STATUS[self.outcome]

    @property
    def text(self) -> str:
        """One sentence; an inconclusive judgement begins with that word."""
        if self.outcome == "inconclusive":
            return (
                f"inconclusive: the control passed in {self.counted} of {self.rounds} rounds and"
                f" {self.needed} are needed; the machine, not the row, was too slow"
            )
        return f"{self.outcome}: {self.passed} of {self.counted} counted rounds passed, {self.needed} needed"


@dataclass(frozen=True, slots=True)
class Spread:
    """A ratio over the rounds."""

    median: float
    least: float
    greatest: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.least:.3f}..{self.greatest:.3f})"


def majority(rounds: int) -> int:
    """How many rounds must pass: 3 of 5, and more than half of any other number."""
    return rounds // 2 + 1


def counts(one: Round) -> bool:
    """Whether a round counts: its control ran and passed."""
    control = one.get(CONTROL)
    return control is not None and control.passes


def judge(rounds: Sequence[Round], row: str, needed: int | None = None) -> Judgement:
    """The judgement on a row.

    Args:
        rounds: all of them, counted or not; a row that is missing from a round did not pass it.
        row: its name; the control itself is judged like any other.
        needed: counted rounds that must pass; None: more than half of all rounds.
    """
    wanted = majority(len(rounds)) if needed is None else needed
    counted = [one for one in rounds if counts(one)]
    passed = sum(1 for one in counted if row in one and one[row].passes)
    outcome: Outcome = "pass" if passed >= wanted else "fail"
    if len(counted) < wanted:
        outcome = "inconclusive"
    return Judgement(outcome, len(rounds), len(counted), passed, wanted)


def done_ratio(rounds: Sequence[Round], row: str) -> Spread | None:
    """Answers of a row by answers of its control, over all rounds that have both."""
    return _spread([(one[row].done_ratio, one[CONTROL].done_ratio) for one in _both(rounds, row)])


def p99_ratio(rounds: Sequence[Round], row: str) -> Spread | None:
    """The p99 of a row by the p99 of its control, over all rounds that have both."""
    return _spread([(one[row].p99_s, one[CONTROL].p99_s) for one in _both(rounds, row)])


def order(rows: Sequence[str], number: int) -> list[str]:
    """The rows in the order in which round ``number`` runs them: each round another one goes first."""
    first = number % len(rows)
    return [*rows[first:], *rows[:first]]


def _both(rounds: Sequence[Round], row: str) -> list[Round]:
    return [one for one in rounds if row in one and CONTROL in one]


def _spread(pairs: Sequence[tuple[float | None, float | None]]) -> Spread | None:
    ratios = [mine / theirs for mine, theirs in pairs if mine is not None and theirs]
    return Spread(median(ratios), min(ratios), max(ratios)) if ratios else None
