"""A server, what it says about itself, and how much of everything there is to be."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

from autoglm_throttle.types import UserLimit
from benchmarks.shared.contestant import Contestant
from benchmarks.shared.drive import Hit
from benchmarks.shared.gauge import Gauge
from tests.store.server import RedisServer

LIMIT = UserLimit("user-60s", 100, 60)
"""Of every user, where nothing else is said: kept as an exact log."""

USERS = [f"{number:016x}" for number in range(20_000)]
"""So many that none of them is refused in a row that is to admit."""


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    rounds: int = 5
    depths: tuple[int, ...] = (1, 64, 512)
    warm_s: float = 0.15
    row_s: float = 0.4
    open_rounds: int = 3
    open_s: float = 3.0
    window_s: int = 2
    """Of the limit that is attacked at the edges of its windows."""
    held_users: int = 2000
    spread_s: int = 12
    """Over so long the units of the compact form are spread, so that each of its sub-buckets holds some."""
    attack_s: float = 3.0
    cancel_ours: int = 30_000
    cancel_rival: int = 6_000
    outages: int = 3


QUICK = Scale(
    rounds=1,
    depths=(64, 512),
    row_s=0.15,
    warm_s=0.05,
    open_rounds=1,
    open_s=0.5,
    window_s=1,
    held_users=500,
    spread_s=3,
    attack_s=1.2,
    cancel_ours=4000,
    cancel_rival=1000,
    outages=1,
)


class Lab:
    """Where a run takes place."""

    def __init__(self, server: RedisServer, scale: Scale) -> None:
        self.server = server
        self.scale = scale
        self.gauge = Gauge(server)

    @contextlib.asynccontextmanager
    async def opened(self, who: Contestant, limit: UserLimit = LIMIT) -> AsyncGenerator[Hit]:
        """A contestant before an empty server."""
        self.gauge.empty()
        gc.collect()
        async with who.open(self.server.url, limit) as hit:
            yield hit


@contextlib.contextmanager
def laboratory(scale: Scale) -> Iterator[Lab]:
    """A server of its own, the newest there is on this machine."""
    with RedisServer() as server:
        yield Lab(server, scale)
