"""Denials that are repeated without asking the store."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.fallback import COSTS_AT_MOST, DenyCache, Key
from autoglm_throttle.types import Decision, LimitStatus, Reason, UserLimit
from tests.limiting.reference_log import ReferenceLog

LIMITS = (UserLimit("user-2s", 3, 2), UserLimit("user-5s", 5, 5))
LONG_LIVED = StoreSettings(refused_cache_s=60.0)
ANN: Key = ("user", "ann", "", 1)


def key(user: str = "ann", units: int = 1, address: str = "") -> Key:
    return ("user", user, address, units)


def refusal(retry_s: float = 30.0, reset_s: float = 10.0) -> Decision:
    return Decision(False, Reason.USER, "user:user-60s", "user-60s", 100, 2, retry_s, reset_s, 60)


def too_large() -> Decision:
    return Decision(False, Reason.TOO_LARGE, "too_large:user-60s", "user-60s", 100, 100, math.inf, 0.0, 60)


ticks = st.integers(0, 3 * 1024).map(lambda n: n / 1024.0)  # exact as floats, so that instants are, too
acts = st.sampled_from(["ask", "ask", "ask", "spend elsewhere", "give back"])
steps = st.tuples(ticks, acts, st.sampled_from(["ann", "ben"]), st.integers(1, 6), ticks, ticks)


def ask(
    store: ReferenceLog, cache: DenyCache, asked: Key, sent_s: float, arrives_s: float, now: float
) -> None:
    """Ask the store: it decides after the sending, and its answer arrives later."""
    expected = store.hit(asked[1], asked[3], arrives_s)
    if not expected.allowed:
        large = math.isinf(expected.retry_after_s)
        reason = Reason.TOO_LARGE if large else Reason.USER
        cache.put(
            asked,
            Decision(False, reason, "", "user-2s", 6, 0, expected.retry_after_s, window_s=2),
            sent_s,
            now,
        )


@given(trace=st.lists(steps, max_size=60), ask_again_s=st.sampled_from([0.25, 1.0, 60.0]))
def test_cache_never_rejects_what_store_allows(
    trace: list[tuple[float, str, str, int, float, float]], ask_again_s: float
) -> None:
    store, cache, now = ReferenceLog(LIMITS), DenyCache(StoreSettings(refused_cache_s=ask_again_s)), 1024.0
    for gap, act, user, units, to_store, back in trace:
        now += gap
        asked = key(user, units)
        if act == "spend elsewhere":
            store.hit(user, units, now)
        elif act == "give back":
            del store.units[user][-units:]
            cache.remove(key(user, 1))
        else:
            known = cache.find(asked, now)
            if known is None:
                ask(store, cache, asked, now, now + to_store, now + to_store + back)
                now += to_store + back
            else:
                would = store.look(user, units, now)
                assert not would.allowed
                assert known.retry_after_s <= would.retry_after_s


@given(retry_s=st.floats(0.001, 60.0), later=st.lists(st.floats(0.0, 1.2), max_size=8))
def test_remaining_wait_ends_at_one_instant(retry_s: float, later: list[float]) -> None:
    cache = DenyCache(LONG_LIVED)
    cache.put(ANN, refusal(retry_s), 50.0, 50.0)
    free_s = 50.0 + retry_s
    for step_s in later:
        now = 50.0 + step_s
        known = cache.find(ANN, now)
        if now < free_s:
            assert known is not None
            assert known.retry_after_s == pytest.approx(free_s - now)
            assert cache.find(ANN, now + known.retry_after_s) is None
        else:
            assert known is None


def test_the_store_is_asked_again_after_a_second() -> None:
    cache = DenyCache(StoreSettings())
    cache.put(ANN, refusal(30.0), 99.5, 100.0)
    assert [cache.find(ANN, now) is not None for now in (100.0, 100.999, 101.0)] == [True, True, False]


def test_or_before_if_the_wait_is_over() -> None:
    cache = DenyCache(StoreSettings())
    cache.put(ANN, refusal(0.75), 99.5, 100.0)
    assert [cache.find(ANN, now) is not None for now in (100.0, 100.249, 100.25)] == [True, True, False]


def test_the_wait_counts_from_the_sending() -> None:
    cache = DenyCache(StoreSettings())
    cache.put(ANN, refusal(30.0, 10.0), 99.5, 100.0)
    known = cache.find(ANN, 100.5)
    assert known == refusal(29.0, 9.0)


def test_a_wait_that_is_over_before_it_is_known_is_not_kept() -> None:
    cache = DenyCache(StoreSettings())
    cache.put(ANN, refusal(0.5), 99.5, 100.0)
    assert len(cache.callers) == 0


def test_another_cost_or_address_is_another_request() -> None:
    cache = DenyCache(StoreSettings())
    cache.put(key(units=5), refusal(), 100.0, 100.0)
    assert cache.find(key(units=4), 100.0) is None
    assert cache.find(key(units=5, address="host"), 100.0) is None
    assert cache.find(("plan-gold", "ann", "", 5), 100.0) is None


def test_costs_of_one_caller_stand_beside_each_other() -> None:
    cache = DenyCache(StoreSettings())
    for units in range(1, 20):
        cache.put(key(units=units), refusal(float(units)), 100.0, 100.0)
    kept = [units for units in range(20) if cache.find(key(units=units), 100.0) is not None]
    assert kept == list(range(20 - COSTS_AT_MOST, 20))
    cache.put(key(units=12), refusal(7.0), 100.5, 100.5)
    assert cache.find(key(units=12), 100.5) == refusal(7.0)
    assert cache.find(key(units=19), 100.5) == refusal(18.5, 9.5)


def test_expired_denial_allows_another_cost() -> None:
    cache = DenyCache(StoreSettings())
    cache.put(key(units=101), too_large(), 100.0, 100.0)
    for units in range(1, COSTS_AT_MOST):
        cache.put(key(units=units), refusal(0.5), 100.0, 100.0)
    cache.put(key(units=50), refusal(), 100.5, 100.5)
    assert cache.find(key(units=101), 100.5) is not None
    assert cache.find(key(units=50), 100.5) is not None


def test_one_cost_takes_one_place() -> None:
    cache = DenyCache(StoreSettings())
    cache.put(key(units=2), refusal(), 100.0, 100.0)
    for _ in range(2 * COSTS_AT_MOST):
        cache.put(key(units=1), refusal(), 100.0, 100.0)
    assert cache.find(key(units=2), 100.0) is not None


def test_waiting_retry_after_ends_the_denial() -> None:
    for n in range(2000):
        cache, sent_s = DenyCache(LONG_LIVED), 0.1 + n / 7.0
        cache.put(ANN, refusal(3.3), sent_s, sent_s)
        now = sent_s + n / 999.0
        known = cache.find(ANN, now)
        assert known is not None
        assert cache.find(ANN, now + known.retry_after_s) is None


def test_a_refund_lets_a_caller_ask_for_anything() -> None:
    cache = DenyCache(StoreSettings())
    for units in (1, 5):
        cache.put(key(units=units), refusal(), 100.0, 100.0)
    cache.put(key("ben"), refusal(), 100.0, 100.0)
    cache.remove(key(units=2))
    assert [cache.find(key(units=units), 100.0) for units in (1, 5)] == [None, None]
    assert cache.find(key("ben"), 100.0) is not None
    cache.remove(key("nobody"))


def test_too_large_cost_is_never_asked_again() -> None:
    cache = DenyCache(StoreSettings())
    cache.put(key(units=101), too_large(), 100.0, 100.0)
    assert cache.find(key(units=101), 1e9) == too_large()


def test_other_waits_without_end_are_left_alone() -> None:
    cache = DenyCache(StoreSettings())
    cache.put(ANN, refusal(math.inf), 100.0, 100.0)
    assert len(cache.callers) == 0


def test_every_answer_is_a_fresh_one() -> None:
    cache, told = DenyCache(StoreSettings()), refusal(30.0, 10.0)
    beside = LimitStatus("user-1s", 5, 1, 3, 0.5)
    told.others = (beside,)
    cache.put(ANN, told, 100.0, 100.0)
    told.remaining, told.detail, beside.remaining = -7, "spoilt", -7
    for _ in range(2):
        known = cache.find(ANN, 100.25)
        assert known is not None
        assert known.others == (LimitStatus("user-1s", 5, 1, 3, 0.25),)
        assert known == Decision(
            False, Reason.USER, "user:user-60s", "user-60s", 100, 2, 29.75, 9.75, 60, known.others
        )
        known.others[0].remaining, known.remaining, known.retry_after_s = -7, -7, -7.0


def test_resets_that_are_over_read_zero() -> None:
    cache, told = DenyCache(StoreSettings()), refusal(30.0, 0.25)
    told.others = (LimitStatus("user-1s", 5, 1, 3, 0.5),)
    cache.put(ANN, told, 100.0, 100.0)
    known = cache.find(ANN, 100.75)
    assert known is not None
    assert (known.reset_after_s, known.others[0].reset_s) == (0.0, 0.0)


@given(
    size=st.integers(0, 5),
    puts=st.lists(st.tuples(st.floats(0.0, 0.7), st.integers(0, 9), st.booleans()), max_size=60),
)
def test_it_is_bounded_and_forgets_the_oldest(size: int, puts: list[tuple[float, int, bool]]) -> None:
    cache, now = DenyCache(StoreSettings(refused_cache=size)), 100.0
    for gap, user, large in puts:
        now += gap
        asked = key(str(user))
        cache.put(asked, too_large() if large else refusal(), now, now)
        assert len(cache.callers) <= size
        assert (cache.find(asked, now) is not None) is (size > 0)


def test_the_oldest_goes_first() -> None:
    cache = DenyCache(StoreSettings(refused_cache=3))
    for user in ("ann", "ben", "cyd", "dan"):
        cache.put(key(user), refusal(), 100.0, 100.0)
    known = [cache.find(key(user), 100.0) is not None for user in ("ann", "ben", "cyd", "dan")]
    assert known == [False, True, True, True]


def test_expired_denials_are_removed() -> None:
    cache = DenyCache(StoreSettings())
    for n in range(5):
        cache.put(key(f"large {n}", 101), too_large(), 100.0, 100.0)
        cache.put(key(f"large {n}", 1), refusal(), 100.0, 100.0)
    for wave in (100.0, 101.5, 103.0):
        for n in range(500):
            cache.put(key(f"{wave} {n}"), refusal(), wave, wave)
    assert len(cache.callers) == 505
    assert all(cache.find(key(f"large {n}", 101), 103.0) is not None for n in range(5))


def test_at_most_two_entries_are_inspected_per_insert() -> None:
    cache = DenyCache(StoreSettings())
    for n in range(100):
        cache.put(key(f"early {n}"), refusal(), 100.0, 100.0)
    cache.put(ANN, refusal(), 200.0, 200.0)
    assert len(cache.callers) == 99
