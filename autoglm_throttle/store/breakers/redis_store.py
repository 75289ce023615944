"""Breakers shared by all processes of a service, in a Redis.

Two daemon threads have a connection each: the sender runs the script and sends local changes, the listener
receives the changes of other processes. A caller waits for the sender only for a probe lease or for the first
state of a breaker, and never longer than the deadline. A closed breaker sends nothing.

If the store is unavailable, each breaker continues alone with its current state.
"""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import anyio

from autoglm_throttle._runtime.worker import JOIN_S
from autoglm_throttle.resilience.half_open import ProbeLease, ProbeRequest
from autoglm_throttle.resilience.transitions import RemoteBreakerState
from autoglm_throttle.settings.groups.breaker import SharedBreakerSettings
from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.breakers.fleet_state import FleetState
from autoglm_throttle.store.breakers.pending_query import PendingQuery
from autoglm_throttle.store.breakers.pending_writes import OpenMessage, OperatorCommand, ProbeResult
from autoglm_throttle.store.breakers.protocol import BreakerProtocol, parse_message
from autoglm_throttle.store.breakers.sync_listener import BreakerSyncListener
from autoglm_throttle.store.breakers.sync_sender import BreakerSyncSender
from autoglm_throttle.types import BreakerCause, BreakerState, Outcome

if TYPE_CHECKING:
    from autoglm_throttle._runtime.wakeup import Wakeup
    from autoglm_throttle.store.client import SyncClient
    from autoglm_throttle.types import Clock

TIMEOUT_S: Final = 0.25
"""Seconds for a client's connections and replies. No caller waits for it; it frees the thread."""


class RedisBreakerStore:
    """Implements `BreakerStore`.

    Args:
        connect: creates a synchronous client without retries, with timeouts of `TIMEOUT_S`. It is called on
            the threads, once for each connection.
        new_wakeup: creates a wake-up for the current task.
        settings: prefix and service name of all keys.
        breakers: the deadline of a call that waits for the store.
        clock: monotonic seconds.
        cluster: whether the keys of one call must lie in one slot.
    """

    def __init__(
        self,
        connect: Callable[[], SyncClient],
        new_wakeup: Callable[[], Wakeup],
        settings: StoreSettings,
        breakers: SharedBreakerSettings,
        clock: Clock = time.monotonic,
        *,
        cluster: bool = False,
    ) -> None:
        self.protocol: BreakerProtocol = BreakerProtocol(settings, secrets.token_hex(8))
        self.deadline_s: float = breakers.store_deadline_s
        self._timeout_text = f"no answer within {self.deadline_s * 1000.0:.0f} ms"
        self.ignored: int = 0
        """Messages of an unknown format."""
        self.state: FleetState = FleetState(self._on_write, clock)
        self.listener: BreakerSyncListener = BreakerSyncListener(
            connect, self.protocol.channel, self._on_message, self._on_subscribed, clock
        )
        self.sender: BreakerSyncSender = BreakerSyncSender(
            self.state, connect, self.protocol, self.listener, cluster=cluster
        )
        self._new_wakeup = new_wakeup
        self._is_closed = False

    def __repr__(self) -> str:
        state = "running" if self.is_running else "stopped"
        return f"RedisBreakerStore({state}, {self.state!r}, {self.listener!r}, calls={self.calls})"

    @property
    def is_up(self) -> bool:
        """Whether the store is available; otherwise each breaker decides alone."""
        return self.state.is_up

    @property
    def is_running(self) -> bool:
        """Whether the sender thread runs: from the first use to `stop`."""
        return self.sender.is_running

    @property
    def is_listening(self) -> bool:
        """Whether changes are received at once; otherwise they are read once a second."""
        return self.listener.is_listening

    @property
    def calls(self) -> int:
        """Round trips started, without those of the subscription."""
        return self.sender.script.calls

    @property
    def failures(self) -> int:
        """Round trips without a reply."""
        return self.sender.script.failures

    @property
    def last_error(self) -> str | None:
        """Text of the newest failure; kept after a recovery."""
        return self.sender.script.last_error

    def start(self) -> None:
        """Start the threads unless they run; returns at once. Also used after `stop`."""
        self._is_closed = False
        self.sender.start()
        if self.sender.is_running:
            self.listener.start()

    def stop(self, join_s: float = JOIN_S) -> None:
        """Send the pending writes and stop the threads; the next query starts them again.

        Args:
            join_s: maximum wait in seconds; a thread in a call that hangs is left behind.
        """
        ends_s = self.state.clock() + join_s
        self._is_closed = True
        self.state.close()
        self.listener.stop(0.0)
        self.sender.stop(join_s)
        self.listener.stop(max(0.0, ends_s - self.state.clock()))

    def stop_with(self, owner: object) -> None:
        """Stop the threads when the owner is collected."""
        weakref.finalize(owner, self.stop, 0.0).atexit = False

    def subscribe(self, name: str, on_change: Callable[[RemoteBreakerState], None]) -> None:
        """Register ``on_change``; it is called, from any thread, with each newer state of a breaker.

        It starts no thread: the first query or write of the breaker does.
        """
        self.state.subscribe(name, on_change)
        self.sender.wake()

    def read_state(self, name: str) -> RemoteBreakerState | None:
        """Wait, at most the deadline, for the first state; None: nothing is stored, or no reply."""
        answer = self._query(name, None)
        return answer if isinstance(answer, RemoteBreakerState) else None

    async def read_state_async(self, name: str) -> RemoteBreakerState | None:
        """Wait as `read_state` does, without blocking the event loop."""
        answer = await self._query_async(name, None)
        return answer if isinstance(answer, RemoteBreakerState) else None

    def acquire(self, name: str, request: ProbeRequest) -> ProbeLease | RemoteBreakerState | None:
        """Request a probe lease, waiting at most the deadline."""
        return self._query(name, request)

    async def acquire_async(self, name: str, request: ProbeRequest) -> ProbeLease | RemoteBreakerState | None:
        """Request a lease as `acquire` does, without blocking the event loop.

        A cancelled call returns a lease that arrives late.
        """
        return await self._query_async(name, request)

    def report_open(self, name: str, wait_s: float, rounds: int, cause: BreakerCause) -> None:
        """Report that this process has opened a breaker. Kept until the open period ends."""
        until_s = self.state.clock() + wait_s
        self.state.put_state(
            name, lambda version, is_current: OpenMessage(name, until_s, rounds, cause, version, is_current)
        )

    def report_probe(
        self, name: str, lease: ProbeLease, outcome: Outcome, successes_needed: int, wait_s: float
    ) -> None:
        """Report the outcome of a probe. Kept until its lease ends."""
        self.state.put_result(
            lease,
            lambda ticket, until_s: ProbeResult(
                name, ticket, lease.version, outcome, successes_needed, wait_s, until_s
            ),
        )

    def report_operator_state(self, name: str, state: BreakerState) -> None:
        """Report an operator command. Kept until it can be sent."""
        self.state.put_state(
            name, lambda version, is_current: OperatorCommand(name, state, version, is_current)
        )

    def _query(self, name: str, request: ProbeRequest | None) -> ProbeLease | RemoteBreakerState | None:
        event = threading.Event()
        query = self._begin(name, request, event.set)
        if not query.is_answered:
            try:
                event.wait(self.deadline_s)
            except BaseException:
                self.state.cancel(query)
                raise
        return self.state.finish_wait(query, self._timeout_text)

    async def _query_async(
        self, name: str, request: ProbeRequest | None
    ) -> ProbeLease | RemoteBreakerState | None:
        wakeup = self._new_wakeup()
        query = self._begin(name, request, wakeup.set)
        if not query.is_answered:
            try:
                await wakeup.wait(self.deadline_s, anyio.sleep_forever)
            except BaseException:
                self.state.cancel(query)
                raise
        return self.state.finish_wait(query, self._timeout_text)

    def _begin(self, name: str, request: ProbeRequest | None, wake: Callable[[], None]) -> PendingQuery:
        self.start()
        query = self.state.query(name, request, wake)
        self.sender.wake()
        return query

    def _on_write(self) -> None:
        if not self._is_closed:  # writes after `stop` wait for the next query
            self.start()
        self.sender.wake()

    def _on_subscribed(self) -> None:
        self.state.request_reread()  # changes before the subscription were not received
        self.sender.wake()

    def _on_message(self, data: Any) -> None:  # noqa: ANN401 - any client may publish
        parsed = parse_message(data)
        if parsed is None:
            self.ignored += 1
        elif parsed.process_id != self.protocol.process_id:  # own changes are known from the reply
            self.state.publish(parsed.name, parsed.remote)
