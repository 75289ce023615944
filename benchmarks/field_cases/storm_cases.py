"""Callers that come back: storms of retries, and crowds in a closed loop."""

from __future__ import annotations

import math

from benchmarks.field_cases.call import Kind
from benchmarks.field_cases.case import Bar, Case, Figures, Job, each, ratio
from benchmarks.field_cases.clients import SDK_RETRIES, SDK_RETRY_AFTER_MAX_S, Crowd, RetryingCaller
from benchmarks.field_cases.limiters import maker
from benchmarks.field_cases.plants import batches, servers
from benchmarks.field_cases.tally import Tally, total
from benchmarks.field_cases.world import Rates, Stream, World
from benchmarks.loop.plant import PlantSpec

STANDARD = PlantSpec()
EIGHT_PER_S = PlantSpec(batch=1, base_s=0.02, item_s=0.105)
PATIENT_RETRIES = 19
PAUSE_S = 1.0
CROWD_S = 180.0
NEW_CALLS_S, ENDED_S = 20.0, 300.0

_STORMS: dict[str, tuple[Rates, int]] = {
    "3x for 20 s, 20 tries": (((0, 50), (15, 300), (35, 50)), PATIENT_RETRIES),
    "3x for 20 s, SDK": (((0, 50), (15, 300), (35, 50)), SDK_RETRIES),
    "20x for 3 s, SDK": (((0, 50), (15, 2000), (18, 50)), SDK_RETRIES),
}


def storm(job: Job, limiter: str) -> Figures:
    """Reject callers that come back at the time they are told."""
    rates, retries = _STORMS[job.variant]
    make = maker(limiter, fixed=32, tuning=job.tuning)
    world = World(batches(STANDARD), make, Tally(15.0, 75.0))
    longest_s = SDK_RETRY_AFTER_MAX_S if retries == SDK_RETRIES else math.inf
    caller = RetryingCaller(world, retries, f"storm {job.seed} retries", longest_s)
    Stream(world, Kind(), rates, f"storm {job.seed}", caller=caller)
    tally = world.run()
    return {
        "good": ratio(total(tally.good), min(total(tally.offered), STANDARD.capacity_rps * tally.lasts_s)),
        "tries": ratio(total(tally.attempts), total(tally.offered)),
    }


_CROWDS = {"160 callers of 8/s": 160, "320 callers of 8/s": 320}


def crowd(job: Job, limiter: str) -> Figures:
    """Let callers of SDKs loop that are too many for a service."""
    if job.variant in _CROWDS:
        make = maker(limiter, fixed=4, tuning=job.tuning)
        world = World(batches(EIGHT_PER_S), make, Tally(0.0, CROWD_S))
        count, until_s = _CROWDS[job.variant], CROWD_S
    else:
        make = maker(limiter, fixed=8, tuning=job.tuning)
        world = World(servers(8), make, Tally(0.0, ENDED_S))
        count, until_s = 160, NEW_CALLS_S
    kind = Kind(draw_work=lambda _: 1.0)
    callers = Crowd(world, kind, count, PAUSE_S, until_s, f"crowd {job.seed}")
    world.run()
    return {
        "failed": ratio(callers.failed, callers.ended),
        "served": callers.served_in_time / (until_s * 8.0),
        "calls": float(callers.ended),
    }


_LOOPING = "160 loop for 20 s"

CASES = (
    Case(
        "storm",
        "7 rejected callers come back",
        tuple(_STORMS),
        each(storm),
        (
            Bar("3x for 20 s, 20 tries", "good", 0.98),
            Bar("3x for 20 s, 20 tries", "tries", 2.0, at_most=True),
            Bar("3x for 20 s, SDK", "good", 0.95),
            Bar("20x for 3 s, SDK", "good", 0.70),
        ),
    ),
    Case(
        "crowd",
        "7 callers of SDKs in a closed loop",
        (*_CROWDS, _LOOPING),
        each(crowd),
        (
            *(Bar(name, "failed", 0.02, at_most=True) for name in _CROWDS),
            Bar(_LOOPING, "failed", 0.10, at_most=True),
            Bar(_LOOPING, "served", 0.90),
        ),
    ),
)
