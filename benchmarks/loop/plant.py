"""The service: replicas that take what waits as a batch, a memory that can run out, and what cards show."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from benchmarks.loop.agenda import Agenda
from benchmarks.loop.request import Request

RESTART_S = 5.0
"""How long the process is away after its memory ran out."""

REFUSED_S = 0.001
"""Until a connection is refused by a process that is away."""


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
    """What a request of cost 1 adds to its batch."""
    memory_each: float = 0.0
    """Share of the memory that each request inside takes."""
    memory_idle: float = 0.4

    @property
    def full_s(self) -> float:
        """Seconds of a full batch."""
        return self.base_s + self.batch * self.item_s

    @property
    def capacity_rps(self) -> float:
        """Requests/s in full batches, at full speed."""
        return self.replicas * self.batch / self.full_s


class Card(NamedTuple):
    """What one card shows for the time since it was last asked."""

    utilization_pct: float
    """Share of the time in which something ran."""
    work: float
    """Share of the largest work, 0..1."""
    memory: float
    """Fill, 0..1."""


class Listener(Protocol):
    """Who is told what becomes of the requests inside."""

    def ended(self, request: Request, *, ok: bool) -> None:
        """A request has ended; not ``ok``: it was lost."""
        ...

    def settled(self, replica: int) -> None:
        """All that ended together have been told; the replica is about to look for its next batch."""
        ...


class Plant(Protocol):
    """What clients, doors and the course of a run need of a service."""

    inside: int
    kills: int

    def enter(self, request: Request, replica: int | None = None) -> None:
        """Take a request in."""
        ...

    def speed(self, change: tuple[int, float]) -> None:
        """Let a replica, or with -1 all of them, run at a share of its full speed from now on."""
        ...

    def cards(self) -> list[Card]:
        """What the cards show now."""
        ...


class Replica:
    """One card with its own line."""

    __slots__ = ("begun_s", "busy_s", "ends_s", "inside", "queue", "run", "running", "speed", "work_s")

    def __init__(self) -> None:
        self.queue: deque[Request] = deque()
        self.running: list[Request] = []
        self.inside = 0
        self.run = 0
        """Number of the running batch, so that the end of one that was changed is told from the new one."""
        self.begun_s = 0.0
        self.ends_s = 0.0
        self.speed = 1.0
        self.busy_s = 0.0
        self.work_s = 0.0


class BatchPlant:
    """Replicas with a line each; an idle one takes what waits, up to a batch, which ends as one."""

    def __init__(self, spec: PlantSpec, agenda: Agenda, listener: Listener) -> None:
        self.spec = spec
        self.replicas = [Replica() for _ in range(spec.replicas)]
        self.inside = 0
        self.kills = 0
        """Times that the memory ran out."""
        self._agenda = agenda
        self._listener = listener
        self._up_s = 0.0
        self._read_s = 0.0
        self._room = int((1.0 - spec.memory_idle) / spec.memory_each + 1e-9) if spec.memory_each else 1 << 60

    def enter(self, request: Request, replica: int | None = None) -> None:
        """Put a request into a line, by default into the shortest."""
        now = self._agenda.now
        if now < self._up_s:
            self._agenda.at(now + REFUSED_S, self._turned_away, request)
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
        if self.inside > self._room:
            self._die(now)
        elif not chosen.running:
            self._begin(chosen)

    def speed(self, change: tuple[int, float]) -> None:
        """Change the speed of a replica, or with -1 of all; what runs goes on at the new one."""
        index, speed = change
        now = self._agenda.now
        for number, replica in enumerate(self.replicas):
            if index not in (number, -1):
                continue
            if replica.running:
                replica.ends_s = now + (replica.ends_s - now) * replica.speed / speed
                self._expect(replica)
            replica.speed = speed

    def batch_s(self, replica: Replica, cost: float) -> float:
        """Seconds that a batch of some cost lasts at the replica's present speed."""
        return (self.spec.base_s + self.spec.item_s * cost) / replica.speed

    def cards(self) -> list[Card]:
        """What each card shows for the time since the last call."""
        now = self._agenda.now
        span = max(now - self._read_s, 1e-9)
        for replica in self.replicas:
            if replica.running:
                self._account(replica, now)
                replica.begun_s = now
        self._read_s = now
        memory = min(1.0, self.spec.memory_idle + self.spec.memory_each * self.inside)
        seen = [
            Card(min(100.0, 100.0 * r.busy_s / span), min(1.0, r.work_s / span), memory)
            for r in self.replicas
        ]
        for replica in self.replicas:
            replica.busy_s = replica.work_s = 0.0
        return seen

    def _begin(self, replica: Replica) -> None:
        queue = replica.queue
        replica.running = [queue.popleft() for _ in range(min(len(queue), self.spec.batch))]
        now = self._agenda.now
        replica.begun_s = now
        replica.ends_s = now + self.batch_s(replica, sum([request.cost for request in replica.running]))
        self._expect(replica)

    def _expect(self, replica: Replica) -> None:
        replica.run += 1
        self._agenda.at(replica.ends_s, self._end, (replica, replica.run))

    def _end(self, what: tuple[Replica, int]) -> None:
        replica, run = what
        if replica.run != run:
            return
        self._account(replica, self._agenda.now)
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

    def _die(self, now: float) -> None:
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

    def _turned_away(self, request: Request) -> None:
        self._listener.ended(request, ok=False)
        self._listener.settled(0)


def _length(replica: Replica) -> int:
    return replica.inside


Make = Callable[[Agenda, Listener], Plant]
