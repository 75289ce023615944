"""A model in virtual time, and calls of its batcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from autoglm_throttle.batcher import AdaptiveBatcher
from autoglm_throttle.testing import ManualClock

RUN_S = 0.1
VIRTUAL_START_S = ManualClock()()

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Make = Callable[..., AdaptiveBatcher[Any, Any]]


class Engine:
    """A model that doubles numbers, in virtual time; an exception among the items is returned as a result."""

    def __init__(self, run_s: float = RUN_S) -> None:
        self.batches: list[tuple[float, list[Any]]] = []
        self.run_s = run_s
        self.error: Exception | None = None

    async def __call__(self, items: list[Any]) -> list[Any]:
        began_s = asyncio.get_running_loop().time() - VIRTUAL_START_S
        self.batches.append((round(began_s, 4), items))
        await asyncio.sleep(self.run_s)
        if self.error is not None:
            raise self.error
        return [item if isinstance(item, Exception) else 2 * item for item in items]

    @property
    def items(self) -> list[list[Any]]:
        return [items for _, items in self.batches]


async def warmed(batcher: AdaptiveBatcher[Any, Any]) -> None:
    """Raise the target to eight."""
    for count in (1, 1, 1, 2, 4, 8):
        await asyncio.gather(*(batcher.submit(0) for _ in range(count)))


async def outcome(call: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - any of them is an outcome
        return error
