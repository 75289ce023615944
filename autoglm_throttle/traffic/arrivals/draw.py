"""From a shape to a plan: pure functions of their arguments.

A plan is made before the first request is sent, so that no answer can ever move an arrival.
Gaps are drawn in *operational time*, in which the mean rate is 1, and mapped through the inverse of the
integrated rate (Cinlar's method): the plan is exact at every change of rate.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import accumulate, pairwise
from random import Random

from autoglm_throttle.traffic.arrivals.crowd import Crowd
from autoglm_throttle.traffic.arrivals.plan import Plan
from autoglm_throttle.traffic.arrivals.shape import Shape
from autoglm_throttle.traffic.errors import TrafficError


class Arrivals(StrEnum):
    """How requests follow each other at a constant rate."""

    UNIFORM = "uniform"
    """Like a clock; the first at 0."""
    POISSON = "poisson"
    """As if many callers did not know of each other."""


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
    ends_s = tuple(accumulate(level.duration_s for level in shape.levels))
    return _peopled(offsets, segments, names, ends_s, crowd, seed)


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
    segments = array("H", bytes(2 * len(offsets)))
    return _peopled(offsets, segments, ("trace",), (offsets[-1],), crowd, seed)


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
    offsets: array[float],
    segments: array[int],
    names: tuple[str, ...],
    ends_s: tuple[float, ...],
    crowd: Crowd,
    seed: int,
) -> Plan:
    count = len(offsets)
    priorities = list(crowd.mix)
    ranks = _draw(Random(f"{seed}:priorities"), list(crowd.mix.values()), count)
    weights = [(rank + 1.0) ** -crowd.skew for rank in range(crowd.clients)]
    return Plan(
        offsets=offsets,
        priorities=bytes(priorities[rank] for rank in ranks),
        segments=segments,
        clients=array("I", _draw(Random(f"{seed}:clients"), weights, count)),
        kinds=array("I", bytes(4 * count)),
        names=names,
        ends_s=ends_s,
    )


def _draw(stream: Random, weights: Sequence[float], count: int) -> Iterator[int]:
    edges = list(accumulate(weights))
    last = max(rank for rank, weight in enumerate(weights) if weight > 0.0)
    for _ in range(count):
        yield min(bisect_right(edges, stream.random() * edges[-1]), last)
