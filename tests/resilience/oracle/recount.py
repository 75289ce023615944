"""Every figure of a breaker, counted again from the log each time: slow, and nothing to get out of step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState, GuardPermit, Outcome, SlowCallMode, TripRule
from tests.resilience.oracle.log import (
    Agreed,
    Denied,
    Deposited,
    Ended,
    Entry,
    Gave,
    Late,
    Requested,
    Stepped,
    Went,
)

AGAIN = (BreakerState.HALF_OPEN, BreakerState.RAMPING)
"""States from which an opening continues the earlier one."""


def _begun(log: Sequence[Entry]) -> int:
    """Where the present generation begins."""
    index = len(log) - 1
    while type(log[index]) is not Went:
        index -= 1
    return index


def newest(log: Sequence[Entry]) -> Went:
    """Where the breaker is, and since when."""
    went = log[_begun(log)]
    assert isinstance(went, Went)
    return went


def generations(log: Sequence[Entry]) -> int:
    """How often it went anywhere, its birth not counted."""
    return [type(entry) for entry in log].count(Went) - 1


def lately(log: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries of the present generation."""
    return log[_begun(log) + 1 :]


def rounds(log: Sequence[Entry]) -> int:
    """Openings in a row without a closing in between, less one; the fleet counts better."""
    counted, before = 0, BreakerState.CLOSED
    for entry in log:
        match entry:
            case Agreed(agreed):
                counted = agreed
            case Went(to):
                if to is BreakerState.OPEN and before is not BreakerState.OPEN:
                    counted = counted + 1 if before in AGAIN else 0
                before = to
            case _:
                pass
    return counted


def wait_s(log: Sequence[Entry], rules: BreakerSettings) -> float:
    """How long the newest opening lasts: `min(open_s * backoff ** rounds, open_max_s)`."""
    once = next(
        entry for entry in reversed(log) if isinstance(entry, Went) and entry.to is BreakerState.OPEN
    ).wait_s
    if once is not None:
        return once
    wait = Fraction(rules.open_s) * Fraction(rules.backoff) ** rounds(log)
    return float(wait if rules.open_max_s is None else min(wait, Fraction(rules.open_max_s)))


def held(log: Sequence[Entry], lease_s: float) -> dict[GuardPermit, float]:
    """Calls of the present generation that have a place of their own, each with the time of its leave.

    Trials alone have a lease: who makes one holds it no longer than that once somebody asks.
    """
    trying = newest(log).to is BreakerState.HALF_OPEN
    places: dict[GuardPermit, float] = {}
    for entry in lately(log):
        match entry:
            case Gave(pass_, at) if pass_.serial:
                places[pass_] = at
            case Requested(at) if trying:
                places = {pass_: since for pass_, since in places.items() if at - since < lease_s}
            case Ended(pass_):
                places.pop(pass_, None)
            case _:
                pass
    return places


def results(log: Sequence[Entry]) -> list[Ended]:
    """Return the results of the present generation that are evidence about the dependency."""
    return [
        entry for entry in lately(log) if isinstance(entry, Ended) and entry.outcome is not Outcome.NEUTRAL
    ]


def won(log: Sequence[Entry]) -> int:
    return sum(entry.outcome is Outcome.SUCCESS for entry in results(log))


def failed(result: Ended, rules: BreakerSettings) -> bool:
    slow_fails = rules.slow_is is SlowCallMode.FAILURE
    return result.outcome is Outcome.FAILURE or (slow_fails and result.outcome is Outcome.SLOW)


def streak(log: Sequence[Entry], rules: BreakerSettings) -> int:
    """Failures in a row, each new row begun where the first lies too far back."""
    row: list[float] = []
    for result in results(log):
        if not failed(result, rules):
            row = []
        elif rules.failure_window_s is not None and row and result.at - row[0] > rules.failure_window_s:
            row = [result.at]
        else:
            row.append(result.at)
    return len(row)


def credit(log: Sequence[Entry]) -> Fraction:
    """Return the credit of a ramp: the shares of all requests, less the admitted ones."""
    deposits = sum((entry.share for entry in lately(log) if isinstance(entry, Deposited)), Fraction(0))
    return deposits - sum(isinstance(entry, Gave) for entry in lately(log))


def step(log: Sequence[Entry]) -> tuple[int, float, bool]:
    """Return the number of the ramp step, its start, and whether a call has succeeded in it."""
    number, began, success = 0, newest(log).at, False
    for entry in lately(log):
        if isinstance(entry, Stepped):
            number, began, success = number + 1, entry.at, False
        elif isinstance(entry, Ended) and entry.outcome is Outcome.SUCCESS:
            success = True
    return number, began, success


def windows(log: Sequence[Entry], rules: BreakerSettings, now: float, latest: float) -> Iterator[list[Ended]]:
    """Every window that the rules allow: one, unless it is counted in buckets of time.

    A result surely counts for nine tenths of ``window_s``, 10 s if no window is set, and surely not after the
    whole of it; what lies between is a matter of where the buckets begin. Where the clock has stepped back,
    so is what lies between the two times.
    """
    counted = results(log) if rules.trip - {TripRule.CONSECUTIVE} else []
    if rules.window is not None:
        yield counted[-rules.window :]
        return
    length_s = rules.window_s or 10.0
    must = [index for index, result in enumerate(counted) if latest - result.at <= 0.9 * length_s]
    out = [index for index, result in enumerate(counted) if now - result.latest >= length_s]
    first, last = max(out, default=-1) + 1, min(must, default=len(counted))
    for cut in range(first, last + 1):
        yield counted[cut:]


def denied(log: Sequence[Entry]) -> list[Denied]:
    return [entry for entry in log if isinstance(entry, Denied)]


def late(log: Sequence[Entry]) -> int:
    return [type(entry) for entry in log].count(Late)
