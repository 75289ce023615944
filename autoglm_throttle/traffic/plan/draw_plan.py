"""Draws a plan from a shape: pure functions of their arguments.

A plan is complete before the first request is sent, so that no response can move an arrival.
Gaps are drawn in *operational time*, in which the mean rate is 1. They are mapped through the inverse of the
integrated rate (Cinlar's method), so the plan is exact at every change of rate.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise, repeat
from random import Random

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan.load_plan import LoadPlan
from autoglm_throttle.traffic.plan.mix import PriorityMix
from autoglm_throttle.traffic.plan.process import Arrivals
from autoglm_throttle.traffic.plan.shape import MAX_PLANNED, LoadShape


def make_plan(shape: LoadShape, arrivals: Arrivals, mix: PriorityMix, seed: int = 0) -> LoadPlan:
    """Draw the requests of a shape, as a function of the arguments only.

    Gaps, priorities, clients and kinds come from separate streams, so changing the mix moves no arrival.
    """
    offsets, segments = array("d"), array("H")
    for mass in arrivals.masses(shape.requests, Random(f"{seed}:gaps")):
        segment, offset_s = shape.locate(mass)
        offsets.append(offset_s)
        segments.append(segment)
    names = tuple(level.label for level in shape.levels)
    ends_s = tuple(accumulate(level.duration_s for level in shape.levels))
    return _assign_requests(offsets, segments, names, ends_s, mix, seed)


def make_replay_plan(
    times_s: Iterable[float], mix: PriorityMix, *, speed: float = 1.0, seed: int = 0
) -> LoadPlan:
    """Plan the requests of a trace, as one segment that starts at the first of them.

    Args:
        times_s: rising, in seconds.
        mix: the priorities, clients and kinds to draw, since a trace does not contain them.
        speed: 2 plays twice as fast.
        seed: seed of the draws.

    Raises:
        TrafficError: no request, more than a plan can hold, times that are not finite or that fall, or a
            speed that is not a finite number above 0.
    """
    if not 0.0 < speed < math.inf:
        raise TrafficError(f"speed must be a finite number above 0, not {speed!r}")
    times = array("d", islice(times_s, MAX_PLANNED + 1))
    if not 1 <= len(times) <= MAX_PLANNED:
        raise TrafficError(f"a replay needs at least one request, and no more than {MAX_PLANNED}")
    offsets = array("d", ((time_s - times[0]) / speed for time_s in times))
    if not all(map(math.isfinite, offsets)) or any(later < earlier for earlier, later in pairwise(offsets)):
        raise TrafficError("the times of a recording must be finite and must not fall")
    segments = array("H", bytes(2 * len(offsets)))
    return _assign_requests(offsets, segments, ("trace",), (offsets[-1],), mix, seed)


def _assign_requests(
    offsets: array[float],
    segments: array[int],
    names: tuple[str, ...],
    ends_s: tuple[float, ...],
    mix: PriorityMix,
    seed: int,
) -> LoadPlan:
    count = len(offsets)
    priorities = list(mix.mix)
    ranks = _draw(Random(f"{seed}:priorities"), list(mix.mix.values()), count)
    weights = [(rank + 1.0) ** -mix.skew for rank in range(mix.clients)]
    return LoadPlan(
        offsets=offsets,
        priorities=bytes(priorities[rank] for rank in ranks),
        segments=segments,
        clients=array("I", _draw(Random(f"{seed}:clients"), weights, count)),
        kinds=array("I", _draw(Random(f"{seed}:kinds"), mix.kinds, count)),
        names=names,
        ends_s=ends_s,
    )


def _draw(stream: Random, weights: Sequence[float], count: int) -> Iterator[int]:
    if len(weights) == 1:
        return repeat(0, count)
    edges, one = list(accumulate(weights)), stream.random
    # random() * total may round up to total, so the rank is bounded by the last one with weight.
    total, last = edges[-1], max(rank for rank, weight in enumerate(weights) if weight > 0.0)
    return (min(bisect_right(edges, one() * total), last) for _ in range(count))
