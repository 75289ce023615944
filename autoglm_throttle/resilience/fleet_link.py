"""Shared state of the breakers of a fleet, and the link of one breaker to it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    BreakerTransition,
    Outcome,
    ProbeLease,
    ProbeRequest,
    RemoteBreakerState,
)


class BreakerStore(Protocol):
    """Shared state of all breakers of a process. No method raises; a method that waits says so."""

    @property
    def is_up(self) -> bool:
        """Whether the store is available; otherwise each breaker decides alone."""

    def start(self) -> None:
        """Start the background thread, unless it runs; returns at once."""

    def stop(self) -> None:
        """Stop the background thread; the next query starts it again."""

    def subscribe(self, name: str, on_change: Callable[[RemoteBreakerState], None]) -> None:
        """Register ``on_change``; it is called, from any thread, with each newer state of a breaker."""

    def read_state(self, name: str) -> RemoteBreakerState | None:
        """Wait, at most the deadline, for the first state; None: nothing is stored, or no reply."""

    async def read_state_async(self, name: str) -> RemoteBreakerState | None:
        """Wait as `read_state` does, without blocking the event loop."""

    def acquire(self, name: str, request: ProbeRequest) -> ProbeLease | RemoteBreakerState | None:
        """Request a probe lease; return it, the state that prevents it, or None without a reply in time."""

    async def acquire_async(self, name: str, request: ProbeRequest) -> ProbeLease | RemoteBreakerState | None:
        """Request a lease without blocking the event loop; a cancelled call returns one that arrives late."""

    def report_open(self, name: str, wait_s: float, rounds: int, cause: BreakerCause) -> None:
        """Report that this process has opened a breaker."""

    def report_probe(
        self, name: str, lease: ProbeLease, outcome: Outcome, successes_needed: int, wait_s: float
    ) -> None:
        """Report the outcome of a probe; ``wait_s``: length of the open period after a failure."""

    def report_operator_state(self, name: str, state: BreakerState) -> None:
        """Report an operator command: ``CLOSED``, ``FORCED_OPEN`` or ``DISABLED``."""


class FleetLink:
    """One breaker's link to its fleet: the leases it holds, and its messages to the store.

    Messages are appended to ``messages`` under the breaker's lock, and sent when it is left. A fault of the
    store is logged in ``fault_log``, and the message is lost.
    """

    def __init__(
        self,
        name: str,
        settings: BreakerSettings,
        store: BreakerStore,
        messages: deque[Callable[[], object]],
        fault_log: RateLimitedLogger,
    ) -> None:
        self._name = name
        self._settings = settings
        self.store: BreakerStore = store
        self._messages = messages
        self._fault_log = fault_log
        self._is_subscribed = False
        self._leases: dict[int, ProbeLease] = {}
        self.is_cold: bool = True  # Whether the first state of the store is still unknown
        self.probe_request: ProbeRequest = ProbeRequest(  # Parameters of each request for a probe lease
            half_open_max=settings.half_open_max,
            successes_needed=settings.successes_needed,
            limits_concurrent=settings.success_threshold is not None,
            lease_s=settings.lease_s,
        )

    def subscribe(self, on_change: Callable[[RemoteBreakerState], None]) -> None:
        """Subscribe to the states of the fleet, once."""
        if not self._is_subscribed:
            self._is_subscribed = True
            self.store.subscribe(self._name, on_change)

    def report_open(self, changes: Sequence[BreakerTransition]) -> None:
        """Report openings that only this process knows."""
        for change in changes:
            if change.after is BreakerState.OPEN:
                self._report(self.store.report_open, change.retry_after_s, change.rounds, change.cause)

    def report_operator_state(self, state: BreakerState) -> None:
        """Report an operator command."""
        self._report(self.store.report_operator_state, state)

    def add_lease(self, lease: ProbeLease) -> None:
        """Store the lease of a probe that has started."""
        self._leases[lease.fence] = lease

    def finish_probe(self, fence: int, outcome: Outcome) -> None:
        """Report the outcome of a probe; nothing if its lease is not held."""
        lease = self._leases.pop(fence, None)
        if lease is not None:
            self.release(lease, outcome)

    def release(self, lease: ProbeLease, outcome: Outcome = Outcome.NEUTRAL) -> None:
        """Return a lease, with the outcome of its probe."""
        rules = self._settings.successes_needed, self._settings.wait_s(lease.rounds + 1)
        self._report(self.store.report_probe, lease, outcome, *rules)

    def _report(self, send: Callable[..., object], *message: object) -> None:
        self._messages.append(partial(self._send, send, message))

    def _send(self, send: Callable[..., object], message: tuple[object, ...]) -> None:
        try:
            send(self._name, *message)
        except Exception as error:  # noqa: BLE001 - the breaker must work without its store
            self._fault_log.warn("store", "the store of breakers failed", error=error, level=logging.ERROR)
