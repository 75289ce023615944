"""Cases around services that batch: restarts, workers, cheap answers, idle streams, users, fast steps."""

from __future__ import annotations

import random
from functools import partial

from benchmarks.field_cases import clients
from benchmarks.field_cases.call import Kind
from benchmarks.field_cases.case import Bar, Case, Figures, Job, each, ratio
from benchmarks.field_cases.limiters import maker
from benchmarks.field_cases.plants import RoutedPlant, ServersPlant, batches, servers
from benchmarks.field_cases.tally import Tally, total
from benchmarks.field_cases.world import SILENT, Rates, Stream, World
from benchmarks.loop.measures import p99
from benchmarks.loop.plant import BatchPlant, Listener, PlantSpec
from benchmarks.loop.scheduler import EventScheduler

STANDARD = PlantSpec()
TWO_BATCHES = 32
"""The limit set by hand for the standard service."""

SLOW = PlantSpec(batch=1, base_s=0.02, item_s=0.08)
GPU = PlantSpec(batch=4, base_s=0.010, item_s=0.0225)
FAST = PlantSpec(batch=128, base_s=0.010, item_s=(128 / 6000 - 0.010) / 128)
"""6000 requests/s in full batches of 21 ms."""

_SERVERS = {"144 servers": 144, "600 servers": 600}
"""6000 requests/s of 24 ms or of 100 ms each."""

PLAIN = Kind()


def served(tally: Tally, capacity_rps: float) -> Figures:
    """Return good answers over the smaller of load and capacity, and high ones over those asked for."""
    offered = total(tally.offered)
    return {
        "good": ratio(total(tally.good), min(offered, capacity_rps * tally.lasts_s)),
        "high": ratio(total(tally.good, priority=0), total(tally.offered, priority=0)),
        "refused": ratio(total(tally.rejected), total(tally.attempts)),
    }


_RESTARTS: dict[str, tuple[Rates, float, float, float]] = {
    "30 s, 2x": (((0, 200),), 30.0, 40.0, 120.0),
    "30 s, 5x": (((0, 500),), 30.0, 40.0, 120.0),
    "8 s, 8x": (((0, 800),), 8.0, 15.0, 60.0),
    "first batch 8 s, 2x": (((0, 30), (10, 200)), 8.0, 20.0, 90.0),
}
"""Rates, the end of the silence, and the window."""


def restart(job: Job, limiter: str) -> Figures:
    """Begin a process whose model still loads while requests arrive."""
    rates, silent_s, from_s, until_s = _RESTARTS[job.variant]
    make = maker(limiter, fixed=TWO_BATCHES, tuning=job.tuning)
    world = World(batches(STANDARD), make, Tally(from_s, until_s))
    world.speeds((0.0, SILENT), (silent_s, 1.0))
    Stream(world, PLAIN, rates, f"restart {job.seed}")
    return served(world.run(), STANDARD.capacity_rps)


_WORKERS: dict[str, tuple[PlantSpec, int, float, int]] = {
    "4 workers, 5x": (STANDARD, 4, 5.0, TWO_BATCHES),
    "8 workers, 3x": (STANDARD, 8, 3.0, TWO_BATCHES),
    "10/s behind 4, 2x": (SLOW, 4, 2.0, 4),
    "10/s behind 8, 2x": (SLOW, 8, 2.0, 4),
    "10/s behind 16, 2x": (SLOW, 16, 2.0, 4),
}
_UNEVEN = "4 uneven workers, 5x"
_ACCEPTED = (0.12, 0.25, 0.28, 0.35)
"""Connections that four workers of uvicorn accept from one socket, as shares. [measured]"""


_FLEET = PlantSpec(batch=16, base_s=0.02, item_s=0.02)
"""That of the sockets' case: 50/s of one device."""


def uneven(job: Job, limiter: str) -> Figures:
    """Start workers of uneven shares in an overload."""
    make = maker(limiter, fixed=16, tuning=job.tuning)
    world = World(batches(_FLEET), make, Tally(5.0, 75.0), workers=4, shares=_ACCEPTED)
    Stream(world, PLAIN, ((0, 5.0 * _FLEET.capacity_rps),), f"uneven {job.seed}")
    return served(world.run(), _FLEET.capacity_rps)


def workers(job: Job, limiter: str) -> Figures:
    """Share a service between processes that know nothing of each other."""
    if job.variant == _UNEVEN:
        return uneven(job, limiter)
    spec, count, multiple, fixed = _WORKERS[job.variant]
    make = maker(limiter, fixed=fixed, tuning=job.tuning)
    world = World(batches(spec), make, Tally(20.0, 75.0), workers=count)
    capacity = spec.capacity_rps
    Stream(world, PLAIN, ((0, 0.5 * capacity), (15, multiple * capacity)), f"workers {job.seed}")
    return served(world.run(), capacity)


_GPU, _CHEAP = Kind("gpu"), Kind("cheap", draw_work=lambda _: 0.001)
_CHEAP_RPS = {"200/s": 200.0, "600/s": 600.0, "2000/s": 2000.0}
_CHEAP_SERVERS = 1_000_000


def _beside(scheduler: EventScheduler, listener: Listener) -> RoutedPlant:
    return RoutedPlant(
        {
            "gpu": BatchPlant(GPU, scheduler, listener),
            "cheap": ServersPlant(_CHEAP_SERVERS, scheduler, listener),
        }
    )


def cheap(job: Job, limiter: str) -> Figures:
    """Answer some requests in a millisecond beside an overloaded device."""
    make = maker(limiter, fixed=8, tuning=job.tuning)
    world = World(_beside, make, Tally(15.0, 60.0))
    capacity = GPU.capacity_rps
    Stream(world, _GPU, ((0, 0.5 * capacity), (10, 3.0 * capacity)), f"cheap gpu {job.seed}")
    Stream(world, _CHEAP, ((0, _CHEAP_RPS[job.variant]),), f"cheap {job.seed}")
    tally = world.run()
    good, late = total(tally.good, kind="gpu"), total(tally.late, kind="gpu")
    return {
        "good": ratio(good, min(total(tally.offered, kind="gpu"), capacity * tally.lasts_s)),
        "late": ratio(late, good + late),
        "cheap": ratio(total(tally.good, kind="cheap"), total(tally.offered, kind="cheap")),
    }


HOLDERS = 100


def holders(job: Job, limiter: str) -> Figures:
    """Hold a hundred answers open that send nothing after their first second."""
    make = maker(limiter, fixed=TWO_BATCHES, tuning=job.tuning)
    world = World(batches(STANDARD), make, Tally(15.0, 60.0))
    multiple = float(job.variant.removesuffix("x"))
    Stream(world, PLAIN, ((0, 50), (5, multiple * 100)), f"holders {job.seed}", group="others")
    clients.Holders(world, PLAIN, HOLDERS, 10.0, f"holders {job.seed} idle")
    tally = world.run()
    offered = total(tally.offered, group="others")
    return {
        "good": ratio(total(tally.good, group="others"), min(offered, 100.0 * tally.lasts_s)),
        "refused": ratio(total(tally.rejected, group="others"), offered),
    }


_USERS = {"1 of 100": (1, 99), "1 of 10": (1, 9), "5 of 100": (5, 95)}
"""Users that send half of the load, and the others."""

_ONE_PRIORITY = Kind(mix=(0.0, 1.0, 0.0))


def _user(prefix: str, count: int, rng: random.Random) -> str:
    return f"{prefix}{rng.randrange(count)}"


def users(job: Job, limiter: str) -> Figures:
    """Let a few users send as much as all others together, at twice the capacity."""
    heavy, light = _USERS[job.variant]
    make = maker(limiter, fixed=TWO_BATCHES, tuning=job.tuning)
    world = World(batches(STANDARD), make, Tally(20.0, 75.0))
    for group, count, rates in (
        ("light", light, ((0, 50), (15, 100))),
        ("heavy", heavy, ((0, 0), (15, 100))),
    ):
        Stream(
            world,
            _ONE_PRIORITY,
            rates,
            f"users {group} {job.seed}",
            users=partial(_user, group, count),
            group=group,
        )
    tally = world.run()
    return {
        "light": ratio(total(tally.good, group="light"), total(tally.offered, group="light")),
        "good": ratio(total(tally.good), 100.0 * tally.lasts_s),
    }


def _fast(job: Job, limiter: str, rates: Rates, window: tuple[float, float]) -> Tally:
    count = _SERVERS.get(job.variant.partition(",")[0])
    make = maker(limiter, fixed=2 * (count or FAST.batch), tuning=job.tuning)
    world = World(servers(count) if count else batches(FAST), make, Tally(*window))
    kind = Kind(draw_work=partial(_fast_answer_s, count)) if count else PLAIN
    Stream(world, kind, rates, f"fast {job.seed}")
    return world.run()


def _fast_answer_s(count: int, rng: random.Random) -> float:
    return rng.uniform(0.75, 1.25) * count / 6000.0


def fast(job: Job, limiter: str) -> Figures:
    """Step from 3000 to 5000 requests/s where 6000 can be served, or begin with 5000."""
    if job.variant.endswith("cold start"):
        tally = _fast(job, limiter, ((0, 5000),), (0.0, 1.0))
        return {"refused": ratio(total(tally.rejected), total(tally.offered))}
    rates, window = ((0, 3000), (8, 5000)), (8.0, 13.0)
    tally = _fast(job, limiter, rates, window)
    alone = _fast(job, "none", rates, window)
    return {
        "p99 over alone": ratio(p99(tally.latencies_s) or 0.0, p99(alone.latencies_s) or 0.0),
        "refused": ratio(total(tally.rejected), total(tally.offered)),
    }


_FAST = tuple(f"{plant}, {how}" for plant in ("batches", *_SERVERS) for how in ("step", "cold start"))

CASES = (
    Case(
        "restart",
        "1 the model loads while requests arrive",
        tuple(_RESTARTS),
        each(restart),
        tuple(bar for name in _RESTARTS for bar in (Bar(name, "good", 0.98), Bar(name, "high", 0.97))),
    ),
    Case(
        "workers",
        "2 processes that share a service",
        (*_WORKERS, _UNEVEN),
        each(workers),
        (
            Bar("4 workers, 5x", "high", 0.90),
            Bar("8 workers, 3x", "high", 0.95),
            Bar("10/s behind 4, 2x", "good", 0.97),
            Bar("10/s behind 8, 2x", "good", 0.97),
            Bar("10/s behind 16, 2x", "good", 0.90),
            Bar(_UNEVEN, "high", 0.90),
        ),
    ),
    Case(
        "cheap",
        "4 answers of 1 ms beside a device at 3x",
        tuple(_CHEAP_RPS),
        each(cheap),
        (
            *(
                bar
                for name in _CHEAP_RPS
                for bar in (Bar(name, "good", 0.98), Bar(name, "late", 0.01, at_most=True))
            ),
            Bar("200/s", "cheap", 0.97),
            Bar("600/s", "cheap", 0.93),
            Bar("2000/s", "cheap", 0.75),
        ),
    ),
    Case(
        "holders",
        "5 a hundred idle streams",
        ("0.8x", "2x"),
        each(holders),
        (Bar("0.8x", "good", 0.97), Bar("2x", "good", 0.97), Bar("0.8x", "refused", 0.05, at_most=True)),
    ),
    Case(
        "users",
        "8 a few users send half of 2x",
        tuple(_USERS),
        each(users),
        (Bar("1 of 100", "light", 0.92), Bar("1 of 10", "light", 0.86), Bar("5 of 100", "light", 0.87)),
    ),
    Case(
        "fast",
        "FIELD 33: steps within the capacity of 6000/s",
        _FAST,
        each(fast),
        (
            *(Bar(name, "p99 over alone", 2.0, at_most=True) for name in _FAST if name.endswith("step")),
            # no bar for the cold start of 600 servers: 500 must be in flight before the first answer ends
            *(Bar(name, "refused", 0.01, at_most=True) for name in _FAST if not name.startswith("600")),
        ),
    ),
)
