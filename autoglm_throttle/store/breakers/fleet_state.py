"""Shared state of a fleet's breakers in one process, under one lock.

Callers add queries and writes, the sender thread takes them out. Updates come from the sender and the
listener thread. The lock is held briefly; no callback runs under it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from autoglm_throttle.resilience.store import ProbeLease, ProbeRequest, RemoteBreakerState
from autoglm_throttle.store.breakers.health import BreakerStoreHealth
from autoglm_throttle.store.breakers.pending_query import PendingQuery
from autoglm_throttle.store.breakers.pending_writes import PendingWrites, ProbeResult, Write
from autoglm_throttle.store.breakers.subscription import Subscription
from autoglm_throttle.types import Outcome

if TYPE_CHECKING:
    from autoglm_throttle.types import Clock

_log = logging.getLogger("autoglm_throttle")

LOG_INTERVAL_S: Final = 30.0
"""Minimum seconds between two pairs of log lines about loss and recovery."""


class FleetState:
    """Queries, pending writes, subscriptions, own probes, and the availability of the store.

    Args:
        wake: wakes the sender thread; called from any thread.
        clock: monotonic seconds.
    """

    def __init__(self, wake: Callable[[], None], clock: Clock = time.monotonic) -> None:
        self.callback_errors: int = 0
        """Exceptions of listeners."""
        self.subscriptions: dict[str, Subscription] = {}
        self.clock: Clock = clock
        self._wake = wake
        self._logged_s = -math.inf
        self._has_logged_loss = False
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: new locks, without the parent's queries and writes."""
        self.lock: threading.RLock = threading.RLock()
        """Re-entrant: a finalizer may settle a probe in the middle of another call."""
        self.is_closed: bool = False
        """Whether the thread must end."""
        self.health: BreakerStoreHealth = BreakerStoreHealth()
        self.pending_writes: PendingWrites = PendingWrites()
        self.unread: dict[str, None] = dict.fromkeys(self.subscriptions)
        """Breakers with a state to read."""
        self.tickets: dict[int, tuple[str, float]] = {}
        """Probes of this process: fence -> ticket, and the end of its lease."""
        self._queries: deque[PendingQuery] = deque()
        self._state_queries: list[PendingQuery] = []
        """Queries for the first state of a breaker."""
        for watch in self.subscriptions.values():
            watch.reset_after_fork()

    def __repr__(self) -> str:
        return f"FleetState({len(self.subscriptions)} breakers, {self.health!r}, {self.pending_writes!r})"

    @property
    def is_up(self) -> bool:
        """Whether the store is available."""
        return self.health.is_up

    # Callers

    def subscribe(self, name: str, listener: Callable[[RemoteBreakerState], None]) -> None:
        """Register a listener for the states of a breaker."""
        with self.lock:
            self.subscriptions[name] = Subscription(name, listener)
            self.unread[name] = None
        self._wake()

    def query(self, name: str, request: ProbeRequest | None, wake: Callable[[], None]) -> PendingQuery:
        """Add a query; it is answered at once if there is nothing to wait for."""
        query = PendingQuery(name, request, wake)
        with self.lock:
            subscription = self.subscriptions.get(name)
            if not self.is_up:
                query.resolve(None)
            elif request is not None:
                self._queries.append(query)
            elif subscription is None or subscription.is_read:
                query.resolve(self._latest(name))
            else:
                self._state_queries.append(query)
                self.unread[name] = None
        self._wake()
        return query

    def finish_wait(self, query: PendingQuery, reason: str) -> ProbeLease | RemoteBreakerState | None:
        """Return the answer at the end of the wait; a missing answer counts as a failure of the store.

        Args:
            query: from `query`.
            reason: logged if the store becomes unavailable by it.
        """
        to_wake: list[PendingQuery] = []
        with self.lock:
            if not query.is_answered:
                query.is_abandoned = True
                to_wake = self._record_failure(reason, final=False)
        _wake_all(to_wake)
        return query.answer

    def cancel(self, query: PendingQuery) -> None:
        """Cancel a query: return the probe lease it was granted."""
        with self.lock:
            query.is_abandoned = True
            if isinstance(query.answer, ProbeLease):
                self._give_back(query.name, query.answer)

    def put(self, write: Write) -> None:
        """Add a write."""
        with self.lock:
            self.pending_writes.put(write)
        self._wake()

    def position(self, name: str) -> tuple[int, bool]:
        """Return the known version of a breaker's state, and whether the breaker has applied it."""
        with self.lock:
            subscription = self.subscriptions.get(name)
            return (
                (0, True) if subscription is None else (subscription.version, not subscription.is_delivering)
            )

    def own_version(self, name: str) -> int:
        """Return the newest version written by this process: its next write is based on it."""
        with self.lock:
            subscription = self.subscriptions.get(name)
            return 0 if subscription is None else subscription.own_version

    def pop_ticket(self, lease: ProbeLease) -> tuple[str, float]:
        """Remove and return the ticket of a finished probe and the end of its lease; empty: unknown here."""
        with self.lock:
            return self.tickets.pop(lease.fence, ("", 0.0))

    def close(self) -> None:
        """Answer all queries with None and end the thread."""
        with self.lock:
            self.is_closed = True
            to_wake = self._resolve_all()
        _wake_all(to_wake)

    # The sender thread

    def next_query(self) -> PendingQuery | None:
        """Return the oldest query, or None."""
        with self.lock:
            return self._queries.popleft() if self._queries else None

    def next_write(self, name: str | None = None) -> Write | None:
        """Return the next write of one breaker or of any."""
        with self.lock:
            return self.pending_writes.next_write(self.clock(), name)

    def has_work(self) -> bool:
        """Whether there is work now."""
        with self.lock:
            return bool(self._queries or self.unread or len(self.pending_writes))

    def resolve(self, query: PendingQuery, answer: ProbeLease | RemoteBreakerState | None) -> None:
        """Answer a query; without a waiter a lease is returned and a state published."""
        with self.lock:
            accepted = query.resolve(answer)
            if not accepted and isinstance(answer, ProbeLease):
                self._give_back(query.name, answer)
        if accepted:
            query.wake()
        elif isinstance(answer, RemoteBreakerState):
            self.publish(query.name, answer)

    def record_lease(self, lease: ProbeLease, ticket: str, until_s: float) -> None:
        """Record the lease of a probe of this process."""
        with self.lock:
            now = self.clock()
            # Probes that never ended leave their tickets behind: drop the expired ones.
            for fence in [fence for fence, (_, ends_s) in self.tickets.items() if ends_s < now]:
                del self.tickets[fence]
            self.tickets[lease.fence] = (ticket, until_s)

    def confirm_write(self, write: Write, remote: RemoteBreakerState | None, *, is_current: bool) -> None:
        """Record that a write was sent.

        Args:
            write: the write.
            remote: the resulting state.
            is_current: whether the breaker has that state already.
        """
        with self.lock:
            self.pending_writes.remove(write)
            if is_current:
                self._record_own(write.name, remote)
                return
        self.publish(write.name, remote)

    def postpone(self, name: str) -> None:
        """Postpone the writes of a breaker after a failure."""
        with self.lock:
            self.pending_writes.postpone(name)

    def record_state(self, name: str, remote: RemoteBreakerState | None) -> None:
        """Record a state read from the store; restore a state that the store has lost."""
        self.publish(name, remote)
        with self.lock:
            self.unread.pop(name, None)
            subscription = self.subscriptions.get(name)
            if subscription is not None:
                subscription.is_read = True
                # The store lost its key (restart, eviction): restore operator commands and open periods.
                restore = subscription.restore_write(self.clock()) if remote is None else None
                if restore is not None and not self.pending_writes.has_state(name):
                    self.pending_writes.put(restore)
            answered = [query for query in self._state_queries if query.name == name]
            self._state_queries = [query for query in self._state_queries if query.name != name]
            to_wake = [query for query in answered if query.resolve(self._latest(name))]
        _wake_all(to_wake)

    def request_reread(self) -> None:
        """Schedule a read of all subscribed breakers."""
        with self.lock:
            self.subscriptions = {
                name: subscription
                for name, subscription in self.subscriptions.items()
                if subscription.listener is not None
            }
            self.unread = dict.fromkeys(self.subscriptions)
        self._wake()

    # Updates

    def record_known(self, name: str, remote: RemoteBreakerState | None) -> None:
        """Record a state that the breaker has, or receives, by another way."""
        with self.lock:
            subscription = self.subscriptions.get(name)
            if subscription is not None and remote is not None:
                subscription.record(remote, self.clock())

    def publish(self, name: str, remote: RemoteBreakerState | None) -> None:
        """Publish a newer state, unless a state write is pending: its reply decides."""
        with self.lock:
            subscription = self.subscriptions.get(name)
            # A state read meanwhile may be older than the pending local write; the reply to it decides.
            if subscription is None or remote is None or self.pending_writes.has_state(name):
                return
            if not subscription.receive(remote, self.clock()):
                return
        # Deliver without the lock; updates that arrive meanwhile replace each other, the newest is next.
        while True:
            with self.lock:
                update = subscription.next_update(self.clock())
            if update is None:
                return
            listener = subscription.listener
            try:
                if listener is not None:
                    listener(update)
            except Exception:  # noqa: BLE001 - a listener must not end the thread
                self.callback_errors += 1
                _log.warning("the listener of breaker %s failed", name, exc_info=True)

    # Loss and recovery

    def record_success(self) -> bool:
        """Record a reply of the store; return True if it was unavailable before."""
        with self.lock:
            recovered = self.health.record_success()
            since_s = self.health.lost_since_s
        if recovered and self._has_logged_loss:
            _log.warning("the breaker store is available again after %.1f s", self.clock() - since_s)
        return recovered

    def record_failure(self, reason: str, *, final: bool) -> None:
        """Record a failed call."""
        with self.lock:
            to_wake = self._record_failure(reason, final=final)
        _wake_all(to_wake)

    def _record_failure(self, reason: str, *, final: bool) -> list[PendingQuery]:
        now = self.clock()
        if not self.health.record_failure(now, final=final):
            return []
        self._has_logged_loss = now - self._logged_s >= LOG_INTERVAL_S
        if self._has_logged_loss:
            self._logged_s = now
            _log.warning(
                "the breaker store is unavailable: each process uses its own breaker state (%s)", reason
            )
        return self._resolve_all()

    def _resolve_all(self) -> list[PendingQuery]:
        """Resolve all queries with None and return them; the caller wakes them."""
        waiting = [*self._queries, *self._state_queries]
        self._queries.clear()
        self._state_queries.clear()
        return [query for query in waiting if query.resolve(None)]

    def _give_back(self, name: str, lease: ProbeLease) -> None:
        ticket, until_s = self.tickets.pop(lease.fence, ("", 0.0))
        if ticket:
            self.put(ProbeResult(name, ticket, 0, Outcome.NEUTRAL, 0, 0.0, until_s))

    def _record_own(self, name: str, remote: RemoteBreakerState | None) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is not None and remote is not None:
            subscription.record(remote, self.clock())
            subscription.own_version = remote.version

    def _latest(self, name: str) -> RemoteBreakerState | None:
        subscription = self.subscriptions.get(name)
        return None if subscription is None else subscription.latest(self.clock())


def _wake_all(questions: Sequence[PendingQuery]) -> None:
    for query in questions:
        query.wake()
