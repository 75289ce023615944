"""Limits of tokens: reserved all or none, settled into their own place, never above the limit unasked."""

from __future__ import annotations

import copy
import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from autoglm_throttle.limiting.token_limits import TOKEN_KINDS, Reservation, TokenLimits
from autoglm_throttle.limiting.user_limits import LimitSets, UserLimits
from autoglm_throttle.types import Decision, Demand, Reason, TokenCost, TokenLimit, UserLimit
from autoglm_throttle.types.requests import COUNTED_LIMITS

ANN = Demand(user="ann")
WINDOW_S = 60


def sets(*limits: UserLimit) -> LimitSets:
    return LimitSets([limits] * 3, by_plan={}, by_route={}, address_factor=10.0)


def limit(kind: str, tokens: int, window_s: int = WINDOW_S) -> TokenLimit:
    return TokenLimit(f"{kind}-{window_s}s", tokens, window_s)


def token_limits(requests: int = 1000, **kinds: int) -> TokenLimits:
    users = UserLimits(sets(UserLimit("user-60s", requests, WINDOW_S)), 1000)
    return TokenLimits(users, {kind: sets(limit(kind, tokens)) for kind, tokens in kinds.items()}, 1000)


def reserve(limits: TokenLimits, cost: TokenCost, now: float = 0.0, demand: Demand = ANN) -> Reservation:
    assert limits.reserve(demand, cost, now).allowed
    return limits.reservation(demand, cost, now)


def rejection(limits: TokenLimits, cost: TokenCost, now: float = 0.0, demand: Demand = ANN) -> Decision:
    decision = limits.reserve(demand, cost, now)
    assert not decision.allowed
    return decision


def left(limits: TokenLimits, now: float = 0.0, demand: Demand = ANN) -> dict[str, int]:
    """Return what each limit has left, without a change."""
    cost = TokenCost(1, 1)
    verdict = limits.reserve(demand, cost, now)
    assert verdict.allowed
    reservation = limits.reservation(demand, cost, now)
    limits.settle(reservation, TokenCost(0, 0), now)
    units = {"tokens": 2, "input": 1, "output": 1, "user": 0}
    return {used.name: used.remaining + units[used.name.partition("-")[0]] for used in verdict.limits}


@pytest.mark.parametrize("requests", [5, 50])
def test_concurrent_requests_never_reserve_more_than_the_limit(requests: int) -> None:
    limits = token_limits(tokens=100)
    verdicts = [limits.reserve(ANN, TokenCost(20, 20), 0.0) for _ in range(requests)]
    assert sum(verdict.allowed for verdict in verdicts) == 2
    assert {verdict.detail for verdict in verdicts if not verdict.allowed} == {"user:tokens-60s"}


def test_each_kind_counts_its_own_tokens() -> None:
    limits = token_limits(tokens=100, input=90, output=80)
    reserve(limits, TokenCost(30, 20))
    assert left(limits) == {"tokens-60s": 50, "input-60s": 60, "output-60s": 60, "user-60s": 998}


def test_rejected_request_takes_nothing_and_names_the_longest_wait() -> None:
    limits = token_limits(requests=1, tokens=100, output=50)
    limits.settle(reserve(limits, TokenCost(10, 50)), TokenCost(10, 50), 30.0)
    rejected = rejection(limits, TokenCost(10, 10), 30.0)
    assert (rejected.detail, rejected.reason) == ("user:output-60s", Reason.USER)
    assert rejected.retry_after_s == 31.0  # the buckets of a second end later than the log of requests
    assert limits.reserve(ANN, TokenCost(50, 50), 61.0).allowed


def test_request_above_the_whole_limit_never_fits() -> None:
    rejected = rejection(token_limits(tokens=100), TokenCost(60, 41))
    assert (rejected.reason, rejected.detail) == (Reason.TOO_LARGE, "too_large:tokens-60s")
    assert rejected.retry_after_s == math.inf
    assert rejected.limit == 100


def test_kind_without_tokens_does_not_apply() -> None:
    limits = token_limits(output=10)
    reservation = reserve(limits, TokenCost(5, 5))
    limits.settle(reservation, TokenCost(5, 50), 0.0)
    assert limits.reserve(ANN, TokenCost(10_000, 0), 0.0).allowed
    assert rejection(limits, TokenCost(0, 1)).retry_after_s == 61.0


def test_unused_tokens_go_back_to_their_own_place() -> None:
    limits = token_limits(tokens=100)
    early = reserve(limits, TokenCost(0, 60), 0.0)
    reserve(limits, TokenCost(0, 40), 30.0)
    limits.settle(early, TokenCost(0, 10), 31.0)
    assert left(limits, 31.0)["tokens-60s"] == 50
    assert left(limits, 61.0)["tokens-60s"] == 60  # the ten that were used have left
    limits.settle(early, TokenCost(0, 0), 61.0)
    assert left(limits, 61.0)["tokens-60s"] == 60


def test_unused_tokens_that_have_left_the_window_are_not_given_back() -> None:
    limits = token_limits(tokens=100)
    early = reserve(limits, TokenCost(0, 60), 0.0)
    reserve(limits, TokenCost(0, 40), 65.0)
    limits.settle(early, TokenCost(0, 0), 66.0)
    assert left(limits, 66.0)["tokens-60s"] == 60


def test_excess_is_charged_at_once_and_the_wait_is_exact() -> None:
    limits = token_limits(tokens=100)
    reservation = reserve(limits, TokenCost(10, 10), 0.0)
    limits.settle(reservation, TokenCost(10, 653), 20.0)
    rejected = rejection(limits, TokenCost(1, 0), 20.0)
    assert (rejected.remaining, rejected.retry_after_s) == (0, 61.0)
    assert rejection(limits, TokenCost(1, 0), 80.9).detail == "user:tokens-60s"
    assert left(limits, 81.0)["tokens-60s"] == 100


def test_excess_is_counted_up_to_a_maximum() -> None:
    limits = token_limits(tokens=100)
    for _ in range(3):
        limits.settle(Reservation(ANN, TokenCost(0, 0), 0.0), TokenCost(0, 100 * COUNTED_LIMITS), 0.0)
    assert rejection(limits, TokenCost(1, 0), 60.9).remaining == 0
    assert left(limits, 61.0)["tokens-60s"] == 100


def test_long_answer_is_charged_while_it_grows() -> None:
    limits = token_limits(tokens=1000)
    reservation = reserve(limits, TokenCost(100, 50), 0.0)
    limits.extend(reservation, 256, 10.0)
    limits.extend(reservation, 256, 20.0)
    assert left(limits, 20.0)["tokens-60s"] == 1000 - 150 - 512
    limits.settle(reservation, TokenCost(90, 306), 30.0)
    assert left(limits, 30.0)["tokens-60s"] == 1000 - 396
    assert left(limits, 61.0)["tokens-60s"] == 1000 - 256 + 10  # the newest charge went back first


def test_settled_reservation_is_not_extended() -> None:
    limits = token_limits(tokens=100)
    reservation = reserve(limits, TokenCost(20, 20))
    limits.settle(reservation, TokenCost(20, 10), 0.0)
    limits.extend(reservation, 50, 0.0)
    assert left(limits)["tokens-60s"] == 70


def test_priority_without_token_limits_is_not_charged() -> None:
    none = LimitSets([()] * 3, by_plan={}, by_route={}, address_factor=10.0)
    users = UserLimits(sets(UserLimit("user-60s", 1000, WINDOW_S)), 1000)
    limits = TokenLimits(users, {"tokens": none}, 1000)
    reservation = reserve(limits, TokenCost(500, 500))
    limits.extend(reservation, 256, 0.0)
    limits.settle(reservation, TokenCost(500, 800), 0.0)
    assert left(limits) == {"user-60s": 998}


def test_counts_are_those_of_the_reservation() -> None:
    limits = token_limits(tokens=1000)
    limits.settle(reserve(limits, TokenCost(100, 50)), TokenCost(100, 20), 0.0)
    limits.settle(reserve(limits, TokenCost(100, 50)), TokenCost(100, 90), 0.0)
    counts = limits.counts
    assert (counts.reserved, counts.settled) == (300, 310)
    assert (counts.given_back, counts.overrun) == (30, 40)


def test_address_limits_unverified_users() -> None:
    limits = token_limits(tokens=100)
    for n in range(5):
        invented = Demand(user=f"key-{n}", address="a", group="g")
        limits.settle(reserve(limits, TokenCost(50, 50), demand=invented), TokenCost(50, 150), 0.0)
    assert (
        rejection(limits, TokenCost(1, 1), demand=Demand(user="new", address="a")).policy
        == "address-tokens-60s"
    )


def test_several_windows_of_one_kind_are_charged_together() -> None:
    day = {"tokens": sets(limit("tokens", 100), limit("tokens", 150, 3600))}
    limits = TokenLimits(UserLimits(sets(), 1000), day, 1000)
    limits.settle(reserve(limits, TokenCost(0, 60)), TokenCost(0, 120), 0.0)
    assert rejection(limits, TokenCost(0, 1), 60.0).policy == "tokens-60s"
    assert rejection(limits, TokenCost(0, 31), 61.0).policy == "tokens-3600s"
    reserve(limits, TokenCost(0, 30), 61.0)


def test_share_of_a_process_is_resized_and_keeps_what_it_has_counted() -> None:
    limits = token_limits(tokens=100)
    reserve(limits, TokenCost(20, 20))
    limits.resize(lambda each: tuple(TokenLimit(one.name, 50, one.window_s) for one in each))
    assert rejection(limits, TokenCost(6, 5)).remaining == 10
    assert limits.reserve(ANN, TokenCost(5, 5), 0.0).allowed


def test_only_a_part_of_each_limit_may_be_used_up() -> None:
    limits = token_limits(tokens=100)
    assert limits.reserve(ANN, TokenCost(20, 20), 0.0, {"user": (40,)}).allowed
    assert not limits.reserve(ANN, TokenCost(20, 20), 0.0, {"user": (79,)}).allowed


def test_reservation_of_the_store_is_counted_when_it_is_made() -> None:
    limits = token_limits(tokens=100)
    limits.reservation(ANN, TokenCost(3, 4), 0.0, (None, ()))
    assert limits.counts.reserved == 7


def test_idle_users_are_evicted() -> None:
    limits = token_limits(tokens=100)
    reserve(limits, TokenCost(1, 1))
    limits.sweep(61.0, 10)
    assert [each.users for _, each in limits._kinds] == [0]


KINDS = {"tokens": 200, "output": 120}


class TokenMachine(RuleBasedStateMachine):
    """Reservations and settlements in any order: the windows hold what is reserved or was used."""

    costs = st.builds(TokenCost, st.integers(0, 60), st.integers(0, 60))

    def __init__(self) -> None:
        super().__init__()
        self.limits = token_limits(**KINDS)
        self.now = 0.0
        self.open: list[tuple[Reservation, dict[str, list[float]]]] = []
        self.charged: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}  # Instants and tokens

    def counts(self, at: float) -> bool:
        """Whether a bucket of one second still counts."""
        return at + 61 > self.now

    def fits(self, kind: str, units: int) -> bool:
        used = sum(tokens for at, tokens in self.charged[kind] if self.counts(at))
        return not units or used + units <= KINDS[kind]

    @rule(cost=costs)
    def reserve(self, cost: TokenCost) -> None:
        units = {kind: TOKEN_KINDS[kind](cost) for kind in KINDS}
        verdict = self.limits.reserve(ANN, cost, self.now)
        assert verdict.allowed == all(self.fits(kind, units[kind]) for kind in KINDS)
        if not verdict.allowed:
            self.check_wait(cost, verdict.retry_after_s)
            return
        entries = {kind: [self.now, float(units[kind])] for kind in KINDS}
        for kind, entry in entries.items():
            self.charged[kind].append(entry)
        self.open.append((Reservation(ANN, cost, self.now), entries))

    def check_wait(self, cost: TokenCost, wait_s: float) -> None:
        assert 0.0 < wait_s < math.inf
        before, after = copy.deepcopy((self.limits, self.limits))
        assert not before.reserve(ANN, cost, self.now + wait_s - 0.5).allowed
        assert after.reserve(ANN, cost, self.now + wait_s).allowed

    @precondition(lambda self: self.open)
    @rule(data=st.data(), actual=costs)
    def settle(self, data: st.DataObject, actual: TokenCost) -> None:
        reservation, entries = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.limits.settle(reservation, actual, self.now)
        self.limits.settle(reservation, TokenCost(0, 0), self.now)
        for kind, entry in entries.items():
            excess = TOKEN_KINDS[kind](actual) - entry[1]
            if excess > 0:
                self.charged[kind].append([self.now, excess])
            else:
                entry[1] += excess

    @rule(seconds=st.integers(1, 70))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.limits.sweep(self.now, 5)


TestTokenMachine = TokenMachine.TestCase
