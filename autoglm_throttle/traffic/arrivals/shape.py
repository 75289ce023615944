"""Shapes of load: how the intended rate goes over time, and how people write it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from autoglm_throttle.traffic.errors import TrafficError

MAX_PLANNED = 50_000_000
"""Requests; a plan stays in memory at about 15 bytes a request."""


@dataclass(frozen=True, slots=True)
class Level:
    """One rate held for a time."""

    rate_rps: float
    duration_s: float
    name: str = ""


class Shape:
    """Levels of load, one after another.

    Args:
        levels: in order of time; each becomes one segment of the plan and of the result.

    Raises:
        TrafficError: no level, a rate or a duration that is not a finite number above 0,
            or more requests than a plan can hold.
    """

    def __init__(self, levels: Sequence[Level]) -> None:
        if not levels:
            raise TrafficError("a shape needs at least one level")
        for level in levels:
            for what, amount in (("rate", level.rate_rps), ("duration", level.duration_s)):
                if not 0.0 < amount < math.inf:
                    raise TrafficError(f"a {what} must be a finite number above 0, not {amount!r}")
        self.levels: tuple[Level, ...] = tuple(levels)
        self._ends_s = list(accumulate(level.duration_s for level in levels))
        self._masses = list(accumulate(level.rate_rps * level.duration_s for level in levels))
        if self._masses[-1] > MAX_PLANNED:
            raise TrafficError(f"{self.requests:.0f} requests, but a plan can hold only {MAX_PLANNED}")

    @property
    def duration_s(self) -> float:
        """Length of the whole shape."""
        return self._ends_s[-1]

    @property
    def requests(self) -> float:
        """Requests expected in all."""
        return self._masses[-1]

    def place(self, mass: float) -> tuple[int, float]:
        """Where the integrated rate reaches ``mass``: the level's index and the time in seconds.

        Args:
            mass: 0 up to, and without, ``requests``.
        """
        index = bisect_right(self._masses, mass)
        level = self.levels[index]
        end_s = self._ends_s[index]
        offset_s = end_s - (self._masses[index] - mass) / level.rate_rps
        return index, min(max(offset_s, end_s - level.duration_s), end_s)

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read a shape as people write it.

        Known are ``fixed:RATE:SECONDS``, ``step:R1,R2:SECONDS``, ``step:FROM:TO:STEPS:SECONDS`` and
        ``spike:BASE:PEAK:BASE_S:PEAK_S``. Rates are requests/s; durations may end in ``ms``, ``s`` or ``m``.

        Raises:
            TrafficError: the text is none of these.
        """
        kind, *words = text.strip().split(":")
        reader = _READERS.get((kind, len(words)))
        if reader is None:
            raise TrafficError(f"unknown shape {text!r}: {GRAMMAR}")
        return cls(reader(words))


GRAMMAR = (
    "expected fixed:RATE:SECONDS, step:R1,R2,...:SECONDS, step:FROM:TO:STEPS:SECONDS "
    "or spike:BASE:PEAK:BASE_S:PEAK_S"
)


def number(word: str) -> float:
    """A plain number.

    Raises:
        TrafficError: not a number.
    """
    try:
        return float(word)
    except ValueError:
        raise TrafficError(f"{word!r} is not a number") from None


def duration(word: str) -> float:
    """Seconds from ``250ms``, ``20s``, ``2m`` or a plain number.

    Raises:
        TrafficError: not a duration.
    """
    for unit, seconds in (("ms", 1e-3), ("s", 1.0), ("m", 60.0)):
        if word.endswith(unit):
            return number(word.removesuffix(unit)) * seconds
    return number(word)


def _fixed(words: Sequence[str]) -> list[Level]:
    return [Level(number(words[0]), duration(words[1]))]


def _listed(words: Sequence[str]) -> list[Level]:
    return [Level(number(rate), duration(words[1])) for rate in words[0].split(",")]


def _stepped(words: Sequence[str]) -> list[Level]:
    first, last = number(words[0]), number(words[1])
    steps = number(words[2])
    if not 2 <= steps <= 10_000 or steps != int(steps):
        raise TrafficError(f"steps must be a whole number from 2 to 10000, not {words[2]!r}")
    rise = (last - first) / (steps - 1)
    return [Level(first + rise * step, duration(words[3])) for step in range(int(steps))]


def _spike(words: Sequence[str]) -> list[Level]:
    base = Level(number(words[0]), duration(words[2]), "base")
    return [base, Level(number(words[1]), duration(words[3]), "peak"), base]


_READERS = {("fixed", 2): _fixed, ("step", 2): _listed, ("step", 4): _stepped, ("spike", 4): _spike}
