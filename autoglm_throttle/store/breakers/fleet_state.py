"""Shared state of a fleet's breakers in one process, under one lock.

Callers add queries and writes, the sender thread takes them out. Updates come from the sender and the
listener thread. The lock is held briefly; no callback runs under it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.events import LOGGER
from autoglm_throttle.resilience.half_open import ProbeLease, ProbeRequest
from autoglm_throttle.resilience.transitions import RemoteBreakerState
from autoglm_throttle.store.breakers.health import BreakerStoreHealth
from autoglm_throttle.store.breakers.pending_query import PendingQueries, PendingQuery
from autoglm_throttle.store.breakers.pending_writes import PendingWrites, ProbeResult, Write
from autoglm_throttle.store.breakers.subscription import Subscriptions
from autoglm_throttle.store.health import OutageLog
from autoglm_throttle.types import Outcome

if TYPE_CHECKING:
    from autoglm_throttle.types import Clock


class FleetState:
    """Queries, pending writes, subscriptions, own probes, and the availability of the store.

    Args:
        on_write: called, without the lock, after a write was added.
        clock: monotonic seconds.
    """

    def __init__(self, on_write: Callable[[], object], clock: Clock = time.monotonic) -> None:
        self.clock: Clock = clock
        self.lock: SerialLock = SerialLock()
        self.callback_errors: int = 0
        """Exceptions of listeners."""
        self.health: BreakerStoreHealth = BreakerStoreHealth()
        self.subscriptions: Subscriptions = Subscriptions()
        self.pending_writes: PendingWrites = PendingWrites()
        self.tickets: dict[int, tuple[str, float]] = {}
        """Probes of this process: fence -> ticket, and the end of its lease."""
        self._queries = PendingQueries()
        self._outage = OutageLog("the breaker store")
        self._on_write = on_write

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
            self.subscriptions.add(name, listener)

    def query(self, name: str, request: ProbeRequest | None, wake: Callable[[], None]) -> PendingQuery:
        """Add a query; it is answered at once if there is nothing to wait for."""
        query = PendingQuery(name, request, wake)
        with self.lock:
            subscription = self.subscriptions.get(name)
            if not self.is_up:
                query.resolve(None)
            elif request is not None:
                self._queries.for_leases.append(query)
            elif subscription is None or subscription.is_read:
                query.resolve(self._latest(name))
            else:
                self._queries.for_states.append(query)
                self.subscriptions.unread[name] = None
        return query

    def finish_wait(self, query: PendingQuery, reason: str) -> ProbeLease | RemoteBreakerState | None:
        """Return the answer at the end of the wait; a missing answer counts as a failure of the store.

        Args:
            query: from `query`.
            reason: logged if the store becomes unavailable by it.
        """
        with self.lock:
            if not query.is_answered:
                query.is_abandoned = True
                self._record_failure(reason, final=False)
        return query.answer

    def cancel(self, query: PendingQuery) -> None:
        """Cancel a query: return the probe lease it was granted."""
        self.lock.run(partial(self._cancel, query))

    def put(self, write: Write) -> None:
        """Add a write."""
        self.lock.run(partial(self._put, write))

    def put_state(self, name: str, make: Callable[[int, bool], Write]) -> None:
        """Add the write of a new state.

        Args:
            name: of the breaker.
            make: creates the write from `position`.
        """
        self.lock.run(lambda: self._put(make(*self.position(name))))

    def put_result(self, lease: ProbeLease, make: Callable[[str, float], Write]) -> None:
        """Add the result of a probe; ignored if the probe is unknown here or finished.

        Args:
            lease: of the probe.
            make: creates the write from the ticket and the end of the lease.
        """
        self.lock.run(partial(self._put_result, lease, make))

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

    def close(self) -> None:
        """Answer all queries with None."""
        with self.lock:
            self._resolve(self._queries.take_all(), None)

    # The sender thread

    def next_query(self) -> PendingQuery | None:
        """Return the oldest query, or None."""
        with self.lock:
            return self._queries.for_leases.popleft() if self._queries.for_leases else None

    def next_write(self, name: str | None = None) -> Write | None:
        """Return the next write of one breaker or of any."""
        with self.lock:
            return self.pending_writes.next_write(self.clock(), name)

    def has_work(self) -> bool:
        """Whether there is work now."""
        with self.lock:
            return bool(self._queries.for_leases or self.subscriptions.unread or len(self.pending_writes))

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
            self.subscriptions.unread.pop(name, None)
            subscription = self.subscriptions.get(name)
            if subscription is not None:
                subscription.is_read = True
                # The store lost its key (restart, eviction): restore operator commands and open periods.
                restore = subscription.restore_write(self.clock()) if remote is None else None
                if restore is not None and not self.pending_writes.has_state(name):
                    self.pending_writes.put(restore)
            self._resolve(self._queries.take_for_state(name), self._latest(name))

    def request_reread(self) -> None:
        """Schedule a read of all subscribed breakers."""
        with self.lock:
            self.subscriptions.mark_all_unread()

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
                LOGGER.warning("the listener of breaker %s failed", name, exc_info=True)

    # Loss and recovery

    def record_success(self) -> bool:
        """Record a reply of the store; return True if it was unavailable before."""
        with self.lock:
            recovered = self.health.record_success()
            if recovered:
                # A log handler has a lock of its own: it must not be taken inside this one.
                self.lock.pending.append(partial(self._outage.record_recovery, self.clock()))
        return recovered

    def record_failure(self, reason: str, *, final: bool) -> None:
        """Record a failed call."""
        with self.lock:
            self._record_failure(reason, final=final)

    def _record_failure(self, reason: str, *, final: bool) -> None:
        now = self.clock()
        if self.health.record_failure(now, final=final):
            effect = f"each process uses its own breaker state ({reason})"
            self.lock.pending.append(partial(self._outage.record_loss, now, now, effect))
            self._resolve(self._queries.take_all(), None)

    def _resolve(self, queries: Iterable[PendingQuery], answer: RemoteBreakerState | None) -> None:
        """Answer queries; the callers are woken when the lock is left."""
        self.lock.pending.extend(query.wake for query in queries if query.resolve(answer))

    def _cancel(self, query: PendingQuery) -> None:
        query.is_abandoned = True
        if isinstance(query.answer, ProbeLease):
            self._give_back(query.name, query.answer)

    def _put(self, write: Write) -> None:
        self.pending_writes.put(write)
        self.lock.pending.append(self._on_write)

    def _put_result(self, lease: ProbeLease, make: Callable[[str, float], Write]) -> None:
        ticket, until_s = self.tickets.pop(lease.fence, ("", 0.0))
        if ticket:
            self._put(make(ticket, until_s))

    def _give_back(self, name: str, lease: ProbeLease) -> None:
        self._put_result(
            lease, lambda ticket, until_s: ProbeResult(name, ticket, 0, Outcome.NEUTRAL, 0, 0.0, until_s)
        )

    def _record_own(self, name: str, remote: RemoteBreakerState | None) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is not None and remote is not None:
            subscription.record(remote, self.clock())
            subscription.own_version = remote.version

    def _latest(self, name: str) -> RemoteBreakerState | None:
        subscription = self.subscriptions.get(name)
        return None if subscription is None else subscription.latest(self.clock())
