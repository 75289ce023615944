"""Services of the field cases: servers with one queue, short answers beside a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from benchmarks.field_cases.call import Call
from benchmarks.field_cases.world import MakePlant
from benchmarks.loop.plant import BatchPlant, DeviceReading, Listener, Plant, PlantSpec
from benchmarks.loop.request import Request
from benchmarks.loop.scheduler import EventScheduler


class ServersPlant:
    """Servers that each handle one request at a time, in the order of arrival; the cost is in seconds.

    Args:
        servers: their number.
        scheduler: time.
        listener: told about the ends.
    """

    def __init__(self, servers: int, scheduler: EventScheduler, listener: Listener) -> None:
        self.inside = 0
        self.kills = 0
        self._free = servers
        self._queue: deque[Request] = deque()
        self._scheduler = scheduler
        self._listener = listener

    def admit(self, request: Request, replica: int | None = None) -> None:  # noqa: ARG002
        """Begin the request, or enqueue it."""
        self.inside += 1
        if self._free:
            self._begin(request)
        else:
            self._queue.append(request)

    def speed(self, change: tuple[int, float]) -> None:
        """Reject the change: no case changes the speed of servers."""
        raise NotImplementedError(change)

    def readings(self) -> list[DeviceReading]:
        """Return nothing: there is no device."""
        return []

    def _begin(self, request: Request) -> None:
        self._free -= 1
        self._scheduler.at(self._scheduler.now + request.cost, self._end, request)

    def _end(self, request: Request) -> None:
        self._free += 1
        self.inside -= 1
        if self._queue:
            self._begin(self._queue.popleft())
        self._listener.ended(request, ok=True)
        self._listener.settled(0)


class RoutedPlant:
    """Services by the kind of the call, behind one limiter."""

    def __init__(self, by_kind: Mapping[str, Plant]) -> None:
        self.kills = 0
        self._by_kind = by_kind

    @property
    def inside(self) -> int:
        """Return the requests in all services."""
        return sum(plant.inside for plant in self._by_kind.values())

    @inside.setter
    def inside(self, value: int) -> None:
        raise AttributeError(value)

    def admit(self, request: Request, replica: int | None = None) -> None:
        """Pass the request to the service of its kind."""
        assert isinstance(request, Call)
        self._by_kind[request.kind.name].admit(request, replica)

    def speed(self, change: tuple[int, float]) -> None:
        """Change the speed of all services."""
        for plant in self._by_kind.values():
            plant.speed(change)

    def readings(self) -> list[DeviceReading]:
        """Return nothing: no case reads it."""
        return []


def batches(spec: PlantSpec) -> MakePlant:
    """Return what makes a service with static batches."""
    return lambda scheduler, listener: BatchPlant(spec, scheduler, listener)


def servers(count: int) -> MakePlant:
    """Return what makes a service of servers with one queue."""
    return lambda scheduler, listener: ServersPlant(count, scheduler, listener)
