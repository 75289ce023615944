"""Interface between a breaker and the store of its fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from autoglm_throttle.types import BreakerCause, BreakerState, Outcome


@dataclass(frozen=True, slots=True)
class RemoteBreakerState:
    """State of a breaker as the fleet knows it. Never ``RAMPING``: a ramp is local to a process."""

    version: int
    """Rises with every change, even after a lost key."""
    state: BreakerState
    wait_s: float = 0.0
    """Seconds left of the open period when this was received."""
    rounds: int = 0
    cause: BreakerCause = BreakerCause.REMOTE
    """Cause in the process that made the change."""


@dataclass(frozen=True, slots=True)
class ProbeLease:
    """The fleet's permission for one probe."""

    fence: int
    """Fencing token: above 0, and greater for newer leases."""
    version: int
    """Version of the state in which it was granted."""
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Parameters of a request for a probe lease."""

    half_open_max: int
    successes_needed: int
    limits_concurrent: bool
    """Whether ``half_open_max`` limits concurrent probes; else it limits the probes of a round."""
    lease_s: float


class BreakerStore(Protocol):
    """Shared state of all breakers of a process. No method raises; a method that waits says so."""

    @property
    def is_up(self) -> bool:
        """Whether the store is available; otherwise each breaker decides alone."""
        ...

    def subscribe(self, name: str, on_change: Callable[[RemoteBreakerState], None]) -> None:
        """Register ``on_change``; it is called, from any thread, with each newer state of a breaker."""
        ...

    def read_state(self, name: str) -> RemoteBreakerState | None:
        """Wait, at most the deadline, for the first state; None: nothing is stored, or no reply."""
        ...

    async def read_state_async(self, name: str) -> RemoteBreakerState | None:
        """Wait as `read_state` does, without blocking the event loop."""
        ...

    def acquire(self, name: str, request: ProbeRequest) -> ProbeLease | RemoteBreakerState | None:
        """Request a probe lease, waiting at most the deadline.

        Returns:
            The lease; the state that prevents it, half-open if every slot is taken; None if the store does
            not reply.
        """
        ...

    async def acquire_async(self, name: str, request: ProbeRequest) -> ProbeLease | RemoteBreakerState | None:
        """Request a lease as `acquire` does, without blocking the event loop.

        A cancelled call returns a lease that arrives late.
        """
        ...

    def report_open(self, name: str, wait_s: float, rounds: int, cause: BreakerCause) -> None:
        """Report that this process has opened a breaker."""
        ...

    def report_probe(
        self, name: str, lease: ProbeLease, outcome: Outcome, successes_needed: int, wait_s: float
    ) -> None:
        """Report the outcome of a probe; ``wait_s``: length of the open period after a failure."""
        ...

    def report_operator_state(self, name: str, state: BreakerState) -> None:
        """Report an operator command: ``CLOSED``, ``FORCED_OPEN`` or ``DISABLED``."""
        ...


class ThreadedBreakerStore(BreakerStore, Protocol):
    """A breaker store with threads of its own."""

    def start(self) -> None:
        """Start the threads, unless they run; returns at once."""
        ...

    def stop(self) -> None:
        """Stop the threads; the next query starts them again."""
        ...
