"""Figures of a run, relative to the best possible result for the same requests."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from benchmarks.loop.clients import Plan
from benchmarks.loop.run_counts import RunCounts
from benchmarks.loop.scenarios import Scenario

WINDOW = 4
"""Bins of a window: one objective, 2 s in most scenarios."""

HELD = 6
"""Bins for which windows must stay good: 3 s where the objective is 2 s."""

REACTED, RECOVERED = 0.85, 0.95
"""Shares of the possible goodput in a window."""

SWING = 0.2
"""Smallest change of direction that counts, as a share of the larger value."""


@dataclass(frozen=True, slots=True)
class Possible:
    """The best possible result for a plan: that of the oracle, or without one, of a full service."""

    good: float
    by_class: tuple[float, float, float]
    by_bin: Sequence[int] | None
    high_p99_s: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run; ratios are relative to the best possible result."""

    goodput: float
    high: float
    mid: float | None
    low: float | None
    """None where almost nothing of a class was possible."""
    high_p99_s: float | None
    high_p99_over: float | None
    """Ratio to that of the oracle."""
    refused: float
    """Rejected attempts as a share of the offered requests."""
    react_s: float | None
    recover_s: float | None
    """Infinite: never; None: nothing to react to, or to recover from."""
    reversals: int
    kills: int


def possible(scenario: Scenario, plan: Plan, oracle: RunCounts | None) -> Possible:
    """Return the result of the oracle, or without one the smaller of demand and full service."""
    if oracle is not None:
        high, mid, low = oracle.good
        return Possible(sum(oracle.good), (high, mid, low), oracle.good_by_bin, p99(oracle.high_s))
    asked = [0.0, 0.0, 0.0]
    for at_s, priority in zip(plan.at_s, plan.priority, strict=True):
        if at_s >= scenario.warm_s:
            asked[priority] += 1
    return Possible(_full_service(scenario, plan), (asked[0], asked[1], asked[2]), None, None)


def figures(scenario: Scenario, counts: RunCounts, best: Possible) -> Figures:
    """Compute the figures of one run."""
    offered = sum(counts.offered)
    high_p99_s = p99(counts.high_s)
    full = scenario.plant.capacity_rps * counts.bin_s * WINDOW
    ratios = [
        good / could if could >= 30 else None for good, could in zip(counts.good, best.by_class, strict=True)
    ]
    return Figures(
        goodput=sum(counts.good) / best.good,
        high=counts.good[0] / best.by_class[0],
        mid=ratios[1],
        low=ratios[2],
        high_p99_s=high_p99_s,
        high_p99_over=high_p99_s / best.high_p99_s if high_p99_s and best.high_p99_s else None,
        refused=sum(counts.rejected) / offered,
        react_s=_until_good(counts, best, scenario.rises_s, REACTED, full),
        recover_s=_until_good(counts, best, scenario.relieved_s, RECOVERED, full),
        reversals=sum(reversals(row) for row in zip(*counts.states, strict=True)),
        kills=counts.kills,
    )


def p99(values: Sequence[float]) -> float | None:
    """Return the 99th percentile by nearest rank; None without values."""
    if not values:
        return None
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def reversals(series: Iterable[float | None]) -> int:
    """Count changes of direction of at least a fifth."""
    count, direction, extreme = 0, 0, None
    for value in series:
        if value is None:
            continue
        if extreme is None:
            extreme = value
            continue
        step = 1 if value > extreme else -1
        if direction == step or abs(value - extreme) >= SWING * max(value, extreme) > 0.0:
            count += direction == -step
            direction, extreme = step, value
    return count


def median(rows: Sequence[Figures]) -> dict[str, float | None]:
    """Return the median of each figure over the seeds; None where half of the seeds have none."""
    named = [asdict(row) for row in rows]
    return {name: _middle([row[name] for row in named]) for name in named[0]}


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) * 2 <= len(values):
        return None
    found = statistics.median(known)
    return round(found, 4)


def _until_good(
    counts: RunCounts, best: Possible, since_s: float | None, share: float, full: float
) -> float | None:
    """Return the seconds until windows reach a share of the possible and stay there for a while.

    The oracle may answer more requests of one window than a ``full`` service does in that time, at the
    cost of later ones; other limiters are compared with the full service then.
    """
    if since_s is None or best.by_bin is None:
        return None
    begun = math.ceil(since_s / counts.bin_s)
    held = 0
    for index in range(begun, len(best.by_bin) - WINDOW):
        could = min(full, sum(best.by_bin[index : index + WINDOW]))
        held = held + 1 if sum(counts.good_by_bin[index : index + WINDOW]) >= share * could else 0
        if held > HELD:
            return (index - HELD - begun) * counts.bin_s
    return math.inf


def _full_service(scenario: Scenario, plan: Plan) -> float:
    capacity = scenario.plant.capacity_rps
    edges = scenario.load.edges
    total = 0.0
    for edge, ends in itertools.pairwise(edges):
        begun = max(edge, scenario.warm_s)
        total += min(sum(begun <= at_s < ends for at_s in plan.at_s), capacity * (ends - begun))
    return total
