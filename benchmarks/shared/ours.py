"""This package: the store alone, and the whole decision."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from pydantic import SecretStr

from autoglm_throttle import Permit, Settings, Throttle
from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.protocol import StoreCharge, StoreErrorKind
from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore
from autoglm_throttle.store.shared_limits import StoreView
from autoglm_throttle.types import Demand, Priority, UserLimit
from benchmarks.shared.candidate import per
from benchmarks.shared.drive import Hit

PARTITIONS = 16
DEADLINE_S = StoreSettings().redis_deadline_s
LONG_DEADLINE_S = 0.9
"""Deadline where speed is not measured, so that a busy machine does not lead to wrong counts."""

SLOTS = 1024
"""Initial concurrency limit, above the number of tasks, so that it never rejects."""


class NoAnswer(Exception):
    """The store gave no reply."""


@contextlib.asynccontextmanager
async def store(url: str, limit: UserLimit, deadline_s: float = DEADLINE_S) -> AsyncGenerator[Hit]:
    """Provide `RedisUserLimitStore` alone, without the rest of the throttle."""
    settings = StoreSettings(
        redis_url=SecretStr(url),
        redis_prefix="bench",
        service="store",
        redis_partitions=PARTITIONS,
        redis_deadline_s=deadline_s,
    )
    window = RedisUserLimitStore(settings)
    limits = (limit,)

    async def hit(user: str, units: int = 1) -> bool:
        check = window.protocol.build_check((StoreCharge("user", limits, user, units),))
        reply = window.charge(check)
        try:
            answer = await reply
        except asyncio.CancelledError:
            window.abandon(check, reply)
            raise
        if isinstance(answer, StoreErrorKind):
            raise NoAnswer(answer)
        return answer[0] == 0

    yield hit


@contextlib.asynccontextmanager
async def whole(url: str, limit: UserLimit, **settings: Any) -> AsyncGenerator[Throttle]:
    """Provide a throttle with a shared user limit; its rates and slots never reject."""
    chosen: dict[str, Any] = {
        "user_limit": per(limit),
        "rate_mid_rps": 1e6,
        "inflight_start": SLOTS,
        "gpu": "none",
        "key_secret": "benchmark of no secrets",
    } | settings
    made = Throttle(Settings(redis_url=url, **chosen))
    made.start()
    try:
        yield made
    finally:
        made.stop()


class Whole:
    """The whole decision: priority bucket, user limit, permit and settlement; a `Hit`."""

    def __init__(self, made: Throttle) -> None:
        self.made = made

    async def __call__(self, user: str, units: int = 1) -> bool:
        """Decide for a user."""
        verdict = await self.made.admit(Demand(Priority.MID, user, units))
        if isinstance(verdict, Permit):
            verdict.settle()
            return True
        return False

    @property
    def store(self) -> StoreView:
        """Return the view of the store."""
        view = self.made.snapshot().store
        if view is None:
            raise NoAnswer("it has no store")
        return view

    @property
    def local_decisions(self) -> int:
        """Return the number of decisions made without the store."""
        return sum(self.store.fallbacks.values())


@contextlib.asynccontextmanager
async def throttle(url: str, limit: UserLimit, deadline_s: float = DEADLINE_S) -> AsyncGenerator[Hit]:
    """Provide the whole decision with default settings."""
    async with whole(url, limit, redis_deadline_s=deadline_s) as made:
        yield Whole(made)
