"""Asking a window of user limits on a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from pydantic import SecretStr

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.protocol import VALUES, Answer, StoreCharge, StoreErrorKind, WindowProtocol
from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore
from autoglm_throttle.types import UserLimit
from tests.store.polling import HANG_S

T = TypeVar("T")
LIMIT = 100
PARTITIONS = 16
DEADLINE_S = 0.15
PATIENT_S = 10.0
"""For what is not about the deadline: a machine that is busy shall not make an answer a trouble."""


def window_at(
    url: str,
    prefix: str,
    *,
    service: str = "default",
    deadline_s: float = PATIENT_S,
    read_s: float = HANG_S,
    connect_s: float = HANG_S,
) -> RedisUserLimitStore:
    """A window whose calls end by an answer or by the deadline, since a connection waits for a minute."""
    settings = StoreSettings(
        redis_url=SecretStr(url),
        redis_prefix=prefix,
        service=service,
        redis_partitions=PARTITIONS,
        redis_deadline_s=deadline_s,
        redis_connect_s=connect_s,
        redis_read_s=read_s,
    )
    return RedisUserLimitStore(settings)


async def prompt_window(
    url: str, prefix: str, *, read_s: float = HANG_S, connect_s: float = HANG_S
) -> RedisUserLimitStore:
    """One with a short deadline, already connected."""
    window = window_at(url, prefix, deadline_s=DEADLINE_S, read_s=read_s, connect_s=connect_s)
    await answered(window)
    return window


def name(number: int) -> str:
    """A user."""
    return f"{number:016x}"


def charge(user: int, *, limit: int = LIMIT, units: int = 1) -> StoreCharge:
    return StoreCharge("user", (UserLimit("user-60s", limit, 60),), name(user), units)


def key(prefix: str, user: int, *, service: str = "default") -> str:
    """The key of that user's charge."""
    return WindowProtocol(prefix, service, PARTITIONS).build_check([charge(user)]).keys[0]


async def charged(window: RedisUserLimitStore, *charges: StoreCharge) -> Answer | StoreErrorKind:
    """The reply to a request, which may be cancelled."""
    request = window.protocol.build_check(charges)
    reply = window.charge(request)
    try:
        return await reply
    except BaseException:
        window.abandon(request, reply)
        raise


async def ask(
    window: RedisUserLimitStore, user: int, *, limit: int = LIMIT, units: int = 1
) -> Answer | StoreErrorKind:
    return await charged(window, charge(user, limit=limit, units=units))


async def left(window: RedisUserLimitStore, user: int, *, limit: int = LIMIT, units: int = 1) -> int:
    """The units that remain for the user after an answer, which there has to be."""
    answer = await ask(window, user, limit=limit, units=units)
    assert not isinstance(answer, StoreErrorKind), answer
    assert len(answer) == VALUES
    assert answer[0] == 0, answer
    return answer[1]


async def answered(window: RedisUserLimitStore) -> None:
    """Ask until it answers, for no unit."""
    deadline = time.monotonic() + HANG_S
    while isinstance(answer := await ask(window, 0, units=0), StoreErrorKind):
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0)


async def comes_back(window: RedisUserLimitStore) -> None:
    """Probe until it answers, as the throttle does."""
    deadline = time.monotonic() + HANG_S
    trouble: StoreErrorKind | None = StoreErrorKind.LOST
    while trouble is not None:
        assert time.monotonic() < deadline, trouble
        window.disconnect()
        trouble = await window.probe()
        await asyncio.sleep(0.01)


async def timed(work: Awaitable[T]) -> tuple[T, float]:
    """A result and the seconds until it was there."""
    started = time.perf_counter()
    return await work, time.perf_counter() - started
