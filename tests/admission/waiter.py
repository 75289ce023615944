"""Tasks that wait in the queue, and can be cancelled in three ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import anyio.abc

from autoglm_throttle import Demand, Permit, Rejection, Throttle
from autoglm_throttle.testing import ManualThrottle

CANCELLATIONS = ("task", "scope", "timeout")


async def iterations(times: int) -> None:
    for _ in range(times):
        await anyio.lowlevel.checkpoint()


async def let_tasks_run() -> None:
    """Run the tasks until all of them are blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        await anyio.wait_all_tasks_blocked()
    else:  # here a task counts as blocked whose timeout is about to end, and looking again takes 0.1 s
        await iterations(20)


class Waiter:
    """A task that requests admission, runs for a moment, and can be cancelled in three ways."""

    def __init__(self, throttle: ManualThrottle, demand: Demand) -> None:
        self.throttle = throttle
        self.demand = demand
        self.verdict: Permit | Rejection | None = None
        self.scope = anyio.CancelScope()
        self.timeout: asyncio.Timeout | None = None
        self.task: asyncio.Task[None] | None = None

    async def request(self, iterations_inside: int = 0) -> None:
        self.verdict = await self.throttle.admit(self.demand)
        if isinstance(self.verdict, Permit):
            with self.verdict:
                await iterations(iterations_inside)

    async def request_in_scope(self, iterations_inside: int = 0) -> None:
        with self.scope:
            await self.request(iterations_inside)

    async def request_in_timeout(self, iterations_inside: int = 0) -> None:
        try:
            async with asyncio.timeout(None) as self.timeout:
                await self.request(iterations_inside)
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

    def start(self, cancellation: str, iterations_inside: int = 0) -> Callable[[], None]:
        """Start the task; returns the function that cancels it."""
        request, stop = {
            "task": (self.request, self.cancel_task),
            "scope": (self.request_in_scope, self.cancel_scope),
            "timeout": (self.request_in_timeout, self.end_timeout),
        }[cancellation]
        self.task = asyncio.create_task(request(iterations_inside))
        return stop


class QueuedTasks:
    """Tasks that request admission one after another, and their verdicts in order."""

    def __init__(self, throttle: Throttle) -> None:
        self.throttle = throttle
        self.verdicts: dict[str, Permit | Rejection] = {}

    async def request(self, name: str, demand: Demand) -> None:
        self.verdicts[name] = await self.throttle.admit(demand)

    async def enqueue(self, group: anyio.abc.TaskGroup, *demands: Demand) -> None:
        for demand in demands:
            group.start_soon(self.request, demand.user, demand)
            await let_tasks_run()
