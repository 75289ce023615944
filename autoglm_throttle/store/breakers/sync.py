"""Breakers shared by all processes of a service, in a Redis, with one background thread.

The thread sends pending writes and queries in one pipeline, and waits on the subscription's socket and its
own wake-up. A caller waits for it only for a probe lease or for the first state of a breaker, and never
longer than the deadline. A closed breaker sends nothing. If the store is unavailable, each breaker continues
alone with its current state.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle._runtime.wakeup import new_wakeup
from autoglm_throttle._runtime.worker import JOIN_S, Worker
from autoglm_throttle.store.breakers.protocol import (
    RIGHTS,
    BreakerProtocol,
    ProbeResult,
    ScriptArguments,
    StateWrite,
    Write,
    parse_message,
    parse_reply,
    parse_states,
)
from autoglm_throttle.store.breakers.state import PROBE_PAUSES_S, Answer, FleetState, Listener, PendingQuery
from autoglm_throttle.store.client import Subscriber, SyncClient
from autoglm_throttle.store.health import StoreHealth
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.store.script import SyncScript, error_kind
from autoglm_throttle.types import BreakerState, Outcome, RemoteBreakerState

if TYPE_CHECKING:
    from autoglm_throttle.settings.groups.breaker import SharedBreakerSettings
    from autoglm_throttle.settings.groups.store import StoreSettings
    from autoglm_throttle.types import BreakerCause, Clock, ProbeLease, ProbeRequest

THREAD_NAME: Final = "autoglm-throttle-breakers"

READ_INTERVAL_S: Final = 5.0
# Interval in seconds of reading all states, since a message may be lost; shorter without a subscription.
UNSUBSCRIBED_READ_S: Final = 1.0

# Pause after a single failure: one deadline, so that a third failure, which is a loss, follows soon.
RETRY_S: Final = 0.05


# One call of the script, and the effects of its reply and of its failure.
_Job = tuple[ScriptArguments, Callable[[object], None], Callable[[], None] | None]


class RedisBreakerStore:
    """Implements `BreakerStore`.

    ``connect`` creates a synchronous client without retries, with short timeouts, on the thread. In a
    ``cluster`` the keys of one call must lie in one slot.
    """

    def __init__(
        self,
        connect: Callable[[], SyncClient],
        settings: StoreSettings,
        breakers: SharedBreakerSettings,
        clock: Clock = time.monotonic,
        *,
        cluster: bool = False,
    ) -> None:
        self.protocol: BreakerProtocol = BreakerProtocol(settings, secrets.token_hex(8))
        self.deadline_s: float = breakers.store_deadline_s
        self.ignored: int = 0  # messages of an unknown format
        self.state: FleetState = FleetState(self._on_write, clock)
        rights = f"{RIGHTS}, and its channels below the prefix (&...)"
        self.script: SyncScript = SyncScript(connect, "breakers/breaker.lua", rights)
        health = StoreHealth(1, PROBE_PAUSES_S)
        self.subscriber: Subscriber = Subscriber(
            connect, self.protocol.channel, self._on_message, self.state.request_reread, health
        )
        self._cluster = cluster
        self._is_closed = False
        self._read_s = self._not_before_s = -math.inf
        self._wake_sockets: tuple[socket.socket, socket.socket] | None = None
        self._worker = Worker(
            THREAD_NAME, self._step, on_stop=self._flush, on_crash=self._record_failure, clock=clock
        )

    @property
    def is_up(self) -> bool:
        """Whether the store is available; otherwise each breaker decides alone."""
        return self.state.is_up

    @property
    def is_running(self) -> bool:
        """Whether the thread runs: from the first use to `stop`."""
        return self._worker.is_alive

    def start(self) -> None:
        """Start the thread unless it runs; without a thread of the system the store is unavailable."""
        self._is_closed = False
        self._worker.start()

    def stop(self, join_s: float = JOIN_S) -> None:
        """Send the pending writes and stop the thread, in ``join_s`` at most; the next query starts it."""
        self._is_closed = True
        self.state.close()
        self._worker.stop(0.0)
        self.wake()
        self._worker.stop(join_s)

    def stop_with(self, owner: object) -> None:
        """Stop the thread when the owner is collected."""
        weakref.finalize(owner, self.stop, 0.0).atexit = False

    def wake(self) -> None:
        """Wake the thread: there is work."""
        if self._wake_sockets is not None:
            with contextlib.suppress(OSError):  # closed, or enough wake-ups are pending
                self._wake_sockets[1].send(b"\0")

    def subscribe(self, name: str, on_change: Listener) -> None:
        """Register ``on_change`` for each newer state; the first query or write starts the thread."""
        self.state.subscribe(name, on_change)
        self.wake()

    def read_state(self, name: str) -> RemoteBreakerState | None:
        """Wait, at most the deadline, for the first state; None: nothing is stored, or no reply."""
        answer = self.acquire(name, None)
        return answer if isinstance(answer, RemoteBreakerState) else None

    async def read_state_async(self, name: str) -> RemoteBreakerState | None:
        """Wait as `read_state` does, without blocking the event loop."""
        answer = await self.acquire_async(name, None)
        return answer if isinstance(answer, RemoteBreakerState) else None

    def acquire(self, name: str, request: ProbeRequest | None) -> Answer:
        """Request a probe lease, waiting at most the deadline; None: the first state."""
        event = threading.Event()
        with self._begin(name, request, event.set) as query:
            if not query.is_answered:
                event.wait(self.deadline_s)
        return self._finish_wait(query)

    async def acquire_async(self, name: str, request: ProbeRequest | None) -> Answer:
        """Request a lease without blocking the event loop; a cancelled call returns one that arrives late."""
        wakeup = new_wakeup()
        with self._begin(name, request, wakeup) as query:
            if not query.is_answered:
                await wakeup.sleep(self.deadline_s)
        return self._finish_wait(query)

    def report_open(self, name: str, wait_s: float, rounds: int, cause: BreakerCause) -> None:
        """Report that this process has opened a breaker. Kept until the open period ends."""
        until_s = self.state.clock() + wait_s
        self.state.put_state(StateWrite(name, BreakerState.OPEN, 0, until_s, rounds, cause))

    def report_probe(
        self, name: str, lease: ProbeLease, outcome: Outcome, successes_needed: int, wait_s: float
    ) -> None:
        """Report the outcome of a probe. Kept until its lease ends."""
        result = ProbeResult(name, "", 0.0, lease.version, outcome, successes_needed, wait_s)
        self.state.put_result(lease, result)

    def report_operator_state(self, name: str, state: BreakerState) -> None:
        """Report an operator command. Kept until it can be sent."""
        self.state.put_state(StateWrite(name, state, 0))

    @contextlib.contextmanager
    def _begin(
        self, name: str, request: ProbeRequest | None, wake: Callable[[], None]
    ) -> Iterator[PendingQuery]:
        """Begin a query, and cancel it if the wait for its answer is interrupted."""
        self.start()
        query = self.state.query(name, request, wake)
        self.wake()
        try:
            yield query
        except BaseException:
            self.state.cancel(query)
            raise

    def _finish_wait(self, query: PendingQuery) -> Answer:
        return self.state.finish_wait(query, f"no answer within {self.deadline_s * 1000.0:.0f} ms")

    def _on_write(self) -> None:
        if not self._is_closed:  # writes after `stop` wait for the next query
            self.start()
        self.wake()

    def _on_message(self, data: Any) -> None:  # noqa: ANN401 - any client may publish
        parsed = parse_message(data)
        if parsed is None:
            self.ignored += 1
            return
        name, remote, process_id = parsed
        if process_id != self.protocol.process_id:  # own changes are known from the reply
            self.state.publish(name, remote)

    # The thread

    def _step(self) -> float:
        """Do the work that is due, and wait for the next."""
        if self._wake_sockets is None:
            self._wake_sockets = socket.socketpair()
            for end in self._wake_sockets:
                end.setblocking(False)
        wake_socket = self._wake_sockets[0]
        clock = self.state.clock
        if self._idle_s(clock()) <= 0.0:
            self._exchange(clock())
        # After a loss the probe comes first: it tells at once whether the server is back.
        subscription = (
            self.subscriber.poll(clock()) if self.state.is_up or self.subscriber.is_listening else None
        )
        self._wait(wake_socket, subscription)
        return 0.0

    def _idle_s(self, now: float) -> float:
        """Return the seconds without work for the store."""
        if not self.state.is_up:
            return self.state.health.next_probe_s - now
        if now < self._not_before_s:
            return self._not_before_s - now
        return 0.0 if self.state.has_work() else self._read_s - now

    def _wait(self, wake_socket: socket.socket, subscription: socket.socket | None) -> None:
        """Wait for a message, a wake-up, or the time of the next work."""
        now = self.state.clock()
        pause_s = self._idle_s(now)
        if self.state.is_up or subscription is not None:
            pause_s = min(pause_s, self.subscriber.due_s - now)
        with selectors.DefaultSelector() as selector:
            selector.register(wake_socket, selectors.EVENT_READ)
            if subscription is not None:
                selector.register(subscription, selectors.EVENT_READ)
            selector.select(max(pause_s, 0.0))
        with contextlib.suppress(BlockingIOError):
            wake_socket.recv(4096)

    def _exchange(self, now: float) -> None:
        """Send all pending writes, requests of leases and reads in one round trip."""
        if now >= self._read_s or not self.state.is_up:
            self._read_s = now + (READ_INTERVAL_S if self.subscriber.is_listening else UNSUBSCRIBED_READ_S)
            self.state.request_reread()
        jobs = list(self._take_jobs(now))
        if not jobs:
            return
        replies: list[Any]
        try:
            replies = self.script.call_all([arguments for arguments, _, _ in jobs], cluster=self._cluster)
        except Exception as error:  # noqa: BLE001 - any client error: the store is probed again
            replies = [error] * len(jobs)
        settled = [_settle(*job[1:], reply) for job, reply in zip(jobs, replies, strict=True)]
        errors = [error for error in settled if error is not None]
        if len(errors) < len(jobs) and self.state.record_call(None) and not self.subscriber.is_listening:
            self.subscriber.close()
            self.subscriber.due_s = -math.inf
        if errors:
            self._not_before_s = self.state.clock() + RETRY_S
            self._record_failure(errors[0], error_kind(errors[0], sent=True))

    def _take_jobs(self, now: float) -> Iterator[_Job]:
        state, protocol = self.state, self.protocol
        writes, queries, names = state.take_work()
        for write in writes:
            arguments = protocol.write(write, state.version(write.name, own=True), now)
            yield arguments, partial(self._confirm, write), None
        for query, request in queries:
            lost = ProbeResult(query.name, protocol.new_ticket(), now + request.lease_s)
            arguments = protocol.acquire(query.name, state.version(query.name), request, lost.ticket)
            yield arguments, partial(self._answer, query, lost), partial(self._fail, query, lost)
        if names or not state.is_up:
            for part in [[name] for name in names] if self._cluster and names else [names]:
                yield protocol.read(part), partial(self._record_states, part), None

    def _confirm(self, write: Write, reply: object) -> None:
        done, remote, _ = parse_reply(reply)
        self.state.confirm_write(write, remote, is_current=done and _is_known_locally(write))

    def _answer(self, query: PendingQuery, lost: ProbeResult, reply: object) -> None:
        _, remote, lease = parse_reply(reply)
        if lease is not None:
            self.state.record_lease(lease, lost.ticket, lost.until_s)
        # Not for an abandoned query: `resolve` publishes its state, which must still be new then.
        self.state.record_known(query.name, None if query.is_abandoned and lease is None else remote)
        self.state.resolve(query, remote if lease is None else lease)

    def _fail(self, query: PendingQuery, lost: ProbeResult) -> None:
        # The lease may have been granted although the reply was lost: return it.
        self.state.put(lost)
        self.state.resolve(query, None)

    def _record_states(self, names: list[str], reply: object) -> None:
        for name, remote in parse_states(reply, names).items():
            self.state.record_state(name, remote)

    def _record_failure(
        self, error: BaseException, kind: StoreErrorKind = StoreErrorKind.UNREACHABLE
    ) -> None:
        self.state.record_call(kind, self.script.record_failure(error))

    def _flush(self) -> None:
        """Send the remaining writes, unless the store is unavailable, and close all connections."""
        try:
            if self.state.is_up and self.state.pending:
                self._exchange(self.state.clock())
        finally:
            self.script.close()
            self.subscriber.close()
            ends, self._wake_sockets = self._wake_sockets, None
            for end in ends or ():
                end.close()


def _settle(
    apply: Callable[[object], None], fail: Callable[[], None] | None, reply: object
) -> Exception | None:
    """Apply the reply of a call; return its error, or None."""
    error = reply if isinstance(reply, Exception) else None
    try:
        if error is None:
            apply(reply)
    except ValueError as invalid:
        error = invalid
    if error is not None and fail is not None:
        fail()
    return error


def _is_known_locally(write: Write) -> bool:
    """Whether the breaker knows the resulting state of an executed write."""
    if isinstance(write, StateWrite):
        return write.is_applied
    if write.outcome is Outcome.SUCCESS:
        return write.successes_needed <= 1  # otherwise other processes may have recorded successes meanwhile
    return write.outcome is not Outcome.NEUTRAL
