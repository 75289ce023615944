"""Maintenance of a shared store: results recorded, changes logged, probes sent in the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from asyncio import _get_running_loop as running_loop  # a call of C
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from autoglm_throttle._runtime import weak_method
from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.events import LogEvent
from autoglm_throttle.store.health import HealthChange, HealthState
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.store.shared_limits import SharedUserLimits, StoreView
from autoglm_throttle.types import Clock, StoreFailureMode

T = TypeVar("T")

POLL_MIN_S: Final = 0.05
# Seconds between two checks whether a probe is due: a hung probe is abandoned after some seconds.
POLL_MAX_S: Final = 5.0

# Name of a thread that repeats work which its event loop did not finish.
THREAD: Final = "autoglm-throttle-store"

_MEANWHILE: Final = {
    StoreFailureMode.LOCAL: "each process enforces {share} of the user limits until it recovers",
    StoreFailureMode.ALLOW: "user limits are not enforced until it recovers",
    StoreFailureMode.DENY: "requests under a user limit are rejected until it recovers",
}

_running: set[asyncio.Task[None]] = set()  # Strong references to tasks: a loop holds its tasks only weakly


class StoreMonitor:
    """Monitors the shared store of a throttle, whose lock guards the user limits in it."""

    def __init__(self, shared: SharedUserLimits, lock: SerialLock, clock: Clock) -> None:
        self._shared = shared
        self._health = shared.store_health
        self._lock = lock
        self._clock = clock
        # When the pending timer will have fired: the store is probed even without requests.
        self._timer_until_s = -math.inf
        shared.store.listen(self._on_result)

    def connect(self) -> None:
        """Connect before the first decision; without a running event loop, the first decision connects."""
        begin(self._shared.store.probe, self._on_result)

    def unsupported_loop(self) -> str:
        """Return why the store cannot be used from the running event loop; empty if it can."""
        return "" if running_loop() else "REDIS_URL requires asyncio; this event loop is not asyncio"

    def poll(self) -> None:
        """Write pending log events, and start a probe if one is due; without the lock."""
        shared = self._shared
        probes = shared.probe_due and running_loop() is not None
        waits = self._health.state is not HealthState.UP and self._clock() >= self._timer_until_s
        if not (probes or shared.changes or waits):
            return
        with self._lock:
            if probes:  # otherwise it stays due until a caller has an event loop
                probes, shared.probe_due = shared.probe_due, False
            changes, shared.changes = shared.changes, []
            view = shared.view() if changes else None
        if view is not None:
            for change in changes:
                store_changed(view, change, shared.store.last_error).write()
        if waits:
            self._schedule_poll()
        if probes:
            begin(shared.store.probe, self._on_probe_result, retry_in_thread=True)

    def view(self) -> StoreView:
        """Return the state of the store; under the lock."""
        return self._shared.view()

    def _schedule_poll(self) -> None:
        """Set the timer for the next probe, in the running loop, without holding this object."""
        loop, now = running_loop(), self._clock()
        if loop is not None:
            wait = min(max(self._health.next_probe_s - now, POLL_MIN_S), POLL_MAX_S)
            loop.call_later(wait, weak_method(self._on_timer))
            self._timer_until_s = now + wait + POLL_MAX_S  # the loop of the timer may end before it fires

    def _on_timer(self) -> None:
        self._timer_until_s = -math.inf
        with self._lock:
            self._shared.poll(self._clock())
        self.poll()

    def _on_result(self, error: StoreErrorKind | None) -> None:
        """Record the result of a round trip, in its event loop."""
        if error is None and self._health.cause is None:  # up, without a failure before: nothing changes
            return
        with self._lock:
            self._shared.record_change(self._health.record_result(error, self._clock()))
        self.poll()

    def _on_probe_result(self, error: StoreErrorKind | None) -> None:
        with self._lock:
            self._shared.record_change(self._health.record_probe(error, self._clock()))
        self.poll()


def store_changed(view: StoreView, change: HealthChange, error: str) -> LogEvent:
    """Build the event of a shared store of user limits that was lost or has recovered."""
    if change.state is HealthState.UP:
        text = f"{view.kind} answers again after {change.lasted_s:.1f} s; user limits are shared again"
        return LogEvent(
            "store_recovered", logging.INFO, text, {"store": view.kind, "down_s": change.lasted_s}
        )
    error_kind = str(change.error_kind)
    because = f" ({error})" if error else ""
    meanwhile = _MEANWHILE[view.on_error].format(share=f"1/{view.processes}")
    keys: dict[str, object] = {"store": view.kind, "reason": error_kind, "on_error": view.on_error.value}
    text = f"{view.kind} is unavailable: {error_kind}{because}; {meanwhile}"
    return LogEvent("store_lost", logging.WARNING, text, keys)


def begin(
    work: Callable[[], Awaitable[T]], done: Callable[[T], None], *, retry_in_thread: bool = False
) -> bool:
    """Start work in the running asyncio loop and hand its result to ``done``; False without a loop.

    If the loop ends before, the work is cancelled, and may be repeated in a thread: where each request has a
    loop of its own, no loop lives long enough for background work.
    """
    loop = running_loop()
    if loop is None:
        return False

    async def run() -> None:
        done(await work())

    def ended(task: asyncio.Task[None]) -> None:
        _running.discard(task)
        if retry_in_thread and task.cancelled():
            with contextlib.suppress(RuntimeError):  # the interpreter ends, too
                threading.Thread(target=lambda: asyncio.run(run()), name=THREAD, daemon=True).start()

    task = loop.create_task(run())
    _running.add(task)
    task.add_done_callback(ended)
    return True
