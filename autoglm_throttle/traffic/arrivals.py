"""Shapes of load, arrival processes, and the plan they make: pure functions of their arguments.

A plan is made before the first request is sent, so that no answer can ever move an arrival.
Gaps are drawn in *operational time*, in which the mean rate is 1, and mapped through the inverse of the
integrated rate (Cinlar's method): the plan is exact at every change of rate.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, pairwise
from random import Random

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.errors import TrafficError

MAX_PLANNED = 50_000_000
"""Requests; a plan stays in memory at about 15 bytes a request."""

MIX = {Priority.HIGH: 10.0, Priority.MID: 30.0, Priority.LOW: 60.0}
"""Percent of all requests: little that matters most, much that matters least; our decision."""


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
            for what, number in (("rate", level.rate_rps), ("duration", level.duration_s)):
                if not 0.0 < number < math.inf:
                    raise TrafficError(f"a {what} must be a finite number above 0, not {number!r}")
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


def _number(word: str) -> float:
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
            return _number(word.removesuffix(unit)) * seconds
    return _number(word)


def _fixed(words: Sequence[str]) -> list[Level]:
    return [Level(_number(words[0]), duration(words[1]))]


def _listed(words: Sequence[str]) -> list[Level]:
    return [Level(_number(rate), duration(words[1])) for rate in words[0].split(",")]


def _stepped(words: Sequence[str]) -> list[Level]:
    first, last = _number(words[0]), _number(words[1])
    steps = _number(words[2])
    if not 2 <= steps <= 10_000 or steps != int(steps):
        raise TrafficError(f"steps must be a whole number from 2 to 10000, not {words[2]!r}")
    rise = (last - first) / (steps - 1)
    return [Level(first + rise * step, duration(words[3])) for step in range(int(steps))]


def _spike(words: Sequence[str]) -> list[Level]:
    base = Level(_number(words[0]), duration(words[2]), "base")
    return [base, Level(_number(words[1]), duration(words[3]), "peak"), base]


_READERS = {("fixed", 2): _fixed, ("step", 2): _listed, ("step", 4): _stepped, ("spike", 4): _spike}


class Arrivals(StrEnum):
    """How requests follow each other at a constant rate."""

    UNIFORM = "uniform"
    """Like a clock; the first at 0."""
    POISSON = "poisson"
    """As if many callers did not know of each other."""


def parse_mix(text: str) -> dict[Priority, float]:
    """Read ``high=10,mid=30,low=60``; priorities left out get nothing.

    Raises:
        TrafficError: an unknown priority, or shares that do not add up to 100 %.
    """
    mix: dict[Priority, float] = {}
    for word in text.split(","):
        name, _, share = word.partition("=")
        try:
            mix[Priority[name.strip().upper()]] = _number(share)
        except KeyError:
            raise TrafficError(f"unknown priority {name.strip()!r}: high, mid or low") from None
    _check_mix(mix)
    return mix


def _check_mix(mix: Mapping[Priority, float]) -> None:
    if any(not 0.0 <= share <= 100.0 for share in mix.values()) or not math.isclose(sum(mix.values()), 100.0):
        raise TrafficError("the shares of a mix must be 0..100 and add up to 100 percent")


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who sends: the mix of priorities and the callers.

    Raises:
        TrafficError: a mix that does not add up, no client, or a negative or infinite skew.
    """

    mix: Mapping[Priority, float] = field(default_factory=MIX.copy)
    """Percent by priority."""
    clients: int = 1
    """Different callers, 1..65 536."""
    skew: float = 0.0
    """Zipf exponent: 0 gives all clients the same share, 1 gives client n the n-th part of the first's."""

    def __post_init__(self) -> None:
        _check_mix(self.mix)
        if not 1 <= self.clients <= 65_536:
            raise TrafficError(f"clients must be 1..65536, not {self.clients}")
        if not 0.0 <= self.skew < math.inf:
            raise TrafficError(f"skew must be a finite number of at least 0, not {self.skew!r}")


@dataclass(frozen=True, slots=True)
class Plan:
    """Intended requests, in order of time. Requests are known by their index."""

    offsets: array[float]
    """Seconds from the start of the run."""
    priorities: bytes
    """One ``Priority`` value per request."""
    segments: array[int]
    """Index of the level each request belongs to."""
    clients: array[int]
    """0 .. clients - 1."""
    names: tuple[str, ...]
    """One per segment, for people."""

    def __len__(self) -> int:
        return len(self.offsets)

    def planned(self) -> dict[tuple[int, Priority], int]:
        """Requests by (segment, priority); zeros included."""
        counts = {(segment, priority): 0 for segment in range(len(self.names)) for priority in Priority}
        for segment, priority in zip(self.segments, self.priorities, strict=True):
            counts[segment, Priority(priority)] += 1
        return counts


def plan(shape: Shape, arrivals: Arrivals, crowd: Crowd, seed: int = 0) -> Plan:
    """The requests of a shape: a function of its arguments and nothing else.

    Gaps, priorities and clients come from streams of their own, so changing the mix moves no arrival.
    """
    offsets, segments = array("d"), array("H")
    for mass in _masses(arrivals, shape.requests, seed):
        segment, offset_s = shape.place(mass)
        offsets.append(offset_s)
        segments.append(segment)
    names = tuple(level.name or f"{level.rate_rps:g}/s" for level in shape.levels)
    return _peopled(offsets, segments, names, crowd, seed)


def replay(times_s: Iterable[float], crowd: Crowd, *, speed: float = 1.0, seed: int = 0) -> Plan:
    """The requests of a recording, as one segment that starts at the first of them.

    Args:
        times_s: rising, in seconds.
        crowd: the priorities and clients to draw, since a trace does not tell them.
        speed: 2 plays twice as fast.
        seed: of the draws.

    Raises:
        TrafficError: no request, falling times, or a speed that is not a finite number above 0.
    """
    if not 0.0 < speed < math.inf:
        raise TrafficError(f"speed must be a finite number above 0, not {speed!r}")
    times = array("d", times_s)
    if not times:
        raise TrafficError("a recording without requests cannot be replayed")
    offsets = array("d", ((time_s - times[0]) / speed for time_s in times))
    if any(later < earlier for earlier, later in pairwise(offsets)):
        raise TrafficError("the times of a recording must not fall")
    return _peopled(offsets, array("H", bytes(2 * len(offsets))), ("trace",), crowd, seed)


def _masses(arrivals: Arrivals, total: float, seed: int) -> Iterator[float]:
    if arrivals is Arrivals.UNIFORM:
        # A product of two floats may end a hair above a whole number; that hair is no request.
        yield from map(float, range(math.ceil(total - 1e-9 * max(1.0, total))))
        return
    stream = Random(f"{seed}:gaps")
    mass = stream.expovariate(1.0)
    while mass < total:
        yield mass
        mass += stream.expovariate(1.0)


def _peopled(
    offsets: array[float], segments: array[int], names: tuple[str, ...], crowd: Crowd, seed: int
) -> Plan:
    count = len(offsets)
    priorities = list(crowd.mix)
    ranks = _draw(Random(f"{seed}:priorities"), list(crowd.mix.values()), count)
    weights = [(rank + 1.0) ** -crowd.skew for rank in range(crowd.clients)]
    return Plan(
        offsets=offsets,
        priorities=bytes(priorities[rank] for rank in ranks),
        segments=segments,
        clients=array("H", _draw(Random(f"{seed}:clients"), weights, count)),
        names=names,
    )


def _draw(stream: Random, weights: Sequence[float], count: int) -> Iterator[int]:
    edges = list(accumulate(weights))
    last = max(rank for rank, weight in enumerate(weights) if weight > 0.0)
    for _ in range(count):
        yield min(bisect_right(edges, stream.random() * edges[-1]), last)
