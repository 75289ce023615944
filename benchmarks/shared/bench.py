"""The Redis server of a run, its counters, and the scale of the measurement."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

from autoglm_throttle.types import UserLimit
from benchmarks.shared.candidate import Candidate
from benchmarks.shared.drive import Hit
from benchmarks.shared.gauge import Gauge
from tests.store.server import RedisServer

LIMIT = UserLimit("user-60s", 100, 60)
"""Default limit of every user: stored as an exact log."""

USERS = [f"{number:016x}" for number in range(20_000)]
"""Enough users that none is rejected in a row of admissions."""


@dataclass(frozen=True)
class Scale:
    """Sizes and durations of a run."""

    rounds: int = 5
    depths: tuple[int, ...] = (1, 64, 512)
    warm_s: float = 0.15
    row_s: float = 0.4
    open_rounds: int = 3
    open_s: float = 3.0
    window_s: int = 2
    """Window of the limit that is measured at the edges of its windows."""
    memory_users: int = 2000
    spread_s: int = 12
    """Seconds over which the units of the compact layout are spread, so that each sub-bucket holds some."""
    attack_s: float = 3.0
    cancel_ours: int = 30_000
    cancel_peer: int = 6_000
    outages: int = 3


QUICK = Scale(
    rounds=1,
    depths=(64, 512),
    row_s=0.15,
    warm_s=0.05,
    open_rounds=1,
    open_s=0.5,
    window_s=1,
    memory_users=500,
    spread_s=3,
    attack_s=1.2,
    cancel_ours=4000,
    cancel_peer=1000,
    outages=1,
)


class RedisBench:
    """A server with its gauge and the scale of a run."""

    def __init__(self, server: RedisServer, scale: Scale) -> None:
        self.server = server
        self.scale = scale
        self.gauge = Gauge(server)

    @contextlib.asynccontextmanager
    async def opened(self, candidate: Candidate, limit: UserLimit = LIMIT) -> AsyncGenerator[Hit]:
        """Open a candidate with an empty server."""
        self.gauge.empty()
        gc.collect()
        async with candidate.open(self.server.url, limit) as hit:
            yield hit


@contextlib.contextmanager
def redis_bench(scale: Scale) -> Iterator[RedisBench]:
    """Start the newest server that is installed on this machine."""
    with RedisServer() as server:
        yield RedisBench(server, scale)
