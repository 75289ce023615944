"""Requests of clients: drawn once for each seed, the same for every limiter."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from benchmarks.loop.scenarios import Scenario

ALPHA = 1.8
COST_MAX = 40.0
"""Largest Pareto cost: lengths of responses vary about as much; larger costs are clipped, the mean is 1."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests of one run, in order of time."""

    at_s: list[float]
    priority: list[int]
    cost: list[float]
    patience: list[tuple[float, ...]]
    """For each request: factors of 0.5 to 1.5 of its waits before retries."""


def plan(scenario: Scenario, seed: int) -> Plan:
    """Draw the requests of a scenario."""
    rng = random.Random(seed)
    drawn = Plan([], [], [], [])
    for at_s, priority in _bursts(scenario, rng) if scenario.burst else _thinned(scenario, rng):
        drawn.at_s.append(at_s)
        drawn.priority.append(priority)
        drawn.cost.append(_pareto(rng) if scenario.pareto else 1.0)
        drawn.patience.append(tuple(rng.uniform(0.5, 1.5) for _ in range(scenario.retries)))
    return drawn


def _bursts(scenario: Scenario, rng: random.Random) -> list[tuple[float, int]]:
    """Draw the burst of each class at random instants of the first fifth of each second."""
    return sorted(
        (second + rng.random() / 5.0, priority)
        for second in range(int(scenario.duration_s))
        for priority, count in enumerate(scenario.burst)
        for _ in range(count)
    )


def _thinned(scenario: Scenario, rng: random.Random) -> list[tuple[float, int]]:
    """Draw a Poisson process with a varying rate by thinning one at the peak rate."""
    load = scenario.load
    edges, pieces, peak = load.edges, load.pieces, load.peak
    rate = peak * scenario.plant.capacity_rps
    high, mid, _ = scenario.mix
    found: list[tuple[float, int]] = []
    index, now = 0, rng.expovariate(rate)
    while now < load.duration_s:
        while now >= edges[index + 1]:
            index += 1
        begun, first, last = pieces[index]
        wanted = first + (last - first) * (now - begun) / (edges[index + 1] - begun)
        if rng.random() * peak < wanted:
            draw = rng.random()
            found.append((now, 0 if draw < high else 1 if draw < high + mid else 2))
        now += rng.expovariate(rate)
    return found


def _pareto(rng: random.Random) -> float:
    cost: float = LEAST_COST * (1.0 - rng.random()) ** EXPONENT
    return min(COST_MAX, cost)


def mean_cost(least: float) -> float:
    """Return the mean of a Pareto distribution from ``least`` on, clipped at the largest cost."""
    beyond: float = least**ALPHA * COST_MAX ** (1.0 - ALPHA)
    return (ALPHA * least - beyond) / (ALPHA - 1.0)


def _least_cost() -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if mean_cost(middle) < 1.0 else (low, middle)
    return high


EXPONENT: Final = -1.0 / ALPHA

LEAST_COST: Final = _least_cost()
"""Smallest Pareto cost, so that the mean is 1: about 0.47."""
