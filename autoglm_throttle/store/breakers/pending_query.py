"""A query of a caller to the fleet's store, with a wait of at most the store's deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from autoglm_throttle.resilience.store import ProbeLease, ProbeRequest, RemoteBreakerState


class BreakerWakeup(Protocol):
    """Wakes one task in its own event loop."""

    def set(self) -> None:
        """Wake the task; may be called from any thread."""
        ...

    async def wait(self, seconds: float, disconnected: Callable[[], Awaitable[None]]) -> bool:
        """Wait for the wake-up."""
        ...


class PendingQuery:
    """One caller's query: answered once, or abandoned. The lock of its store guards it.

    Args:
        name: of the breaker.
        request: for a probe lease; None: the first state is queried.
        wake: wakes the caller.
    """

    __slots__ = ("answer", "is_abandoned", "is_answered", "name", "request", "wake")

    def __init__(self, name: str, request: ProbeRequest | None, wake: Callable[[], None]) -> None:
        self.name: str = name
        self.request: ProbeRequest | None = request
        self.wake: Callable[[], None] = wake
        self.answer: ProbeLease | RemoteBreakerState | None = None
        self.is_answered: bool = False
        self.is_abandoned: bool = False
        """Whether the caller no longer waits."""

    def resolve(self, answer: ProbeLease | RemoteBreakerState | None) -> bool:
        """Store the answer; return False if the query is settled.

        The caller of this method then wakes the waiter, without the lock.
        """
        if self.is_abandoned or self.is_answered:
            return False
        self.answer, self.is_answered = answer, True
        return True
