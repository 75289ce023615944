"""The protocol of a limiter in the loop, and of its surroundings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from benchmarks.loop.plant import DeviceReading, Plant
from benchmarks.loop.request import Request
from benchmarks.loop.scheduler import EventScheduler


class LimiterContext(Protocol):
    """The surroundings of a limiter: time, service and objective."""

    scheduler: EventScheduler
    plant: Plant
    slo_s: float
    """Objective of the clients, in seconds."""

    def admit(self, request: Request, replica: int | None = None) -> None:
        """Admit a request to the service, now or after a wait."""
        ...

    def reject(self, request: Request) -> None:
        """Reject a request, at once or after a wait."""
        ...


class Limiter(Protocol):
    """Calls ``context.admit`` or ``context.reject`` once for each request that arrives, now or later."""

    def arrive(self, request: Request) -> None:
        """Handle the arrival of a request."""
        ...

    def ended(self, request: Request, *, ok: bool) -> None:
        """Handle the end of an admitted request."""
        ...

    def settled(self, replica: int) -> None:
        """Continue after all requests that ended at this instant on a replica."""
        ...

    def sample(self, readings: Sequence[DeviceReading]) -> None:
        """Take the telemetry of the devices, once a second."""
        ...

    def state(self) -> tuple[float | None, float | None]:
        """Return the factor of the nominal rates and the concurrency limit; None where there is none."""
        ...


class BaseLimiter:
    """Defaults of a limiter without telemetry and without a queue."""

    def settled(self, replica: int) -> None:
        """Do nothing: there is no queue."""

    def sample(self, readings: Sequence[DeviceReading]) -> None:
        """Do nothing: telemetry is not used."""

    def state(self) -> tuple[float | None, float | None]:
        """Report nothing."""
        return None, None
