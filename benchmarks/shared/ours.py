"""Ours: the store alone, and the whole decision."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from autoglm_throttle import Permit, Settings, Throttle
from autoglm_throttle.limiting.shared.redis_batch import BatchRules
from autoglm_throttle.limiting.shared.redis_window import RedisWindow
from autoglm_throttle.limiting.shared.store import Charge, Trouble
from autoglm_throttle.limiting.shared.windows import StoreView
from autoglm_throttle.limiting.shared.wire import WindowWire
from autoglm_throttle.model import Demand, Priority, UserLimit
from autoglm_throttle.redis_client import RedisClients, RedisOptions
from benchmarks.shared.contestant import per
from benchmarks.shared.drive import Hit

PARTITIONS = 16


class NoAnswer(Exception):
    """Our store gave none."""


@contextlib.asynccontextmanager
async def store(url: str, limit: UserLimit) -> AsyncGenerator[Hit]:
    """`RedisWindow` alone: what a decision costs without the rest of the throttle."""
    window = RedisWindow(
        RedisClients(RedisOptions(url)), WindowWire("bench", "store", PARTITIONS), BatchRules()
    )
    limits = (limit,)

    async def hit(user: str, units: int = 1) -> bool:
        answer = await window.charge((Charge("user", limits, user, units),))
        if isinstance(answer, Trouble):
            raise NoAnswer(answer)
        return answer[0] == 1

    yield hit


@contextlib.asynccontextmanager
async def throttle(url: str, limit: UserLimit) -> AsyncGenerator[Hit]:
    """The whole decision: priority bucket, user limit, permit and settlement.

    Raises:
        NoAnswer: at the end, if some decision was made without the store.
    """
    async with whole(url, limit) as made:
        yield hits(made)
        if missed := sum(seen(made).fallbacks.values()):
            raise NoAnswer(f"{missed} decisions were made without the store")


@contextlib.asynccontextmanager
async def whole(url: str, limit: UserLimit, **settings: Any) -> AsyncGenerator[Throttle]:
    """A throttle whose user limit is shared, and whose rates never refuse."""
    chosen = {"user_limit": per(limit), "rate_mid_rps": 1e6, "gpu": "none", "service": "bench"} | settings
    async with Throttle(Settings(redis_url=url, **chosen)) as made:
        yield made


def hits(made: Throttle) -> Hit:
    """Its whole decision, as other contestants make theirs."""

    async def hit(user: str, units: int = 1) -> bool:
        verdict = await made.admit(Demand(Priority.MID, user, units))
        if isinstance(verdict, Permit):
            verdict.settle()
            return True
        return False

    return hit


def seen(made: Throttle) -> StoreView:
    """What it says about its store."""
    view = made.snapshot().store
    if view is None:
        raise NoAnswer("it has no store")
    return view
