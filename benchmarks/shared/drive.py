"""Load generators for one candidate: closed loop with tasks, or open loop with a rate of arrivals."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

clock = time.perf_counter


class Hit(Protocol):
    """Charge a user; returns whether it was admitted. Exceptions of the candidate are raised."""

    def __call__(self, user: str, units: int = 1) -> Awaitable[bool]: ...


@dataclass
class Tally:
    """Results of the decisions of a run."""

    seconds: float = 0.0
    admitted: int = 0
    rejected: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)
    """Seconds of each decision, from its call, or from the instant at which it was due."""
    lags_s: list[float] = field(default_factory=list)
    """Delay of the start of each arrival, caused by a busy event loop."""

    @property
    def decisions(self) -> int:
        """Return the number of decisions that ended with a reply."""
        return self.admitted + self.rejected

    @property
    def per_s(self) -> float:
        """Return the decisions per second."""
        return self.decisions / self.seconds

    def count(self, *, allowed: bool, wait_s: float) -> None:
        """Record a decision."""
        self.waits_s.append(wait_s)
        if allowed:
            self.admitted += 1
        else:
            self.rejected += 1


def quantile(values: list[float], share: float) -> float:
    """Return the quantile by nearest rank; NaN without values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def closed(hit: Hit, users: Iterator[str], tasks: int, seconds: float) -> Tally:
    """Run concurrent tasks that decide in a loop without a pause."""
    tally = Tally()
    begun = clock()
    end = begun + seconds

    async def one() -> None:
        now = clock()
        while now < end:
            then = now
            try:
                allowed = await hit(next(users))
            except Exception as error:
                tally.errors[type(error).__name__] += 1
                await asyncio.sleep(0)  # an error that is raised without waiting must not hold up the others
                now = clock()
                continue
            now = clock()
            tally.count(allowed=allowed, wait_s=now - then)

    await asyncio.gather(*(one() for _ in range(tasks)))
    tally.seconds = clock() - begun
    return tally


def arrivals(rate_rps: float, seconds: float, seed: int) -> list[float]:
    """Draw the instants of a Poisson process from 0 on."""
    rng = random.Random(seed)
    now, instants = 0.0, []
    while (now := now + rng.expovariate(rate_rps)) < seconds:
        instants.append(now)
    return instants


async def open_loop(hit: Hit, users: Iterator[str], due_s: list[float]) -> Tally:
    """Start each decision when it is due, and measure from that instant, even if it starts late."""
    tally = Tally()
    running: set[asyncio.Task[None]] = set()
    begun = clock()

    async def one(due: float) -> None:
        try:
            allowed = await hit(next(users))
        except Exception as error:
            tally.errors[type(error).__name__] += 1
        else:
            tally.count(allowed=allowed, wait_s=clock() - due)

    for offset in due_s:
        due = begun + offset
        if (pause := due - clock()) > 0.0:
            await asyncio.sleep(pause)
        tally.lags_s.append(clock() - due)
        task = asyncio.ensure_future(one(due))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    tally.seconds = clock() - begun
    return tally
