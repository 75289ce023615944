"""Shapes of load: the intended rate over time, and its text syntax."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan.parsing import parse_duration, parse_number, parse_whole

MAX_PLANNED = 50_000_000
"""Requests of a plan; it stays in memory at about 19 bytes a request."""

MAX_DURATION_S = 30 * 86_400.0
"""A plan and its report have one row per second; a longer run is assumed to be a typing error."""

MAX_LEVELS = 65_535
"""A plan stores the segment of a request in two bytes."""

MAX_STEPS = 10_000
"""Steps of a shape that is written with a number of steps; more is assumed to be a typing error."""

SHAPE_SYNTAX = (
    "fixed:RATE:TIME, step:R1,R2,...:TIME, step:FROM:TO:STEPS:TIME, spike:BASE:PEAK:BASE_TIME:PEAK_TIME, "
    "ramp:FROM:TO:TIME"
)
"""Syntax accepted by `LoadShape.parse`."""


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """A constant rate, or a rate that rises or falls linearly.

    Raises:
        TrafficError: a duration or a rate that is not a finite number above 0; of a ramp one end may be 0.
    """

    rate_rps: float
    """Rate at its start."""
    duration_s: float
    name: str = ""
    """Display name; empty: the rate."""
    end_rps: float | None = None
    """Rate at its end; None: as at its start."""

    def __post_init__(self) -> None:
        if not 0.0 < self.duration_s < math.inf:
            raise TrafficError(f"a duration must be a finite number above 0, not {self.duration_s!r}")
        for rate_rps in (self.rate_rps, self.last_rps):
            if not 0.0 <= rate_rps < math.inf or self.rate_rps + self.last_rps == 0.0:
                raise TrafficError(f"a rate must be a finite number above 0, not {rate_rps!r}")

    @property
    def last_rps(self) -> float:
        """The rate at its end."""
        return self.rate_rps if self.end_rps is None else self.end_rps

    @property
    def requests(self) -> float:
        """Expected number of requests."""
        return 0.5 * (self.rate_rps + self.last_rps) * self.duration_s

    @property
    def label(self) -> str:
        """The name used in plans and reports."""
        if self.name or self.last_rps == self.rate_rps:
            return self.name or f"{self.rate_rps:g}/s"
        return f"{self.rate_rps:g}-{self.last_rps:g}/s"

    def time_of(self, mass: float) -> float:
        """Return the seconds from its start until ``mass`` requests are due.

        Args:
            mass: 0 to ``requests``.
        """
        # Integrate from the smaller end, so that no two close numbers are subtracted.
        rise = (self.last_rps - self.rate_rps) / self.duration_s
        if rise > 0.0:
            return _time_to_reach(self.rate_rps, rise, mass)
        return self.duration_s - _time_to_reach(self.last_rps, -rise, self.requests - mass)


def check_length(duration_s: float) -> None:
    """Reject a load longer than `MAX_DURATION_S`.

    Raises:
        TrafficError: it is longer.
    """
    if duration_s > MAX_DURATION_S:
        raise TrafficError(f"{duration_s:g} s are longer than {MAX_DURATION_S / 86_400:g} days")


def _time_to_reach(rate_rps: float, rise: float, mass: float) -> float:
    """Return the time at which a rate growing by ``rise`` per second has integrated to ``mass``."""
    root = math.sqrt(rate_rps * rate_rps + 2.0 * rise * max(0.0, mass))
    # The form of the quadratic solution without a difference of close numbers.
    return 2.0 * mass / (rate_rps + root) if root > 0.0 else 0.0


class LoadShape:
    """Levels of load, one after another.

    Args:
        levels: in order of time; each becomes one segment of the plan and of the result.

    Raises:
        TrafficError: no level, or more levels, requests or days than a plan can hold.
    """

    def __init__(self, levels: Sequence[LoadLevel]) -> None:
        if not 1 <= len(levels) <= MAX_LEVELS:
            raise TrafficError(f"a shape needs at least one level and no more than {MAX_LEVELS}")
        self.levels: tuple[LoadLevel, ...] = tuple(levels)
        self._ends_s = list(accumulate(level.duration_s for level in levels))
        self._masses = list(accumulate(level.requests for level in levels))
        check_length(self._ends_s[-1])
        if not self.requests <= MAX_PLANNED:
            raise TrafficError(f"{self.requests:.0f} requests, but a plan can hold only {MAX_PLANNED}")

    @property
    def duration_s(self) -> float:
        """Length of the whole shape."""
        return self._ends_s[-1]

    @property
    def requests(self) -> float:
        """Expected number of requests in total."""
        return self._masses[-1]

    def locate(self, mass: float) -> tuple[int, float]:
        """Locate the integrated rate ``mass``: the level's index and the time in seconds.

        Args:
            mass: 0 to ``requests``, exclusive.
        """
        index = bisect_right(self._masses, mass)
        level, end_s = self.levels[index], self._ends_s[index]
        offset_s = end_s - level.duration_s + level.time_of(level.requests - (self._masses[index] - mass))
        # Rounding must not move a request out of its segment.
        return index, min(max(offset_s, end_s - level.duration_s), end_s)

    @classmethod
    def parse(cls, text: str) -> LoadShape:
        """Read a shape from its text.

        Accepted are ``fixed:RATE:TIME``, ``step:R1,R2:TIME``, ``step:FROM:TO:STEPS:TIME``,
        ``spike:BASE:PEAK:BASE_TIME:PEAK_TIME`` and ``ramp:FROM:TO:TIME``. Rates are requests/s; durations may
        end in ``ms``, ``s`` or ``m``.

        Raises:
            TrafficError: the text is not one of these.
        """
        kind, *parts = text.strip().split(":")
        reader = _READERS.get((kind, len(parts)))
        if reader is None:
            raise TrafficError(f"unknown shape {text!r}: expected {SHAPE_SYNTAX}")
        return cls(reader(parts))


def _fixed(parts: Sequence[str]) -> list[LoadLevel]:
    return [LoadLevel(parse_number(parts[0]), parse_duration(parts[1]))]


def _listed(parts: Sequence[str]) -> list[LoadLevel]:
    return [LoadLevel(parse_number(rate), parse_duration(parts[1])) for rate in parts[0].split(",")]


def _stepped(parts: Sequence[str]) -> list[LoadLevel]:
    first, last = parse_number(parts[0]), parse_number(parts[1])
    steps = parse_whole("steps", parts[2], 2, MAX_STEPS)
    rise = (last - first) / (steps - 1)
    return [LoadLevel(first + rise * step, parse_duration(parts[3])) for step in range(steps)]


def _spike(parts: Sequence[str]) -> list[LoadLevel]:
    base = LoadLevel(parse_number(parts[0]), parse_duration(parts[2]), "base")
    return [base, LoadLevel(parse_number(parts[1]), parse_duration(parts[3]), "peak"), base]


def _ramp(parts: Sequence[str]) -> list[LoadLevel]:
    return [LoadLevel(parse_number(parts[0]), parse_duration(parts[2]), end_rps=parse_number(parts[1]))]


_READERS = {
    ("fixed", 2): _fixed,
    ("step", 2): _listed,
    ("step", 4): _stepped,
    ("spike", 4): _spike,
    ("ramp", 3): _ramp,
}
