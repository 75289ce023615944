"""Who asks for what and when: drawn once for each seed, the same for every controller."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from benchmarks.loop.scenarios import Scenario

ALPHA = 1.8
COST_MAX = 40.0
"""Pareto costs: lengths of answers vary about as much; the largest is cut off, the mean is 1."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests of one run, in order of time."""

    at_s: list[float]
    priority: list[int]
    cost: list[float]
    patience: list[tuple[float, ...]]
    """For each request: 0.5 to 1.5, by which its waits before repetitions are stretched."""


def plan(scenario: Scenario, seed: int) -> Plan:
    """Draw the requests of a scenario."""
    dice = random.Random(seed)
    drawn = Plan([], [], [], [])
    for at_s, priority in _bursts(scenario, dice) if scenario.burst else _thinned(scenario, dice):
        drawn.at_s.append(at_s)
        drawn.priority.append(priority)
        drawn.cost.append(_pareto(dice) if scenario.pareto else 1.0)
        drawn.patience.append(tuple(dice.uniform(0.5, 1.5) for _ in range(scenario.retries)))
    return drawn


def _bursts(scenario: Scenario, dice: random.Random) -> list[tuple[float, int]]:
    """So many of each class at random instants of the first fifth of each second."""
    return sorted(
        (second + dice.random() / 5.0, priority)
        for second in range(int(scenario.duration_s))
        for priority, count in enumerate(scenario.burst)
        for _ in range(count)
    )


def _thinned(scenario: Scenario, dice: random.Random) -> list[tuple[float, int]]:
    """A Poisson process with a varying rate: of one at the highest rate as many are kept as are wanted."""
    load = scenario.load
    edges, pieces, peak = load.edges, load.pieces, load.peak
    rate = peak * scenario.plant.capacity_rps
    high, mid, _ = scenario.mix
    found: list[tuple[float, int]] = []
    index, now = 0, dice.expovariate(rate)
    while now < load.duration_s:
        while now >= edges[index + 1]:
            index += 1
        begun, first, last = pieces[index]
        wanted = first + (last - first) * (now - begun) / (edges[index + 1] - begun)
        if dice.random() * peak < wanted:
            lot = dice.random()
            found.append((now, 0 if lot < high else 1 if lot < high + mid else 2))
        now += dice.expovariate(rate)
    return found


def _pareto(dice: random.Random) -> float:
    cost: float = LEAST_COST * (1.0 - dice.random()) ** EXPONENT
    return min(COST_MAX, cost)


def mean_cost(least: float) -> float:
    """Mean of a Pareto distribution from ``least`` on, cut off at the largest cost."""
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
"""Where the Pareto costs begin, so that their mean is 1: about 0.47."""
