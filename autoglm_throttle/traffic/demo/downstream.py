"""The demonstration's downstream: a dependency that fails for a while, and its guard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final

from autoglm_throttle.resilience.feature import Fallback
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.traffic.demo.scenario import OUTAGE
from autoglm_throttle.types import Criticality, FallbackKind

NAME: Final = "related"
ITEMS: Final = 50
"""Items requested in turn: few, so that each was requested before the outage begins."""

ANSWER_S: Final = 0.002
"""Response time of the downstream while it works."""


class Downstream:
    """Returns items related to an item, except during its outage.

    Args:
        throttle: owner of the guard.
        length_s: length of the demonstration, seconds, counted from the first call.
        clock: monotonic seconds.
    """

    def __init__(self, throttle: Throttle, length_s: float, clock: Callable[[], float]) -> None:
        self.calls: int = 0
        """Calls that reached the downstream."""
        self.failed: int = 0
        self._throttle = throttle
        self._outage_s = tuple(share * length_s for share in OUTAGE)
        self._clock = clock
        self._begun_s: float | None = None
        self._turns = count()
        guard = throttle.feature(
            NAME, criticality=Criticality.NON_CORE, fallback=Fallback(stale=True, static=())
        )
        self._guarded_call = guard(self._answer)

    async def request(self) -> tuple[int, ...]:
        """Return the items related to the next item; if the call is not possible, the stale ones or none."""
        return await self._guarded_call(next(self._turns) % ITEMS)

    def state(self) -> dict[str, object]:
        """Return the downstream's part of the live view, ready for JSON."""
        guards = self._throttle.snapshot().guards
        breaker = None if guards is None else next((b for b in guards.breakers if b.name == NAME), None)
        if guards is None or breaker is None:
            return {}
        by_cause: dict[str, int] = {}
        for (_, fallback, cause), number in guards.degraded.items():
            key = "load" if cause in {"load", "shed"} else "outage"
            by_cause[key] = by_cause.get(key, 0) + number * (fallback is not FallbackKind.SHED)
        openings = sum(n for (_, state), n in guards.transitions.items() if state.value == "open")
        return {
            "name": NAME,
            "state": breaker.state.value,
            "retry_after_s": breaker.retry_after_s,
            "openings": openings,
            "level": guards.level.label,
            "calls": self.calls,
            "failed": self.failed,
            "fallbacks": by_cause,
        }

    async def _answer(self, item: int) -> tuple[int, ...]:
        now = self._clock()
        if self._begun_s is None:
            self._begun_s = now
        begins_s, ends_s = self._outage_s
        self.calls += 1
        await asyncio.sleep(ANSWER_S)
        if begins_s <= now - self._begun_s < ends_s:
            self.failed += 1
            raise ConnectionError("the downstream of the demonstration is unavailable")
        return (item + 1, item + 2)
