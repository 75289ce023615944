"""Sender thread: sends the queries and writes of this process to the store of a fleet's breakers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from autoglm_throttle._runtime.worker import Worker
from autoglm_throttle.store.breakers.pending_writes import OpenMessage, OperatorCommand, ProbeResult, Write
from autoglm_throttle.store.breakers.protocol import (
    BreakerProtocol,
    Reply,
    ScriptArguments,
    load_script,
    parse_reply,
    parse_states,
)
from autoglm_throttle.store.breakers.scripts import explain, is_final
from autoglm_throttle.store.client import SyncClient, SyncScript
from autoglm_throttle.types import Outcome

if TYPE_CHECKING:
    from autoglm_throttle.resilience.half_open import ProbeLease
    from autoglm_throttle.resilience.transitions import RemoteBreakerState
    from autoglm_throttle.store.breakers.fleet_state import FleetState
    from autoglm_throttle.store.breakers.pending_query import PendingQuery
    from autoglm_throttle.store.breakers.sync_listener import BreakerSyncListener

THREAD_NAME: Final = "autoglm-throttle-breakers"

READ_INTERVAL_S: Final = 5.0
UNSUBSCRIBED_READ_S: Final = 1.0
"""Interval in seconds of reading all states, since a message may be lost; shorter without a subscription."""

RETRY_S: Final = 0.05
"""Pause after a single failure: one deadline, so that a third failure, which is a loss, follows soon."""

MIN_PAUSE_S: Final = 0.001
"""Shortest pause between two looks at the work."""

READ_BATCH: Final = 128
"""States per call: half a millisecond of server time."""


class BreakerSyncSender:
    """Processes the queries and writes of a `FleetState`.

    Args:
        state: queries and writes of the process.
        connect: creates a synchronous client without retries; called on the thread.
        protocol: builds the commands.
        listener: receives changes; it reconnects when the store is available again.
        cluster: whether the keys of one call must lie in one slot.
    """

    def __init__(
        self,
        state: FleetState,
        connect: Callable[[], SyncClient],
        protocol: BreakerProtocol,
        listener: BreakerSyncListener,
        *,
        cluster: bool = False,
    ) -> None:
        self.script: SyncScript = SyncScript(connect, load_script())
        """The connection; used on the thread only."""
        self._state = state
        self._listener = listener
        self._protocol = protocol
        self._read_batch = 1 if cluster else READ_BATCH
        self._read_s = -math.inf
        self._not_before_s = -math.inf
        self._worker = Worker(
            THREAD_NAME, self._step, on_stop=self._flush, on_crash=self._record_crash, clock=state.clock
        )

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._worker.is_alive

    def start(self) -> None:
        """Start the thread unless it runs. If the system has no thread left, the store is unavailable."""
        self._worker.start()

    def stop(self, join_s: float) -> None:
        """Send the pending writes, and wait for the end of the thread."""
        self._worker.stop(join_s)

    def stop_with(self, owner: object) -> None:
        """Stop the thread when the owner is collected."""
        self._worker.stop_with(owner)

    def wake(self) -> None:
        """Wake the thread: there is work."""
        self._worker.wake()

    def _flush(self) -> None:
        """Send the remaining writes, unless the store is unavailable."""
        try:
            while self._state.is_up and (write := self._state.next_write()) is not None:
                self._send_write(write)
        finally:
            self.script.close()

    def _step(self) -> float:
        """Do the work that is due; return the seconds until the next."""
        now = self._state.clock()
        pause_s = self._idle_s(now)
        if pause_s > 0.0:
            return max(pause_s, MIN_PAUSE_S)
        try:
            self._work(now)
        except Exception as error:  # noqa: BLE001 - any client error; the store is probed again
            self._record_failure(error, final=is_final(error))
        return 0.0

    def _idle_s(self, now: float) -> float:
        """Return the seconds without work."""
        health = self._state.health
        if not health.is_up:
            return health.probe_due_s - now
        if now < self._not_before_s:
            return self._not_before_s - now
        return 0.0 if self._state.has_work() else self._read_s - now

    def _work(self, now: float) -> None:
        """Process one query, one write and one read, so that no kind starves another.

        While the store is unavailable the read is the probe.

        Raises:
            Exception: of the client.
        """
        state = self._state
        if state.health.is_up:
            query = state.next_query()
            if query is not None:
                self._answer_query(query)
            write = state.next_write()
            if write is not None:
                self._send_write(write)
        if now >= self._read_s or not state.health.is_up:
            self._read_s = now + (READ_INTERVAL_S if self._listener.is_listening else UNSUBSCRIBED_READ_S)
            state.request_reread()
        if state.subscriptions.unread or not state.health.is_up:
            self._read(list(state.subscriptions.unread)[: self._read_batch])

    def _answer_query(self, query: PendingQuery) -> None:
        """Request a probe lease, after all pending writes of that breaker."""
        answer: ProbeLease | RemoteBreakerState | None = None
        try:
            while (write := self._state.next_write(query.name)) is not None:
                self._send_write(write)
            if not query.is_abandoned:
                answer = self._acquire_lease(query)
        finally:
            self._state.resolve(query, answer)

    def _acquire_lease(self, query: PendingQuery) -> ProbeLease | RemoteBreakerState | None:
        name, request, state = query.name, query.request, self._state
        assert request is not None  # noqa: S101 - only those are queued
        ticket, until_s = self._protocol.new_ticket(), state.clock() + request.lease_s
        try:
            result = self._call(self._protocol.acquire(name, state.position(name)[0], request, ticket))
        except Exception:
            # The lease may have been granted although the reply was lost: return it.
            state.put(ProbeResult(name, ticket, 0, Outcome.NEUTRAL, 0, 0.0, until_s))
            raise
        lease = result.lease()
        if lease is not None:
            state.record_lease(lease, ticket, until_s)
        # Not for an abandoned query: `resolve` publishes its state, which must still be new then.
        state.record_known(name, None if query.is_abandoned and lease is None else result.remote)
        return lease if lease is not None else result.remote

    def _send_write(self, write: Write) -> None:
        """Send one write; the resulting state is an update unless this process caused it."""
        try:
            result = self._call(self._arguments(write))
        except Exception:
            self._state.postpone(write.name)
            raise
        self._state.confirm_write(write, result.remote, is_current=result.done and _is_known_locally(write))

    def _arguments(self, write: Write) -> ScriptArguments:
        protocol = self._protocol
        match write:
            case OpenMessage():
                known_version, left_s = (
                    max(write.known_version, self._state.own_version(write.name)),
                    write.until_s - self._state.clock(),
                )
                return protocol.open(write.name, known_version, left_s, write.rounds, write.cause)
            case OperatorCommand():
                return protocol.operate(
                    write.name, write.known_version, write.state, is_restore=write.is_restore
                )
            case ProbeResult():
                return protocol.finish(write)

    def _call(self, arguments: ScriptArguments) -> Reply:
        result = parse_reply(self.script.call(*arguments))
        self._record_success()
        return result

    def _read(self, names: list[str]) -> None:
        remote_states = parse_states(self.script.call(*self._protocol.read(names)), names)
        self._record_success()
        for name, remote in remote_states.items():
            self._state.record_state(name, remote)

    def _record_success(self) -> None:
        if self._state.record_success():
            self._not_before_s = -math.inf
            if not self._listener.is_listening:
                self._listener.wake()

    def _record_failure(self, error: BaseException, *, final: bool) -> None:
        self.script.record_failure(error)
        self._not_before_s = self._state.clock() + RETRY_S
        self._state.record_failure(explain(error), final=final)

    def _record_crash(self, error: BaseException) -> None:
        self._record_failure(error, final=True)


def _is_known_locally(write: Write) -> bool:
    """Whether the breaker knows the resulting state of an executed write."""
    if not isinstance(write, ProbeResult):
        return write.breaker_was_current
    if write.outcome is Outcome.SUCCESS:
        return write.successes_needed <= 1  # otherwise other processes may have recorded successes meanwhile
    return write.outcome is not Outcome.NEUTRAL
