"""The plan of a load: time, priority, client and kind of each request, drawn before the run starts.

Gaps with the mean rate 1 are mapped through the inverse of the integrated rate (Cinlar's method).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise, repeat
from random import Random
from typing import ClassVar

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan.shapes import MAX_PLANNED, LoadShape, parse_number
from autoglm_throttle.types import Priority

# Bounds of ``k``: squared variation of the gaps from 100, isolated bursts, to 0.0001, nearly uniform.
MIN_K, MAX_K = 0.01, 10_000.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process: the gaps have a Gamma distribution with mean 1 and squared variation 1/k.

    Below k = 1 requests come in bursts, above more evenly. It is infinite or 0.01..10 000, else TrafficError.
    """

    k: float  # 1: Poisson; infinite: uniform

    UNIFORM: ClassVar[Arrivals]  # Equal gaps; the first request at 0
    POISSON: ClassVar[Arrivals]  # Independent callers

    def __post_init__(self) -> None:
        if not (MIN_K <= self.k <= MAX_K or self.k == math.inf):
            raise TrafficError(f"gamma: K must be {MIN_K:g}..{MAX_K:g}, not {self.k!r}")

    @classmethod
    def parse(cls, text: str) -> Arrivals:
        """Read ``uniform``, ``poisson`` or ``gamma:K``; raise TrafficError for another text."""
        named = {"uniform": cls.UNIFORM, "poisson": cls.POISSON}
        kind, colon, k = text.strip().partition(":")
        if kind == "gamma" and colon:
            return cls(parse_number(k))
        if text.strip() not in named:
            raise TrafficError(f"unknown arrivals {text!r}: expected uniform, poisson or gamma:K")
        return named[text.strip()]

    def masses(self, total: float, stream: Random) -> Iterator[float]:
        """Yield the running sums of the gaps below ``total``, in operational time with the mean rate 1."""
        if self == Arrivals.UNIFORM:
            # A product of two floats may end a hair above a whole number; that hair is no request.
            yield from map(float, range(math.ceil(total - 1e-9 * max(1.0, total))))
            return
        mass = stream.gammavariate(self.k, 1.0 / self.k)
        while mass < total:
            yield mass
            mass += stream.gammavariate(self.k, 1.0 / self.k)

    def __str__(self) -> str:
        if self == Arrivals.UNIFORM:
            return "uniform"
        return "poisson" if self == Arrivals.POISSON else f"gamma:{self.k!r}".removesuffix(".0")


Arrivals.UNIFORM = Arrivals(math.inf)
Arrivals.POISSON = Arrivals(1.0)

MIX = {Priority.HIGH: 10.0, Priority.MID: 30.0, Priority.LOW: 60.0}
"""Percent of all requests: important requests are few, unimportant ones many; our decision."""


def parse_mix(text: str) -> dict[Priority, float]:
    """Read ``high=10,mid=30,low=60``; priorities left out get nothing. A wrong text raises TrafficError."""
    mix: dict[Priority, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            mix[Priority[name.strip().upper()]] = parse_number(share)
        except KeyError:
            raise TrafficError(f"unknown priority {name.strip()!r}: high, mid or low") from None
    PriorityMix(mix)  # checks the shares
    return mix


@dataclass(frozen=True, slots=True)
class PriorityMix:
    """Shares of priorities, clients and kinds of drawn requests; impossible ones raise TrafficError."""

    mix: Mapping[Priority, float] = field(default_factory=MIX.copy)  # Percent by priority
    clients: int = 1  # Distinct callers, 1..65 536
    # Zipf exponent: 0 gives all clients the same share, 1 gives client n the n-th part of the first's.
    skew: float = 0.0
    # Shares of the request kinds of the load, in their order; only their proportions matter.
    kinds: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        shares = self.mix.values()
        if not all(0.0 <= share <= 100.0 for share in shares) or not math.isclose(sum(shares), 100.0):
            raise TrafficError("the shares of a mix must be 0..100 and add up to 100 percent")
        if not 1 <= self.clients <= 65_536:
            raise TrafficError(f"clients must be 1..65536, not {self.clients}")
        if not 0.0 <= self.skew < math.inf:
            raise TrafficError(f"skew must be a finite number of at least 0, not {self.skew!r}")
        if not all(share > 0.0 for share in self.kinds) or not 0.0 < sum(self.kinds) < math.inf:
            raise TrafficError(f"the shares of kinds must be finite numbers above 0, not {self.kinds!r}")

    @property
    def client_weights(self) -> list[float]:
        """Weights of the clients, by their number."""
        return [(rank + 1.0) ** -self.skew for rank in range(self.clients)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Intended requests, in order of time. Requests are identified by their index."""

    offsets: array[float]  # Seconds from the start of the run (typecode `d`)
    priorities: bytes  # One `Priority` value per request
    segments: array[int]  # Index of the segment each request belongs to (`H`)
    clients: array[int]  # Number of the client: 0 .. number of clients - 1 (`I`)
    kinds: array[int]  # Kind of the request: an index into the requests of its `RequestSource` (`I`)
    names: tuple[str, ...]  # Display name of each segment
    ends_s: tuple[float, ...]  # End of each segment, in seconds from the start

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def duration_s(self) -> float:
        """Length of the plan, from its start to the end of the last segment."""
        return self.ends_s[-1]

    def planned(self) -> dict[tuple[int, Priority], int]:
        """Count requests by (segment, priority); zeros included."""
        counts = Counter(zip(self.segments, self.priorities, strict=True))
        keys = [(segment, priority) for segment in range(len(self.names)) for priority in Priority]
        return {(segment, priority): counts[segment, priority] for segment, priority in keys}


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
    return _assign_requests(offsets, segments, names, shape.ends_s, mix, seed)


def make_replay_plan(times_s: Iterable[float], mix: PriorityMix, *, seed: int = 0) -> LoadPlan:
    """Plan the requests of a trace, with rising times in seconds, as one segment that starts at the first.

    The mix is drawn, since a trace does not contain it. No request, more than a plan can hold, or times that
    are not finite or that fall raise TrafficError.
    """
    times = array("d", islice(times_s, MAX_PLANNED + 1))
    if not 1 <= len(times) <= MAX_PLANNED:
        raise TrafficError(f"a replay needs at least one request, and no more than {MAX_PLANNED}")
    offsets = array("d", (time_s - times[0] for time_s in times))
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
    count, priorities = len(offsets), list(mix.mix)
    ranks = islice(draws(f"{seed}:priorities", list(mix.mix.values())), count)
    return LoadPlan(
        offsets=offsets,
        priorities=bytes(priorities[rank] for rank in ranks),
        segments=segments,
        clients=array("I", islice(draws(f"{seed}:clients", mix.client_weights), count)),
        kinds=array("I", islice(draws(f"{seed}:kinds", mix.kinds), count)),
        names=names,
        ends_s=ends_s,
    )


def draws(seed: str, weights: Sequence[float]) -> Iterator[int]:
    """Draw ranks without end, each in proportion to its weight."""
    if len(weights) == 1:
        return repeat(0)
    edges, one = list(accumulate(weights)), Random(seed).random
    # random() * total may round up to total, so the rank is bounded by the last one with weight.
    total, last = edges[-1], bisect_left(edges, edges[-1])
    return (min(bisect_right(edges, one() * total), last) for _ in repeat(None))


def format_plan(plan: LoadPlan) -> list[str]:
    """Format the counts of a plan: a line per segment, their sum, and a line per second."""
    heads = ("planned", *(priority.label for priority in Priority))
    planned = plan.planned()
    counts = [[planned[segment, priority] for priority in Priority] for segment in range(len(plan.names))]
    counts.append([sum(column) for column in zip(*counts, strict=True)])
    spans = [*pairwise((0.0, *plan.ends_s)), (0.0, plan.duration_s)]
    last_s = max(plan.offsets, default=0.0)
    seconds = [[0] * len(Priority) for _ in range(max(math.ceil(plan.duration_s), int(last_s) + 1))]
    for offset_s, priority in zip(plan.offsets, plan.priorities, strict=True):
        seconds[int(offset_s)][priority] += 1
    return [
        f"{'segment':24}{_cells('from', 'to', *heads)}",
        *(
            f"{name:24}{_cells(f'{begin_s:g} s', f'{end_s:g} s', sum(row), *row)}"
            for name, (begin_s, end_s), row in zip((*plan.names, "total"), spans, counts, strict=True)
        ),
        "",
        f"{'second':>10}{_cells(*heads)}",
        *(f"{second:>10}{_cells(sum(row), *row)}" for second, row in enumerate(seconds)),
    ]


def _cells(*cells: str | int) -> str:
    return "".join(f"{cell:>10}" for cell in cells)
