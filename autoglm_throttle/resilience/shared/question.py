"""What a caller asks the fleet's store, and waits for at most its deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from autoglm_throttle.resilience.store import Ask, Lease, Remote


class Bell(Protocol):
    """Wakes one task in its own event loop."""

    def ring(self) -> None:
        """Wake it; from any thread."""
        ...

    async def wait(self, seconds: float, leaves: Callable[[], Awaitable[None]]) -> bool:
        """Wait for it."""
        ...


class Question:
    """One caller's. It is answered once, or nobody waits for it any more; its store's lock guards it.

    Args:
        name: of the breaker.
        ask: what a trial is asked with; None: the first state is asked for.
        ring: wakes who waits.
    """

    __slots__ = ("answer", "answered", "ask", "name", "over", "ring")

    def __init__(self, name: str, ask: Ask | None, ring: Callable[[], None]) -> None:
        self.name: str = name
        self.ask: Ask | None = ask
        self.ring: Callable[[], None] = ring
        self.answer: Lease | Remote | None = None
        self.answered: bool = False
        self.over: bool = False
        """Nobody waits for it any more."""

    def give(self, answer: Lease | Remote | None) -> bool:
        """Answer it, unless nobody waits any more. Who answers rings, without the lock."""
        if self.over or self.answered:
            return False
        self.answer, self.answered = answer, True
        return True
