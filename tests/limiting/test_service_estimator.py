"""What the gate learns from a period: rates, latencies, the limit."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.service_estimator import MeasurementPeriod, ServiceEstimator
from autoglm_throttle.settings.groups.control import ConcurrencySettings

LONGEST_S = 0.5
"""Under the default objective of 2 s every period ends after half a second."""


def period(**counted: Any) -> MeasurementPeriod:
    counts: dict[str, Any] = {
        "lasted_s": 0.5,
        "arrived": (0, 0, 0),
        "done": 50,
        "mean_s": 0.1,
        "mean_in_flight": 10.0,
        "peak": 100,
        "limited": False,
    }
    counts.update(counted)
    counts["total_s"] = counts.pop("mean_s") * counts["done"]
    return MeasurementPeriod(**counts)


def service(**settings: Any) -> ServiceEstimator:
    return ServiceEstimator(ConcurrencySettings(**{"latency_budget": 0.25} | settings))


# --- demand ---


def test_demand_follows_arrivals_by_four_tenths() -> None:
    tested = service()
    tested.learn(period(arrived=(50, 100, 10)), 64.0)
    assert tested.demand_rps == pytest.approx([40.0, 80.0, 8.0])
    tested.learn(period(), 64.0)
    assert tested.demand_rps == pytest.approx([24.0, 48.0, 4.8])


def test_after_an_idle_time_old_demand_is_forgotten() -> None:
    tested = service()
    tested.learn(period(arrived=(500, 500, 500)), 64.0)
    tested.learn(period(lasted_s=2 * LONGEST_S, arrived=(0, 0, 0)), 64.0)
    assert tested.demand_rps[0] == pytest.approx(240.0), "the longest time that is not yet idle"
    tested.learn(period(lasted_s=600.0, arrived=(6, 60, 600)), 64.0)
    assert tested.demand_rps == pytest.approx([0.01, 0.1, 1.0])


@pytest.mark.parametrize(("priority", "left"), [(0, 100.0), (1, 70.0), (2, 10.0)])
def test_a_class_is_left_what_those_above_do_not_demand(priority: int, left: float) -> None:
    tested = service()
    tested.demand_rps = [30.0, 60.0, 500.0]
    assert tested.remaining_rps(priority, 100.0) == pytest.approx(left)


@pytest.mark.parametrize(("above", "left"), [(97.9, 2.1), (98.0, 0.0), (300.0, 0.0)])
def test_two_hundredths_of_the_rate_are_too_few_to_wait_for(above: float, left: float) -> None:
    tested = service()
    tested.demand_rps = [above, 0.0, 0.0]
    assert tested.remaining_rps(1, 100.0) == pytest.approx(left)


# --- latency ---


def test_latency_moves_half_way() -> None:
    tested = service()
    assert tested.latency_s == 0.05
    tested.learn(period(mean_s=0.15), 64.0)
    assert tested.latency_s == pytest.approx(0.10)
    tested.learn(period(mean_s=0.20), 64.0)
    assert tested.latency_s == pytest.approx(0.15)


def test_a_mean_below_a_millisecond_is_read_as_one() -> None:
    tested = service()
    tested.learn(period(mean_s=0.0, mean_in_flight=0.0), 64.0)
    assert tested.unloaded_s == 0.001


def test_the_unloaded_latency_is_the_lowest_long_mean() -> None:
    tested = service()
    tested.learn(period(mean_s=0.4), 64.0)
    assert tested.unloaded_s == pytest.approx(0.4)
    tested.learn(period(mean_s=0.2), 64.0)
    assert tested.unloaded_s == pytest.approx(0.3), "the second of two weighs a half"
    tested.learn(period(mean_s=9.0), 64.0)
    assert tested.unloaded_s == pytest.approx(0.3), "load does not raise it"


def test_from_the_tenth_period_on_the_long_mean_moves_by_a_tenth() -> None:
    tested = service()
    for _ in range(20):
        tested.learn(period(mean_s=1.0), 64.0)
    tested.learn(period(mean_s=0.5), 64.0)
    assert tested.unloaded_s == pytest.approx(0.95)


@pytest.mark.parametrize(("peak", "unloaded"), [(2, 0.4 + 0.3 * 0.6), (3, 0.4), (4, 0.4)])
def test_latency_at_or_below_the_floor_is_unloaded_latency(peak: int, unloaded: float) -> None:
    tested = service(inflight_floor=2)
    tested.learn(period(mean_s=0.4), 64.0)
    tested.learn(period(mean_s=1.0, peak=peak), 64.0)
    assert tested.unloaded_s == pytest.approx(unloaded)


# --- the latency budget and patience ---


@pytest.mark.parametrize(
    ("unloaded_s", "budget_s", "out_of_reach"),
    [
        (None, 0.5, False),
        (0.1, 0.5, False),  # a quarter of the objective
        (0.3, 0.75, False),  # 2.5 unloaded latencies
        (0.8, 1.4, False),  # 0.7 of the objective
        (1.0, 1.4, False),
        (1.01, 2.525, True),  # the objective cannot be met even without load
        (10.0, 25.0, True),
    ],
)
def test_the_latency_budget(unloaded_s: float | None, budget_s: float, out_of_reach: bool) -> None:
    tested = service()
    tested.unloaded_s = unloaded_s
    assert tested.budget_s == pytest.approx(budget_s)
    assert tested.slo_unreachable is out_of_reach


def test_greater_latency_budget_is_used_as_given() -> None:
    tested = service(latency_budget=0.9)
    tested.unloaded_s = 0.1
    assert tested.budget_s == pytest.approx(1.8)


@pytest.mark.parametrize(
    ("latency_s", "slo_s", "patience_s"),
    [(0.1, 2.0, 0.5), (1.3, 2.0, 0.31), (1.6, 2.0, 0.0), (0.1, 0.4, 0.1), (0.1, 0.14, 0.01), (0.1, 0.1, 0.0)],
)
def test_queue_timeout_leaves_time_for_the_response(
    latency_s: float, slo_s: float, patience_s: float
) -> None:
    tested = service()
    tested.latency_s = latency_s
    assert tested.max_wait_s(slo_s) == pytest.approx(patience_s)


# --- the service rate ---


@pytest.mark.parametrize(("done", "mean_in_flight", "rate"), [(50, 10.0, 100.0), (50, 4.0, 40.0)])
def test_below_the_limit_the_rate_is_a_lower_bound(done: int, mean_in_flight: float, rate: float) -> None:
    tested = service()
    assert tested.learn(period(done=done, mean_in_flight=mean_in_flight), 64.0) == 64.0
    assert tested.rate_rps == pytest.approx(rate)
    assert not tested.measured
    tested.learn(period(done=5, mean_in_flight=1.0), 64.0)
    assert tested.rate_rps == pytest.approx(rate), "less to do is not a slower service"


def test_nothing_is_known_of_a_rate_of_nought() -> None:
    tested = service()
    tested.learn(period(mean_s=0.0, mean_in_flight=0.0), 64.0)
    assert tested.rate_rps is None


@pytest.mark.parametrize(("limit", "rate"), [(64.0, 130.0), (11.0, 110.0)])
def test_at_the_limit_the_first_rate_is_probed_within_littles_law(limit: float, rate: float) -> None:
    tested = service()
    tested.learn(period(limited=True), limit)
    assert tested.rate_rps == pytest.approx(rate)
    assert tested.measured


@pytest.mark.parametrize(("known", "rate"), [(30.0, 30 + 0.5 * 100), (230.0, 230 - 0.3 * 100)])
def test_at_the_limit_the_rate_rises_by_half_and_falls_by_three_tenths(known: float, rate: float) -> None:
    tested = service()
    tested.rate_rps, tested.measured = known, True
    tested.learn(period(limited=True), 64.0)
    assert tested.rate_rps == pytest.approx(rate)


@pytest.mark.parametrize(("bound", "rate"), [(30.0, 130.0), (230.0, 230 - 0.3 * 100)])
def test_the_first_period_at_the_limit_replaces_a_lower_bound(bound: float, rate: float) -> None:
    tested = service()
    tested.rate_rps = bound
    tested.learn(period(limited=True), 64.0)
    assert tested.rate_rps == pytest.approx(rate)


@pytest.mark.parametrize(
    ("rate", "priority", "patience_s", "places"),
    [(None, 2, 0.5, 6), (100.0, 0, 0.5, 50), (100.0, 2, 0.5, 5), (100.0, 2, 0.001, 0), (89.0, 2, 0.5, -1)],
)
def test_as_many_may_stand_before_a_newcomer_as_go_in_time(
    rate: float | None, priority: int, patience_s: float, places: int
) -> None:
    tested = service()
    tested.rate_rps, tested.demand_rps = rate, [60.0, 30.0, 0.0]
    assert tested.limit(priority, patience_s, capacity=7) == places


def test_a_hang_leaves_rate_and_limit() -> None:
    tested = service()
    tested.learn(period(limited=True), 64.0)
    before = (tested.rate_rps, tested.latency_s, tested.unloaded_s)
    assert tested.learn(period(done=0, limited=True, mean_in_flight=64.0, arrived=(90, 0, 0)), 64.0) == 64.0
    assert (tested.rate_rps, tested.latency_s, tested.unloaded_s) == before
    assert tested.demand_rps[0] > 0, "who knocks is counted all the same"


# --- the limit ---


def known(rate: float, unloaded_s: float = 0.1, **rules: Any) -> ServiceEstimator:
    """A service whose rate the coming period will not change: 1.3 x 50 / 0.5 s = 130/s."""
    tested = service(**rules)
    tested.rate_rps, tested.unloaded_s, tested.slow_latency_s, tested.periods = (
        rate,
        unloaded_s,
        unloaded_s,
        50,
    )
    return tested


@pytest.mark.parametrize(
    ("limit", "mean_s", "limited", "expected"),
    [
        (64.0, 0.3, True, 65.0),  # 130/s x 0.5 s
        (64.0, 0.5, False, 64.0),
        (40.0, 0.3, True, 52.0),  # at most 30 % up: Little bounds the rate to 40 / 0.3 s
        (40.0, 0.24, True, 65.0),  # up to twice while latency is below half of the budget
        (20.0, 0.1, True, 40.0),
        (200.0, 0.3, True, 140.0),  # at most 30 % down
    ],
)
def test_the_limit_goes_to_rate_times_budget_in_bounded_steps(
    limit: float, mean_s: float, limited: bool, expected: float
) -> None:
    tested = known(130.0)
    assert tested.learn(period(limited=limited, mean_s=mean_s), limit) == pytest.approx(expected)


def test_it_aims_no_lower_than_the_floor() -> None:
    tested = known(1.0, inflight_floor=5)
    assert tested.learn(period(done=1, limited=True, mean_s=0.4), 6.0) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("limit", "peak", "mean_s", "expected"),
    [
        (64.0, 3, 0.51, 65.0 * 0.4),  # nobody has reached it, and 26 are what is finished in time
        (64.0, 60, 0.51, 42.0),  # three tenths below the most inside, and no further
        (64.0, 60, 0.50, 64.0),  # not late
        (20.0, 18, 0.51, 20.0),  # a lower limit than is finished in time stays
        (1.0, 1, 0.51, 1.0),  # never raised, not even to the floor
    ],
)
def test_unreached_limit_is_lowered_when_responses_are_late(
    limit: float, peak: int, mean_s: float, expected: float
) -> None:
    tested = known(52.0)
    assert tested.learn(period(mean_s=mean_s, peak=peak, done=10), limit) == pytest.approx(expected)


def test_it_is_lowered_to_the_floor_while_no_rate_is_known() -> None:
    tested = known(1.0, inflight_floor=5)
    tested.rate_rps = None
    late = period(done=1, mean_s=1.0, mean_in_flight=0.0, peak=1)
    assert tested.learn(late, 64.0) == pytest.approx(5.0)


def test_an_idle_time_lowers_nothing() -> None:
    tested = known(52.0)
    late = period(lasted_s=2 * LONGEST_S + 0.01, done=10, mean_s=1.0, peak=3)
    assert tested.learn(late, 64.0) == 64.0


def test_an_idle_time_proves_no_saturation() -> None:
    tested = known(130.0)
    assert tested.learn(period(lasted_s=2 * LONGEST_S + 0.01, limited=True, mean_s=0.3), 64.0) == 64.0
    assert not tested.measured
    tested.learn(period(lasted_s=2 * LONGEST_S, limited=True, mean_s=0.3), 64.0)
    assert tested.measured


@pytest.mark.parametrize(
    ("slo_s", "period_s", "longest"), [(2.0, 0.5, 0.5), (1.0, 0.5, 0.5), (60.0, 0.5, 15.0), (2.0, 3.0, 3.0)]
)
def test_the_longest_period(slo_s: float, period_s: float, longest: float) -> None:
    assert service(slo_s=slo_s, period_s=period_s).longest_s == longest


periods = st.builds(
    period,
    lasted_s=st.floats(0.5, 30.0),
    arrived=st.tuples(*[st.integers(0, 10**5)] * 3),
    done=st.integers(0, 10**5),
    mean_s=st.floats(0.0, 100.0),
    mean_in_flight=st.floats(0.0, 10**4),
    peak=st.integers(0, 10**4),
    limited=st.booleans(),
)


@given(counted=st.lists(periods, max_size=20), start=st.integers(2, 1000), slo_s=st.floats(0.01, 600.0))
def test_whatever_is_counted_all_figures_stay_sane(
    counted: list[MeasurementPeriod], start: int, slo_s: float
) -> None:
    tested, limit = service(slo_s=slo_s), float(start)
    for one in counted:
        new = tested.learn(one, limit)
        if one.limited:
            assert limit * 0.7 - 1e-6 <= new <= limit * 2 + 1e-6
            assert new == limit or one.done
        else:
            wanted = max(2.0, (tested.rate_rps or 0.0) * tested.budget_s)
            assert min(limit, max(wanted, 0.7 * min(limit, one.peak))) - 1e-6 <= new <= limit
        limit = new
        assert tested.rate_rps is None or 0.0 < tested.rate_rps < math.inf
        assert tested.unloaded_s is None or 0.001 <= tested.unloaded_s <= 100.0
        assert 0.001 <= tested.latency_s <= 100.0
        assert 0.0 <= tested.max_wait_s(slo_s) <= slo_s / 4
        assert tested.budget_s >= slo_s / 4 or tested.slo_unreachable
