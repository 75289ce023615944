"""Requests of millions of users at a thousand processes, each with a throttle of its own."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from autoglm_throttle import Demand, Permit, Priority, Throttle
from autoglm_throttle.settings import Settings
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.shared_limits import SharedUserLimits, StoreView
from autoglm_throttle.traffic.inproc.loop import VirtualLoop
from benchmarks.scaled.simulated_redis import TAGS, Client, Cost, Node, user_text
from benchmarks.shared.drive import quantile

USERS: Final = 10_000_000
LIMIT: Final = 100  # units a minute
HOT: Final = USERS  # number of the user that is far above the limit

Users = Literal["even", "skewed"]


def settings(url: str, processes: int, **more: Any) -> Settings:
    """Return the settings of a process that limits users alone."""
    values: dict[str, Any] = {
        "gpu": "none",
        "policy": "fixed",
        "rate_mid_rps": 1e6,
        "workers": processes,
        "user_limit": f"{LIMIT}/minute",
        "redis_url": url,
        "redis_partitions": TAGS,
        "key_secret": "a secret for measurements alone",
    }
    return Settings(**values | more)


@dataclass
class Seen:
    """What happened to the requests."""

    waits_s: list[float] = field(default_factory=list)
    rejected: int = 0
    admitted: Counter[int] = field(default_factory=Counter)  # by user


class Crowd:
    """Processes with one store, for use within the loop whose time counts."""

    def __init__(self, throttles: Sequence[Throttle]) -> None:
        self.seen = Seen()
        self.throttles = throttles

    @classmethod
    def simulated(cls, clients: Sequence[Client]) -> Crowd:
        """Return processes with these clients."""
        loop = asyncio.get_running_loop()
        made = settings("redis://simulated", len(clients))
        throttles = [
            Throttle(made, sampling="manual", clock=loop.time, redis=partial(_same, client))
            for client in clients
        ]
        if len(clients[0].nodes) > 1:
            for throttle in throttles:
                _shared_limits(throttle).store.clients.cluster = True
        return cls(throttles)

    async def connected(self) -> None:
        """Start all processes."""
        for throttle in self.throttles:
            throttle.start()
            await asyncio.sleep(0.001)  # they do not start in the same moment
        await asyncio.sleep(0.5)

    async def ask(self, place: int, user: int) -> None:
        """Send one request of a user to a process."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        verdict = await self.throttles[place].admit(Demand(Priority.MID, user_text(user)))
        self.seen.waits_s.append(loop.time() - began_s)
        if isinstance(verdict, Permit):
            self.seen.admitted[user] += 1
            verdict.settle()
        else:
            self.seen.rejected += 1

    async def send(self, rng: random.Random, rate_rps: float, seconds: float, users: Users) -> None:
        """Send requests at random moments to random processes, and wait for their ends."""
        tasks = set()
        loop = asyncio.get_running_loop()
        for due_s in arrivals(rng, rate_rps, loop.time(), seconds):
            await asyncio.sleep(due_s - loop.time())
            task = loop.create_task(self.ask(rng.randrange(len(self.throttles)), drawn(rng, users)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        while tasks:
            await asyncio.wait(tasks)

    def views(self) -> list[StoreView]:
        """Return the state of the store as each process sees it."""
        return [view for throttle in self.throttles if (view := throttle.snapshot().store) is not None]

    def up(self) -> bool:
        """Whether the store answers all processes."""
        return all(view.state is HealthState.UP for view in self.views())

    def fallbacks(self) -> int:
        """Count the decisions without the store."""
        return sum(sum(view.fallbacks.values()) for view in self.views())


def _same(client: Client) -> Client:
    return client


def _shared_limits(throttle: Throttle) -> SharedUserLimits:
    limits = throttle.admission.parts.store
    if limits is None:
        raise RuntimeError("the user limits are not shared")
    return limits


def arrivals(rng: random.Random, rate_rps: float, begins_s: float, seconds: float) -> Iterator[float]:
    """Yield random moments at a mean rate."""
    at_s = begins_s + rng.expovariate(rate_rps)
    while at_s < begins_s + seconds:
        yield at_s
        at_s += rng.expovariate(rate_rps)


def drawn(rng: random.Random, users: Users) -> int:
    """Return a user: all alike, or the n-th with a share of 1/n."""
    if users == "even":
        return rng.randrange(USERS)
    return min(int(math.exp(rng.random() * math.log(USERS))), USERS) - 1


def in_virtual_time(work: Callable[[], Any]) -> Any:
    """Run a coroutine in a loop of virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work())


def load(
    cost: Cost, processes: int, nodes: int, rate_rps: float, users: Users, seconds: float
) -> dict[str, float]:
    """Return what a steady load makes of the store, after a start that is not counted."""

    async def run() -> dict[str, float]:
        servers = [Node(cost) for _ in range(nodes)]
        crowd = Crowd.simulated([Client(servers) for _ in range(processes)])
        rng = random.Random(1)
        await crowd.connected()
        await crowd.send(rng, rate_rps, 0.05, users)
        before = [(node.calls, node.checks, node.busy_s) for node in servers]
        locally, crowd.seen = crowd.fallbacks(), Seen()
        began_s = asyncio.get_running_loop().time()
        await crowd.send(rng, rate_rps, seconds, users)
        lasted_s = asyncio.get_running_loop().time() - began_s
        each = list(zip(servers, before, strict=True))
        calls = sum(node.calls - was[0] for node, was in each)
        checks = sum(node.checks - was[1] for node, was in each)
        requests = len(crowd.seen.waits_s)
        return {
            "requests": requests,
            "calls_per_s": calls / lasted_s,
            "checks_per_call": checks / max(calls, 1),
            "checked": checks / requests,
            "busiest_node": max((node.busy_s - was[2]) / lasted_s for node, was in each),
            "wait_p50_ms": quantile(crowd.seen.waits_s, 0.5) * 1e3,
            "wait_p99_ms": quantile(crowd.seen.waits_s, 0.99) * 1e3,
            "decided_locally": (crowd.fallbacks() - locally) / requests,
            "processes_down": sum(view.state is not HealthState.UP for view in crowd.views()),
        }

    return dict(in_virtual_time(run))


def partition(
    cost: Cost, processes: int, cut: int, rate_rps: float, hot_rps: float, seconds: float
) -> dict[str, float]:
    """Cut some of the processes off, then reconnect them; return the excess of users and the recovery."""

    async def run() -> dict[str, float]:
        clients = [Client([server]) for server in [Node(cost)] for _ in range(processes)]
        crowd, rng, loop = Crowd.simulated(clients), random.Random(1), asyncio.get_running_loop()
        await crowd.connected()

        async def both(length_s: float) -> None:
            async def hot() -> None:
                tasks = []
                for due_s in arrivals(rng, hot_rps, loop.time(), length_s):
                    await asyncio.sleep(due_s - loop.time())
                    tasks.append(loop.create_task(crowd.ask(rng.randrange(processes), HOT)))
                await asyncio.gather(*tasks)

            await asyncio.gather(hot(), crowd.send(rng, rate_rps, length_s, "skewed"))

        await both(1.0)
        whole = dict(crowd.seen.admitted)
        for client in clients[:cut]:
            client.is_cut = True
        crowd.seen.waits_s.clear()
        await both(seconds)
        found = {"wait_p99_ms": quantile(crowd.seen.waits_s, 0.99) * 1e3}
        down = sum(view.state is not HealthState.UP for view in crowd.views())
        found |= {"down_of_cut": down / cut, "decided_locally": crowd.fallbacks()}
        for client in clients:
            client.is_cut = False
        healed_s = loop.time()
        while not crowd.up():
            await crowd.send(rng, rate_rps, 0.05, "skewed")
        found["recovery_s"] = loop.time() - healed_s
        found["most_before"] = max(whole.values()) / LIMIT
        found["hot_admitted"] = crowd.seen.admitted[HOT] / LIMIT
        found["most_admitted"] = max(crowd.seen.admitted.values()) / LIMIT
        return found

    return dict(in_virtual_time(run))


def active_users(rate_rps: float, seconds: float, users: Users) -> int:
    """Count the users with a request in a stretch of time."""
    rng, seen = random.Random(1), bytearray(USERS)
    for _ in range(round(rate_rps * seconds)):
        seen[drawn(rng, users)] = 1
    return sum(seen)
