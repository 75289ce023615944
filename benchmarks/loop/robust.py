"""Random services and clients, for which no setting was tuned."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

from benchmarks.loop.offered_load import Load
from benchmarks.loop.plant import PlantSpec
from benchmarks.loop.scenarios import Scenario
from benchmarks.loop.table import Medians, Row

LIMITERS = ("gradient", "concurrency", "adaptive")
"""Limiters that are measured, in addition to the oracle."""

SLACK = 0.03
"""Tolerance below the bars."""

LEAST = 0.95 - SLACK
"""Smallest accepted ratio of the worst service, and of its high class."""

SHOWN = 5
"""Number of the worst services in the record."""

EVALUATED_FROM = 100
"""Number of the first service that was not used to develop the rules."""

EVALUATED = (
    "The rules of the gate were found on the services 0 to 99, and are judged on the numbers from 100 on."
)

DRAWN = """\
Each scenario is drawn by itself; "log" means that the logarithm is uniform.
  largest batch   1 to 64 requests, log            replicas       1 (2 of 3) or 2 to 4
  capacity        10 to 200 requests/s, log        fixed share    5 to 60 % of a full batch, uniform
  objective       6 to 40 full batches, log, but at least 0.5 s
  overload        1.5 to 10 times the capacity, log, after a quarter of the time at 0.3 to 0.7
  mix             high 5 to 25 %, mid 15 to 45 %, low the rest, uniform
  memory          half of them: full at 1.3 to 6 full batches of every replica, log, but not below 16 requests
                  (a card that is read once a second cannot show those in time), and 30 to 70 % idle
  costs           one of four: Pareto (alpha 1.8, mean 1)
  ceilings        10, 5 and 1 times the capacity, as the defaults are for the standard service
  duration        30 objectives, at least 60 s; the first twentieth is warming up
"""


def scenario(number: int) -> Scenario:
    """Return the scenario of a number; it is always the same."""
    rng = random.Random(f"robust {number}")
    batch = round(_log(rng, 1.0, 64.0))
    replicas = rng.choice((1, 1, 1, 1, 2, 4))
    capacity = _log(rng, 10.0, 200.0)
    full_s = replicas * batch / capacity
    fixed = rng.uniform(0.05, 0.6)
    slo_s = max(0.5, full_s * _log(rng, 6.0, 40.0))
    idle = rng.uniform(0.3, 0.7)
    fitting = replicas * batch * _log(rng, 1.3, 6.0)
    plant = PlantSpec(
        replicas=replicas,
        batch=batch,
        base_s=fixed * full_s,
        item_s=(1.0 - fixed) * full_s / batch,
        memory_idle=idle,
        memory_each=(1.0 - idle) / max(fitting, 16.0) if rng.random() < 0.5 else 0.0,
    )
    duration_s = max(60.0, 30.0 * slo_s)
    high, mid = rng.uniform(0.05, 0.25), rng.uniform(0.15, 0.45)
    calm, over = rng.uniform(0.3, 0.7), _log(rng, 1.5, 10.0)
    return Scenario(
        name=f"robust_{number}",
        family="robust",
        load=Load(((0.0, calm, calm), (duration_s / 4.0, over, over)), duration_s),
        plant=plant,
        slo_s=slo_s,
        mix=(high, mid, 1.0 - high - mid),
        rates_rps=(10.0 * capacity, 5.0 * capacity, capacity),
        pareto=rng.random() < 0.25,
        warm_s=duration_s / 20.0,
        rises_s=duration_s / 4.0,
    )


def summary(medians: Medians, limiter: str) -> dict[str, Any]:
    """Summarize a limiter in ratios to the oracle, with the worst services by name."""
    rows = {name: by_limiter[limiter] for name, by_limiter in medians.items()}
    goodput = [row["goodput"] or 0.0 for row in rows.values()]
    worst = sorted(rows, key=lambda name: (_least(rows[name]), name))[:SHOWN]
    return {
        "goodput_mean": round(statistics.geometric_mean([max(ratio, 1e-9) for ratio in goodput]), 4),
        "goodput_worst": round(min(goodput), 4),
        "high_worst": round(min(row["high"] or 0.0 for row in rows.values()), 4),
        "kills": sum(row["kills"] or 0 for row in rows.values()),
        "within": sum(_least(row) >= LEAST and not row["kills"] for row in rows.values()),
        "worst": {
            name: {figure: rows[name][figure] for figure in ("goodput", "high", "kills")} for name in worst
        },
    }


def _least(row: Row) -> float:
    return min(row["goodput"] or 0.0, row["high"] or 0.0)


def _log(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))
