"""A simulated service with a listener that records the results of requests."""

from __future__ import annotations

from benchmarks.loop.plant import BatchPlant, PlantSpec
from benchmarks.loop.request import Request
from benchmarks.loop.scheduler import EventScheduler


class RecordingListener:
    """A listener of a simulated service."""

    def __init__(self, scheduler: EventScheduler) -> None:
        self.scheduler = scheduler
        self.ends: list[tuple[float, int, bool]] = []
        """Time, number of the request, and whether it was served."""
        self.settlements: list[float] = []

    def ended(self, request: Request, *, ok: bool) -> None:
        """Record an end."""
        self.ends.append((round(self.scheduler.now, 6), request.number, ok))

    def settled(self, replica: int) -> None:
        """Record an instant at which requests ended."""
        self.settlements.append(round(self.scheduler.now, 6))


def batch_plant(spec: PlantSpec) -> tuple[BatchPlant, EventScheduler, RecordingListener]:
    """Build a simulated service on a scheduler of its own."""
    scheduler = EventScheduler()
    recorded = RecordingListener(scheduler)
    return BatchPlant(spec, scheduler, recorded), scheduler, recorded


def requests(count: int, cost: float = 1.0) -> list[Request]:
    """Build requests that were sent at 0."""
    return [Request(number, 0.0, 0, cost) for number in range(count)]
