"""The simulated service: replicas with static batches, limited memory, and readings of the devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from benchmarks.loop.request import Request
from benchmarks.loop.scheduler import EventScheduler

RESTART_S = 5.0
"""Seconds of a restart after the memory ran out."""

REJECTION_S = 0.001
"""Seconds until a connection fails while the process restarts."""


@dataclass(frozen=True, slots=True)
class PlantSpec:
    """A service that batches statically.

    The defaults are round numbers of this project: 16 requests in 160 ms, so 100 requests/s in full batches.
    """

    replicas: int = 1
    batch: int = 16
    """Requests in a batch at most."""
    base_s: float = 0.010
    """Cost of a batch however small."""
    item_s: float = 0.009375
    """Seconds that a request of cost 1 adds to its batch."""
    memory_each: float = 0.0
    """Share of the memory of each request in flight."""
    memory_idle: float = 0.4

    @property
    def full_s(self) -> float:
        """Return the seconds of a full batch."""
        return self.base_s + self.batch * self.item_s

    @property
    def capacity_rps(self) -> float:
        """Return the requests/s in full batches, at full speed."""
        return self.replicas * self.batch / self.full_s


class DeviceReading(NamedTuple):
    """Telemetry of one device for the time since the last reading."""

    utilization_pct: float
    """Share of the time in which something ran."""
    work: float
    """Share of the largest work, 0..1."""
    memory: float
    """Fill, 0..1."""


class Listener(Protocol):
    """Receiver of the results of requests in flight."""

    def ended(self, request: Request, *, ok: bool) -> None:
        """Handle the end of a request; not ``ok``: it was lost."""
        ...

    def settled(self, replica: int) -> None:
        """Handle the end of a batch, before the replica starts its next one."""
        ...


class Plant(Protocol):
    """The interface of a simulated service."""

    inside: int
    kills: int

    def admit(self, request: Request, replica: int | None = None) -> None:
        """Accept a request."""
        ...

    def speed(self, change: tuple[int, float]) -> None:
        """Set the speed of a replica, or with -1 of all, as a share of the full speed."""
        ...

    def readings(self) -> list[DeviceReading]:
        """Return the readings of the devices."""
        ...


class Replica:
    """One device with its own queue."""

    __slots__ = ("begun_s", "busy_s", "ends_s", "inside", "queue", "run", "running", "speed", "work_s")

    def __init__(self) -> None:
        self.queue: deque[Request] = deque()
        self.running: list[Request] = []
        self.inside = 0
        self.run = 0
        """Generation of the running batch: the scheduled end of an older one is ignored."""
        self.begun_s = 0.0
        self.ends_s = 0.0
        self.speed = 1.0
        self.busy_s = 0.0
        self.work_s = 0.0


class BatchPlant:
    """Replicas with a queue each; an idle one takes up to a batch of requests, which end together."""

    def __init__(self, spec: PlantSpec, scheduler: EventScheduler, listener: Listener) -> None:
        self.spec = spec
        self.replicas = [Replica() for _ in range(spec.replicas)]
        self.inside = 0
        self.kills = 0
        """Number of times that the memory ran out."""
        self._scheduler = scheduler
        self._listener = listener
        self._up_s = 0.0
        self._read_s = 0.0
        self._capacity = (
            int((1.0 - spec.memory_idle) / spec.memory_each + 1e-9) if spec.memory_each else 1 << 60
        )

    def admit(self, request: Request, replica: int | None = None) -> None:
        """Enqueue a request, by default at the replica with the shortest queue."""
        now = self._scheduler.now
        if now < self._up_s:
            self._scheduler.at(now + REJECTION_S, self._reject, request)
            return
        if replica is not None:
            chosen = self.replicas[replica]
        elif len(self.replicas) == 1:
            chosen = self.replicas[0]
        else:
            chosen = min(self.replicas, key=_length)
        chosen.queue.append(request)
        chosen.inside += 1
        self.inside += 1
        if self.inside > self._capacity:
            self._run_out_of_memory(now)
        elif not chosen.running:
            self._begin(chosen)

    def speed(self, change: tuple[int, float]) -> None:
        """Change the speed of a replica, or with -1 of all; running batches continue at the new speed."""
        index, speed = change
        now = self._scheduler.now
        for number, replica in enumerate(self.replicas):
            if index not in (number, -1):
                continue
            if replica.running:
                replica.ends_s = now + (replica.ends_s - now) * replica.speed / speed
                self._schedule_end(replica)
            replica.speed = speed

    def batch_s(self, replica: Replica, cost: float) -> float:
        """Return the seconds of a batch of some cost at the present speed of the replica."""
        return (self.spec.base_s + self.spec.item_s * cost) / replica.speed

    def readings(self) -> list[DeviceReading]:
        """Return the reading of each device for the time since the last call."""
        now = self._scheduler.now
        span = max(now - self._read_s, 1e-9)
        for replica in self.replicas:
            if replica.running:
                self._account(replica, now)
                replica.begun_s = now
        self._read_s = now
        memory = min(1.0, self.spec.memory_idle + self.spec.memory_each * self.inside)
        seen = [
            DeviceReading(min(100.0, 100.0 * r.busy_s / span), min(1.0, r.work_s / span), memory)
            for r in self.replicas
        ]
        for replica in self.replicas:
            replica.busy_s = replica.work_s = 0.0
        return seen

    def _begin(self, replica: Replica) -> None:
        queue = replica.queue
        replica.running = [queue.popleft() for _ in range(min(len(queue), self.spec.batch))]
        now = self._scheduler.now
        replica.begun_s = now
        replica.ends_s = now + self.batch_s(replica, sum([request.cost for request in replica.running]))
        self._schedule_end(replica)

    def _schedule_end(self, replica: Replica) -> None:
        replica.run += 1
        self._scheduler.at(replica.ends_s, self._end, (replica, replica.run))

    def _end(self, batch: tuple[Replica, int]) -> None:
        replica, run = batch
        if replica.run != run:
            return
        self._account(replica, self._scheduler.now)
        ended = replica.running
        replica.inside -= len(ended)
        self.inside -= len(ended)
        for request in ended:
            self._listener.ended(request, ok=True)
        self._listener.settled(self.replicas.index(replica))
        if replica.run != run:
            return
        replica.running = []
        if replica.queue:
            self._begin(replica)

    def _account(self, replica: Replica, now: float) -> None:
        busy_s = now - replica.begun_s
        replica.busy_s += busy_s
        replica.work_s += busy_s * min(1.0, len(replica.running) / self.spec.batch)

    def _run_out_of_memory(self, now: float) -> None:
        self.kills += 1
        self._up_s = now + RESTART_S
        lost: list[Request] = []
        for replica in self.replicas:
            if replica.running:
                self._account(replica, now)
            lost += [*replica.running, *replica.queue]
            replica.queue.clear()
            replica.running = []
            replica.inside = 0
            replica.run += 1
        self.inside = 0
        for request in lost:
            self._listener.ended(request, ok=False)
        self._listener.settled(0)

    def _reject(self, request: Request) -> None:
        self._listener.ended(request, ok=False)
        self._listener.settled(0)


def _length(replica: Replica) -> int:
    return replica.inside


Make = Callable[[EventScheduler, Listener], Plant]
