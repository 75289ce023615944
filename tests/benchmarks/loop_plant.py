"""A plant with a listener that notes what becomes of the requests."""

from __future__ import annotations

from benchmarks.loop.agenda import Agenda
from benchmarks.loop.plant import BatchPlant, PlantSpec
from benchmarks.loop.request import Request


class Notes:
    """A listener of a plant."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self.ends: list[tuple[float, int, bool]] = []
        """When, which request, and whether it was served."""
        self.settlements: list[float] = []

    def ended(self, request: Request, *, ok: bool) -> None:
        """Note an end."""
        self.ends.append((round(self.agenda.now, 6), request.number, ok))

    def settled(self, replica: int) -> None:
        """Note an instant at which requests ended."""
        self.settlements.append(round(self.agenda.now, 6))


def batch_plant(spec: PlantSpec) -> tuple[BatchPlant, Agenda, Notes]:
    """A plant on an agenda of its own."""
    agenda = Agenda()
    notes = Notes(agenda)
    return BatchPlant(spec, agenda, notes), agenda, notes


def requests(count: int, cost: float = 1.0) -> list[Request]:
    """Requests that were sent at 0."""
    return [Request(number, 0.0, 0, cost) for number in range(count)]
