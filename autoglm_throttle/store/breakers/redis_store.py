"""Breakers shared by all processes of a service, in a Redis.

Two daemon threads have a connection each: the sender runs the script and sends local changes, the listener
receives the changes of other processes. A caller waits for the sender only for a probe lease or for the first
state of a breaker, and never longer than the deadline. A closed breaker sends nothing.

If the store is unavailable, each breaker continues alone with its current state.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import anyio

from autoglm_throttle.resilience.store import ProbeLease, ProbeRequest, RemoteBreakerState
from autoglm_throttle.store.breakers.fleet_state import FleetState
from autoglm_throttle.store.breakers.pending_query import BreakerWakeup, PendingQuery
from autoglm_throttle.store.breakers.pending_writes import OpenMessage, OperatorCommand, ProbeResult
from autoglm_throttle.store.breakers.protocol import SharedRules, parse_message
from autoglm_throttle.store.breakers.scripts import Scripts, SyncClient
from autoglm_throttle.store.breakers.sync_listener import BreakerSyncListener
from autoglm_throttle.store.breakers.sync_sender import BreakerSyncSender
from autoglm_throttle.types import BreakerCause, BreakerState, Outcome

if TYPE_CHECKING:
    from autoglm_throttle.types import Clock

TIMEOUT_S: Final = 0.25
"""Seconds for a client's connections and replies. No caller waits for it; it frees the thread."""


class RedisBreakerStore:
    """Implements `BreakerStore`.

    Args:
        connect: creates a synchronous client without retries, with timeouts of `TIMEOUT_S`. It is called on
            the threads, once for each connection.
        new_wakeup: creates a wake-up for the current task.
        rules: namespace of the fleet.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        connect: Callable[[], SyncClient],
        new_wakeup: Callable[[], BreakerWakeup],
        rules: SharedRules | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.rules: SharedRules = rules if rules is not None else SharedRules()
        self.ignored: int = 0
        """Messages of an unknown format."""
        self._new_wakeup = new_wakeup
        self._clock = clock
        self._scripts = Scripts(connect)
        self._fleet_state = FleetState(self._wake, clock)
        self._listener = BreakerSyncListener(
            connect, self.rules.channel, self._on_message, self._fleet_state.request_reread, clock
        )
        is_listening, wake = lambda: self._listener.is_listening, self._listener.wake
        self._sender = BreakerSyncSender(self._fleet_state, self._scripts, self.rules, is_listening, wake)
        self._pid = os.getpid()
        self._timeout_text = f"no answer within {self.rules.deadline_s * 1000.0:.0f} ms"
        _STORES.add(self)

    def __repr__(self) -> str:
        state = "running" if self.is_running else "stopped"
        return f"RedisBreakerStore({state}, {self._fleet_state!r}, {self._listener!r}, calls={self.calls})"

    @property
    def is_up(self) -> bool:
        """Whether the store is available; otherwise each breaker decides alone."""
        return self._fleet_state.is_up

    @property
    def is_running(self) -> bool:
        """Whether the sender thread runs: from the first use to `stop`."""
        return self._sender.is_running

    @property
    def is_listening(self) -> bool:
        """Whether changes are received at once; otherwise they are read once a second."""
        return self._listener.is_listening

    @property
    def calls(self) -> int:
        """Round trips started, without those of the subscription."""
        return self._scripts.calls

    @property
    def failures(self) -> int:
        """Round trips without a reply."""
        return self._sender.failures

    @property
    def last_error(self) -> str | None:
        """Text of the newest failure; kept after a recovery."""
        return self._sender.last_error

    def start(self) -> None:
        """Start the threads unless they run; returns at once. Also used after `stop` and in a fork."""
        with self._fleet_state.lock:
            self._fleet_state.is_closed = False
            self._sender.start()
            if self._sender.is_running:
                self._listener.start()

    def stop(self, join_s: float = 1.0) -> None:
        """Send the pending writes and stop the threads; the next query or guard starts them again.

        Args:
            join_s: maximum wait in seconds; a thread in a call that hangs is left behind.
        """
        ends_s = self._clock() + join_s
        self._fleet_state.close()
        self._listener.stop(0.0)
        self._sender.stop(join_s)
        self._listener.stop(max(0.0, ends_s - self._clock()))

    def reset_after_fork(self) -> None:
        """Reset in a forked child: threads, connections, probes and writes belong to the parent.

        Each child calls it automatically; in any other process it does nothing.
        """
        # The hook of os.register_at_fork and the owner's own reset may both call this in the child.
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._fleet_state.reset_after_fork()
        self._listener.reset_after_fork()
        self._sender.reset_after_fork()

    def subscribe(self, name: str, on_change: Callable[[RemoteBreakerState], None]) -> None:
        """Register ``on_change``; it is called, from any thread, with each newer state of a breaker."""
        self._fleet_state.subscribe(name, on_change)
        self.start()

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
        until_s = self._clock() + wait_s
        with self._fleet_state.lock:
            known_version, was_current = self._fleet_state.position(name)
            self._fleet_state.put(OpenMessage(name, until_s, rounds, cause, known_version, was_current))
        self._start_unless_closed()

    def report_probe(
        self, name: str, lease: ProbeLease, outcome: Outcome, successes_needed: int, wait_s: float
    ) -> None:
        """Report the outcome of a probe. Kept until its lease ends."""
        ticket, until_s = self._fleet_state.pop_ticket(lease)
        if ticket:
            self._fleet_state.put(
                ProbeResult(name, ticket, lease.version, outcome, successes_needed, wait_s, until_s)
            )
            self._start_unless_closed()

    def report_operator_state(self, name: str, state: BreakerState) -> None:
        """Report an operator command. Kept until it can be sent."""
        with self._fleet_state.lock:
            known_version, was_current = self._fleet_state.position(name)
            self._fleet_state.put(OperatorCommand(name, state, known_version, was_current))
        self._start_unless_closed()

    def _query(self, name: str, request: ProbeRequest | None) -> ProbeLease | RemoteBreakerState | None:
        event = threading.Event()
        self.start()
        query = self._fleet_state.query(name, request, event.set)
        if not query.is_answered:
            self._wait(query, event)
        return self._fleet_state.finish_wait(query, self._timeout_text)

    def _wait(self, query: PendingQuery, event: threading.Event) -> None:
        try:
            event.wait(self.rules.deadline_s)
        except BaseException:
            self._fleet_state.cancel(query)
            raise

    async def _query_async(
        self, name: str, request: ProbeRequest | None
    ) -> ProbeLease | RemoteBreakerState | None:
        wakeup = self._new_wakeup()
        self.start()
        query = self._fleet_state.query(name, request, wakeup.set)
        if not query.is_answered:
            try:
                await wakeup.wait(self.rules.deadline_s, anyio.sleep_forever)
            except BaseException:
                self._fleet_state.cancel(query)
                raise
        return self._fleet_state.finish_wait(query, self._timeout_text)

    def _start_unless_closed(self) -> None:
        if not self._fleet_state.is_closed:  # writes after `stop` wait for the next query
            self.start()

    def _wake(self) -> None:
        self._sender.wake()

    def _on_message(self, data: Any) -> None:  # noqa: ANN401 - any client may publish
        parsed = parse_message(data)
        if parsed is None:
            self.ignored += 1
        elif parsed.process_id != self._sender.process_id:  # own changes are known from the reply
            self._fleet_state.publish(parsed.name, parsed.remote)


_STORES: weakref.WeakSet[RedisBreakerStore] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_STORES):
        with contextlib.suppress(Exception):  # a failure of one store must not affect the others
            store.reset_after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
