"""Leased buckets while the store is silent: each process has its share, and pays at recovery."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.store.fleet import LeasedBuckets
from autoglm_throttle.types import Decision, Demand, Priority
from tests.store.leased import MID, answer, leases, mid_of, refusal


def alone(workers: int = 4, members: int = 1, left: float = 0.0, told_s: float = 10.0) -> LeasedBuckets:
    made, _ = leases(workers=workers)
    assert made.next_request(told_s, beat=True) is not None
    made.apply_reply(answer((0, 0), (2, left), (0, 0), members=members), told_s)
    made.store_lost(10.0)
    made.store_lost(11.0)
    return made


def test_local_mode_limits_each_process_to_its_share() -> None:
    made = alone()
    assert made.all[1].tokens(10.0) == 2.0
    for _ in range(2):  # what was drawn is drawn
        assert made.take(MID, 10.0) is made.all[1]
    assert refusal(made.take(MID, 10.0)).retry_after_s == pytest.approx(1 / 125)
    taken = sum(not isinstance(made.take(MID, 10.0 + n / 1000), Decision) for n in range(1001))
    assert taken == 125
    assert not made.is_up


@pytest.mark.parametrize(("workers", "members", "part"), [(1, 5, 100.0), (4, 2, 125.0), (1, 1, 500.0)])
def test_among_how_many_it_is_divided(workers: int, members: int, part: float) -> None:
    made = alone(workers, members)
    assert made.all[1].tokens(10.5) == pytest.approx(2.0 + 0.5 * part)


@pytest.mark.parametrize(
    ("left", "told_s", "holds"), [(0.0, 10.0, 0), (100.0, 10.0, 25), (100.0, 9.9, 37), (100.0, 5.0, 125)]
)
def test_local_mode_starts_with_share_of_store_tokens(left: float, told_s: float, holds: int) -> None:
    """Its remaining tokens plus 500/s since then; a bucket of 500, shared by four."""
    made = alone(left=left, told_s=told_s)
    admitted = 0
    while not isinstance(made.take(MID, 10.0), Decision):
        admitted += 1
    assert admitted == 2 + holds


@pytest.mark.parametrize("ceiling", [1.0, 0.0])
def test_local_mode_without_reply_admits_only_the_first(ceiling: float) -> None:
    made, _ = leases()
    made.rescale((ceiling,) * 3, 0.0)
    made.store_lost(0.1)
    assert made.take(MID, 0.1) is made.all[1]
    assert isinstance(made.take(MID, 0.1), Decision)


@given(
    told=st.floats(0.0, 500.0), silent_s=st.floats(0.0, 5.0), ceiling=st.floats(0.0, 1.0), n=st.integers(2, 9)
)
def test_all_together_begin_with_no_more_than_the_store_holds(
    told: float, silent_s: float, ceiling: float, n: int
) -> None:
    made = leases(workers=n)[0]
    made.rescale((ceiling,) * 3, 0.0)
    made.apply_reply(answer((0, 0), (0, told), (0, 0)), 1.0)
    made.store_lost(1.0 + silent_s)
    holds = min(500.0, told + 500.0 * ceiling * silent_s)
    assert n * made.all[1].tokens(1.0 + silent_s) == pytest.approx(holds, abs=1e-3)


def test_rates_are_those_of_fleet_or_own_share() -> None:
    made = alone()
    assert made.rates == (250.0, 125.0, 25.0)
    made.rescale((1.0, 0.4, 0.0), 10.0)
    assert made.rates == (250.0, 50.0, 0.0)
    made.apply_reply(answer((0, 0), (0, 400), (0, 0)), 10.5)
    assert made.rates == (1000.0, 200.0, 0.0)


def test_other_users_of_store_are_notified_once_of_loss() -> None:
    made, _ = leases()
    told: list[float] = []
    made.on_store_lost = told.append
    made.store_lost(1.0)
    made.store_lost(2.0)
    assert told == [1.0]
    made.apply_reply(answer((0, 0), (0, 400), (0, 0)), 3.0)
    made.store_lost(4.0)
    assert told == [1.0, 4.0]


def test_reported_failure_is_accepted_and_retried_at_once() -> None:
    made, woken = leases()
    made.report_failure(1.0)
    assert made.health.since_s == 1.0
    assert made.is_decidable(MID, 1.0), "nobody waits for it"
    made.report_failure(2.0)
    assert (made.health.since_s, woken) == (1.0, [1.0])


def test_alone_the_ceiling_still_cuts() -> None:
    made = alone()
    made.rescale((1.0, 0.4, 1.0), 10.0)
    assert made.all[1].tokens(10.5) == pytest.approx(2.0 + 0.5 * 125 * 0.4)
    made.rescale((1.0, 0.0, 1.0), 10.5)
    assert refusal(made.take(Demand(Priority.MID, cost=90.0), 10.5)).retry_after_s == math.inf


def test_local_mode_allows_more_than_share_at_recovery() -> None:
    made = alone()
    assert refusal(made.take(Demand(Priority.MID, cost=400.0), 10.0)).retry_after_s == 1.0


def test_local_spending_is_deducted_at_recovery() -> None:
    made = alone()
    for number in range(52):
        made.take(MID, 10.5 + number / 1e6)
    figures = made.next_request(10.5, beat=True)
    assert figures is not None
    assert mid_of(figures) == pytest.approx([500.0, 500.0, 0.0, 0.0, -50.0], abs=1e-3)
    made.take(MID, 10.5)  # while the question is under way
    made.apply_reply(answer((0, 0), (0, 400), (0, 0)), 10.51)
    assert made.is_up
    figures = made.next_request(10.52, beat=True)
    assert figures is not None
    assert mid_of(figures)[4] == pytest.approx(-1.0, abs=1e-3)


def test_long_outage_deducts_only_the_present_deficit() -> None:
    made = alone()
    for number in range(5000):
        made.take(MID, 10.0 + number / 100)
    figures = made.next_request(70.0, beat=True)
    assert figures is not None
    assert mid_of(figures)[4] == 0.0, "the own part is full again"
