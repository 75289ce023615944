"""Calls of the single-flight tests that end when the test releases them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from math import inf
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from autoglm_throttle.resilience.drive import Call, Steps, drive_async, drive_sync
from autoglm_throttle.resilience.single_flight import SingleFlight

FOR_S = 60.0

IN_VAIN = (-1, False)
"""Result of a caller that has waited twice for longer than its limit."""


def one_step(call: Callable[[], Any]) -> Steps[int]:
    """An operation of one call."""
    value: int = yield Call(call, call)
    return value


class Flights(SingleFlight[int]):
    """Single flight of plain and coroutine functions."""

    def __init__(self, shares: Callable[[int], bool] = lambda _: True) -> None:
        super().__init__(lambda result, _: shares(result))

    def call(self, key: Hashable, call: Callable[[], int], limit_s: float = inf) -> tuple[int, bool]:
        """Make or share the call of a thread."""
        return drive_sync(self.run(key, lambda: one_step(call), (limit_s,))) or IN_VAIN

    async def call_async(
        self, key: Hashable, call: Callable[[], Awaitable[int]], limit_s: float = inf
    ) -> tuple[int, bool]:
        """Make or share the call of a task."""
        return await drive_async(self.run(key, lambda: one_step(call), (limit_s,))) or IN_VAIN

    def is_in_flight(self, key: Hashable) -> bool:
        """Whether a thread makes the call."""
        return drive_sync(self.in_flight(key))

    async def is_in_flight_async(self, key: Hashable) -> bool:
        """Whether a task of this loop makes the call."""
        return await drive_async(self.in_flight(key))


async def settle(passes: int = 5) -> None:
    """Let the other tasks go as far as they can."""
    for _ in range(passes):
        await checkpoint()


class Calls:
    """A call that ends when it is let go, and counts how many of it are under way."""

    def __init__(self) -> None:
        self.made = 0
        self.at_once = 0
        self.most = 0
        self.go = anyio.Event()

    async def __call__(self) -> int:
        self.made += 1
        mine = self.made
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await self.go.wait()
            return mine
        finally:
            self.at_once -= 1
