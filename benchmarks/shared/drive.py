"""Drives one contestant: so many tasks at once, or so many arrivals a second whatever becomes of them."""

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
    """Charges a user so many units; whether that was admitted. Raises whatever the contestant raises."""

    def __call__(self, user: str, units: int = 1) -> Awaitable[bool]: ...


@dataclass
class Tally:
    """What became of the decisions of a run."""

    seconds: float = 0.0
    admitted: int = 0
    refused: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)
    """Of each decision: from its call, or from the instant it was due, to its answer."""
    lags_s: list[float] = field(default_factory=list)
    """How late each arrival was begun: what the event loop was kept from."""

    @property
    def decisions(self) -> int:
        """Those that ended with an answer."""
        return self.admitted + self.refused

    @property
    def per_s(self) -> float:
        """Decisions a second."""
        return self.decisions / self.seconds

    def count(self, *, allowed: bool, wait_s: float) -> None:
        """Note a decision."""
        self.waits_s.append(wait_s)
        if allowed:
            self.admitted += 1
        else:
            self.refused += 1


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of all does not pass; NaN of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def closed(hit: Hit, users: Iterator[str], tasks: int, seconds: float) -> Tally:
    """Let so many tasks decide one after the other, each without a pause."""
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
    """Instants of a Poisson process from 0 on."""
    chance = random.Random(seed)
    now, instants = 0.0, []
    while (now := now + chance.expovariate(rate_rps)) < seconds:
        instants.append(now)
    return instants


async def open_loop(hit: Hit, users: Iterator[str], due_s: list[float]) -> Tally:
    """Begin each decision when it is due, and count from that instant, however late it could be begun."""
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
