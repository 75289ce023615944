"""Sender thread: sends the queries and writes of this process to the store of a fleet's breakers."""

from __future__ import annotations

import contextlib
import math
import queue
import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from autoglm_throttle.store.breakers.pending_writes import OpenMessage, OperatorCommand, ProbeResult, Write
from autoglm_throttle.store.breakers.protocol import (
    BreakerProtocol,
    Reply,
    ScriptArguments,
    SharedRules,
    parse_reply,
    parse_states,
)
from autoglm_throttle.store.breakers.scripts import Scripts, explain, is_final
from autoglm_throttle.types import Outcome

if TYPE_CHECKING:
    from autoglm_throttle.resilience.store import ProbeLease, RemoteBreakerState
    from autoglm_throttle.store.breakers.fleet_state import FleetState
    from autoglm_throttle.store.breakers.pending_query import PendingQuery
    from autoglm_throttle.types import Clock

THREAD_NAME: Final = "autoglm-throttle-breakers"

READ_INTERVAL_S: Final = 5.0
UNSUBSCRIBED_READ_S: Final = 1.0
"""Interval in seconds of reading all states, since a message may be lost; shorter without a subscription."""

RETRY_S: Final = 0.05
"""Pause after a single failure: one deadline, so that a third failure, which is a loss, follows soon."""

READ_BATCH: Final = 128
"""States per call: half a millisecond of server time."""


class BreakerSyncSender:
    """Processes the queries and writes of a `FleetState`.

    Args:
        fleet_state: queries and writes of the process.
        scripts: the connection; used on the thread only.
        rules: namespace of the fleet.
        is_listening: whether changes are received at once.
        on_recovery: called when the store is available again.
    """

    _thread: threading.Thread | None

    def __init__(
        self,
        fleet_state: FleetState,
        scripts: Scripts,
        rules: SharedRules,
        is_listening: Callable[[], bool],
        on_recovery: Callable[[], None],
    ) -> None:
        self.failures: int = 0
        """Calls without a reply."""
        self.last_error: str | None = None
        """Text of the newest failure; kept after a recovery."""
        self._fleet_state = fleet_state
        self._scripts = scripts
        self._rules = rules
        self._is_listening = is_listening
        self._on_recovery = on_recovery
        self._clock: Clock = fleet_state.clock
        self.reset_after_fork()

    @property
    def process_id(self) -> str:
        """Identifier of this process in messages."""
        return self._protocol.process_id

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread unless it runs. If the system has no thread left, the store is unavailable."""
        fleet_state = self._fleet_state
        with fleet_state.lock:
            # No new thread before the next probe is due: a process without threads must not retry per call.
            lost = not fleet_state.health.is_up and self._clock() < fleet_state.health.probe_due_s
            if self._thread is not None or lost:
                return
            self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # the call that starts the thread must not fail
                self._thread = None
                self._record_failure(error, unrecoverable=True)

    def stop(self, join_s: float) -> None:
        """Wait for the end of the thread; the fleet state is closed already."""
        thread = self._thread
        self.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(join_s)

    def wake(self) -> None:
        """Wake the thread: there is work."""
        self._wake_queue.put(None)

    def reset_after_fork(self) -> None:
        """Reset in a forked child: thread and connection belong to the parent; use a new identifier."""
        self._scripts.reset_after_fork()
        self._wake_queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Queue of wake-ups: a finalizer may call its ``put`` in the middle of another one."""
        self._thread = None
        self._protocol = BreakerProtocol(self._rules, secrets.token_hex(8))
        self._ticket_serial = 0
        self._read_s = self._not_before_s = -math.inf

    def _run(self) -> None:
        try:
            while not self._should_stop():
                self._step()
        finally:
            with self._fleet_state.lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _should_stop(self) -> bool:
        """Decide under the lock whether the thread ends, so that ``start`` never relies on a dying one."""
        fleet_state = self._fleet_state
        if not fleet_state.is_closed:
            return False
        self._flush()
        with fleet_state.lock:
            if fleet_state.is_closed:
                self._thread = None
            return fleet_state.is_closed

    def _flush(self) -> None:
        """Send the remaining writes, unless the store is unavailable."""
        with contextlib.suppress(Exception):  # an unsendable write is lost, and nothing else
            while self._fleet_state.health.is_up and (write := self._fleet_state.next_write()) is not None:
                self._send_write(write)
        self._scripts.close()

    def _step(self) -> None:
        now = self._clock()
        pause_s = self._idle_s(now)
        if pause_s > 0.0:
            self._sleep(pause_s)
            return
        try:
            self._work(now)
        except Exception as error:  # noqa: BLE001 - any client error; it must not end the thread
            self._record_failure(error, unrecoverable=is_final(error))

    def _idle_s(self, now: float) -> float:
        """Return the seconds without work."""
        health = self._fleet_state.health
        if not health.is_up:
            return health.probe_due_s - now
        if now < self._not_before_s:
            return self._not_before_s - now
        return 0.0 if self._fleet_state.has_work() else self._read_s - now

    def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._wake_queue.get(timeout=max(seconds, 0.001))
            while True:
                self._wake_queue.get_nowait()

    def _work(self, now: float) -> None:
        """Process one query, one write and one read, so that no kind starves another.

        While the store is unavailable the read is the probe.

        Raises:
            Exception: of the client.
        """
        fleet_state = self._fleet_state
        if fleet_state.health.is_up:
            query = fleet_state.next_query()
            if query is not None:
                self._answer_query(query)
            write = fleet_state.next_write()
            if write is not None:
                self._send_write(write)
        if now >= self._read_s or not fleet_state.health.is_up:
            self._read_s = now + (READ_INTERVAL_S if self._is_listening() else UNSUBSCRIBED_READ_S)
            fleet_state.request_reread()
        if fleet_state.unread or not fleet_state.health.is_up:
            self._read(list(fleet_state.unread)[: 1 if self._rules.cluster else READ_BATCH])

    def _answer_query(self, query: PendingQuery) -> None:
        """Request a probe lease, after all pending writes of that breaker."""
        answer: ProbeLease | RemoteBreakerState | None = None
        try:
            while (write := self._fleet_state.next_write(query.name)) is not None:
                self._send_write(write)
            if not query.is_abandoned:
                answer = self._acquire_lease(query)
        finally:
            self._fleet_state.resolve(query, answer)

    def _acquire_lease(self, query: PendingQuery) -> ProbeLease | RemoteBreakerState | None:
        name, request, fleet_state = query.name, query.request, self._fleet_state
        assert request is not None  # noqa: S101 - only those are queued
        self._ticket_serial += 1
        ticket, until_s = f"{self.process_id}:{self._ticket_serial}", self._clock() + request.lease_s
        try:
            result = self._call(self._protocol.acquire(name, fleet_state.position(name)[0], request, ticket))
        except Exception:
            # The lease may have been granted although the reply was lost: return it.
            fleet_state.put(ProbeResult(name, ticket, 0, Outcome.NEUTRAL, 0, 0.0, until_s))
            raise
        lease = result.lease()
        if lease is not None:
            fleet_state.record_lease(lease, ticket, until_s)
        # Not for an abandoned query: `resolve` publishes its state, which must still be new then.
        fleet_state.record_known(name, None if query.is_abandoned and lease is None else result.remote)
        return lease if lease is not None else result.remote

    def _send_write(self, write: Write) -> None:
        """Send one write; the resulting state is an update unless this process caused it."""
        try:
            result = self._call(self._arguments(write))
        except Exception:
            self._fleet_state.postpone(write.name)
            raise
        self._fleet_state.confirm_write(
            write, result.remote, is_current=result.done and _is_known_locally(write)
        )

    def _arguments(self, write: Write) -> ScriptArguments:
        protocol = self._protocol
        match write:
            case OpenMessage():
                known_version, left_s = (
                    max(write.known_version, self._fleet_state.own_version(write.name)),
                    write.until_s - self._clock(),
                )
                return protocol.open(write.name, known_version, left_s, write.rounds, write.cause)
            case OperatorCommand():
                return protocol.operate(
                    write.name, write.known_version, write.state, is_restore=write.is_restore
                )
            case ProbeResult():
                return protocol.finish(write)

    def _call(self, arguments: ScriptArguments) -> Reply:
        result = parse_reply(self._scripts(arguments))
        self._record_success()
        return result

    def _read(self, names: list[str]) -> None:
        remote_states = parse_states(self._scripts(self._protocol.read(names)), names)
        self._record_success()
        for name, remote in remote_states.items():
            self._fleet_state.record_state(name, remote)

    def _record_success(self) -> None:
        if self._fleet_state.record_success():
            self._not_before_s = -math.inf
            self._on_recovery()

    def _record_failure(self, error: Exception, *, unrecoverable: bool) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        self._scripts.close()
        self._not_before_s = self._clock() + RETRY_S
        self._fleet_state.record_failure(explain(error), final=unrecoverable)


def _is_known_locally(write: Write) -> bool:
    """Whether the breaker knows the resulting state of an executed write."""
    if not isinstance(write, ProbeResult):
        return write.breaker_was_current
    if write.outcome is Outcome.SUCCESS:
        return write.successes_needed <= 1  # otherwise other processes may have recorded successes meanwhile
    return write.outcome is not Outcome.NEUTRAL
