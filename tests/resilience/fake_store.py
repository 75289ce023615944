"""A fake store of a fleet with prepared replies, which records its messages."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    Outcome,
    ProbeLease,
    ProbeRequest,
    RemoteBreakerState,
)


async def _at_once() -> None:
    """Return at once."""


class FakeStore:
    """Stores nothing.

    Args:
        first: stored state at a cold start.
    """

    def __init__(self, first: RemoteBreakerState | None = None) -> None:
        self.is_up: bool = True
        self.first = first
        self.replies: list[ProbeLease | RemoteBreakerState | None] = []
        """Replies to requests for a probe, in order."""
        self.falls: bool = True
        """Whether one missing reply makes it unavailable; the real store needs three."""
        self.requested: list[ProbeRequest] = []
        self.questions: int = 0
        """Number of queries of all kinds: each would be a round trip."""
        self.reports: list[tuple[Any, ...]] = []
        """Messages of circuits."""
        self.watchers: dict[str, weakref.WeakMethod[Callable[[RemoteBreakerState], None]]] = {}
        self.wait: Callable[[], Awaitable[None]] = _at_once
        """Awaited before each reply to a coroutine."""

    def start(self) -> None:
        """Start nothing."""

    def stop(self) -> None:
        """Stop nothing."""

    def subscribe(self, name: str, on_change: Callable[[RemoteBreakerState], None]) -> None:
        self.watchers[name] = weakref.WeakMethod(on_change)

    def push(self, remote: RemoteBreakerState) -> None:
        """Deliver an update, as the thread of the store does."""
        for held in self.watchers.values():
            changed = held()
            if changed is not None:
                changed(remote)

    def read_state(self, name: str) -> RemoteBreakerState | None:
        self.questions += 1
        return self.first

    async def read_state_async(self, name: str) -> RemoteBreakerState | None:
        await self.wait()
        return self.read_state(name)

    def acquire(self, name: str, request: ProbeRequest) -> ProbeLease | RemoteBreakerState | None:
        self.questions += 1
        self.requested.append(request)
        reply = self.replies.pop(0)
        self.is_up = self.is_up and not (reply is None and self.falls)
        return reply

    async def acquire_async(self, name: str, request: ProbeRequest) -> ProbeLease | RemoteBreakerState | None:
        await self.wait()
        return self.acquire(name, request)

    def report_open(self, name: str, wait_s: float, rounds: int, cause: BreakerCause) -> None:
        self.reports.append(("opened", name, wait_s, rounds, cause))

    def report_probe(
        self, name: str, lease: ProbeLease, outcome: Outcome, successes_needed: int, wait_s: float
    ) -> None:
        self.reports.append(("finished", name, lease.fence, outcome, successes_needed, wait_s))

    def report_operator_state(self, name: str, state: BreakerState) -> None:
        self.reports.append(("operated", name, state))
