"""What a closed call costs whose breaker is shared over a Redis, while that is there and after its death."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.breakers.contestants import NAME, Coroutine, Interlock, Ours, Purgatory, PyBreaker
from benchmarks.breakers.cost import BARE, LONG_S, settled, spread, succeed
from benchmarks.breakers.scale import Scale
from benchmarks.breakers.worker import until
from benchmarks.shared.gauge import Gauge
from tests.store.server import RedisServer

LOCAL = "local"
SETTLE_S = 0.3
"""After the start: what is told once only is told by then."""


def _up(one: Ours) -> bool:
    guards = one.throttle.snapshot().guards
    return guards is not None and guards.store_up is True


Opened = Callable[[str], AbstractAsyncContextManager[Coroutine]]


@contextlib.asynccontextmanager
async def ours(url: str) -> AsyncGenerator[Coroutine]:
    """Ours, known to the store and listening to it."""
    one = Ours(LONG_S, breaker_shared=True, redis_url=url)
    guarded = one.coroutine(succeed)
    await guarded()
    try:
        await until(lambda: _up(one), "the store answers")
        yield guarded
    finally:
        one.throttle.stop()


@contextlib.asynccontextmanager
async def purgatory(url: str) -> AsyncGenerator[Coroutine]:
    """purgatory over its unit of work in Redis."""
    from purgatory import AsyncCircuitBreakerFactory, AsyncRedisUnitOfWork

    one = Purgatory(LONG_S)
    work: Any = AsyncRedisUnitOfWork(url)
    one.waiting = AsyncCircuitBreakerFactory(default_ttl=LONG_S, uow=work)
    await one.waiting.initialize()
    try:
        yield one.coroutine(succeed)
    finally:
        await work.contexts.redis.aclose()


@contextlib.asynccontextmanager
async def pybreaker(url: str) -> AsyncGenerator[Coroutine]:
    """pybreaker over its storage in Redis."""
    from pybreaker import STATE_CLOSED, CircuitRedisStorage
    from redis import Redis

    with Redis.from_url(url) as client:
        storage: Any = CircuitRedisStorage(STATE_CLOSED, client, namespace=NAME)
        yield PyBreaker(LONG_S, state_storage=storage).coroutine(succeed)


@contextlib.asynccontextmanager
async def interlock(url: str) -> AsyncGenerator[Coroutine]:
    """interlock-cb over its storage in Redis."""
    from interlock.integrations.redis import AsyncRedisStorage
    from redis.asyncio import Redis

    async with Redis.from_url(url) as client:
        one = Interlock(LONG_S, storage=AsyncRedisStorage(client))
        try:
            yield one.coroutine(succeed)
        finally:
            await one.breaker.aclose()


@dataclass(frozen=True)
class Sharer:
    """A breaker over Redis.

    Args:
        remote: whether each call asks the server, so that fewer of them are made.
    """

    open: Opened
    remote: bool = False


SHARERS: Mapping[str, Sharer] = {
    Ours.name: Sharer(ours),
    Purgatory.name: Sharer(purgatory, remote=True),
    PyBreaker.name: Sharer(pybreaker, remote=True),
    Interlock.name: Sharer(interlock),
}


@dataclass
class Row:
    """One breaker in some state, called again and again."""

    fn: Coroutine
    calls: int
    cpu_s: list[float]
    wall_s: list[float]
    errors: int = 0

    async def round(self) -> None:
        """Some calls more; what they raise is counted."""
        gc.collect()
        fn, wall, cpu = self.fn, time.perf_counter(), time.thread_time()
        for _ in range(self.calls):
            try:
                await fn()
            except Exception:
                self.errors += 1
        self.cpu_s.append((time.thread_time() - cpu) / self.calls)
        self.wall_s.append((time.perf_counter() - wall) / self.calls)


def _row(fn: Coroutine, calls: int) -> Row:
    return Row(fn, calls, [], [])


async def _commands(server: RedisServer, fn: Coroutine, calls: int) -> float:
    """Commands that a server got during some calls, for each of them; the reading itself is counted out."""
    gauge = Gauge(server)
    before = gauge.read().calls
    for _ in range(calls):
        await fn()
    after = gauge.read().calls
    return sum(after[name] - before.get(name, 0) for name in after if name != "info") / calls


async def _measured(kept: RedisServer, lost: RedisServer, scale: Scale) -> dict[str, Any]:
    """Each beside a server that stays and beside one that is killed, in interleaved rounds."""
    async with AsyncExitStack() as opened:
        rows = {BARE: _row(succeed, scale.calls), LOCAL: _row(Ours(LONG_S).coroutine(succeed), scale.calls)}
        commands = {}
        for name, sharer in SHARERS.items():
            calls = scale.remote_calls if sharer.remote else scale.calls
            for state, server in (("shared", kept), ("lost", lost)):
                fn = await opened.enter_async_context(sharer.open(server.url))
                await fn()
                rows[f"{state} {name}"] = _row(fn, calls)
        await asyncio.sleep(SETTLE_S)
        for name, sharer in SHARERS.items():
            calls = scale.remote_calls if sharer.remote else scale.counted
            commands[name] = await _commands(kept, rows[f"shared {name}"].fn, calls)
        lost.kill()
        with settled():
            for number in range(scale.shared_rounds):
                turn = number % len(rows)
                for row in [*rows.values()][turn:] + [*rows.values()][:turn]:
                    await row.round()
        return _figures(rows, commands)


def _figures(rows: Mapping[str, Row], commands: Mapping[str, float]) -> dict[str, Any]:
    bare, local = rows[BARE].cpu_s, rows[LOCAL].cpu_s
    found: dict[str, Any] = {"bare_ns": _median(bare) * 1e9, "local_ns": _median(local) * 1e9}
    found |= {"spread": spread(bare), "rows": {}}
    for name in SHARERS:
        here, gone = rows[f"shared {name}"], rows[f"lost {name}"]
        found["rows"][name] = {
            "us": _median(here.cpu_s) * 1e6,
            "wall_us": _median(here.wall_s) * 1e6,
            "over_local": _ratio(here.cpu_s, local),
            "commands": commands[name],
            "lost_us": _median(gone.cpu_s) * 1e6,
            "lost_wall_us": _median(gone.wall_s) * 1e6,
            "lost_over_it": _ratio(gone.cpu_s, here.cpu_s),
            "errors": here.errors,
            "lost_errors": gone.errors / (gone.calls * len(gone.cpu_s)),
        }
    return found


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds)


def _ratio(these: list[float], those: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(these, those, strict=True))


def shared(scale: Scale) -> dict[str, Any]:
    """What closed and shared calls cost, what they ask the server, and what they cost without it."""
    for noisy in ("pybreaker", "interlock"):
        logging.getLogger(noisy).addHandler(logging.NullHandler())
        logging.getLogger(noisy).propagate = False
    with RedisServer() as kept, RedisServer() as lost:
        return {"server": kept.binary.name, **asyncio.run(_measured(kept, lost, scale))}
