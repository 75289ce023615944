"""Search for the highest rate at which a service meets its objectives: bisection over trials. Pure.

Rates lie on a geometric scale, since errors are percentages. Only invalid trials are repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from autoglm_throttle.traffic.errors import TrafficError

# The search ends when the failing rate is above the holding one by at most this ratio: repeated trials differ
# by as much.
TOLERANCE: Final = 0.02

TRIES: Final = 3  # Trials at one rate before the generator is reported as unable to produce it


class PeakResult(StrEnum):
    """Result of a trial, or of the whole search."""

    HOLDS = "holds"  # all objectives hold
    FAILS = "fails"
    INVALID = "not valid"  # the generator could not produce the rate, so the service was not measured
    ABORTED = "aborted"  # the trial was stopped


@dataclass(frozen=True, slots=True)
class Peak:
    """Result of a search."""

    trials: tuple[tuple[float, PeakResult], ...]  # Rate in requests/s, and result; in order of execution

    @property
    def holds_rps(self) -> float | None:
        """The highest rate at which all objectives held, below every failed rate; None: at no rate."""
        least_rps = math.inf if self.fails_rps is None else self.fails_rps
        held = (rate for rate, result in self.trials if result is PeakResult.HOLDS)
        return max((rate for rate in held if rate < least_rps), default=None)

    @property
    def fails_rps(self) -> float | None:
        """The lowest rate at which an objective failed; None: at no rate."""
        return min((rate for rate, result in self.trials if result is PeakResult.FAILS), default=None)

    @property
    def result(self) -> PeakResult:
        """HOLDS: the objectives hold at some rate; FAILS: they do not hold even at the lowest."""
        last = self.trials[-1][1]
        if last in (PeakResult.INVALID, PeakResult.ABORTED):
            return last
        return PeakResult.FAILS if self.holds_rps is None else PeakResult.HOLDS

    @property
    def text(self) -> str:
        """The result in one sentence."""
        holds_rps, fails_rps = self.holds_rps, self.fails_rps
        known = [f"hold at {holds_rps:g}/s"] if holds_rps is not None else []
        known += [f"fail at {fails_rps:g}/s"] if fails_rps is not None else []
        measured = f"the objectives {' and '.join(known)}" if known else "no rate was measured"
        if self.result is PeakResult.ABORTED:
            return f"stopped before the end; {measured}"
        if self.result is PeakResult.INVALID:
            return f"the generator could not reach {self.trials[-1][0]:g}/s in {TRIES} tries; {measured}"
        if holds_rps is None:
            return f"the objectives do not hold even at {fails_rps:g}/s"
        return measured if fails_rps is not None else f"{measured}, the highest rate to try"


def find_peak(trial: Callable[[float], PeakResult], low_rps: float, high_rps: float) -> Peak:
    """Find the highest rate at which a trial holds, in requests/s; the two bounds are tried first.

    Bounds that are not finite, rising and above 0 raise TrafficError.
    """
    if not 0.0 < low_rps < high_rps < math.inf:
        raise TrafficError(f"the bounds must rise and be above 0, not {low_rps:g} and {high_rps:g}")
    trials: list[tuple[float, PeakResult]] = []

    def holds(rate_rps: float) -> bool | None:
        """Run trials at a rate until one holds or fails, and record each; None: none did."""
        for _ in range(TRIES):
            result = trial(rate_rps)
            trials.append((rate_rps, result))
            if result in (PeakResult.HOLDS, PeakResult.FAILS):
                return result is PeakResult.HOLDS
            if result is PeakResult.ABORTED:
                break
        return None

    if holds(low_rps) and holds(high_rps) is False:
        _bisect(holds, low_rps, high_rps)
    return Peak(tuple(trials))


def _bisect(holds: Callable[[float], bool | None], low_rps: float, high_rps: float) -> None:
    while high_rps > low_rps * (1.0 + TOLERANCE):
        # Three digits are finer than the tolerance, and readable: 1234 is 1230.
        middle_rps = float(f"{math.sqrt(low_rps * high_rps):.3g}")
        is_held = holds(middle_rps) if low_rps < middle_rps < high_rps else None
        if is_held is None:
            return
        low_rps, high_rps = (middle_rps, high_rps) if is_held else (low_rps, middle_rps)
