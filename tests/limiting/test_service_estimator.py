"""What the limiter learns from a period: rates, latencies, patience."""

from __future__ import annotations

import pytest

from tests.limiting.estimated_service import LONGEST_S, Service

# --- demand ---


def test_demand_follows_arrivals_by_four_tenths() -> None:
    service = Service()
    service.learn(arrived=(50, 100, 10))
    assert service.tested.demand_rps == pytest.approx([40.0, 80.0, 8.0])
    service.learn()
    assert service.tested.demand_rps == pytest.approx([24.0, 48.0, 4.8])


def test_after_an_idle_time_old_demand_is_forgotten() -> None:
    service = Service()
    service.learn(arrived=(500, 500, 500))
    service.learn(lasted_s=2 * LONGEST_S)
    assert service.tested.demand_rps[0] == pytest.approx(240.0), "the longest time that is not yet idle"
    service.learn(lasted_s=600.0, arrived=(6, 60, 600))
    assert service.tested.demand_rps == pytest.approx([0.01, 0.1, 1.0])


@pytest.mark.parametrize(("priority", "left"), [(0, 100.0), (1, 70.0), (2, 10.0)])
def test_a_priority_is_left_what_those_above_do_not_demand(priority: int, left: float) -> None:
    tested = Service().tested
    tested.demand_rps = [30.0, 60.0, 500.0]
    assert tested.remaining_rps(priority, 100.0) == pytest.approx(left)


@pytest.mark.parametrize(("above", "left"), [(97.9, 2.1), (98.0, 0.0), (300.0, 0.0)])
def test_two_hundredths_of_the_rate_are_too_few_to_wait_for(above: float, left: float) -> None:
    tested = Service().tested
    tested.demand_rps = [above, 0.0, 0.0]
    assert tested.remaining_rps(1, 100.0) == pytest.approx(left)


# --- latency ---


def test_latency_moves_half_way() -> None:
    service = Service()
    assert service.tested.latency_s == 0.05
    service.learn(mean_s=0.15)
    assert service.tested.latency_s == pytest.approx(0.10)
    service.learn(mean_s=0.20)
    assert service.tested.latency_s == pytest.approx(0.15)


def test_the_latency_of_several_classes_is_weighted_by_time() -> None:
    service = Service()
    service.learn(64.0, ("short", 90, 0.01), ("long", 10, 5.0))
    weighted_s = (90 * 0.01 * 0.01 + 10 * 5.0 * 5.0) / (90 * 0.01 + 10 * 5.0)
    assert service.tested.latency_s == pytest.approx(0.05 + (weighted_s - 0.05) / 2)
    assert service.classes["short"].negligible
    assert not service.classes["long"].negligible


def test_a_mean_below_a_millisecond_is_read_as_one() -> None:
    service = Service()
    service.learn(mean_s=0.0, mean_in_flight=0.0)
    assert service.tested.latency_s == pytest.approx((0.05 + 0.001) / 2)


def test_the_unloaded_latency_shown_is_that_of_the_class_with_most_work() -> None:
    service = Service().know(short=0.01, long=5.0)
    assert Service().tested.unloaded_s is None
    service.learn(64.0, ("short", 90, 0.01), ("long", 10, 5.0))
    assert service.tested.unloaded_s == 5.0


def test_an_objective_out_of_reach_is_reported_only_if_it_is_proven() -> None:
    service = Service()
    service.learn(mean_s=9.0)
    reported = [service.tested.slo_unreachable]
    for unloaded_s in (1.0, 1.01):
        service.know(plain=unloaded_s).learn()
        reported.append(service.tested.slo_unreachable)
    assert reported == [False, False, True], "slow answers alone may be load"
    assert service.tested.aim_s == pytest.approx(1.25 * 1.01), "the budget stays that of the formula"


# --- the latency aim ---


def test_all_classes_share_the_least_queueing_budget() -> None:
    service = Service(objectives={"short": 0.5, "long": 20.0}).know(short=0.01, long=5.0)
    service.learn(64.0, ("short", 90, 0.05), ("long", 10, 6.0))
    # Alone: 0.125 s and 8 s; the short ones may queue for 0.115 s, so all may.
    assert service.tested.aim_s == pytest.approx((90 * 0.125 + 10 * 5.115) / 100)


def test_a_class_of_unknown_unloaded_latency_aims_at_its_mean_and_the_shared_budget() -> None:
    service = Service(objectives={"short": 0.5, "new": 20.0}).know(short=0.01)
    service.learn(64.0, ("short", 90, 0.05), ("new", 10, 1.0))
    assert service.tested.aim_s == pytest.approx((90 * 0.125 + 10 * 1.115) / 100)
    service.learn(64.0, ("short", 90, 0.05), ("new", 10, 99.0))
    assert service.tested.aim_s == pytest.approx((90 * 0.125 + 10 * 5.0) / 100), "at most its budget"


def test_while_no_unloaded_latency_is_known_the_common_queue_lasts_the_least_budget() -> None:
    service = Service(objectives={"short": 0.5, "long": 20.0})
    service.learn(64.0, ("short", 50, 0.05), ("long", 50, 1.0))
    assert service.tested.aim_s == pytest.approx((0.125 + 1.0 + 0.125) / 2)
    service.learn(64.0, ("short", 50, 0.05), ("long", 50, 2.0))
    assert service.tested.aim_s == pytest.approx((0.125 + 1.0 + 0.125) / 2), "the least mean so far"
    service.learn(64.0, ("short", 1, 0.05), ("long", 1, 0.5))
    service.learn(64.0, ("short", 50, 0.05), ("long", 50, 1.0))
    assert service.tested.aim_s == pytest.approx((0.125 + 1.0 + 0.125) / 2), "one answer may be an easy one"
    service.learn(64.0, ("short", 50, 0.05), ("long", 50, 0.5))
    assert service.tested.aim_s == pytest.approx((0.125 + 0.5 + 0.125) / 2)


def test_beside_a_negligible_class_the_other_keeps_its_whole_budget() -> None:
    service = Service(objectives={"light": 0.5, "long": 20.0})
    service.learn(64.0, ("light", 50, 0.001), ("long", 50, 1.0))
    assert service.tested.aim_s == pytest.approx((0.125 + 5.0) / 2)


# --- patience ---


@pytest.mark.parametrize(
    ("latency_s", "slo_s", "patience_s"),
    [(0.1, 2.0, 0.5), (1.3, 2.0, 0.31), (1.6, 2.0, 0.0), (0.1, 0.4, 0.1), (0.1, 0.14, 0.01), (0.1, 0.1, 0.0)],
)
def test_queue_timeout_leaves_time_for_the_response(
    latency_s: float, slo_s: float, patience_s: float
) -> None:
    service = Service()
    service.tested.latency_s = latency_s
    assert service.tested.max_wait_s(service.classes[""], slo_s) == pytest.approx(patience_s)
    service.classes["known"].mean_s = latency_s
    service.tested.latency_s = 99.0
    assert service.tested.max_wait_s(service.classes["known"], slo_s) == pytest.approx(patience_s)


@pytest.mark.parametrize(("arrived", "patience_s"), [(5, 0.125), (4, 5.0)])
def test_the_least_objective_with_a_share_of_the_arrivals_bounds_all_waits(
    arrived: int, patience_s: float
) -> None:
    service = Service(objectives={"short": 0.5, "long": 20.0})
    service.classes["short"].arrived = arrived
    service.classes["long"].arrived = 100 - arrived
    service.learn(64.0, ("short", 5, 0.2), ("long", 95, 1.0))
    assert service.tested.patience_s == pytest.approx(patience_s)
    assert service.tested.max_wait_s(service.classes["long"], None) == pytest.approx(patience_s)
    assert service.tested.max_wait_s(service.classes["short"], None) == pytest.approx(0.125)


def test_negligible_classes_have_no_say_in_the_wait_of_others() -> None:
    service = Service(objectives={"health": 0.1, "long": 20.0})
    service.classes["health"].arrived = service.classes["long"].arrived = 50
    service.learn(64.0, ("health", 50, 0.001), ("long", 50, 1.0))
    assert service.tested.patience_s == pytest.approx(5.0)


# --- the service rate ---


@pytest.mark.parametrize(("done", "mean_in_flight", "rate"), [(50, 10.0, 100.0), (50, 4.0, 40.0)])
def test_below_the_limit_the_rate_is_a_lower_bound(done: int, mean_in_flight: float, rate: float) -> None:
    service = Service()
    assert service.learn(done=done, mean_in_flight=mean_in_flight) == 64.0
    assert service.tested.rate_rps == pytest.approx(rate)
    assert not service.tested.measured
    service.learn(done=5, mean_in_flight=1.0)
    assert service.tested.rate_rps == pytest.approx(rate), "less to do is not a slower service"


def test_nothing_is_known_of_a_rate_of_nought() -> None:
    service = Service()
    service.learn(mean_s=0.0, mean_in_flight=0.0)
    assert service.tested.rate_rps is None


@pytest.mark.parametrize(("limit", "rate"), [(64.0, 130.0), (11.0, 110.0)])
def test_at_the_limit_the_first_rate_is_probed_within_littles_law(limit: float, rate: float) -> None:
    service = Service()
    service.learn(limit, limited=True)
    assert service.tested.rate_rps == pytest.approx(rate)
    assert service.tested.measured


def test_negligible_requests_are_no_rate() -> None:
    service = Service()
    service.learn(64.0, ("light", 300, 0.001), ("heavy", 20, 0.5), limited=True)
    service.tested.measured, service.tested.rate_rps = False, None
    service.learn(64.0, ("light", 300, 0.001), ("heavy", 20, 0.5), limited=True)
    assert service.tested.rate_rps == pytest.approx(1.3 * 20 / 0.5)


@pytest.mark.parametrize(("known", "rate"), [(30.0, 30 + 0.5 * 100), (230.0, 230 - 0.3 * 100)])
def test_at_the_limit_the_rate_rises_by_half_and_falls_by_three_tenths(known: float, rate: float) -> None:
    service = Service().know(known)
    service.tested.measured = True
    service.learn(limited=True)
    assert service.tested.rate_rps == pytest.approx(rate)


@pytest.mark.parametrize(("bound", "rate"), [(30.0, 130.0), (230.0, 230 - 0.3 * 100)])
def test_the_first_period_at_the_limit_replaces_a_lower_bound(bound: float, rate: float) -> None:
    service = Service().know(bound)
    service.learn(limited=True)
    assert service.tested.rate_rps == pytest.approx(rate)


@pytest.mark.parametrize(
    ("rate", "priority", "patience_s", "places"),
    [(None, 2, 0.5, 7), (100.0, 0, 0.5, 50), (100.0, 2, 0.5, 5), (100.0, 2, 0.001, 0), (89.0, 2, 0.5, -1)],
)
def test_as_many_may_be_ahead_of_a_newcomer_as_end_in_time(
    rate: float | None, priority: int, patience_s: float, places: int
) -> None:
    tested = Service().know(rate).tested
    tested.demand_rps = [60.0, 30.0, 0.0]
    assert tested.limit(priority, patience_s, unmeasured=7) == places
    tested.is_unloaded = True
    assert tested.limit(priority, patience_s, unmeasured=7) == 7, "the limit is about to double"


def test_a_hang_leaves_rate_and_limit() -> None:
    service = Service()
    service.learn(limited=True)
    before = (service.tested.rate_rps, service.tested.latency_s)
    assert service.learn(done=0, limited=True, mean_in_flight=64.0, arrived=(90, 0, 0)) == 64.0
    assert (service.tested.rate_rps, service.tested.latency_s) == before
    assert service.tested.demand_rps[0] > 0, "who knocks is counted all the same"
