"""A throttle with a store of scripted replies."""

import asyncio
from typing import Any

import pytest

from autoglm_throttle.admission import factory
from autoglm_throttle.admission.permit import Permit, Rejection
from autoglm_throttle.settings import Settings
from autoglm_throttle.store.protocol import Answer, StoreErrorKind
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import Demand, Priority
from tests.store.scripted_store import ScriptedStore

ALICE = "a" * 16


class ScriptedThrottle:
    """A throttle with a scripted store, by default with one slot."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *script: Answer | StoreErrorKind,
        slots: int = 1,
        **settings: Any,
    ) -> None:
        self.store = ScriptedStore(*script)
        monkeypatch.setattr(factory, "shared_store", lambda *_: self.store)
        self.clock = ManualClock()
        values: dict[str, Any] = {"user_limit": "10/minute", "redis_url": "redis://nowhere", "gpu": "none"}
        values |= {
            "policy": "concurrency",
            "inflight_start": slots,
            "inflight_floor": 1,
            "inflight_max": slots,
        }
        self.throttle = Throttle(Settings(**values | settings), clock=self.clock, sampling="manual")
        self.tokens = self.left()

    def left(self) -> float:
        return self.throttle.snapshot().tokens[Priority.MID]

    @property
    def in_flight(self) -> int:
        limiter = self.throttle.snapshot().concurrency
        return limiter.in_flight if limiter is not None else 0

    @property
    def waiting(self) -> int:
        limiter = self.throttle.snapshot().concurrency
        return sum(limiter.waiting) if limiter is not None else 0

    def is_empty(self) -> bool:
        return self.in_flight == self.waiting == 0 and not any(self.throttle.snapshot().active.values())

    async def admit(self) -> Permit | Rejection:
        return await self.throttle.admit(Demand(user=ALICE))

    async def started_check(self) -> asyncio.Task[Permit | Rejection]:
        """Start a request that waits for the reply of the store."""
        self.store.hold = asyncio.Event()
        task = asyncio.create_task(self.admit())
        await iterations()
        assert self.store.charged
        return task


async def iterations(count: int = 5) -> None:
    """Run some iterations of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)
