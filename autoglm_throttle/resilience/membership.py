"""Link of one breaker to the store of its fleet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from autoglm_throttle.model import Outcome, State, Transition
from autoglm_throttle.resilience.courier import Courier
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.store import Ask, BreakerStore, Lease


class Membership:
    """One breaker's link to its fleet: the leases it holds, and its messages to the store.

    Messages go through the notification queue, since they are created under the breaker's lock.

    Args:
        name: of the guard.
        rules: settings of its breaker.
        store: of the fleet.
        notifications: queue that delivers the messages.
    """

    __slots__ = ("_courier", "_leases", "_name", "_rules", "_store", "ask", "cold")

    def __init__(self, name: str, rules: Rules, store: BreakerStore, courier: Courier) -> None:
        self._name = name
        self._rules = rules
        self._store = store
        self._courier = courier
        self._leases: dict[int, Lease] = {}
        self.cold: bool = True
        """Whether the first state of the store is still unknown."""
        self.ask: Ask = Ask(
            half_open_max=rules.half_open_max,
            need=rules.need,
            threshold=rules.success_threshold is not None,
            lease_s=rules.lease_s,
        )
        """Parameters of each request for a probe lease."""

    def opened(self, changes: Sequence[Transition]) -> None:
        """Report openings that only this process knows."""
        for change in changes:
            if change.after is State.OPEN:
                wait_s, rounds = change.retry_after_s, change.rounds
                self._courier.take(partial(self._store.opened, self._name, wait_s, rounds, change.cause))

    def operated(self, state: State) -> None:
        """Report an operator command."""
        self._courier.take(partial(self._store.operated, self._name, state))

    def hold(self, lease: Lease) -> None:
        """Store the lease of a probe that has started."""
        self._leases[lease.fence] = lease

    def ended(self, fence: int, outcome: Outcome) -> None:
        """Report the outcome of a probe; nothing if its lease is not held."""
        lease = self._leases.pop(fence, None)
        if lease is not None:
            self.give_back(lease, outcome)

    def give_back(self, lease: Lease, outcome: Outcome = Outcome.NEUTRAL) -> None:
        """Return a lease, with the outcome of its probe."""
        wait_s = self._rules.wait_s(lease.rounds + 1)
        self._courier.take(
            partial(self._store.finished, self._name, lease, outcome, self._rules.need, wait_s)
        )
