"""A store of a fleet that says what the test wants, and writes down what it is told."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from autoglm_throttle.model import Cause, Outcome, State
from autoglm_throttle.resilience.store import Ask, Lease, Remote


async def _at_once() -> None:
    """No wait."""


class FakeStore:
    """Keeps nothing.

    Args:
        first: what is stored at a cold start.
    """

    def __init__(self, first: Remote | None = None) -> None:
        self.up: bool = True
        self.first = first
        self.replies: list[Lease | Remote | None] = []
        """To those who ask for a trial, in turn."""
        self.falls: bool = True
        """Whether one silence is enough to take it for lost; of the real one it takes three."""
        self.asked: list[Ask] = []
        self.questions: int = 0
        """Of all kinds: each would be a round trip."""
        self.said: list[tuple[Any, ...]] = []
        """What circuits told it."""
        self.watchers: dict[str, weakref.WeakMethod[Callable[[Remote], None]]] = {}
        self.wait: Callable[[], Awaitable[None]] = _at_once
        """Before each answer to a coroutine."""

    def watch(self, name: str, changed: Callable[[Remote], None]) -> None:
        self.watchers[name] = weakref.WeakMethod(changed)

    def push(self, remote: Remote) -> None:
        """Bring news, as the store's thread does."""
        for held in self.watchers.values():
            changed = held()
            if changed is not None:
                changed(remote)

    def known(self, name: str) -> Remote | None:
        self.questions += 1
        return self.first

    async def known_async(self, name: str) -> Remote | None:
        await self.wait()
        return self.known(name)

    def acquire(self, name: str, ask: Ask) -> Lease | Remote | None:
        self.questions += 1
        self.asked.append(ask)
        reply = self.replies.pop(0)
        self.up = self.up and not (reply is None and self.falls)
        return reply

    async def acquire_async(self, name: str, ask: Ask) -> Lease | Remote | None:
        await self.wait()
        return self.acquire(name, ask)

    def opened(self, name: str, wait_s: float, rounds: int, cause: Cause) -> None:
        self.said.append(("opened", name, wait_s, rounds, cause))

    def finished(self, name: str, lease: Lease, outcome: Outcome, need: int, wait_s: float) -> None:
        self.said.append(("finished", name, lease.fence, outcome, need, wait_s))

    def operated(self, name: str, state: State) -> None:
        self.said.append(("operated", name, state))
