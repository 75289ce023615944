"""What the loop asks of whatever decides who comes in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from benchmarks.loop.agenda import Agenda
from benchmarks.loop.plant import Card, Plant
from benchmarks.loop.request import Request


class Site(Protocol):
    """Where a door stands."""

    agenda: Agenda
    plant: Plant
    slo_s: float
    """What the clients want, in seconds."""

    def enter(self, request: Request, replica: int | None = None) -> None:
        """Let a request into the service, now or after a wait."""
        ...

    def refuse(self, request: Request) -> None:
        """Send a request away, at once or after a wait."""
        ...


class Door(Protocol):
    """Calls ``site.enter`` or ``site.refuse`` once for each request that arrives, now or later."""

    def arrive(self, request: Request) -> None:
        """A request is here."""
        ...

    def ended(self, request: Request, *, ok: bool) -> None:
        """A request that was let in has ended."""
        ...

    def settled(self, replica: int) -> None:
        """All requests that end at this instant on a replica have been told."""
        ...

    def sample(self, cards: Sequence[Card]) -> None:
        """What the cards show, once a second."""
        ...

    def state(self) -> tuple[float | None, float | None]:
        """Factor of the nominal rates and limit in flight, as far as the door has them."""
        ...


class PlainDoor:
    """The parts of a door that needs no telemetry and has no line."""

    def settled(self, replica: int) -> None:
        """Nobody waits here."""

    def sample(self, cards: Sequence[Card]) -> None:
        """The cards are not looked at."""

    def state(self) -> tuple[float | None, float | None]:
        """Nothing to report."""
        return None, None
