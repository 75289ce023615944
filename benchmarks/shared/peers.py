"""Alternatives of other libraries, all over redis-py.

*installed*: the default pool of redis-py, 100 connections and an error if all are in use. There are two
ways to tune it; the faster one depends on the number of tasks: *raised* opens a connection for each task,
*blocking* lets tasks wait for one of 64.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import AsyncGenerator
from typing import Any

from autoglm_throttle.store.protocol import script
from autoglm_throttle.types import UserLimit
from benchmarks.shared import calls
from benchmarks.shared.candidate import per
from benchmarks.shared.drive import Hit

BLOCKING = 64
RAISED = 2048


@contextlib.asynccontextmanager
async def each(url: str, limit: UserLimit) -> AsyncGenerator[Hit]:
    """Provide redis-py with one EVALSHA of our script for each decision."""
    async with connected(url, "raised") as client:
        await client.script_load(script())

        async def hit(user: str, units: int = 1) -> bool:
            reply = await client.execute_command(*calls.arguments([user], limit, units))
            return calls.admitted(reply) == 1

        yield hit


@contextlib.asynccontextmanager
async def limits(url: str, limit: UserLimit, *, strategy: str, pool: str) -> AsyncGenerator[Hit]:
    """Provide a strategy of ``limits`` over redis-py."""
    from limits import parse
    from limits.aio import strategies
    from limits.aio.storage import RedisStorage

    async with connected(url, pool) as client:
        storage: Any = RedisStorage(
            f"async+{url}", implementation="redispy", connection_pool=client.connection_pool
        )
        limiter = getattr(strategies, f"{strategy}RateLimiter")(storage)
        item = parse(per(limit))

        async def hit(user: str, units: int = 1) -> bool:
            return bool(await limiter.hit(item, user, cost=units))

        yield hit


@contextlib.asynccontextmanager
async def throttled(url: str, limit: UserLimit, *, pool: str) -> AsyncGenerator[Hit]:
    """Provide throttled-py with GCRA, the fastest of its algorithms."""
    from throttled.asyncio import RedisStore, Throttled, rate_limiter

    most = {"raised": {"max_connections": RAISED}}.get(pool, {})
    backend: Any = RedisStore(server=url, options={"CONNECTION_POOL_KWARGS": most})
    quota = rate_limiter.per_duration(
        datetime.timedelta(seconds=limit.window_s), limit.limit, burst=limit.limit
    )
    limiter = Throttled(using="gcra", quota=quota, store=backend)

    async def hit(user: str, units: int = 1) -> bool:
        return not (await limiter.limit(user, cost=units)).limited

    try:
        yield hit
    finally:
        await backend._backend.get_client().connection_pool.disconnect()


@contextlib.asynccontextmanager
async def asgi_ratelimit(url: str, limit: UserLimit, *, pool: str) -> AsyncGenerator[Hit]:
    """Provide the Redis backend of asgi-ratelimit (fixed windows); it has no cost per request."""
    from ratelimit import Rule
    from ratelimit.backends.redis import RedisBackend

    rule = Rule(minute=limit.limit)
    async with connected(url, pool) as client:
        backend = RedisBackend(client)

        async def hit(user: str, units: int = 1) -> bool:  # noqa: ARG001
            return int(await backend.retry_after("/v1/predict", user, rule)) == 0

        yield hit


@contextlib.asynccontextmanager
async def connected(url: str, pool: str) -> AsyncGenerator[Any]:
    """Provide a client of redis-py with one of the three pools."""
    from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis

    made: ConnectionPool
    if pool == "blocking":
        made = BlockingConnectionPool.from_url(url, max_connections=BLOCKING, timeout=None)
    elif pool == "raised":
        made = ConnectionPool.from_url(url, max_connections=RAISED)
    else:
        made = ConnectionPool.from_url(url)
    client = Redis(connection_pool=made)
    try:
        yield client
    finally:
        await client.aclose()
        await made.disconnect()
