"""A query of a caller to the fleet's store, with a wait of at most the store's deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from autoglm_throttle.resilience.store import Ask, Lease, Remote


class Bell(Protocol):
    """Wakes one task in its own event loop."""

    def set(self) -> None:
        """Wake the task; may be called from any thread."""
        ...

    async def wait(self, seconds: float, leaves: Callable[[], Awaitable[None]]) -> bool:
        """Wait for the wake-up."""
        ...


class Question:
    """One caller's query: answered once, or abandoned. The lock of its store guards it.

    Args:
        name: of the breaker.
        request: for a probe lease; None: the first state is queried.
        wake: wakes the caller.
    """

    __slots__ = ("answer", "answered", "ask", "name", "over", "ring")

    def __init__(self, name: str, ask: Ask | None, ring: Callable[[], None]) -> None:
        self.name: str = name
        self.ask: Ask | None = ask
        self.ring: Callable[[], None] = ring
        self.answer: Lease | Remote | None = None
        self.answered: bool = False
        self.over: bool = False
        """Whether the caller no longer waits."""

    def give(self, answer: Lease | Remote | None) -> bool:
        """Store the answer; return False if the query is settled.

        The caller of this method then wakes the waiter, without the lock.
        """
        if self.over or self.answered:
            return False
        self.answer, self.answered = answer, True
        return True
