"""A whole throttle on a real server: requests, the origin of decisions, and continuous traffic."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from autoglm_throttle import Decision, Demand, Permit, Reason, Throttle
from autoglm_throttle.settings import Settings
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.shared_limits import StoreView
from tests.store.polling import HANG_S, eventually, suspended
from tests.store.store_checks import PATIENT_S, name

if TYPE_CHECKING:
    import pytest

LIMIT: Final = 100

HASTY: Final = {"redis_probe_s": 0.1}
"""Where the interval between probes is not the point."""

PATIENTLY: Final = {
    "redis_deadline_s": PATIENT_S,
    "redis_read_s": 2 * PATIENT_S,
    "redis_connect_s": PATIENT_S,
}
"""Settings of a site that gets its answers on a busy machine, too: no deadline ends before."""

DEADLINE_S: Final = 0.15

PROMPTLY: Final = {"redis_deadline_s": DEADLINE_S, "redis_read_s": HANG_S, "redis_connect_s": HANG_S}
"""Settings of a site on a silent server: the deadline alone ends a wait in time, all others are a hang."""


@dataclass(frozen=True)
class Asked:
    """One decision, and what it took."""

    decision: Decision
    shared: bool
    """Whether the store decided, or a cached denial of the store."""
    waited: bool
    """Whether it gave other tasks a turn before it was there."""
    took_s: float

    @property
    def left(self) -> int:
        """The units that remain for the admitted user."""
        assert self.decision.allowed, self.decision
        return int(self.decision.remaining)


class Site:
    """A throttle without a concurrency limiter, so that user limits alone decide.

    Args:
        url: of the store.
        prefix: of its keys.
        limit: user limit.
        settings: whatever else there is to set.
    """

    def __init__(self, url: str, prefix: str, limit: str = f"{LIMIT}/minute", **settings: Any) -> None:
        values: dict[str, Any] = {"gpu": "none", "policy": "fixed", "rate_mid_rps": 1_000_000}
        values |= {"redis_url": url, "redis_prefix": prefix, "user_limit": limit}
        self.throttle = Throttle(Settings(**values | settings))

    @property
    def store(self) -> StoreView:
        store = self.throttle.snapshot().store
        assert store is not None
        return store

    @property
    def state(self) -> HealthState:
        return self.store.state

    @property
    def fallbacks(self) -> int:
        """Decisions taken without the store."""
        return sum(self.store.fallbacks.values())

    async def ask(self, user: int = 1, *, cost: float = 1.0) -> Asked:
        """One request, over as soon as it is admitted.

        Only one at a time may be asked for whoever wants to know whether it was shared.
        """
        before = self.fallbacks
        started = time.perf_counter()
        verdict, waited = await suspended(self.throttle.admit(Demand(user=name(user), cost=cost)))
        took_s = time.perf_counter() - started
        if isinstance(verdict, Permit):
            verdict.settle()
        assert verdict.decision is not None
        return Asked(verdict.decision, self.fallbacks == before, waited, took_s)

    async def crowd(self, *users: int) -> list[Decision]:
        """Requests of all these users at once."""
        return [asked.decision for asked in await asyncio.gather(*(self.ask(user) for user in users))]

    async def connected(self) -> Self:
        """Return once the store has answered."""
        self.throttle.start()
        deadline = time.monotonic() + HANG_S
        while not (await self.ask(0)).shared:
            assert time.monotonic() < deadline, self.store
            await asyncio.sleep(0)
        return self

    async def comes(self, state: HealthState, user: int = 0) -> None:
        """Ask until the store is in that state."""
        deadline = time.monotonic() + HANG_S
        while self.state is not state:
            assert time.monotonic() < deadline, self.store
            await self.ask(user)
            await asyncio.sleep(0.001)  # a proxy in a thread of this process needs the interpreter, too

    async def probes(self, times: int = 2, user: int = 0) -> None:
        """Ask until so many probes have failed."""
        for _ in range(times):
            await self.comes(HealthState.PROBING, user)
            await self.comes(HealthState.DOWN, user)

    async def quiet(self) -> None:
        """Return once nothing waits for the store, not even what takes back units of those who left."""
        await eventually(lambda: not self.store.stats.waiting, self.store)


async def connected(url: str, prefix: str, limit: str = f"{LIMIT}/minute", **settings: Any) -> Site:
    """A site whose store has already answered."""
    return await Site(url, prefix, limit, **settings).connected()


class Traffic:
    """Requests of many users without a pause, in the background; an async context manager.

    Args:
        site: who is asked.
        users: one request each, all at once, every few milliseconds.
    """

    def __init__(self, site: Site, users: range = range(100, 108), every_s: float = 0.004) -> None:
        self._site = site
        self._users = users
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self.decisions: list[Decision] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._flow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        ended = self._task.done()
        self._task.cancel()
        (outcome,) = await asyncio.gather(self._task, return_exceptions=True)
        if ended or not isinstance(outcome, asyncio.CancelledError):
            raise AssertionError("a request ended with an error") from outcome

    @property
    def refused(self) -> list[Reason]:
        return [decision.reason for decision in self.decisions if not decision.allowed]

    async def more(self, count: int = 40) -> None:
        """Return when so many more requests have been answered."""
        wanted = len(self.decisions) + count
        await eventually(lambda: len(self.decisions) >= wanted, "requests are answered")

    async def _flow(self) -> None:
        while True:
            answers = await asyncio.gather(*(self._site.ask(user) for user in self._users))
            self.decisions += [answer.decision for answer in answers]
            await asyncio.sleep(self._every_s)


def changes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log events of the store, in order."""
    events = (str(getattr(record, "event", "")) for record in caplog.records)
    return [event for event in events if event.startswith("store_")]


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """The lines of one event."""
    return [record.getMessage() for record in caplog.records if getattr(record, "event", "") == event]
