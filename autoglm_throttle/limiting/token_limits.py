"""Limits of the tokens of each user: reserved with the user limits, all or none, and settled later."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil, inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from autoglm_throttle.limiting.decisions import Usages, decision_of, fullest_first
from autoglm_throttle.limiting.user_limits import NO_PARTS, Limits, LimitSets, Part, UserLimits
from autoglm_throttle.types import NO_TOKENS, Decision, Demand, TokenCost

if TYPE_CHECKING:
    from autoglm_throttle.limiting.queue import TicketQueue

# Tokens that a limit of each kind counts; the names of the kinds begin those of their limits.
TOKEN_KINDS: Final[Mapping[str, Callable[[TokenCost], int]]] = {
    "tokens": sum,  # of the pair; all three are calls of C
    "input": itemgetter(0),
    "output": itemgetter(1),
}


# Check of the shared store that has charged the tokens of a request, and its answer.
StoredCheck: TypeAlias = tuple[Any, Sequence[int]]

# Upper ends of the ranges in which estimates over used tokens are counted.
ESTIMATE_RATIOS: Final = (0.5, 0.9, 1.1, 2.0, inf)


@dataclass(slots=True)
class TokenCounts:
    """Tokens of all requests under a token limit. They only grow."""

    reserved: int = 0  # Estimated at admission
    settled: int = 0  # Used in the end
    given_back: int = 0  # Reserved and not used
    overrun: int = 0  # Used beyond what was reserved
    ended: int = 0  # Streams, not tokens, that were ended at a limit
    # Complete responses that report their tokens, by kind and by the end of the range of their ratio. Counted
    # without the lock: of two threads at once one may be lost.
    estimates: dict[tuple[str, float], int] = field(
        default_factory=lambda: dict.fromkeys(product(("input", "output"), ESTIMATE_RATIOS), 0)
    )

    def record(self, reserved: int, used: int) -> None:
        """Count the end of a request."""
        self.settled += used
        if used <= reserved:
            self.given_back += reserved - used
        else:
            self.overrun += used - reserved

    def record_estimate(self, kind: str, reserved: int, used: int | None) -> None:
        """Count the input or the output that was reserved for a request, over what it has used, if any."""
        if used:
            self.estimates[kind, ESTIMATE_RATIOS[bisect_left(ESTIMATE_RATIOS, reserved / used)]] += 1

    def copy(self) -> TokenCounts:
        """Return the counts as they are now."""
        return replace(self, estimates=self.estimates.copy())

    @property
    def by_result(self) -> dict[str, int]:
        """The tokens by what became of them."""
        return {name: getattr(self, name) for name in ("reserved", "settled", "given_back", "overrun")}


class Reservation:
    """Tokens of one request that are reserved and not settled yet."""

    __slots__ = ("charges", "demand", "due", "is_exhausted", "queue", "stored")

    def __init__(
        self, demand: Demand, cost: TokenCost, now: float, stored: StoredCheck | None = None
    ) -> None:
        self.demand: Demand = demand
        self.stored: StoredCheck | None = stored  # None: they were charged in memory
        self.due: int = 0  # Output tokens that the shared store is charged with the next extension
        # When tokens were charged, and how many: at admission, then for each part of a long answer.
        self.charges: list[tuple[float, TokenCost]] = [(now, cost)]
        # That the request has waited in, and that counts its tokens; None: it has not waited.
        self.queue: TicketQueue | None = None
        # Whether a limit had too few tokens left for `TokenLimits.extend`.
        self.is_exhausted: bool = False


class TokenLimits:
    """The token limits of a service, kept in memory.

    Args:
        users: the limits on requests, which are charged in the same call.
        sets: the limits of each of `TOKEN_KINDS` that has any.
        max_users: capacity of each table of users.
    """

    def __init__(self, users: UserLimits, sets: Mapping[str, LimitSets], max_users: int) -> None:
        self._sets = sets
        self._kinds = [(TOKEN_KINDS[kind], UserLimits(each, max_users)) for kind, each in sets.items()]
        # Those of the users first, which take the cost of the demand.
        self._all: list[tuple[Callable[[TokenCost], int] | None, UserLimits]] = [(None, users), *self._kinds]
        self.counts: TokenCounts = TokenCounts()

    def reservation(
        self, demand: Demand, cost: TokenCost, now: float, stored: StoredCheck | None = None
    ) -> Reservation:
        """Make what `settle` needs of tokens that `reserve`, or the shared store, has charged at ``now``."""
        if stored is not None:
            self.counts.reserved += cost.total
        return Reservation(demand, cost, now, stored)

    def reserve(
        self, demand: Demand, cost: TokenCost, now: float, parts: Mapping[str, Part | None] = NO_PARTS
    ) -> Decision:
        """Charge the user limits and all token limits, or none; ``parts`` are those of `hit_units`.

        Of several rejections the one with the longest wait is returned. A limit of which the request takes no
        token does not apply to it.
        """
        rejected: Decision | None = None
        charged: list[tuple[UserLimits, int]] = []
        usages: Usages = ()
        for units_of, limits in self._all:
            units = ceil(demand.cost) or 1 if units_of is None else units_of(cost)
            if not units:
                continue
            verdict = limits.hit_units(demand, units, now, parts)
            if isinstance(verdict, Decision):
                if rejected is None or verdict.retry_after_s > rejected.retry_after_s:
                    rejected = verdict
            else:
                charged.append((limits, units))
                usages += verdict
        if rejected is not None:
            for limits, units in charged:
                limits.give_back(demand, now, now, units)
            return rejected
        self.counts.reserved += cost.input + cost.output
        # The header fields of the dialects differ by kind, which are written from a decision.
        return decision_of(fullest_first(usages))

    def peek(self, demand: Demand, cost: TokenCost, now: float) -> Decision:
        """Return the decision of `reserve`, and charge nothing."""
        decision = self.reserve(demand, cost, now)
        if decision.allowed:
            self.counts.reserved -= cost.total
            for units_of, limits in self._all:
                units = None if units_of is None else units_of(cost)
                if units != 0:
                    limits.give_back(demand, now, now, units)
        return decision

    def cancel(self, reservation: Reservation, now: float) -> None:
        """Give back all that was charged: the request has not run."""
        self.settle(reservation, NO_TOKENS, now)

    def extend(
        self, reservation: Reservation, output_tokens: int, now: float, *, within_limits: bool = False
    ) -> None:
        """Charge more output tokens, above the limits as well: the answer is longer than its reservation.

        If they must stay ``within_limits`` and do not, nothing is charged, and the reservation is exhausted.
        """
        if not reservation.charges:  # it is settled
            return
        demand, cost = reservation.demand, TokenCost(0, output_tokens)
        if within_limits and not self._charge_within(demand, cost, now):
            reservation.is_exhausted = True
            return
        reservation.charges.append((now, cost))
        if not within_limits:
            self.charge(demand, cost, now)

    def charge(self, demand: Demand, cost: TokenCost, now: float) -> None:
        """Charge tokens that have been used already, above the limits as well; less than none: nothing."""
        for units_of, limits in self._kinds:
            limits.charge(demand, units_of(cost), now)

    def _charge_within(self, demand: Demand, cost: TokenCost, now: float) -> bool:
        """Charge tokens under all limits, or under none; return whether they were charged."""
        charged: list[tuple[UserLimits, int]] = []
        for units_of, limits in self._kinds:
            units = units_of(cost)
            if units and isinstance(limits.hit_units(demand, units, now), Decision):
                for earlier, taken in charged:
                    earlier.give_back(demand, now, now, taken)
                return False
            charged += [(limits, units)] if units else []
        return True

    def settle(self, reservation: Reservation, actual: TokenCost, now: float) -> None:
        """Replace what was charged by the tokens that were used; a second call changes nothing.

        Unused tokens go back to the instant at which they were charged; more are charged at once. Those that
        have left the window stay away.
        """
        charges, reservation.charges = reservation.charges, []
        if not charges:
            return
        demand = reservation.demand
        for units_of, limits in self._kinds:
            excess = -units_of(actual)
            for _, cost in charges:
                excess += units_of(cost)
            if excess < 0:
                limits.charge(demand, -excess, now)
            elif excess:
                for charged_s, cost in reversed(charges):
                    units = min(excess, units_of(cost))
                    if units:
                        limits.give_back(demand, charged_s, now, units)
                        excess -= units
        self.counts.record(sum(charges[0][1]), sum(actual))

    def resize(self, change: Callable[[Limits], Limits]) -> None:
        """Apply changed token limits from now on, of at most as many units; counted units stay."""
        for (_, limits), sets in zip(self._kinds, self._sets.values(), strict=True):
            limits.resize(sets.map(change))

    def sweep(self, now: float, users: int) -> None:
        """Evict idle users among the next ``users`` of each table."""
        for _, limits in self._kinds:
            limits.sweep(now, users)
