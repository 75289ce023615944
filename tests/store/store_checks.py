"""Asking a window of user limits on a real server, and watching the loop while it answers."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable
from types import TracebackType
from typing import Self, TypeVar

from autoglm_throttle.limiting.shared.batch_rules import BatchRules
from autoglm_throttle.limiting.shared.redis_user_limits import RedisUserLimitStore
from autoglm_throttle.limiting.shared.store import VALUES, Answer, StoreCharge, StoreErrorKind
from autoglm_throttle.limiting.shared.window_protocol import WindowProtocol
from autoglm_throttle.redis_client import RedisClients, RedisOptions
from autoglm_throttle.types import UserLimit

T = TypeVar("T")
LIMIT = 100
PARTITIONS = 16
DEADLINE_S = 0.05
PATIENT_S = 5.0
"""For what is not about the deadline: a machine that is busy shall not make an answer a trouble."""
SOON_S = 0.3
"""Promptly, on such a machine: ours takes a sixth, redis-py's own defaults take 5 s and more."""


def window_at(
    url: str, prefix: str, *, service: str = "default", deadline_s: float = PATIENT_S
) -> RedisUserLimitStore:
    rules = BatchRules(deadline_s=deadline_s)
    return RedisUserLimitStore(
        RedisClients(RedisOptions(url)), WindowProtocol(prefix, service, PARTITIONS), rules
    )


async def prompt_window(url: str, prefix: str) -> RedisUserLimitStore:
    """One with the deadline that a throttle has, already connected."""
    window = window_at(url, prefix, deadline_s=DEADLINE_S)
    started = time.monotonic()
    while isinstance(answer := await ask(window, 0, units=0), StoreErrorKind):
        assert time.monotonic() - started < PATIENT_S, answer
    return window


def name(number: int) -> str:
    """A user."""
    return f"{number:016x}"


def charge(user: int, *, limit: int = LIMIT, units: int = 1) -> StoreCharge:
    return StoreCharge("user", (UserLimit("user-60s", limit, 60),), name(user), units)


def key(prefix: str, user: int, *, service: str = "default") -> str:
    """The key of that user's charge."""
    return WindowProtocol(prefix, service, PARTITIONS).build_check([charge(user)]).keys[0]


async def ask(
    window: RedisUserLimitStore, user: int, *, limit: int = LIMIT, units: int = 1
) -> Answer | StoreErrorKind:
    return await window.charge([charge(user, limit=limit, units=units)])


async def left(window: RedisUserLimitStore, user: int, *, limit: int = LIMIT, units: int = 1) -> int:
    """What remains for the user after an answer, which there has to be."""
    answer = await ask(window, user, limit=limit, units=units)
    assert not isinstance(answer, StoreErrorKind), answer
    assert len(answer) == VALUES
    assert answer[0] == 1, answer
    return answer[1]


async def comes_back(window: RedisUserLimitStore, within_s: float) -> float:
    """Probe until it answers, as the throttle does; the seconds that took."""
    started = time.monotonic()
    trouble: StoreErrorKind | None = StoreErrorKind.LOST
    while trouble is not None:
        assert time.monotonic() - started < within_s, trouble
        window.disconnect()
        trouble = await window.probe()
        await asyncio.sleep(0.01)
    return time.monotonic() - started


async def timed(work: Awaitable[T]) -> tuple[T, float]:
    """A result and the seconds until it was there."""
    started = time.perf_counter()
    return await work, time.perf_counter() - started


class Ticker:
    """Wakes every millisecond and notes how late it is: what a blocked loop would show in."""

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()

    @property
    def median_s(self) -> float:
        return statistics.median(self.late_s)

    async def _tick(self) -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.001)
            self.late_s.append(time.perf_counter() - started - 0.001)
