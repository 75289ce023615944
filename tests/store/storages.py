"""Asking a `LimitsWindow`, and a storage of `limits` whose every answer can be held back or fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

from limits.aio.storage import Storage

from autoglm_throttle.store.limits_window import LimitsWindow
from autoglm_throttle.store.user_limit_store import VALUES, StoreCharge, StoreErrorKind
from autoglm_throttle.types import UserLimit

MINUTE = (UserLimit("user-60s", 3, 60),)
BOTH = (UserLimit("user-60s", 3, 60), UserLimit("user-3600s", 5, 3600))
ANN, BEN = "a" * 16, "b" * 16
PATIENT_S = 60.0
"""A deadline for what must not depend on the speed of this machine."""


def charge(
    user: str = ANN, units: int = 1, limits: tuple[UserLimit, ...] = MINUTE, kind: str = "user"
) -> StoreCharge:
    return StoreCharge(kind, limits, user, units)


async def ask(window: LimitsWindow, *charges: StoreCharge) -> list[tuple[int, ...]]:
    """The values of each limit, without the last one, which says nothing here."""
    answer = await window.charge(charges or [charge()])
    assert not isinstance(answer, StoreErrorKind), window.last_error
    rest = iter(answer)
    rows = [tuple(itertools.islice(rest, VALUES)) for _ in range(len(answer) // VALUES)]
    assert all(row[-1] == 0 for row in rows)
    return [row[:-1] for row in rows]


async def allowed(window: LimitsWindow, *charges: StoreCharge) -> bool:
    return all(row[0] == 1 for row in await ask(window, *charges))


def listened(window: LimitsWindow) -> list[StoreErrorKind | None]:
    heard: list[StoreErrorKind | None] = []
    window.listen(heard.append)
    return heard


async def until(true: Callable[[], bool]) -> None:
    """Let the loop turn until something is true."""
    async with asyncio.timeout(PATIENT_S):
        while not true():  # noqa: ASYNC110 - of what is waited for here nobody sets an event
            await asyncio.sleep(0)


_names = itertools.count()


class OwnClient:
    """Its connection."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class OwnStorage(Storage):
    """Keeps a log without expiry; the test's hands are on ``OwnStorage.hands``."""

    STORAGE_SCHEME = ["async+own"]  # noqa: RUF012 - as `limits` declares it

    hands: ClassVar[Hands]

    def __init__(self, uri: str | None = None, **options: Any) -> None:
        super().__init__(uri, **options)
        self.storage = OwnClient()
        self.name = next(_names)
        self.hands.made.append(self)

    @property
    def base_exceptions(self) -> type[Exception]:
        return ConnectionError

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        await self.hands.pass_on(self, "hit", key)
        units = self.hands.units.get(key, 0)
        if self.hands.sell_out or units + amount > limit:
            return False
        self.hands.units[key] = units + amount
        return True

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        await self.hands.pass_on(self, "look", key)
        return 0.0, self.hands.units.get(key, 0)

    async def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        raise NotImplementedError

    async def get(self, key: str) -> int:
        raise NotImplementedError

    async def get_expiry(self, key: str) -> float:
        raise NotImplementedError

    async def check(self) -> bool:
        raise NotImplementedError

    async def reset(self) -> int | None:
        raise NotImplementedError

    async def clear(self, key: str) -> None:
        raise NotImplementedError


class Hands:
    """The controls of all storages that the test creates."""

    def __init__(self) -> None:
        self.made: list[OwnStorage] = []
        self.asked: list[tuple[int, str, str]] = []
        """Name of the storage, what was asked, key."""
        self.units: dict[str, int] = {}
        self.error: Exception | None = None
        self.sell_out = False
        """Reject every hit, as if another caller were faster."""
        self.gate: asyncio.Event | None = None
        self.cancelled = 0

    async def pass_on(self, storage: OwnStorage, what: str, key: str) -> None:
        self.asked.append((storage.name, what, key))
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.error is not None:
            raise self.error
