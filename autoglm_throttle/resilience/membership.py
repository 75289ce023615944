"""What one breaker tells the store of its fleet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from autoglm_throttle.model import Outcome, State, Transition
from autoglm_throttle.resilience.courier import Courier
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.store import Ask, BreakerStore, Lease


class Membership:
    """One breaker's part in its fleet: the leases it holds, and the messages it has for the store.

    Messages go by the courier, since they are made under the breaker's lock.

    Args:
        name: of the guard.
        rules: its figures.
        store: of the fleet.
        courier: who brings the messages.
    """

    __slots__ = ("_courier", "_leases", "_name", "_rules", "_store", "ask", "cold")

    def __init__(self, name: str, rules: Rules, store: BreakerStore, courier: Courier) -> None:
        self._name = name
        self._rules = rules
        self._store = store
        self._courier = courier
        self._leases: dict[int, Lease] = {}
        self.cold: bool = True
        """Whether the first word of the store is still awaited."""
        self.ask: Ask = Ask(
            half_open_max=rules.half_open_max,
            need=rules.need,
            threshold=rules.success_threshold is not None,
            lease_s=rules.lease_s,
        )
        """What a lease for a trial is asked with."""

    def opened(self, changes: Sequence[Transition]) -> None:
        """Tell of openings that this process alone knows of."""
        for change in changes:
            if change.after is State.OPEN:
                wait_s, rounds = change.retry_after_s, change.rounds
                self._courier.take(partial(self._store.opened, self._name, wait_s, rounds, change.cause))

    def operated(self, state: State) -> None:
        """Tell what an operator has decided."""
        self._courier.take(partial(self._store.operated, self._name, state))

    def hold(self, lease: Lease) -> None:
        """Keep the lease of a trial that has begun."""
        self._leases[lease.fence] = lease

    def ended(self, fence: int, outcome: Outcome) -> None:
        """Tell how a trial ended; nothing where its lease is not held."""
        lease = self._leases.pop(fence, None)
        if lease is not None:
            self.give_back(lease, outcome)

    def give_back(self, lease: Lease, outcome: Outcome = Outcome.NEUTRAL) -> None:
        """Give a lease back, with what its trial has shown."""
        wait_s = self._rules.wait_s(lease.rounds + 1)
        self._courier.take(
            partial(self._store.finished, self._name, lease, outcome, self._rules.need, wait_s)
        )
