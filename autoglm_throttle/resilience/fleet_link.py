"""Link of one breaker to the store of its fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from autoglm_throttle.resilience.notification_queue import NotificationQueue
from autoglm_throttle.resilience.store import BreakerStore, ProbeLease, ProbeRequest, RemoteBreakerState
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState, BreakerTransition, Outcome


class FleetLink:
    """One breaker's link to its fleet: the leases it holds, and its messages to the store.

    Messages go through the notification queue, since they are created under the breaker's lock.

    Args:
        name: of the guard.
        settings: of its breaker.
        store: of the fleet.
        notifications: queue that delivers the messages.
    """

    __slots__ = (
        "_is_subscribed",
        "_leases",
        "_name",
        "_notifications",
        "_settings",
        "is_cold",
        "probe_request",
        "store",
    )

    def __init__(
        self, name: str, settings: BreakerSettings, store: BreakerStore, notifications: NotificationQueue
    ) -> None:
        self._name = name
        self._settings = settings
        self.store: BreakerStore = store
        self._notifications = notifications
        self._is_subscribed = False
        self._leases: dict[int, ProbeLease] = {}
        self.is_cold: bool = True
        """Whether the first state of the store is still unknown."""
        self.probe_request: ProbeRequest = ProbeRequest(
            half_open_max=settings.half_open_max,
            successes_needed=settings.successes_needed,
            limits_concurrent=settings.success_threshold is not None,
            lease_s=settings.lease_s,
        )
        """Parameters of each request for a probe lease."""

    def subscribe(self, on_change: Callable[[RemoteBreakerState], None]) -> None:
        """Subscribe to the states of the fleet, once."""
        if not self._is_subscribed:
            self._is_subscribed = True
            self.store.subscribe(self._name, on_change)

    def report_open(self, changes: Sequence[BreakerTransition]) -> None:
        """Report openings that only this process knows."""
        for change in changes:
            if change.after is BreakerState.OPEN:
                wait_s, rounds = change.retry_after_s, change.rounds
                self._notifications.put(
                    partial(self.store.report_open, self._name, wait_s, rounds, change.cause)
                )

    def report_operator_state(self, state: BreakerState) -> None:
        """Report an operator command."""
        self._notifications.put(partial(self.store.report_operator_state, self._name, state))

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
        wait_s = self._settings.wait_s(lease.rounds + 1)
        self._notifications.put(
            partial(
                self.store.report_probe, self._name, lease, outcome, self._settings.successes_needed, wait_s
            )
        )
