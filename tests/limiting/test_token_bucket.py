"""Buckets against exact rational arithmetic, and the promises they make about instants."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.token_bucket import DONOR_RESERVE, PriorityBuckets, TokenBucket
from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.types import BorrowMode, Decision, Demand, Priority, Reason

# Binary fractions: floats add and multiply them without rounding, so the reference may be compared exactly.
gaps = st.integers(0, 400).map(lambda n: n / 128)
costs = st.integers(1, 40).map(lambda n: n / 4)
factors = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
starts = st.sampled_from([0.0, 17.5, 1_000_000.0])


@dataclass
class Event:
    """One call and what it changed."""

    at: Fraction
    taken: Fraction
    refill: Fraction
    """Tokens per second from here on."""


def replay(bucket: TokenBucket, start: float, calls: list[tuple[str, float, float]]) -> list[Event]:
    """Drive a bucket beside the exact reference; both must agree at each call."""
    now, tokens, rate = start, Fraction(bucket.burst), Fraction(bucket.rate)
    outstanding: list[float] = []
    events = [Event(Fraction(now), Fraction(0), rate)]
    for verb, gap, amount in calls:
        now += gap
        tokens = min(Fraction(bucket.burst), tokens + Fraction(gap) * rate)
        taken = Fraction(0)
        if verb == "take":
            wait = bucket.take(amount, now)
            assert (wait == 0.0) is (tokens >= Fraction(amount))
            if not wait:
                taken = Fraction(amount)
                outstanding.append(amount)
        elif verb == "rescale":
            bucket.rescale(amount, now)
            rate = Fraction(bucket.nominal) * Fraction(amount)
        elif outstanding:
            taken = -Fraction(outstanding.pop())
            bucket.give_back(-float(taken), now)
        tokens = min(Fraction(bucket.burst), tokens - taken)
        assert Fraction(bucket.tokens(now)) == tokens
        assert 0 <= tokens <= bucket.burst
        events.append(Event(Fraction(now), taken, rate))
    return events


verbs = st.one_of(
    st.tuples(st.just("take"), gaps, costs),
    st.tuples(st.just("take"), st.just(0.0), costs),
    st.tuples(st.just("give_back"), gaps, st.just(0.0)),
    st.tuples(st.just("rescale"), gaps, factors),
)


@given(
    rate=st.sampled_from([0.5, 3.0, 64.0]),
    burst=st.sampled_from([1.0, 7.25, 64.0]),
    start=starts,
    calls=st.lists(verbs, max_size=30),
)
def test_any_interval_admits_at_most_burst_and_the_integral_of_the_rate(
    rate: float, burst: float, start: float, calls: list[tuple[str, float, float]]
) -> None:
    events = replay(TokenBucket(rate, burst, start), start, calls)
    for first in range(1, len(events)):
        net = accumulate(event.taken for event in events[first:])
        refills = (
            (later.at - earlier.at) * earlier.refill
            for earlier, later in zip(events[first:], events[first + 1 :], strict=False)
        )
        for admitted, refilled in zip(net, accumulate(refills, initial=Fraction(0)), strict=True):
            assert admitted <= Fraction(burst) + refilled


@given(
    times=st.lists(st.floats(0.0, 50.0), min_size=1, max_size=40),
    cost=costs,
    rate=st.sampled_from([1.0, 8.0]),
)
def test_a_clock_that_goes_back_never_gives_more_than_its_span_allows(
    times: list[float], cost: float, rate: float
) -> None:
    bucket = TokenBucket(rate, 10.0, times[0])
    admitted = sum(cost for now in times if not bucket.take(cost, now))
    assert admitted <= 10.0 + rate * (max(times) - times[0]) + 1e-9
    assert 0.0 <= bucket.tokens(max(times)) <= 10.0


def test_a_clock_that_went_back_reads_as_standing_still() -> None:
    bucket = TokenBucket(2.0, 4.0, 100.0)
    assert bucket.take(3.0, 100.0) == 0.0
    assert bucket.tokens(50.0) == 1.0
    assert bucket.take(1.0, 50.0) == 0.0
    assert bucket.take(1.0, 50.0) == 50.5, "half a second after the last instant that was seen"
    bucket.give_back(0.5, 40.0)
    bucket.rescale(0.5, 30.0)
    assert bucket.tokens(100.0) == 0.5
    assert bucket.tokens(101.0) == 1.5


@given(
    rate=st.floats(0.001, 1e6),
    burst_s=st.floats(1e-4, 1e4),
    start=st.floats(0.0, 1e9),
    share=st.floats(0.05, 1.0),
    before=st.floats(0.0, 0.7),
)
def test_rejected_before_retry_after_and_admitted_at_it(
    rate: float, burst_s: float, start: float, share: float, before: float
) -> None:
    burst = rate * burst_s
    bucket = TokenBucket(rate, burst, start)
    assert bucket.take(burst, start) == 0.0
    cost = burst * share
    wait = bucket.take(cost, start)
    for earlier in (start, start + wait * before, start + wait - 1e-6):
        assert bucket.take(cost, earlier) > 0.0
    assert bucket.take(cost, start + wait) == 0.0
    assert 0.0 <= bucket.tokens(start + wait) <= rate * 2.0 * math.ulp(start + wait)


@given(wait=st.floats(1e-3, 1e3), start=st.floats(0.0, 1e9))
def test_the_wait_is_never_a_rounding_error_too_short(wait: float, start: float) -> None:
    bucket = TokenBucket(1.0 / wait, 1.0, start)
    bucket.take(1.0, start)
    promised = bucket.take(1.0, start)
    assert bucket.take(1.0, start + promised) == 0.0


@pytest.mark.parametrize(
    ("rate", "cost", "now"), [(11.0, 37.0, 0.51), (3.0, 40.0, 0.54), (7.0, 12.0, 0.65), (7.0, 33.0, 0.27)]
)
def test_a_wait_that_rounding_would_cut_short_is_lengthened(rate: float, cost: float, now: float) -> None:
    bucket = TokenBucket(rate, cost, 0.0)
    assert bucket.take(cost, 0.0) == 0.0
    ready = cost / rate
    assert now + (ready - now) < ready
    assert now + bucket.take(cost, now) >= ready


def test_one_microsecond_before_retry_after_is_rejected() -> None:
    bucket = TokenBucket(3.0, 5.0, 1000.0)
    assert bucket.take(5.0, 1000.0) == 0.0
    wait = bucket.take(1.0, 1000.1)
    assert wait == pytest.approx(1 / 3 - 0.1)
    assert bucket.take(1.0, 1000.1 + wait - 1e-6) == pytest.approx(1e-6, rel=1e-3)
    assert bucket.take(1.0, 1000.1 + wait) == 0.0


@given(factor=st.one_of(st.floats(), st.sampled_from([-0.5, 1.5, math.nan, math.inf, -math.inf])))
def test_no_factor_makes_a_refill_negative_or_above_nominal(factor: float) -> None:
    bucket = TokenBucket(100.0, 100.0, 0.0)
    bucket.take(60.0, 0.0)
    bucket.rescale(factor, 0.0)
    assert 0.0 <= bucket.rate <= 100.0
    assert 40.0 <= bucket.tokens(0.1) <= 50.0


def test_a_rescale_counts_the_time_before_at_the_old_rate() -> None:
    bucket = TokenBucket(10.0, 100.0, 0.0)
    bucket.take(100.0, 0.0)
    bucket.rescale(0.5, 2.0)
    assert bucket.tokens(2.0) == 20.0
    assert bucket.tokens(4.0) == 30.0
    bucket.rescale(0.0, 4.0)
    assert bucket.tokens(1000.0) == 30.0
    assert bucket.take(30.0, 1000.0) == 0.0
    assert bucket.take(1.0, 1000.0) == math.inf, "nothing refills it"


def test_rejected_take_changes_nothing() -> None:
    bucket = TokenBucket(1.0, 10.0, 0.0)
    bucket.take(8.0, 0.0)
    other = copy.deepcopy(bucket)
    for cost, now in [(3.0, 0.0), (10.0, 1.5), (11.0, 2.0), (2.0, -1e9)]:
        bucket.take(cost, now, keep=9.0)
    assert (bucket._tokens, bucket._stamp, bucket.rate) == (other._tokens, other._stamp, other.rate)
    assert bucket.tokens(3.5) == other.tokens(3.5) == 5.5


def test_more_than_the_burst_is_never_possible() -> None:
    bucket = TokenBucket(1.0, 10.0, 0.0)
    assert bucket.take(10.000001, 0.0) == math.inf
    assert bucket.take(6.0, 0.0, keep=5.0) == math.inf
    assert bucket.take(10.0, 0.0) == 0.0


def test_giving_back_never_lifts_a_bucket_above_its_burst() -> None:
    bucket = TokenBucket(1.0, 10.0, 0.0)
    bucket.take(4.0, 0.0)
    bucket.give_back(4.0, 100.0)
    assert bucket.tokens(100.0) == 10.0
    bucket.take(4.0, 100.0)
    bucket.give_back(1.0, 100.0)
    assert bucket.tokens(100.0) == 7.0


# --- three priorities ---


def rates(high: float, mid: float, low: float, **others: Any) -> RateSettings:
    return RateSettings(rate_high_rps=high, rate_mid_rps=mid, rate_low_rps=low, **others)


def drained(borrow: BorrowMode, *left: float) -> PriorityBuckets:
    """Buckets of 100 tokens and 10, 20, 40 a second that hold ``left`` at instant 0."""
    buckets = PriorityBuckets(rates(100.0, 100.0, 100.0, borrow=borrow), 0.0)
    for bucket, rate, tokens in zip(buckets.all, (0.1, 0.2, 0.4), left, strict=True):
        bucket.rescale(rate, 0.0)
        if tokens < bucket.burst:
            bucket.take(bucket.burst - tokens, 0.0)
    return buckets


def payer(buckets: PriorityBuckets, priority: Priority, cost: float, now: float = 0.0) -> str:
    paid = buckets.take(Demand(priority, cost=cost), now)
    return "" if isinstance(paid, Decision) else paid.name


@pytest.mark.parametrize(
    ("borrow", "priority", "left", "paid_by"),
    [
        (BorrowMode.OFF, Priority.HIGH, (0, 100, 100), ""),
        (BorrowMode.DOWN, Priority.HIGH, (0, 100, 100), "low"),
        (BorrowMode.DOWN, Priority.HIGH, (0, 100, 59), "mid"),
        (BorrowMode.DOWN, Priority.HIGH, (0, 59, 60), "low"),
        (BorrowMode.DOWN, Priority.HIGH, (0, 59, 59), ""),
        (BorrowMode.DOWN, Priority.HIGH, (10, 0, 0), "high"),
        (BorrowMode.DOWN, Priority.MID, (100, 9, 100), "low"),
        (BorrowMode.DOWN, Priority.MID, (100, 9, 0), ""),
        (BorrowMode.DOWN, Priority.LOW, (100, 100, 9), ""),
        (BorrowMode.ANY, Priority.LOW, (100, 100, 9), "mid"),
        (BorrowMode.ANY, Priority.LOW, (100, 59, 9), "high"),
        (BorrowMode.ANY, Priority.MID, (100, 9, 59), "high"),
        (BorrowMode.ANY, Priority.MID, (59, 9, 59), ""),
        (BorrowMode.ANY, Priority.HIGH, (9, 100, 100), "low"),
    ],
)
def test_lender_by_borrow_mode_and_priority(
    borrow: BorrowMode, priority: Priority, left: tuple[float, ...], paid_by: str
) -> None:
    buckets = drained(borrow, *left)
    assert payer(buckets, priority, 10.0) == paid_by
    after = [bucket.tokens(0.0) for bucket in buckets.all]
    spent = [10.0 if bucket.name == paid_by else 0.0 for bucket in buckets.all]
    assert after == [had - gone for had, gone in zip(left, spent, strict=True)]


@given(
    borrow=st.sampled_from(BorrowMode),
    calls=st.lists(
        st.tuples(gaps, st.sampled_from(Priority), costs, st.sampled_from([None, None, 0.0, 0.5, 1.0])),
        max_size=40,
    ),
)
def test_all_together_stay_within_the_sum_of_bursts_and_rates(
    borrow: BorrowMode, calls: list[tuple[float, Priority, float, float | None]]
) -> None:
    per_second = 16.0 + 8.0 + 4.0
    buckets = PriorityBuckets(rates(16.0, 8.0, 4.0, borrow=borrow), 0.0)
    now, factor, refilled, admitted = 0.0, 1.0, 0.0, 0.0
    for gap, priority, cost, rescaled in calls:
        now += gap
        refilled += per_second * factor * gap
        if rescaled is not None:
            factor = rescaled
            buckets.rescale((factor,) * 3, now)
        before = [bucket.tokens(now) for bucket in buckets.all]
        paid = buckets.take(Demand(priority, cost=cost), now)
        after = [bucket.tokens(now) for bucket in buckets.all]
        assert all(0.0 <= left <= bucket.burst for left, bucket in zip(after, buckets.all, strict=True))
        if isinstance(paid, Decision):
            assert after == before, "a refused take changes nothing, with any lender"
            continue
        admitted += cost
        if paid is not buckets.all[priority]:
            assert paid.tokens(now) >= paid.burst * DONOR_RESERVE
            assert borrow is not BorrowMode.OFF
        assert admitted <= per_second + refilled


@given(
    borrow=st.sampled_from(BorrowMode),
    priority=st.sampled_from(Priority),
    left=st.tuples(*[st.integers(0, 100).map(float)] * 3),
    cost=st.integers(1, 100).map(float),
    now=st.floats(0.0, 3.0),
    before=st.floats(0.0, 0.999),
)
def test_rejection_names_the_first_time_any_bucket_has_tokens(
    borrow: BorrowMode,
    priority: Priority,
    left: tuple[float, ...],
    cost: float,
    now: float,
    before: float,
) -> None:
    buckets = drained(borrow, *left)
    rejection = buckets.take(Demand(priority, cost=cost), now)
    if not isinstance(rejection, Decision):
        return
    assert rejection.retry_after_s > 0.0
    for wait in (rejection.retry_after_s * before, rejection.retry_after_s - 1e-6):
        assert payer(copy.deepcopy(buckets), priority, cost, now + wait) == ""
    assert payer(buckets, priority, cost, now + rejection.retry_after_s)


def test_borrower_waits_for_the_first_lender() -> None:
    buckets = drained(BorrowMode.DOWN, 0.0, 0.0, 50.0)
    rejection = buckets.take(Demand(Priority.HIGH, cost=50.0), 0.0)
    assert isinstance(rejection, Decision)
    assert rejection.retry_after_s == 1.25, (
        "low has 100 then and keeps 50; high would have 50 after 5 s, mid never"
    )
    assert payer(buckets, Priority.HIGH, 50.0, 1.25) == "low"


def test_rejection_carries_all_figures() -> None:
    buckets = PriorityBuckets(RateSettings(), 0.0)
    assert payer(buckets, Priority.LOW, 99.5) == "low"
    rejection = buckets.take(Demand(Priority.LOW), 0.0)
    assert isinstance(rejection, Decision)
    assert (rejection.allowed, rejection.reason, rejection.detail) == (False, Reason.RATE, "rate:low")
    assert (rejection.policy, rejection.limit, rejection.remaining) == ("low", 100.0, 0.5)
    assert rejection.retry_after_s == pytest.approx(0.005)
    assert rejection.limits == ()


def test_a_cost_above_the_bucket_can_never_fit() -> None:
    buckets = PriorityBuckets(RateSettings(), 0.0)
    rejection = buckets.take(Demand(Priority.LOW, cost=100.5), 0.0)
    assert isinstance(rejection, Decision)
    assert (rejection.reason, rejection.detail) == (Reason.TOO_LARGE, "too_large:rate")
    assert rejection.retry_after_s == math.inf
    assert rejection.limit == 100.0


def test_a_cost_above_the_own_bucket_fits_a_larger_lender() -> None:
    buckets = PriorityBuckets(RateSettings(borrow=BorrowMode.ANY), 0.0)
    assert payer(buckets, Priority.LOW, 200.0) == "mid"
    rejection = buckets.take(Demand(Priority.LOW, cost=501.0), 0.0)
    assert isinstance(rejection, Decision)
    assert rejection.reason is Reason.TOO_LARGE, "even the largest keeps half of its burst"


def test_bucket_at_factor_0_makes_no_request_too_large() -> None:
    buckets = PriorityBuckets(RateSettings(), 0.0)
    buckets.rescale((0.0,) * 3, 0.0)
    assert payer(buckets, Priority.LOW, 100.0) == "low"
    rejection = buckets.take(Demand(Priority.LOW), 5.0)
    assert isinstance(rejection, Decision)
    assert (rejection.reason, rejection.retry_after_s) == (Reason.GPU, math.inf)


def test_a_bucket_holds_at_least_one_request() -> None:
    buckets = PriorityBuckets(RateSettings(rate_high_rps=0.001, burst_s=0.5), 0.0)
    assert [bucket.burst for bucket in buckets.all] == [1.0, 250.0, 50.0]
    assert [bucket.name for bucket in buckets.all] == ["high", "mid", "low"]
    assert payer(buckets, Priority.HIGH, 1.0) == "high"


def test_each_class_has_a_ceiling_of_its_own() -> None:
    buckets = PriorityBuckets(RateSettings(), 0.0)
    buckets.rescale((0.115, 0.23, 1.0), 0.0)
    assert [bucket.rate for bucket in buckets.all] == [115.0, 115.0, 100.0]
    for wrong in ((1.0,), (1.0,) * 4):
        with pytest.raises(ValueError, match="zip"):
            buckets.rescale(wrong, 0.0)


def test_all_buckets_are_rescaled_together() -> None:
    buckets = PriorityBuckets(RateSettings(), 0.0)
    buckets.rescale((0.4,) * 3, 0.0)
    assert [bucket.rate for bucket in buckets.all] == [400.0, 200.0, 40.0]


@pytest.mark.parametrize(
    ("factor", "reason", "detail"), [(1.0, Reason.RATE, "rate:low"), (0.7, Reason.GPU, "gpu:ceiling")]
)
def test_a_cut_rate_is_our_load_and_a_nominal_one_the_callers_limit(
    factor: float, reason: Reason, detail: str
) -> None:
    buckets = PriorityBuckets(RateSettings(), 0.0)
    buckets.rescale((factor,) * 3, 0.0)
    assert payer(buckets, Priority.LOW, 100.0) == "low"
    rejection = buckets.take(Demand(Priority.LOW), 0.0)
    assert isinstance(rejection, Decision)
    assert (rejection.reason, rejection.detail) == (reason, detail)
    assert rejection.retry_after_s == pytest.approx(1.0 / (100.0 * factor))
