"""Search for the highest rate at which a service meets its objectives: bisection over trials. Pure.

Rates lie on a geometric scale, because the error of the result is measured in percent. One failed trial
decides its rate. A trial in which the generator or the machine could not keep up is repeated, because it
says nothing about the service.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from autoglm_throttle.traffic.errors import TrafficError

TOLERANCE: Final = 0.02
"""The search ends when the holding and the failing rate are closer: repeated trials differ by as much."""

TRIES: Final = 3
"""Trials at one rate before the generator is reported as unable to produce it."""

DIGITS: Final = 3
"""Significant digits of the tried rates: finer than the tolerance, and readable."""


class PeakResult(StrEnum):
    """Result of a trial, or of the whole search."""

    HOLDS = "holds"
    """All objectives hold."""
    FAILS = "fails"
    INVALID = "not valid"
    """The generator could not produce the rate, so the service was not measured."""
    ABORTED = "aborted"
    """The trial was stopped."""


@dataclass(frozen=True, slots=True)
class PeakTrial:
    """One trial."""

    rate_rps: float
    result: PeakResult


@dataclass(frozen=True, slots=True)
class Peak:
    """Result of a search."""

    trials: tuple[PeakTrial, ...]
    """In order of execution."""

    @property
    def holds_rps(self) -> float | None:
        """The highest rate at which all objectives held, below every failed rate; None: at no rate."""
        fails_rps = self.fails_rps
        held = [trial.rate_rps for trial in self.trials if trial.result is PeakResult.HOLDS]
        return max((rate for rate in held if fails_rps is None or rate < fails_rps), default=None)

    @property
    def fails_rps(self) -> float | None:
        """The lowest rate at which an objective failed; None: at no rate."""
        failed = (trial.rate_rps for trial in self.trials if trial.result is PeakResult.FAILS)
        return min(failed, default=None)

    @property
    def result(self) -> PeakResult:
        """HOLDS: the objectives hold at some rate; FAILS: they do not hold even at the lowest."""
        last = self.trials[-1].result
        if last in (PeakResult.INVALID, PeakResult.ABORTED):
            return last
        return PeakResult.FAILS if self.holds_rps is None else PeakResult.HOLDS

    @property
    def text(self) -> str:
        """The result in one sentence."""
        holds_rps, fails_rps = self.holds_rps, self.fails_rps
        if self.result is PeakResult.ABORTED:
            return f"stopped before the end; {_known(holds_rps, fails_rps)}"
        if self.result is PeakResult.INVALID:
            rate = f"{self.trials[-1].rate_rps:g}/s"
            return f"the generator could not reach {rate} in {TRIES} tries; {_known(holds_rps, fails_rps)}"
        if holds_rps is None:
            return f"the objectives do not hold even at {fails_rps:g}/s"
        if fails_rps is None:
            return f"the objectives hold at {holds_rps:g}/s, the highest rate to try"
        return f"the objectives hold at {holds_rps:g}/s and fail at {fails_rps:g}/s"


def _known(holds_rps: float | None, fails_rps: float | None) -> str:
    if holds_rps is None and fails_rps is None:
        return "no rate was measured"
    parts = [f"hold at {holds_rps:g}/s"] if holds_rps is not None else []
    parts += [f"fail at {fails_rps:g}/s"] if fails_rps is not None else []
    return f"the objectives {' and '.join(parts)}"


def find_peak(
    trial: Callable[[float], PeakResult], low_rps: float, high_rps: float, *, tolerance: float = TOLERANCE
) -> Peak:
    """Find the highest rate at which a trial holds.

    Args:
        trial: runs one trial at a rate in requests/s.
        low_rps: the lowest rate; tried first.
        high_rps: the highest; tried second.
        tolerance: ratio, above 0: the search ends when the failing rate is at most this much above the
            holding one.

    Raises:
        TrafficError: bounds that are not finite, rising and above 0, or no tolerance.
    """
    if not 0.0 < low_rps < high_rps < math.inf:
        raise TrafficError(f"the bounds must rise and be above 0, not {low_rps:g} and {high_rps:g}")
    if not tolerance > 0.0:
        raise TrafficError(f"the tolerance must be above 0, not {tolerance:g}")
    trials: list[PeakTrial] = []
    with contextlib.suppress(_NoObjectiveError):
        _bisect(lambda rate_rps: _holds(trial, rate_rps, trials), low_rps, high_rps, tolerance)
    return Peak(tuple(trials))


class _NoObjectiveError(Exception):
    """No trial at a rate measured the objectives."""


def _bisect(holds: Callable[[float], bool], low_rps: float, high_rps: float, tolerance: float) -> None:
    if not holds(low_rps) or holds(high_rps):
        return
    while high_rps > low_rps * (1.0 + tolerance):
        middle_rps = rounded(math.sqrt(low_rps * high_rps))
        if not low_rps < middle_rps < high_rps:
            return
        if holds(middle_rps):
            low_rps = middle_rps
        else:
            high_rps = middle_rps


def _holds(trial: Callable[[float], PeakResult], rate_rps: float, trials: list[PeakTrial]) -> bool:
    """Run trials at a rate until one holds or fails, and record each."""
    for _ in range(TRIES):
        result = trial(rate_rps)
        trials.append(PeakTrial(rate_rps, result))
        if result in (PeakResult.HOLDS, PeakResult.FAILS):
            return result is PeakResult.HOLDS
        if result is PeakResult.ABORTED:
            break
    raise _NoObjectiveError


def rounded(rate_rps: float) -> float:
    """Round a rate to three digits: 1234 is 1230."""
    return float(f"{rate_rps:.{DIGITS}g}")
