"""Shapes of load and their text syntax: the intended rate over time, users of a closed loop, or a trace."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from autoglm_throttle.traffic.errors import TrafficError

MAX_PLANNED = 50_000_000
"""Requests of a plan; it stays in memory at about 19 bytes a request."""

# A plan and its report have one row per second; a longer run is assumed to be a typing error.
MAX_DURATION_S = 30 * 86_400.0

MAX_LEVELS = 65_535  # A plan stores the segment of a request in two bytes

# Steps of a shape that is written with a number of steps; more is assumed to be a typing error.
MAX_STEPS = 10_000

MAX_USERS = 65_536  # Each user holds a connection, and a host has no more ports than these
THINK_S = 0.1  # Between a response and the user's next request; the figure that the founding load tests used

# Suffix of a duration -> seconds; the first that matches counts.
UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "": 1.0}

SHAPE_SYNTAX = (
    "fixed:RATE:TIME, step:R1,R2,...:TIME, step:FROM:TO:STEPS:TIME, spike:BASE:PEAK:BASE_TIME:PEAK_TIME, "
    "ramp:FROM:TO:TIME"
)
USERS_SYNTAX = "users:N:TIME[:THINK], users:FROM:TO:STEPS:TIME"
GRAMMAR = f"{SHAPE_SYNTAX}, {USERS_SYNTAX} or trace:PATH; rates are requests/s, durations take ms, s or m"
"""Syntax accepted by `parse_shape`."""


def parse_number(text: str) -> float:
    """Parse a plain number; raise TrafficError if it is none."""
    try:
        return float(text)
    except ValueError:
        raise TrafficError(f"{text!r} is not a number") from None


def parse_duration(text: str) -> float:
    """Parse ``250ms``, ``20s``, ``2m`` or a plain number into seconds; raise TrafficError if it is none."""
    unit = next(unit for unit in UNITS if text.endswith(unit))
    try:
        return float(text.removesuffix(unit)) * UNITS[unit]
    except ValueError:
        raise TrafficError(f"{text!r} is no duration: a number with ms, s or m, such as 500ms") from None


def _parse_whole(name: str, text: str, least: int, most: int) -> int:
    read = parse_number(text)
    if not least <= read <= most or read != int(read):
        raise TrafficError(f"{name} must be a whole number from {least} to {most}, not {text!r}")
    return int(read)


def check_length(duration_s: float) -> None:
    """Raise TrafficError for a load of more than 30 days."""
    if duration_s > MAX_DURATION_S:
        raise TrafficError(f"{duration_s:g} s are longer than {MAX_DURATION_S / 86_400:g} days")


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """A constant rate, or a rate that rises or falls linearly, from or to 0 at one end.

    A duration or a rate that is not a finite number above 0 raises TrafficError.
    """

    rate_rps: float  # Rate at its start
    duration_s: float
    name: str = ""  # Display name; empty: the rate
    end_rps: float | None = None  # Rate at its end; None: as at its start

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
        """Return the seconds from its start until ``mass`` requests are due, 0 to ``requests``."""
        # Integrate from the smaller end, so that no two close numbers are subtracted.
        rise = (self.last_rps - self.rate_rps) / self.duration_s
        if rise > 0.0:
            return _time_to_reach(self.rate_rps, rise, mass)
        return self.duration_s - _time_to_reach(self.last_rps, -rise, self.requests - mass)


def _time_to_reach(rate_rps: float, rise: float, mass: float) -> float:
    """Return the time at which a rate growing by ``rise`` per second has integrated to ``mass``."""
    root = math.sqrt(rate_rps * rate_rps + 2.0 * rise * max(0.0, mass))
    # The form of the quadratic solution without a difference of close numbers.
    return 2.0 * mass / (rate_rps + root) if root > 0.0 else 0.0


class LoadShape:
    """Levels of load, one after another; each becomes one segment of the plan and of the result.

    No level, or more levels, requests or days than a plan can hold raise TrafficError.
    """

    def __init__(self, levels: Sequence[LoadLevel]) -> None:
        if not 1 <= len(levels) <= MAX_LEVELS:
            raise TrafficError(f"a shape needs at least one level and no more than {MAX_LEVELS}")
        self.levels: tuple[LoadLevel, ...] = tuple(levels)
        self.ends_s: tuple[float, ...] = tuple(accumulate(level.duration_s for level in levels))
        self._masses = list(accumulate(level.requests for level in levels))
        check_length(self.duration_s)
        if not self.requests <= MAX_PLANNED:
            raise TrafficError(f"{self.requests:.0f} requests, but a plan can hold only {MAX_PLANNED}")

    @property
    def duration_s(self) -> float:
        """Length of the whole shape."""
        return self.ends_s[-1]

    @property
    def requests(self) -> float:
        """Expected number of requests in total."""
        return self._masses[-1]

    def locate(self, mass: float) -> tuple[int, float]:
        """Return the level's index, and the seconds at which ``mass`` requests are due."""
        index = bisect_right(self._masses, mass)
        level, end_s = self.levels[index], self.ends_s[index]
        offset_s = end_s - level.duration_s + level.time_of(level.requests - (self._masses[index] - mass))
        # Rounding must not move a request out of its segment.
        return index, min(max(offset_s, end_s - level.duration_s), end_s)

    @classmethod
    def parse(cls, text: str) -> LoadShape:
        """Read ``fixed:RATE:TIME`` or another shape of `SHAPE_SYNTAX`; else raise TrafficError."""
        kind, *parts = text.strip().split(":")
        reader = _READERS.get((kind, len(parts)))
        if reader is None:
            raise TrafficError(f"unknown shape {text!r}: expected {SHAPE_SYNTAX}")
        return cls(reader(*parts))


def _level(rate: str, time: str, name: str = "", end: str | None = None) -> LoadLevel:
    end_rps = None if end is None else parse_number(end)
    return LoadLevel(parse_number(rate), parse_duration(time), name, end_rps)


def _steps(first: float, last: float, count: str) -> list[float]:
    steps = _parse_whole("steps", count, 2, MAX_STEPS)
    rise = (last - first) / (steps - 1)
    return [first + rise * step for step in range(steps)]


_READERS: dict[tuple[str, int], Callable[..., list[LoadLevel]]] = {  # By kind and number of parts
    ("fixed", 2): lambda rate, time: [_level(rate, time)],
    ("step", 2): lambda rates, time: [_level(rate, time) for rate in rates.split(",")],
    ("step", 4): lambda first, last, count, time: [
        LoadLevel(rate_rps, parse_duration(time))
        for rate_rps in _steps(parse_number(first), parse_number(last), count)
    ],
    ("spike", 4): lambda base, peak, base_time, peak_time: [
        _level(base, base_time, "base"),
        _level(peak, peak_time, "peak"),
        _level(base, base_time, "base"),
    ],
    ("ramp", 3): lambda first, last, time: [_level(first, time, end=last)],
}


@dataclass(frozen=True, slots=True)
class Users:
    """Number of concurrent users over time, in steps: a closed loop, since each waits for its response.

    Users are 1..65 536, durations finite and above 0, think times at least 0; else it raises TrafficError.
    """

    steps: tuple[tuple[int, float], ...]  # Users and seconds
    think_s: float = THINK_S

    def __post_init__(self) -> None:
        if not self.steps:
            raise TrafficError("users need at least one step")
        for users, duration_s in self.steps:
            if not 1 <= users <= MAX_USERS:
                raise TrafficError(f"users must be 1..{MAX_USERS}, not {users}")
            if not 0.0 < duration_s < math.inf:
                raise TrafficError(f"a duration must be a finite number above 0, not {duration_s!r}")
        check_length(self.duration_s)
        if not 0.0 <= self.think_s < math.inf:
            raise TrafficError(f"a think time must be a finite number of at least 0, not {self.think_s!r}")

    @property
    def duration_s(self) -> float:
        """Total length of the steps."""
        return sum(duration_s for _, duration_s in self.steps)

    @property
    def peak_users(self) -> int:
        """Highest number of users at the same time."""
        return max(users for users, _ in self.steps)

    @classmethod
    def parse(cls, text: str) -> Users:
        """Read ``users:N:TIME[:THINK]`` or ``users:FROM:TO:STEPS:TIME``; else raise TrafficError."""
        kind, *parts = text.strip().split(":")
        if kind != "users" or not 2 <= len(parts) <= 4:
            raise TrafficError(f"unknown shape {text!r}: expected {USERS_SYNTAX}")
        first = _parse_whole("users", parts[0], 1, MAX_USERS)
        if len(parts) < 4:
            think_s = parse_duration(parts[2]) if len(parts) == 3 else THINK_S
            return cls(((first, parse_duration(parts[1])),), think_s)
        last = _parse_whole("users", parts[1], 1, MAX_USERS)
        duration_s = parse_duration(parts[3])
        return cls(tuple((round(users), duration_s) for users in _steps(first, last, parts[2])))


@dataclass(frozen=True, slots=True)
class TraceShape:
    """The times of a recording or a trace file; an empty path raises TrafficError."""

    path: str

    def __post_init__(self) -> None:
        if not self.path:
            raise TrafficError("trace: needs the path of a recording or of a trace file")


def parse_shape(text: str) -> LoadShape | Users | TraceShape:
    """Parse a shape, a number of users or a trace; raise TrafficError for an unknown or impossible one."""
    kind, _, rest = text.strip().partition(":")
    if kind == "trace":
        return TraceShape(rest)
    if kind == "users":
        return Users.parse(text)
    if kind not in {known for known, _ in _READERS}:
        raise TrafficError(f"unknown shape {text!r}: expected {GRAMMAR}")
    return LoadShape.parse(text)
