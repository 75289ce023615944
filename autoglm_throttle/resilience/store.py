"""What a breaker and the store of its fleet say to each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from autoglm_throttle.model import Cause, Outcome, State


@dataclass(frozen=True, slots=True)
class Remote:
    """The state of a breaker as the fleet knows it. Never ``RAMPING``: a ramp is each process's own."""

    version: int
    """Rises with every change, even after a lost key."""
    state: State
    wait_s: float = 0.0
    """Seconds left of the open period, as of when this was received."""
    rounds: int = 0
    cause: Cause = Cause.REMOTE
    """Why, in the process that found out."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The fleet's leave for one trial."""

    fence: int
    """Above 0; newer ones are greater."""
    version: int
    """Of the state that it was given in."""
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """What a lease is asked with."""

    half_open_max: int
    need: int
    threshold: bool
    """Whether ``half_open_max`` is the number of trials at a time, else the number of a whole round."""
    lease_s: float


class BreakerStore(Protocol):
    """The shared state of all breakers of a process. No method raises; one that waits says so."""

    @property
    def up(self) -> bool:
        """Whether the store answers; while it does not, each breaker goes by itself."""
        ...

    def watch(self, name: str, changed: Callable[[Remote], None]) -> None:
        """Have ``changed`` called, from any thread, with each newer state of a breaker; also after a loss."""
        ...

    def known(self, name: str) -> Remote | None:
        """Wait, at most the deadline, for the first state; None: nothing is stored, or no answer."""
        ...

    async def known_async(self, name: str) -> Remote | None:
        """The same without blocking the event loop."""
        ...

    def acquire(self, name: str, ask: Ask) -> Lease | Remote | None:
        """Ask for a trial, waiting at most the deadline.

        Returns:
            The lease; the state that stands against it, half-open where every place is taken; None where the
            store does not answer.
        """
        ...

    async def acquire_async(self, name: str, ask: Ask) -> Lease | Remote | None:
        """The same without blocking the event loop. Cancelled, it gives a lease that comes late back."""
        ...

    def opened(self, name: str, wait_s: float, rounds: int, cause: Cause) -> None:
        """Tell the fleet that this process has opened a breaker."""
        ...

    def finished(self, name: str, lease: Lease, outcome: Outcome, need: int, wait_s: float) -> None:
        """Tell the fleet how a trial ended; ``wait_s``: how long to stay open if it failed."""
        ...

    def operated(self, name: str, state: State) -> None:
        """Tell the fleet what an operator has decided: ``CLOSED``, ``FORCED_OPEN`` or ``DISABLED``."""
        ...
