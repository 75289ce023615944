"""Tasks that stand in line, and can be told to stop in every way there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import anyio.abc

from autoglm_throttle import Demand, Permit, Rejection, Throttle
from autoglm_throttle.testing import ManualThrottle

WAYS = ("task", "scope", "timeout")


async def turns(times: int) -> None:
    for _ in range(times):
        await anyio.lowlevel.checkpoint()


async def quiet() -> None:
    """Let the tasks do all that they can do now."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        await anyio.wait_all_tasks_blocked()
    else:  # here a task counts as blocked whose timeout is about to end, and looking again takes 0.1 s
        await turns(20)


class Waiter:
    """A task that asks, runs its request for a moment, and can be told to stop in three ways."""

    def __init__(self, throttle: ManualThrottle, demand: Demand) -> None:
        self.throttle = throttle
        self.demand = demand
        self.verdict: Permit | Rejection | None = None
        self.scope = anyio.CancelScope()
        self.timeout: asyncio.Timeout | None = None
        self.task: asyncio.Task[None] | None = None

    async def ask(self, turns_inside: int = 0) -> None:
        self.verdict = await self.throttle.admit(self.demand)
        if isinstance(self.verdict, Permit):
            with self.verdict:
                await turns(turns_inside)

    async def ask_in_a_scope(self, turns_inside: int = 0) -> None:
        with self.scope:
            await self.ask(turns_inside)

    async def ask_in_a_timeout(self, turns_inside: int = 0) -> None:
        try:
            async with asyncio.timeout(None) as self.timeout:
                await self.ask(turns_inside)
        except TimeoutError:
            pass

    def cancel_task(self) -> None:
        assert self.task is not None
        self.task.cancel()

    def cancel_scope(self) -> None:
        self.scope.cancel()

    def end_timeout(self) -> None:
        if self.timeout is None:
            self.cancel_task()
        elif self.timeout.when() is None:
            self.timeout.reschedule(0.0)

    def start(self, way: str, turns_inside: int = 0) -> Callable[[], None]:
        """Start it; the result stops it."""
        ask, stop = {
            "task": (self.ask, self.cancel_task),
            "scope": (self.ask_in_a_scope, self.cancel_scope),
            "timeout": (self.ask_in_a_timeout, self.end_timeout),
        }[way]
        self.task = asyncio.create_task(ask(turns_inside))
        return stop


class Line:
    """Tasks that ask one after the other, and the order in which their turns come."""

    def __init__(self, throttle: Throttle) -> None:
        self.throttle = throttle
        self.verdicts: dict[str, Permit | Rejection] = {}

    async def ask(self, name: str, demand: Demand) -> None:
        self.verdicts[name] = await self.throttle.admit(demand)

    async def stand(self, group: anyio.abc.TaskGroup, *demands: Demand) -> None:
        for demand in demands:
            group.start_soon(self.ask, demand.user, demand)
            await quiet()
