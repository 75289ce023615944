"""Shared state of a fleet's breakers in one process, under one lock; no callback runs under it.

Callers add queries and writes, the background thread takes them out and delivers the updates.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import ismethod
from typing import Final

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.events import LOGGER
from autoglm_throttle.resilience.transitions import OPERATOR_STATES
from autoglm_throttle.store.breakers.protocol import ProbeResult, StateWrite, Write
from autoglm_throttle.store.health import HealthState, OutageLog, StoreHealth
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.types import BreakerState, Clock, Outcome, ProbeLease, ProbeRequest, RemoteBreakerState

# Consecutive failures of a loss: one late reply is no outage, and three deadlines of 50 ms pass soon.
FAILURES: Final = 3

# Seconds to each probe of a lost store. They grow, since only updates wait for it.
PROBE_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 10.0)

# Maximum pending writes per breaker; the oldest is dropped beyond that, since a lease expires by itself.
MAX_WRITES: Final = 64

READ_BATCH: Final = 128  # States per read: half a millisecond of server time

Answer = ProbeLease | RemoteBreakerState | None
Listener = Callable[[RemoteBreakerState], None]


@dataclass(slots=True, eq=False)
class PendingQuery:
    """One caller's query for a probe lease, or without ``request`` for the first state of a breaker."""

    name: str
    request: ProbeRequest | None
    wake: Callable[[], None]
    answer: Answer = None
    is_answered: bool = False
    is_abandoned: bool = False  # whether the caller no longer waits

    def resolve(self, answer: Answer) -> bool:
        """Store the answer; return False if the query is settled. The waiter is woken without the lock."""
        if self.is_abandoned or self.is_answered:
            return False
        self.answer, self.is_answered = answer, True
        return True


class Subscription:
    """The newest known state of a breaker, and its listener: a bound method is held weakly, to be dropped."""

    def __init__(self, listener: Listener) -> None:
        self._listener_ref = weakref.WeakMethod(listener) if ismethod(listener) else lambda: listener
        self.version: int = 0  # version of the newest state, including states written by this process
        # Version of the newest state written by this process: its next write is based on it.
        self.own_version: int = 0
        self.is_read: bool = False  # whether the store has replied once, even if it knows nothing
        self.is_delivering: bool = False  # whether the listener has not yet returned from the newest update
        self._remote: RemoteBreakerState | None = None
        self._received_s = 0.0

    @property
    def listener(self) -> Listener | None:
        """Listener of the updates; None: its object no longer exists."""
        return self._listener_ref()

    def record(self, remote: RemoteBreakerState, now: float) -> bool:
        """Record a state; return False if it is not newer."""
        if remote.version <= self.version:
            return False
        self.version, self._remote, self._received_s = remote.version, remote, now
        return True

    def latest(self, now: float) -> RemoteBreakerState | None:
        """Return the newest state with the rest of its open period."""
        if self._remote is None:
            return None
        return replace(self._remote, wait_s=max(0.0, self._remote.wait_s - (now - self._received_s)))

    def restore_write(self, name: str, now: float) -> StateWrite | None:
        """Return the write that restores a state lost by the store; None: it need not be restored."""
        state = self.latest(now)
        if state is None:
            return None
        if state.state in OPERATOR_STATES:
            return StateWrite(name, state.state, self.version, is_restore=True)
        if state.state is BreakerState.OPEN and state.wait_s > 0.0:
            until_s = now + state.wait_s
            return StateWrite(name, state.state, self.version, until_s, state.rounds, state.cause)
        return None


class FleetState:
    """Queries, writes, subscriptions, own probes, and the health of the store; ``on_write`` runs unlocked."""

    def __init__(self, on_write: Callable[[], object], clock: Clock) -> None:
        self.clock: Clock = clock
        self.lock: SerialLock = SerialLock()
        self.callback_errors: int = 0  # exceptions of listeners
        self.health: StoreHealth = StoreHealth(FAILURES, PROBE_PAUSES_S)
        self.subscriptions: dict[str, Subscription] = {}
        self.unread: dict[str, None] = {}  # breakers with a state to read
        # Probes of this process: fence -> ticket, and the end of its lease.
        self.tickets: dict[int, tuple[str, float]] = {}
        # Pending writes by breaker and ticket; of the states only the newest, with the empty ticket.
        self._writes: dict[tuple[str, str], Write] = {}
        self._queries: list[PendingQuery] = []
        self._outage = OutageLog("the breaker store")
        self._on_write = on_write

    @property
    def is_up(self) -> bool:
        """Whether the store is available."""
        return self.health.state is HealthState.UP

    @property
    def pending(self) -> int:
        """Number of pending writes."""
        return len(self._writes)

    # Callers

    def subscribe(self, name: str, listener: Listener) -> None:
        """Register a listener for the states of a breaker, in place of an earlier one."""
        with self.lock:
            self.subscriptions[name] = Subscription(listener)
            self.unread[name] = None

    def query(self, name: str, request: ProbeRequest | None, wake: Callable[[], None]) -> PendingQuery:
        """Add a query; it is answered at once if there is nothing to wait for."""
        query = PendingQuery(name, request, wake)
        with self.lock:
            subscription = self.subscriptions.get(name)
            if not self.is_up:
                query.resolve(None)
            elif request is None and (subscription is None or subscription.is_read):
                query.resolve(None if subscription is None else subscription.latest(self.clock()))
            else:
                self._queries.append(query)
                if request is None:
                    self.unread[name] = None
        return query

    def finish_wait(self, query: PendingQuery, reason: str) -> Answer:
        """Return the answer at the end of the wait; a missing one counts as a failure of the store."""
        with self.lock:
            if not query.is_answered:
                query.is_abandoned = True
                if self.is_up:  # a probe is the thread's
                    self.record_call(StoreErrorKind.TIMEOUT, reason)
        return query.answer

    def cancel(self, query: PendingQuery) -> None:
        """Cancel a query: return the probe lease it was granted."""
        self.lock.run(partial(self._cancel, query))

    def put(self, write: Write) -> None:
        """Add a write."""
        self.lock.run(partial(self._put, write))

    def put_state(self, write: StateWrite) -> None:
        """Add the write of a new state, based on the version that this process knows."""
        self.lock.run(partial(self._put_state, write))

    def put_result(self, lease: ProbeLease, result: ProbeResult) -> None:
        """Add the result of a probe; ignored if the probe is unknown here or finished."""
        self.lock.run(partial(self._put_result, lease, result))

    def version(self, name: str, *, own: bool = False) -> int:
        """Return the known version of a breaker's state, or the newest that this process wrote; 0: none."""
        with self.lock:
            subscription = self.subscriptions.get(name)
            if subscription is None:
                return 0
            return subscription.own_version if own else subscription.version

    def close(self) -> None:
        """Answer all queries with None."""
        with self.lock:
            self._resolve_all()

    # The background thread

    def take_work(self) -> tuple[list[Write], list[tuple[PendingQuery, ProbeRequest]], list[str]]:
        """Return pending writes, requests of leases, and breakers to read, for one round trip.

        While the store is unavailable a read is the probe, and there is nothing else.
        """
        with self.lock:
            names = list(self.unread)[:READ_BATCH]
            if not self.is_up:
                self.health.try_begin_probe(self.clock())
                return [], [], names
            requests = [(query, query.request) for query in self._queries if query.request is not None]
            self._queries = [query for query in self._queries if query.request is None]
            now = self.clock()
            self._writes = {key: write for key, write in self._writes.items() if now < write.until_s}
            writes = list(self._writes.values())
            return writes, [pair for pair in requests if not pair[0].is_abandoned], names

    def has_work(self) -> bool:
        """Whether there is work now."""
        with self.lock:
            return bool(self.unread or self._writes or any(query.request for query in self._queries))

    def resolve(self, query: PendingQuery, answer: Answer) -> None:
        """Answer a query; without a waiter a lease is returned and a state published."""
        with self.lock:
            accepted = query.resolve(answer)
            if not accepted and isinstance(answer, ProbeLease):
                self._put_result(answer, ProbeResult(query.name, "", 0.0))
        if accepted:
            query.wake()
        elif isinstance(answer, RemoteBreakerState):
            self.publish(query.name, answer)

    def record_lease(self, lease: ProbeLease, ticket: str, until_s: float) -> None:
        """Record the lease of a probe of this process."""
        with self.lock:
            now = self.clock()
            # Probes that never ended leave their tickets behind: drop the expired ones.
            self.tickets = {fence: held for fence, held in self.tickets.items() if held[1] >= now}
            self.tickets[lease.fence] = (ticket, until_s)

    def confirm_write(self, write: Write, remote: RemoteBreakerState | None, *, is_current: bool) -> None:
        """Record that a write was sent; ``is_current``: the breaker has the resulting state already."""
        with self.lock:
            key = (write.name, write.ticket)
            if self._writes.get(key) is write:  # a newer one in its place stays
                del self._writes[key]
        if is_current:
            self.record_known(write.name, remote, is_own=True)
        else:
            self.publish(write.name, remote)

    def record_state(self, name: str, remote: RemoteBreakerState | None) -> None:
        """Record a state read from the store; restore a state that the store has lost."""
        self.publish(name, remote)
        with self.lock:
            self.unread.pop(name, None)
            subscription = self.subscriptions.get(name)
            if subscription is None:
                return
            subscription.is_read = True
            # The store lost its key (restart, eviction): restore operator commands and open periods.
            restore = subscription.restore_write(name, self.clock()) if remote is None else None
            if restore is not None and (name, "") not in self._writes:
                self._put(restore)
            answered = [query for query in self._queries if query.request is None and query.name == name]
            self._queries = [query for query in self._queries if query not in answered]
            latest = subscription.latest(self.clock())
            self.lock.pending.extend(query.wake for query in answered if query.resolve(latest))

    def request_reread(self) -> None:
        """Schedule a read of all subscribed breakers; drop those with a collected listener."""
        with self.lock:
            self.subscriptions = {name: one for name, one in self.subscriptions.items() if one.listener}
            self.unread = dict.fromkeys(self.subscriptions)

    def record_known(self, name: str, remote: RemoteBreakerState | None, *, is_own: bool = False) -> None:
        """Record a state that the breaker has, or receives, by another way; ``is_own``: written here."""
        with self.lock:
            subscription = self.subscriptions.get(name)
            if subscription is not None and remote is not None:
                subscription.record(remote, self.clock())
                subscription.own_version = remote.version if is_own else subscription.own_version

    def publish(self, name: str, remote: RemoteBreakerState | None) -> None:
        """Deliver a newer state, unless a state write is pending: its reply decides."""
        with self.lock:
            subscription = self.subscriptions.get(name)
            # A state read meanwhile may be older than the pending local write; the reply to it decides.
            if subscription is None or remote is None or (name, "") in self._writes:
                return
            if not subscription.record(remote, self.clock()):
                return
            subscription.is_delivering = True
        listener = subscription.listener
        try:
            if listener is not None:
                listener(remote)
        except Exception:  # noqa: BLE001 - a listener must not end the thread
            self.callback_errors += 1
            LOGGER.warning("the listener of breaker %s failed", name, exc_info=True)
        subscription.is_delivering = False

    def record_call(self, kind: StoreErrorKind | None, reason: str = "") -> bool:
        """Record the result of a round trip, None for a reply; return whether the store is back by it."""
        with self.lock:
            now = self.clock()
            change = self.health.record_call(kind, now)
            if change is None:
                return False
            # A log handler has a lock of its own: it must not be taken inside this one.
            if change is HealthState.UP:
                self.lock.pending.append(partial(self._outage.record_recovery, now))
                return True
            effect = f"each process uses its own breaker state ({reason})"
            self.lock.pending.append(partial(self._outage.record_loss, now, now, effect))
            self._resolve_all()
            return False

    def _resolve_all(self) -> None:
        """Answer all queries with None; the callers are woken when the lock is left."""
        self.lock.pending.extend(query.wake for query in self._queries if query.resolve(None))
        self._queries = []

    def _cancel(self, query: PendingQuery) -> None:
        query.is_abandoned = True
        if isinstance(query.answer, ProbeLease):
            self._put_result(query.answer, ProbeResult(query.name, "", 0.0))

    def _put_state(self, write: StateWrite) -> None:
        subscription = self.subscriptions.get(write.name)
        if subscription is not None:
            is_applied = not subscription.is_delivering
            write = replace(write, known_version=subscription.version, is_applied=is_applied)
        self._put(write)

    def _put_result(self, lease: ProbeLease, result: ProbeResult) -> None:
        ticket, until_s = self.tickets.pop(lease.fence, ("", 0.0))
        if ticket:
            self._put(replace(result, ticket=ticket, until_s=until_s))

    def _put(self, write: Write) -> None:
        """Add a write. A new state ends the probes of the previous one and drops their results."""
        own = [key for key in self._writes if key[0] == write.name]
        # Returned leases stay: the store must free their slots in any state.
        if isinstance(write, StateWrite):
            dropped = [key for key in own if not _is_release(self._writes[key])]
        else:
            dropped = own[:1] if len(own) >= MAX_WRITES else []
        for key in dropped:
            del self._writes[key]
        self._writes[write.name, write.ticket] = write
        self.lock.pending.append(self._on_write)


def _is_release(write: Write) -> bool:
    return isinstance(write, ProbeResult) and write.outcome is Outcome.NEUTRAL
