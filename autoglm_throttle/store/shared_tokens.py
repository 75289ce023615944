"""Token limits that several processes share: reserved with the user limits in one check of the store.

A settlement is sent with the next call, without an answer, and no request waits for it. One that is lost is
counted. The lock of the throttle guards all methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from autoglm_throttle.limiting.decisions import Usages
from autoglm_throttle.limiting.token_limits import (
    TOKEN_KINDS,
    Reservation,
    StoredCheck,
    TokenCounts,
    TokenLimits,
)
from autoglm_throttle.limiting.user_limits import NO_LIMIT, LimitSets
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import AnyCharge, WindowEntry
from autoglm_throttle.store.shared_limits import SharedUserLimits
from autoglm_throttle.types import NO_TOKENS, Decision, Demand, Reason, TokenCost

_NOTHING: Final = WindowEntry((), (), 0)  # Check of a request to which no limit applies


class SharedTokenLimits:
    """The token limits of a service, shared through a store.

    Args:
        users: the limits on requests, which are charged in the same check.
        local: the token limits that this process applies alone, while the store is unavailable.
        sets: the limits of each of `TOKEN_KINDS` that has any.
    """

    def __init__(self, users: SharedUserLimits, local: TokenLimits, sets: Mapping[str, LimitSets]) -> None:
        self._users = users
        self._local = local
        self._kinds = [(TOKEN_KINDS[kind], each) for kind, each in sets.items()]
        self.counts: TokenCounts = local.counts

    def reservation(self, demand: Demand, cost: TokenCost, now: float) -> Reservation:
        """Make what `settle` needs of a request that `reserve` has admitted without a check."""
        # While the store is available, it was one without tokens of the limited kinds.
        return self._local.reservation(demand, cost, now, (_NOTHING, ()) if self._is_available() else None)

    def reserve(self, demand: Demand, cost: TokenCost, now: float) -> Usages | Decision | WindowEntry:
        """Return the check to send, or decide without the store, as `TokenLimits.reserve`."""
        users, is_available = self._users, self._is_available()
        charges: list[AnyCharge] = []
        if is_available:
            verdict = users.hit(demand, now)
            if isinstance(verdict, Decision):  # a cached denial
                return verdict
            if isinstance(verdict, WindowEntry):
                charges += verdict.charges
        else:
            charges += users.charges_of(demand)
        charges += self._charges(demand, cost)
        if not charges:
            return NO_LIMIT
        check = users.store.protocol.build_check(charges)
        check.tokens = cost
        return check if is_available else users.decide_here(demand, check, now)

    def peek(self, demand: Demand, cost: TokenCost, now: float) -> Decision:
        """Return the decision of the local limits while the store is unavailable; else nothing is known."""
        return Decision(True, Reason.OK) if self._is_available() else self._local.peek(demand, cost, now)

    def cancel(self, reservation: Reservation, now: float) -> None:
        """Give back all that was charged: the request has not run."""
        self.settle(reservation, NO_TOKENS, now)

    def extend(
        self, reservation: Reservation, output_tokens: int, now: float, *, within_limits: bool = False
    ) -> None:
        """Charge more output tokens, as `TokenLimits.extend`; to the store those of the call before.

        They have been used by then: the store does not tell where they would go back to. So they are never
        ``within_limits`` there, which the settings rule out.
        """
        stored = reservation.stored
        if stored is None:
            self._local.extend(reservation, output_tokens, now, within_limits=within_limits)
        elif reservation.charges:
            cost, reservation.due = TokenCost(0, reservation.due), output_tokens
            if cost.output:
                reservation.charges.append((now, cost))
                self._send(reservation.demand, cost, stored, now)

    def settle(self, reservation: Reservation, actual: TokenCost, now: float) -> None:
        """Replace what was charged by the tokens that were used; a second call changes nothing.

        Unused tokens go back to the part of the window in which they were reserved.
        """
        stored = reservation.stored
        if stored is None:
            self._local.settle(reservation, actual, now)
            return
        charges, reservation.charges = reservation.charges, []
        if not charges:
            return
        tokens, output = actual
        for _, cost in charges:
            tokens -= cost.input
            output -= cost.output
        self._send(reservation.demand, TokenCost(tokens, output), stored, now)
        self.counts.record(charges[0][1].total, actual.total)

    def sweep(self, now: float, users: int) -> None:
        """Evict idle users among the next ``users`` of each local table."""
        self._local.sweep(now, users)

    def _send(self, demand: Demand, change: TokenCost, stored: StoredCheck, now: float) -> None:
        """Charge tokens above the limits as well, or give back those below 0."""
        users, (check, answer) = self._users, stored
        if not self._is_available():  # decisions are local now, and the message may be lost
            self._local.charge(demand, change, now)
        charges = self._charges(demand, TokenCost(-change.input, -change.output))
        if charges:
            users.store.give_back(*users.store.protocol.part_of(check, answer, charges))

    def _is_available(self) -> bool:
        users = self._users
        return users.store_health.state is HealthState.UP and bool(users.is_usable())

    def _charges(self, demand: Demand, cost: TokenCost) -> list[AnyCharge]:
        charges: list[AnyCharge] = []
        for units_of, sets in self._kinds:
            units, limit_set = units_of(cost), sets.of(demand)
            if units and limit_set is not None:
                charges += self._users.charges(limit_set, demand.user, demand.address, units)
        return charges
