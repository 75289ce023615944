"""Overloads over real sockets: cheap answers beside a simulated GPU, a killed worker, and several workers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import closing
from typing import Any

from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.types import Priority
from benchmarks.goodput import GoodputObserver
from benchmarks.socket_cases.servers import fleet, served
from tests.servers.server import Server

SLO_S = 2.0
GPU_RPS = 40.0
"""Capacity of the simulated GPU of the wrapped service."""

FLEET_RPS = 100.0
"""Capacity of the GPU that several workers share."""

WARM_S = 5.0
STARTED = "Application startup complete"
RATES: dict[str, Any] = {f"rate_{name}_rps": 5_000 for name in ("high", "mid", "low")}
"""Above all that is asked for: the concurrency limit decides, not the ceilings."""

MIX = {Priority.HIGH: 10.0, Priority.MID: 30.0, Priority.LOW: 60.0}
MISSING = tuple(
    PlannedRequest(method="GET", target=f"/missing/{number}.php", headers=(), body=b"", priority=False)
    for number in range(50)
)


class Sent:
    """A Poisson load of one kind and its results.

    Args:
        rate_rps: arrivals.
        seconds: length of the load.
        requests: what is sent; None: a prediction.
        fresh: whether each request has a connection of its own, so that a new worker gets its share.
    """

    def __init__(
        self,
        rate_rps: float,
        seconds: float,
        *,
        requests: tuple[PlannedRequest, ...] = (PlannedRequest(),),
        fresh: bool = False,
        seed: int = 1,
    ) -> None:
        shares = PriorityMix(mix=MIX, kinds=(1.0,) * len(requests))
        self._plan = make_plan(LoadShape.parse(f"fixed:{rate_rps}:{seconds}"), Arrivals.POISSON, shares, seed)
        self._source = RequestSource(self._plan, requests)
        self._seconds = seconds
        self._fields = (("connection", "close"),) if fresh else ()
        self._notes: list[tuple[int, RequestResult, float]] = []

    def _note(self, index: int, result: RequestResult, response_s: float) -> None:
        self._notes.append((index, result, response_s))

    def send(self, port: int, connections: int) -> Coroutine[Any, Any, Any]:
        """Send the load; connections are opened as they are needed."""
        options = ClientOptions(
            connections=connections, more_connections=1_500, timeout_s=2 * SLO_S, drain_s=2 * SLO_S
        )
        target = TargetUrl(port=port, headers=self._fields)
        return OpenLoopSender(self._source, target, options, self._note).run()

    def counts(self) -> dict[str, int]:
        """Return the number of requests by result."""
        return dict(Counter(result.label for _, result, _ in self._notes))

    def figures(self, begin_s: float = WARM_S) -> dict[str, Any]:
        """Return the goodput from ``begin_s`` to the end of the load.

        Raises:
            RuntimeError: the load had ended by then.
        """
        if begin_s >= self._seconds:
            raise RuntimeError(f"nothing is left of {self._seconds} s after {begin_s:.1f} s")
        goodput = GoodputObserver(self._plan, SLO_S, begin_s, self._seconds)
        for index, result, response_s in self._notes:
            goodput.note(index, result, response_s)
        in_time = {
            priority.name.lower(): counts.in_time / counts.planned
            for priority, counts in goodput.classes.items()
        }
        return {"in_time": in_time, "in_time_rps": goodput.completed_rps(), "results": self.counts()}


def cheap_beside_gpu(kind: str, missing_rps: float, seconds: float) -> dict[str, Any]:
    """Ask a service of 40/s for 120/s, beside 404 answers at ``missing_rps``; 0: alone."""
    real = Sent(3 * GPU_RPS, seconds)
    cheap = Sent(missing_rps, seconds, requests=MISSING, seed=2) if missing_rps else None

    async def both(port: int) -> None:
        loads = [load.send(port, 16) for load in (real, cheap) if load is not None]
        await asyncio.gather(*loads)

    with served(kind, slo_s=SLO_S, priority_header_trust="any", **RATES) as server:
        asyncio.run(both(server.port))
        state = server.state()
    return {**real.figures(), "missing": cheap.counts() if cheap else {}, "state": state}


def wait_for_workers(server: Server, workers: int, within_s: float = 60.0) -> None:
    """Return once so many workers have started.

    Raises:
        RuntimeError: they have not within the time.
    """
    deadline = time.monotonic() + within_s
    while server.output.count(STARTED) < workers:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all workers have started:\n{server.output}")
        time.sleep(0.02)


def workers(
    number: int, times: float, seconds: float, *, capacity_rps: float = FLEET_RPS, fresh: bool = False
) -> dict[str, Any]:
    """Ask a fleet of workers for a multiple of what its GPU can do.

    Args:
        number: workers.
        times: load as a multiple.
        seconds: length of the load.
        capacity_rps: of the GPU.
        fresh: whether each request has a connection of its own; the workers' shares differ more without.
    """
    load = Sent(times * capacity_rps, seconds, fresh=fresh)
    with fleet(number, capacity_rps) as server:
        wait_for_workers(server, number)
        asyncio.run(load.send(server.port, number))
        found = states(server, number)
    return {**load.figures(), "workers": found}


def states(server: Server, number: int) -> list[dict[str, Any]]:
    """Return the states of the workers that accept a connection when many are opened."""
    found: dict[int, dict[str, Any]] = {}
    for _ in range(40):
        with closing(server.connection()):
            one = server.state()
            found[one["pid"]] = one
        if len(found) == number:
            break
    return list(found.values())


async def kill_later(server: Server, at_s: float) -> tuple[float, float]:
    """Kill a worker at a time; return when that was and when its successor had started."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await asyncio.sleep(at_s)
    started = server.output.count(STARTED)
    state = await asyncio.to_thread(server.state)
    killed_s = loop.time() - began_s
    os.kill(state["pid"], signal.SIGKILL)
    await asyncio.to_thread(wait_for_workers, server, started + 1)
    return killed_s, loop.time() - began_s


def restart(number: int, times: float, seconds: float, kill_s: float = 6.0) -> dict[str, Any]:
    """Kill a worker under overload; goodput counts from 5 s after its successor's start.

    Args:
        number: workers; 1: one process under a supervisor, which loses all its connections.
        times: load as a multiple of what the GPU can do.
        seconds: length of the load.
        kill_s: time of the kill.
    """
    load = Sent(times * FLEET_RPS, seconds, fresh=number > 1)

    async def run(server: Server) -> tuple[float, float]:
        killed = asyncio.create_task(kill_later(server, kill_s))
        await load.send(server.port, number)
        return await killed

    with fleet(number, FLEET_RPS) as server:
        wait_for_workers(server, number)
        killed_s, up_s = asyncio.run(run(server))
        found = states(server, number)
    return {**load.figures(up_s + WARM_S), "restart_s": up_s - killed_s, "workers": found}
