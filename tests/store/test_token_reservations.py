"""Shared token limits on a scripted store: denials, extensions, settlements, and local reservations."""

from __future__ import annotations

import pytest

from autoglm_throttle.limiting.token_limits import TokenLimits
from autoglm_throttle.limiting.user_limits import LimitSets
from autoglm_throttle.store.protocol import WindowEntry
from autoglm_throttle.store.shared_tokens import SharedTokenLimits
from autoglm_throttle.types import Decision, TokenCost, TokenLimit
from tests.store.scripted_store import denied, granted
from tests.store.shared_user_limits import ALICE, MAX_USERS, MINUTE, Question, Shared

TOKENS = TokenLimit("tokens-60s", 1000, 60)


@pytest.fixture
def shared() -> Shared:
    return Shared(MINUTE, failures=1)


@pytest.fixture
def limits(shared: Shared) -> SharedTokenLimits:
    each = LimitSets([(TOKENS,)] * 3, by_plan={}, by_route={}, address_factor=2.0, prefix="tokens.")
    local = TokenLimits(shared.windows.fallback.limits, {"tokens": each}, MAX_USERS)
    shared.windows.fallback.tokens = local
    return SharedTokenLimits(shared.windows, local, {"tokens": each})


def question(shared: Shared, limits: SharedTokenLimits, tokens: int = 40) -> Question:
    check = limits.reserve(ALICE, TokenCost(0, tokens), 0.0)
    assert isinstance(check, WindowEntry)
    return Question(shared.windows, ALICE, check, 0.0)


def changes(shared: Shared) -> list[int]:
    """Return the tokens of each message about tokens: given back, or charged below 0."""
    return [charge.units for charges, _ in shared.store.given_back for charge in charges]


def test_extensions_follow_their_use_and_one_settlement_ends_them(
    shared: Shared, limits: SharedTokenLimits
) -> None:
    asked = question(shared, limits)
    assert asked.resolve(granted(limits=2), 0.0).allowed
    reservation = asked.charges.reservation
    assert reservation is not None
    for _ in range(3):
        limits.extend(reservation, 256, 1.0)
    assert changes(shared) == [-256, -256]
    limits.settle(reservation, TokenCost(0, 600), 2.0)
    limits.settle(reservation, TokenCost(0, 0), 2.0)
    limits.extend(reservation, 256, 2.0)
    assert changes(shared) == [-256, -256, -48]
    counts = limits.counts
    assert (counts.reserved, counts.settled, counts.overrun) == (40, 600, 560)


def test_refund_of_a_check_leaves_the_tokens_to_their_reservation(
    shared: Shared, limits: SharedTokenLimits
) -> None:
    asked = question(shared, limits)
    asked.resolve([*granted(3), 0, 900, 60_000_000, 29], 0.0)
    assert asked.charges.reservation is not None
    limits.cancel(asked.charges.reservation, 0.0)
    asked.undo(0.0)
    (tokens, stamps), (users, answer) = shared.store.given_back
    assert [(charge.kind, charge.units) for charge in (*tokens, *users)] == [("tokens.user", 40), ("user", 1)]
    assert (stamps[3], answer[3]) == (29, granted()[3])


def test_user_that_was_denied_is_denied_without_a_check(shared: Shared, limits: SharedTokenLimits) -> None:
    asked = question(shared, limits)
    assert not asked.resolve([*denied(9_000_000), *granted(900)], 0.0).allowed
    denial = limits.reserve(ALICE, TokenCost(0, 1), 0.5)
    assert isinstance(denial, Decision)
    assert (denial.detail, denial.retry_after_s) == ("user:user-60s", 8.5)
    assert limits.counts.reserved == 0


def test_reservation_of_this_process_is_extended_and_settled_here(
    shared: Shared, limits: SharedTokenLimits
) -> None:
    shared.lose(0.0)
    decision = limits.reserve(ALICE, TokenCost(0, 40), 0.0)
    assert isinstance(decision, Decision)
    assert decision.allowed
    reservation = limits.reservation(ALICE, TokenCost(0, 40), 0.0)
    limits.extend(reservation, 256, 0.0)
    limits.settle(reservation, TokenCost(0, 950), 0.0)
    assert changes(shared) == []
    rejected = limits.reserve(ALICE, TokenCost(0, 51), 1.0)
    assert isinstance(rejected, Decision)
    assert (rejected.detail, rejected.remaining) == ("user:tokens-60s", 50)
    limits.sweep(61.0, 10)
    assert limits.reserve(ALICE, TokenCost(0, 1000), 61.0).allowed  # type: ignore[union-attr]
