"""Errors of the latency model and of the leak tests, on simulated services with a known truth.

Run: ``python -m benchmarks.models``. All is virtual time with fixed seeds: every run gives the same figures,
but for the time of a step. ``--rounds`` is the number of seeds.

The latency rises by 18 ms with 10 % of GPU utilization. The shares of four resources vary by 15 points, with
an autocorrelation of their own; that of the cores is correlated with that of the GPU.

Memory is that of the requests in flight, of 300 MB each in the mean, on 40 GB of weights. Arrivals are random
at a rate that swings by a fifth within minutes. An allocator either gives freed memory back, or keeps it.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from autoglm_throttle.admission.counters import DURATION_BUCKETS_S
from autoglm_throttle.observe.latency_model import LatencyModel, ResourceEffect
from autoglm_throttle.observe.leak import LeakTest
from autoglm_throttle.observe.models import RESOURCES
from autoglm_throttle.observe.series import histogram_quantile
from benchmarks import harness
from benchmarks.shared.bars import Bar

TRUTH_S = 0.018
MB = 1e6
STEP_S = 5.0
MINUTES = 60

LATENCY_CASES: dict[str, dict[str, Any]] = {
    "independent, 5 % noise": {},
    "independent, 20 % noise": {"noise": 0.2},
    "correlated 0.5, 5 % noise": {"correlation": 0.5},
    "correlated 0.95, 5 % noise": {"correlation": 0.95},
    "GPU at 98 %": {"pinned": True},
    "noise correlated 0.9 with the step before": {"noise_memory": 0.9},
    "slow load, all correlated 0.99 with the step before": {"memory": 0.99, "noise_memory": 0.9},
    "median of the buckets instead of the mean": {"measured": "bucket"},
}
LEAK_CASES: dict[str, dict[str, Any]] = {
    "steady load": {},
    "load swings by 40 %": {"swing": 0.4},
    "load rises threefold in the hour": {"trend": 1.0},
    "load falls to a third in the hour": {"trend": -1.0},
    "requests of 5 s": {"stay_s": 5.0},
}
LEAKS = (0, 20, 50, 200)
WARM_UPS = {"a cache fills, time constant 10 min": 600.0, "a cache fills, time constant 20 min": 1200.0}

Measured = Literal["exact", "mean", "bucket"]
Service = tuple[Sequence[int], Sequence[float]]


def effects(
    seed: int,
    *,
    correlation: float = 0.0,
    noise: float = 0.05,
    noise_memory: float = 0.0,
    memory: float = 0.5,
    pinned: bool = False,
    measured: Measured = "exact",
    steps: int = 360,
) -> dict[str, ResourceEffect]:
    """Return the effects that the model finds after some steps, by default those of half an hour."""
    rng = random.Random(seed)
    model, error = LatencyModel(RESOURCES), 0.0
    state = [rng.gauss(0, 1) for _ in RESOURCES]
    fresh, fresh_noise = math.sqrt(1 - memory**2), math.sqrt(1 - noise_memory**2)
    for _ in range(steps):
        state = [memory * value + fresh * rng.gauss(0, 1) for value in state]
        gpu, gpu_memory, other, iowait = state
        cpu = correlation * gpu + math.sqrt(1 - correlation**2) * other
        shares = [min(max(0.5 + 0.15 * value, 0.0), 1.0) for value in (gpu, gpu_memory, cpu, iowait)]
        if pinned:
            shares[0] = min(0.98 + 0.004 * gpu, 1.0)
        error = noise_memory * error + fresh_noise * rng.gauss(0, noise)
        latency_s = (0.1 + 10 * TRUTH_S * shares[0]) * (1 + error)
        model.step(_measured(rng, latency_s, measured), dict(zip(RESOURCES, shares, strict=True)))
    return {effect.resource: effect for effect in model.view().effects}


def _measured(rng: random.Random, latency_s: float, measured: Measured) -> float | None:
    """Measure the latency by 250 requests whose durations vary by 30 %, unless it is known exactly."""
    if measured == "exact":
        return latency_s
    durations = [latency_s * math.exp(rng.gauss(0, 0.3) - 0.045) for _ in range(250)]
    if measured == "mean":
        return statistics.fmean(durations)
    counts = [0] * (len(DURATION_BUCKETS_S) + 1)
    for duration in durations:
        counts[bisect_left(DURATION_BUCKETS_S, duration)] += 1
    return histogram_quantile(0.5, counts)


def service_memory(
    seed: int, *, swing: float = 0.2, trend: float = 0.0, stay_s: float = 20.0, in_flight: float = 20.0
) -> Iterator[tuple[int, float]]:
    """Yield the requests in flight and their bytes, with those of the weights, every 5 s for an hour."""
    rng = random.Random(seed)
    state, running, keep = rng.gauss(0, 1), list[tuple[float, float]](), math.exp(-1 / 300)
    for second in range(-300, 60 * MINUTES):
        state = keep * state + math.sqrt(1 - keep * keep) * rng.gauss(0, 1)
        rate = in_flight / stay_s * math.exp(swing * state) * (1 + trend * (second / (60 * MINUTES) - 0.5))
        begun = rng.expovariate(rate)
        while begun < 1:
            end = second + begun + rng.expovariate(1 / stay_s)
            running.append((end, 300 * MB * math.exp(rng.gauss(0, 0.5) - 0.125)))
            begun += rng.expovariate(rate)
        running = [request for request in running if request[0] > second + 1]
        if second >= 0 and second % STEP_S == STEP_S - 1:
            yield len(running), 40_000 * MB + math.fsum(used for _, used in running)


def service_of(seed: int, **service: float) -> Service:
    """Return the requests in flight and the bytes of a simulated hour, in steps of 5 s."""
    loads, used = zip(*service_memory(seed, **service), strict=True)
    return loads, used


def kept_by_allocator(used: Sequence[float]) -> list[float]:
    """Return the bytes of an allocator that keeps what it was given, in blocks of 20 MB."""
    return list(itertools.accumulate((math.ceil(value / (20 * MB)) * 20 * MB for value in used), max))


def tested(loads: Sequence[int], used: Sequence[float]) -> float | None:
    """Return the slope of the leak test at the end, in bytes an hour."""
    test = LeakTest()
    for step, (load, value) in enumerate(zip(loads, used, strict=True), 1):
        test.step(step * STEP_S, value, load)
    test.step((len(used) + 1) * STEP_S + 60.0, None, None)
    return test.bytes_per_hour


def leaks_found(services: Sequence[Service], added: Sequence[float]) -> dict[str, Any]:
    """Count the leaks found of both kinds of allocators, with some bytes added at each step."""
    found, slopes = Counter[str](), []
    for loads, used in services:
        total = [value + extra for value, extra in zip(used, added, strict=True)]
        slope = tested(loads, total)
        found["gives back"] += bool(slope)
        found["keeps"] += bool(tested(loads, kept_by_allocator(total)))
        slopes += [slope / 60 / MB] if slope else []
    return {
        "services": len(services),
        "gives back": found["gives back"],
        "keeps": found["keeps"],
        "median MB/min": statistics.median(slopes) if slopes else None,
    }


def leak_rows(seeds: int) -> dict[str, dict[str, Any]]:
    """Count the leaks found in each case and at each slope, and in caches that fill.

    The cases beside the steady load, which no bar judges, have a fifth of the seeds.
    """
    seconds = [step * STEP_S for step in range(1, round(60 * MINUTES / STEP_S) + 1)]
    rows = {}
    for case, service in LEAK_CASES.items():
        number = max(seeds // 5, 1) if service else seeds
        services = [service_of(seed, **service) for seed in range(number)]
        for leak in LEAKS:
            rows[f"{case}, {leak} MB/min"] = leaks_found(services, [leak * MB * at / 60 for at in seconds])
        for fills, time_s in () if service else WARM_UPS.items():
            added = [10_000 * MB * (1 - math.exp(-at / time_s)) for at in seconds]
            rows[fills] = leaks_found(services, added)
    return rows


def latency_rows(seeds: int) -> dict[str, dict[str, Any]]:
    """Measure the errors of the GPU's effect in each case; ``covered``: the truth was in the interval."""
    rows = {}
    for case, service in LATENCY_CASES.items():
        each = [effects(seed, **service) for seed in range(seeds)]
        gpu = [found["gpu"] for found in each]
        known = [effect for effect in gpu if effect.seconds is not None]
        errors = [abs((effect.seconds or 0.0) / TRUTH_S - 1) for effect in known]
        rows[case] = {
            "known": len(known),
            "largest error": max(errors, default=None),
            "median error": statistics.median(errors) if errors else None,
            "covered": sum((one.low_s or 0.0) <= TRUTH_S <= (one.high_s or 0.0) for one in known),
            "silent": dict(Counter(str(effect.silence) for effect in gpu if effect.silence is not None)),
            "others known": sum(found[name].silence is None for found in each for name in RESOURCES[1:]),
        }
    return rows


def step_us() -> float:
    """Measure the CPU time of a step of the latency model, in microseconds: the least of ten runs."""
    rng = random.Random(1)
    rows = [(rng.random(), {name: rng.random() for name in RESOURCES}) for _ in range(1200)]
    spent = []
    for _ in range(10):
        model, begun = LatencyModel(RESOURCES), time.thread_time()
        for latency_s, used in rows:
            model.step(latency_s, used)
        spent.append((time.thread_time() - begun) / len(rows) * 1e6)
    return min(spent)


def bars(found: dict[str, Any]) -> Iterator[Bar]:
    """Compare the figures with their bounds."""
    seeds, latency, leaks = found["seeds"], found["latency"], found["leaks"]
    for case in ("independent, 5 % noise", "correlated 0.5, 5 % noise"):
        yield Bar(f"effect of the GPU known, {case}", latency[case]["known"], seeds, at_most=False)
        yield Bar(f"largest error, {case}", latency[case]["largest error"], 0.1)
    for case in ("GPU at 98 %", "correlated 0.95, 5 % noise"):
        yield Bar(f"effect of the GPU known, {case}", latency[case]["known"], 0)
    yield Bar("us of a step of the latency model", found["step_us"], 50)
    for kind in ("gives back", "keeps"):
        yield Bar(f"false leaks, allocator {kind}", leaks["steady load, 0 MB/min"][kind], 0.05 * seeds)
    row = "gives back", "steady load, 50 MB/min"
    yield Bar("leaks of 50 MB/min, allocator gives back", leaks[row[1]][row[0]], 0.95 * seeds, at_most=False)
    row = "keeps", "steady load, 200 MB/min"
    yield Bar("leaks of 200 MB/min, allocator keeps", leaks[row[1]][row[0]], 0.95 * seeds, at_most=False)


def latency_part(kept: Mapping[str, Any]) -> str:
    """Render the errors of the latency model."""
    rows = "".join(
        f"| {case} | {row['known']} | {_percent(row['median error'])} | {_percent(row['largest error'])} "
        f"| {row['covered']} |\n"
        for case, row in kept["latency"].items()
    )
    return (
        f"Half an hour, truth 18 ms with 10 points of the GPU, {kept['seeds']} simulated services:\n\n"
        "| service | effect known | median error | largest error | truth in the interval |\n"
        f"|---|---|---|---|---|\n{rows}\n`benchmarks/models.py`: {harness.line(kept['machine'])}.\n"
    )


def leak_part(kept: Mapping[str, Any]) -> str:
    """Render the leaks found."""
    rows = "".join(
        f"| {case} | {row['services']} | {row['gives back']} | {row['keeps']} |\n"
        for case, row in kept["leaks"].items()
    )
    return (
        "Leaks found in simulated hours, with 20 requests in flight of 300 MB each:\n\n"
        "| service and its leak | hours | found, allocator gives memory back | allocator keeps it |\n"
        f"|---|---|---|---|\n{rows}\n`benchmarks/models.py`: {harness.line(kept['machine'])}.\n"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def main() -> None:
    """Run all cases, and print the figures with their bounds."""
    options = harness.arguments(__doc__ or "", 100)
    found: dict[str, Any] = {
        "machine": harness.machine(),
        "seeds": options.rounds,
        "latency": latency_rows(options.rounds),
        "leaks": leak_rows(options.rounds),
        "step_us": step_us(),
    }
    for part in ("latency", "leaks"):
        for case, row in found[part].items():
            print(f"{case:55}", row)
    judged = list(bars(found))
    print(*judged, sep="\n")
    if options.write:
        harness.keep("models", found | {"bars": [bar.record() for bar in judged]})


if __name__ == "__main__":
    main()
