"""A query of a caller to the fleet's store, with a wait of at most the store's deadline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from autoglm_throttle.resilience.half_open import ProbeLease, ProbeRequest
from autoglm_throttle.resilience.transitions import RemoteBreakerState


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


class PendingQueries:
    """The unanswered queries of a process. The lock of its owner guards it."""

    __slots__ = ("for_leases", "for_states")

    def __init__(self) -> None:
        self.for_leases: deque[PendingQuery] = deque()
        """Queries for a probe lease, which are sent one by one."""
        self.for_states: list[PendingQuery] = []
        """Queries for the first state of a breaker, which are answered when it is read."""

    def take_all(self) -> list[PendingQuery]:
        """Remove and return all queries."""
        taken = [*self.for_leases, *self.for_states]
        self.for_leases.clear()
        self.for_states.clear()
        return taken

    def take_for_state(self, name: str) -> list[PendingQuery]:
        """Remove and return the queries for the state of one breaker."""
        taken = [query for query in self.for_states if query.name == name]
        self.for_states = [query for query in self.for_states if query.name != name]
        return taken
