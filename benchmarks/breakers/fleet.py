"""Cost of a closed call with a breaker shared over Redis, with the server running and killed."""

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

from benchmarks.breakers.candidates import NAME, Coroutine, Interlock, Ours, Purgatory, PyBreaker
from benchmarks.breakers.cost import BARE, LONG_S, settled, spread, succeed
from benchmarks.breakers.scale import Scale
from benchmarks.breakers.worker import until
from benchmarks.shared.gauge import Gauge
from tests.store.server import RedisServer

LOCAL = "local"
SETTLE_S = 0.3
"""Wait after the start, until one-time messages are sent."""


def _is_up(one: Ours) -> bool:
    guards = one.throttle.snapshot().guards
    return guards is not None and guards.store_up is True


Opened = Callable[[str], AbstractAsyncContextManager[Coroutine]]


@contextlib.asynccontextmanager
async def ours(url: str) -> AsyncGenerator[Coroutine]:
    """Provide our breaker, connected to the store."""
    one = Ours(LONG_S, breaker_shared=True, redis_url=url)
    guarded = one.coroutine(succeed)
    await guarded()
    try:
        await until(lambda: _is_up(one), "the store answers")
        yield guarded
    finally:
        one.throttle.stop()


@contextlib.asynccontextmanager
async def purgatory(url: str) -> AsyncGenerator[Coroutine]:
    """Provide purgatory over its unit of work in Redis."""
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
    """Provide pybreaker over its storage in Redis."""
    from pybreaker import STATE_CLOSED, CircuitRedisStorage
    from redis import Redis

    with Redis.from_url(url) as client:
        storage: Any = CircuitRedisStorage(STATE_CLOSED, client, namespace=NAME)
        yield PyBreaker(LONG_S, state_storage=storage).coroutine(succeed)


@contextlib.asynccontextmanager
async def interlock(url: str) -> AsyncGenerator[Coroutine]:
    """Provide interlock-cb over its storage in Redis."""
    from interlock.integrations.redis import AsyncRedisStorage
    from redis.asyncio import Redis

    async with Redis.from_url(url) as client:
        one = Interlock(LONG_S, storage=AsyncRedisStorage(client))
        try:
            yield one.coroutine(succeed)
        finally:
            await one.breaker.aclose()


@dataclass(frozen=True)
class SharedBreaker:
    """A breaker over Redis.

    Args:
        remote: whether each call contacts the server, so that fewer calls are made.
    """

    open: Opened
    remote: bool = False


SHARED_BREAKERS: Mapping[str, SharedBreaker] = {
    Ours.name: SharedBreaker(ours),
    Purgatory.name: SharedBreaker(purgatory, remote=True),
    PyBreaker.name: SharedBreaker(pybreaker, remote=True),
    Interlock.name: SharedBreaker(interlock),
}


@dataclass
class Row:
    """One breaker in one state, called repeatedly."""

    fn: Coroutine
    calls: int
    cpu_s: list[float]
    wall_s: list[float]
    errors: int = 0

    async def round(self) -> None:
        """Run a round of calls; exceptions are counted."""
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
    """Return the commands per call received by a server, without those of the reading."""
    gauge = Gauge(server)
    before = gauge.read().calls
    for _ in range(calls):
        await fn()
    after = gauge.read().calls
    return sum(after[name] - before.get(name, 0) for name in after if name != "info") / calls


async def _measured(kept: RedisServer, lost: RedisServer, scale: Scale) -> dict[str, Any]:
    """Measure each breaker with a running and with a killed server, in interleaved rounds."""
    async with AsyncExitStack() as opened:
        rows = {BARE: _row(succeed, scale.calls), LOCAL: _row(Ours(LONG_S).coroutine(succeed), scale.calls)}
        commands = {}
        for name, shared_breaker in SHARED_BREAKERS.items():
            calls = scale.remote_calls if shared_breaker.remote else scale.calls
            for state, server in (("shared", kept), ("lost", lost)):
                fn = await opened.enter_async_context(shared_breaker.open(server.url))
                await fn()
                rows[f"{state} {name}"] = _row(fn, calls)
        await asyncio.sleep(SETTLE_S)
        for name, shared_breaker in SHARED_BREAKERS.items():
            calls = scale.remote_calls if shared_breaker.remote else scale.counted
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
    for name in SHARED_BREAKERS:
        reachable, unreachable = rows[f"shared {name}"], rows[f"lost {name}"]
        found["rows"][name] = {
            "us": _median(reachable.cpu_s) * 1e6,
            "wall_us": _median(reachable.wall_s) * 1e6,
            "over_local": _ratio(reachable.cpu_s, local),
            "commands": commands[name],
            "lost_us": _median(unreachable.cpu_s) * 1e6,
            "lost_wall_us": _median(unreachable.wall_s) * 1e6,
            "lost_over_it": _ratio(unreachable.cpu_s, reachable.cpu_s),
            "errors": reachable.errors,
            "lost_errors": unreachable.errors / (unreachable.calls * len(unreachable.cpu_s)),
        }
    return found


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds)


def _ratio(these: list[float], those: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(these, those, strict=True))


def shared(scale: Scale) -> dict[str, Any]:
    """Measure closed, shared calls: their cost, their commands, and their cost without the server."""
    for noisy in ("pybreaker", "interlock"):
        logging.getLogger(noisy).addHandler(logging.NullHandler())
        logging.getLogger(noisy).propagate = False
    with RedisServer() as kept, RedisServer() as lost:
        return {"server": kept.binary.name, **asyncio.run(_measured(kept, lost, scale))}
