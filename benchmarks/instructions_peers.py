"""Other limiters of `benchmarks.instructions`: as they are, and with the RateLimit fields that ours sends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from limits import parse, strategies
from limits.storage import MemoryStorage, memory
from ratelimit.backends.simple import MemoryBackend

from benchmarks import asgi_rows

PEERS = ("asgi-ratelimit", "limits-fixed", "limits-moving")
FIELDS = " with fields"
"""End of the name of a peer with equal fields."""

State = Callable[[Any], tuple[int, float]]
"""Remaining units of the caller of a scope, and seconds until its limit resets."""


class NoTimer:
    """Replaces the timer thread of ``limits``, which also checks expiry at each request.

    The thread wakes by the clock of the machine. Under callgrind it would be counted sixty times too often.
    """

    def __init__(self, _seconds: float, _call: Any) -> None:
        pass

    def start(self) -> None:
        """Start nothing."""

    def is_alive(self) -> bool:
        """Return that no other timer is needed."""
        return True


def peer(name: str, app: asgi_rows.App, limit: int, clock: Callable[[], float]) -> asgi_rows.App:
    """Build a peer under the clock of the benchmark."""
    # Both packages read a clock of their own.
    time.time = clock
    asyncio.get_running_loop().time = clock  # type: ignore[method-assign]
    limits_memory: Any = memory
    limits_memory.threading = SimpleNamespace(Timer=NoTimer, RLock=threading.RLock)
    return build(name, app, limit)


def build(name: str, app: asgi_rows.App, limit: int) -> asgi_rows.App:
    """Build a peer that limits by address, so many requests a minute."""
    kind = name.removesuffix(FIELDS)
    limited, state = _asgi_ratelimit(app, limit) if kind == "asgi-ratelimit" else _limits(kind, app, limit)
    return with_fields(limited, state, limit) if name.endswith(FIELDS) else limited


def _asgi_ratelimit(app: asgi_rows.App, limit: int) -> tuple[asgi_rows.App, State]:
    memory_backend: Any = MemoryBackend
    backend = memory_backend()

    def state(scope: Any) -> tuple[int, float]:
        path = scope["path"]
        counter = backend.blocks[path][f"{path}:*:{scope['client'][0]}:minute"]
        return max(counter.count, 0), counter.timestamp - backend.now()

    return asgi_rows.asgi_ratelimit(app, limit, backend=backend), state


def _limits(kind: str, app: asgi_rows.App, limit: int) -> tuple[asgi_rows.App, State]:
    strategy = "FixedWindowRateLimiter" if kind == "limits-fixed" else "MovingWindowRateLimiter"
    storage = MemoryStorage()
    limiter, item = getattr(strategies, strategy)(storage), parse(f"{limit}/minute")

    def state(scope: Any) -> tuple[int, float]:
        reset_s, remaining = limiter.get_window_stats(item, scope["client"][0])
        return remaining, reset_s - time.time()

    return asgi_rows.limits_fixed(strategy, app, limit, storage=storage), state


def with_fields(app: asgi_rows.App, state: State, limit: int) -> asgi_rows.App:
    """Add RateLimit-Policy and RateLimit to the responses of a limiter, with the caller's true values."""
    policy = b'"user-60s";q=%d;w=60' % limit

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        async def send_with_fields(message: Any) -> None:
            if message["type"] == "http.response.start":
                field = b'"user-60s";r=%d;t=%d' % state(scope)
                message["headers"] += [(b"ratelimit-policy", policy), (b"ratelimit", field)]
            await send(message)

        await app(scope, receive, send_with_fields)

    return middleware
