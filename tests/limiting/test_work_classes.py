"""Work classes in the limiter: what is known of each, how many there are, and who needs no slot."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter
from autoglm_throttle.limiting.work_class import (
    CLASSES_MAX,
    COUNTED,
    QUIET,
    UNCOUNTED,
    WorkClass,
    WorkClasses,
)
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import Decision, Demand, Outcome
from tests.limiting.measured_limiters import (
    HIGH,
    LOW,
    MEMORY_TARGET,
    Running,
    fill,
    limiter,
    start,
)


def serve(
    tested: AdaptiveConcurrencyLimiter, now: float, lasted_s: float, work_class: str = "", number: int = 1
) -> None:
    """So many are admitted one after another, and answered."""
    for _ in range(number):
        one = start(tested, HIGH, now, work_class)
        assert one
        tested.release(one, Outcome.SUCCESS, now + lasted_s)
        now += lasted_s


# --- how many there are ---


def test_made_up_names_vanish_and_a_real_class_stays() -> None:
    tested = limiter()
    serve(tested, 0.0, 0.01, "GET /predict")
    for number in range(10):
        assert tested.work_classes[f"GET /made-up/{number}"].name
    assert len(tested.work_classes) == 11
    for now in (10.0, 20.0, 30.0):
        tested.close_period(now)
    assert list(tested.work_classes) == ["GET /predict"]


def test_beyond_their_number_classes_share_one() -> None:
    tested = limiter()
    for number in range(CLASSES_MAX):
        assert tested.work_classes[str(number)].name == str(number)
    assert tested.work_classes["one more"] is tested.work_classes.shared
    assert tested.work_classes["another"] is tested.work_classes.shared
    assert tested.work_classes["7"].name == "7"
    assert len(tested.work_classes) == CLASSES_MAX


def test_a_class_with_requests_in_flight_is_kept() -> None:
    tested = limiter()
    one = start(tested, HIGH, 0.0, "slow")
    assert one
    for now in range(10, 100, 10):
        tested.close_period(float(now))
    assert tested.work_classes["slow"] is one.work_class


def test_a_class_is_forgotten_after_a_long_time_without_requests() -> None:
    tested = limiter()
    serve(tested, 0.0, 0.01, "old")
    for now in range(1, 240):
        tested.close_period(2.0 * now)
    assert "old" in tested.work_classes
    for now in range(240, 244):
        tested.close_period(2.0 * now)
    assert "old" not in tested.work_classes


def test_the_first_request_after_a_silence_stays_in_its_class() -> None:
    """It ends the period in which its class was named."""
    tested = limiter()
    serve(tested, 100.0, 0.1)
    assert tested.work_classes[""].done == 1


def test_requests_that_waited_longer_than_their_class_was_kept_are_counted() -> None:
    tested = fill(limiter(inflight_start=2, inflight_floor=2, slo_s=60.0, period_completions=1))
    demand, kind = Demand(LOW), tested.work_classes["patient"]
    tickets = [tested.enqueue(demand, kind, 0.1) for _ in range(2)]
    assert not any(isinstance(ticket, Decision) for ticket in tickets)
    first, second = (Running(tested.work_classes[""], COUNTED, 0.0) for _ in range(2))
    tested.release(first, Outcome.SUCCESS, 0.4)
    for now in (0.6, 1.2, 1.8, 2.4):
        tested.close_period(now)
    tested.release(second, Outcome.SUCCESS, 2.5)
    (one, other) = tested.pop_ready(2.5)
    tested.release(one, Outcome.SUCCESS, 2.6)
    tested.close_period(60.0)
    tested.release(other, Outcome.SUCCESS, 60.1)
    tested.close_period(900.0)
    assert tested.service.rate_rps
    assert kind.in_flight == kind.done == 0


# --- what each is worth ---


@pytest.mark.parametrize(
    ("unloaded_s", "budget_s"),
    [
        (None, 0.5),
        (0.1, 0.5),  # a quarter of the objective
        (0.3, 0.75),  # 2.5 unloaded latencies
        (0.4, 0.8),  # 0.4 of the objective
        (0.6, 0.8),
        (0.8, 1.0),  # 1.25 unloaded latencies
        (10.0, 12.5),
    ],
)
def test_the_latency_budget(unloaded_s: float | None, budget_s: float) -> None:
    tested = WorkClass("")
    tested.unloaded_s = unloaded_s
    assert tested.budget_s(0.25, 2.0) == pytest.approx(budget_s)
    assert tested.budget_s(0.9, 2.0) == pytest.approx(max(1.8, budget_s)), "a greater one is used as given"


def test_the_unloaded_latency_is_the_median_of_the_last_fifteen() -> None:
    tested = WorkClass("")
    tested.unloaded.extend([9.0, 0.1, 0.3])
    tested.close(0.5, 0.4, alone=True)
    assert tested.unloaded_s == 0.3
    tested.unloaded.extend([0.2] * 14)
    tested.close(0.5, 0.4, alone=True)
    assert tested.unloaded_s == 0.2
    assert len(tested.unloaded) == 15


def test_a_shared_unloaded_latency_hardly_rises() -> None:
    """Few beside it here may be many in the service."""
    tested = WorkClass("")
    tested.unloaded.append(0.1)
    tested.close(0.5, 0.4, alone=False)
    assert tested.unloaded_s == 0.1
    tested.unloaded.extend([5.0] * 15)
    tested.close(0.5, 0.4, alone=False)
    assert tested.unloaded_s == pytest.approx(0.101)
    tested.unloaded.extend([0.05] * 15)
    tested.close(0.5, 0.4, alone=False)
    assert tested.unloaded_s == 0.05


def test_figures_of_a_class_are_smoothed() -> None:
    tested = WorkClass("")
    tested.arrived, tested.done, tested.total_s = 50, 20, 4.0
    tested.close(0.5, 0.4, alone=True)
    assert (tested.demand_rps, tested.rate_rps, tested.mean_s) == pytest.approx((40.0, 16.0, 0.2))
    tested.begin()
    assert (tested.arrived, tested.done, tested.total_s) == (0, 0, 0.0)
    tested.done, tested.total_s = 10, 4.0
    tested.close(0.5, 0.4, alone=True)
    assert tested.mean_s == pytest.approx(0.3)


# --- the objective that is not set ---


def test_an_objective_is_learned_from_five_easy_answers() -> None:
    classes = WorkClasses(None, {"declared": 7.0})
    tested = classes["any"]
    figures = []
    for number, lasted_s in ((4, 3.0), (1, 1.0), (200, 0.01)):
        for _ in range(number):
            tested.add_easy(lasted_s)
        tested.close(1.0, 1.0, alone=True)
        figures.append((tested.learned_slo_s, classes.slo_of(tested), classes.is_known(tested)))
    assert figures == [(None, 2.0, False), (12.0, 12.0, True), (2.0, 2.0, True)], "2 s at least"
    assert classes.slo_of(classes["declared"]) == 7.0


def test_the_learned_objective_is_four_times_the_95th_percentile() -> None:
    tested = WorkClass("")
    for number in range(1, 102):
        tested.add_easy(float(number))
    tested.close(1.0, 1.0, alone=True)
    assert tested.learned_slo_s == 4.0 * 96.0


def test_a_set_objective_is_not_learned() -> None:
    tested = limiter(slo_s=3.0)
    serve(tested, 0.0, 5.0, number=10)
    assert tested.slo_s == 3.0
    assert not tested.view(99.0).slo_learned


def test_the_limiter_learns_its_objective_from_easy_answers_after_the_first_completion() -> None:
    tested = limiter(slo_s=None)
    both = [start(tested, HIGH, 0.0) for _ in range(10)]
    for one in both:
        assert one
        tested.release(one, Outcome.SUCCESS, 30.0)  # the model was loading
    serve(tested, 30.1, 1.0, number=4)
    tested.close_period(34.2)
    assert tested.slo_s == 2.0
    serve(tested, 35.0, 1.0)
    view = tested.view(60.0)
    assert tested.slo_s == pytest.approx(4.0)
    assert view.slo_learned
    assert view.slo_s == pytest.approx(4.0)


def test_while_no_objective_is_known_late_answers_lower_nothing() -> None:
    limits = []
    for slo_s in (None, 2.0):
        tested = limiter(slo_s=slo_s)
        running = [start(tested, HIGH, 0.0) for _ in range(20)]
        for one in running:
            assert one
            tested.release(one, Outcome.SUCCESS, 1.9)
        tested.close_period(2.5)
        limits.append(tested.limit)
    assert limits[0] == 64.0
    assert limits[1] < 64.0


def test_a_model_that_loads_proves_no_unloaded_latency() -> None:
    tested = limiter()
    one, other = start(tested, HIGH, 0.0), start(tested, HIGH, 1.0)
    assert one
    assert other
    tested.release(one, Outcome.SUCCESS, 30.0)
    tested.release(other, Outcome.SUCCESS, 30.0)
    tested.close_period(40.0)
    assert tested.view(40.0).unloaded_s is None
    serve(tested, 40.0, 0.1)
    tested.close_period(50.0)
    assert tested.view(50.0).unloaded_s == pytest.approx(0.1)


@pytest.mark.parametrize(("workers", "known"), [(1, True), (4, False)])
def test_with_several_workers_nobody_may_have_been_limited_lately(workers: int, known: bool) -> None:
    group = ConcurrencySettings(slo_s=2.0, inflight_start=4 * workers)
    tested = AdaptiveConcurrencyLimiter(group, 0.0, memory_target=MEMORY_TARGET, workers=workers)
    serve(tested, 0.0, 0.1)
    running = [start(tested, HIGH, 0.2) for _ in range(5)]
    assert running[-1] is None, "the limit was reached"
    for one in running[:-1]:
        assert one
        tested.release(one, Outcome.SUCCESS, 0.3)
    serve(tested, 0.4, 0.1)
    assert bool(tested.work_classes[""].unloaded) is known


def test_a_class_that_gets_client_errors_is_measured_apart() -> None:
    tested = limiter()
    for number in range(4):
        one = start(tested, HIGH, 0.0)
        assert one
        tested.release(one, Outcome.SUCCESS, 0.2, client_error=number > 0)
    assert tested.work_classes[""].done == 1
    assert tested.work_classes.client_errors.done == 3
    tested.close_period(9.0)
    assert [one.name for one in tested.view(9.0).work_classes] == ["client_error", ""]


# --- negligible requests ---


def two_classes(limit: int = 64, **settings: Any) -> AdaptiveConcurrencyLimiter:
    """A limiter that has found the class ``light`` negligible beside ``heavy``."""
    tested = limiter(inflight_start=limit, inflight_floor=1, min_share=0.0, **settings)
    serve(tested, 0.0, 0.5, "heavy", 2)
    serve(tested, 1.0, 0.001, "light", 4)
    tested.close_period(1.1)
    assert tested.work_classes["light"].negligible
    assert not tested.work_classes["heavy"].negligible
    return tested


@pytest.mark.parametrize(("limit", "most"), [(8, 3), (40, 3), (100, 5)])
def test_negligible_requests_need_no_slot_up_to_a_share_of_the_limit(limit: int, most: int) -> None:
    tested = two_classes(limit)
    for _ in range(limit):
        assert start(tested, HIGH, 1.2, "heavy")
    held = [start(tested, LOW, 1.2, "light") for _ in range(most + 1)]
    assert [one.slot if one else None for one in held] == [UNCOUNTED] * most + [None]
    assert tested.in_flight == limit
    assert tested.work_classes["light"].in_flight == most
    first = held[0]
    assert first
    tested.pause(first, 1.2)
    assert (first.slot, tested.paused) == (UNCOUNTED, 0), "there is nothing to give back"
    for one in held[:-1]:
        assert one
        tested.release(one, Outcome.SUCCESS, 1.21)
    assert (tested.in_flight, tested.work_classes["light"].in_flight) == (limit, 0)


def test_a_class_that_turns_slow_is_counted_again() -> None:
    tested = two_classes()
    serve(tested, 1.2, 0.5, "light", 4)
    tested.close_period(9.0)
    assert not tested.work_classes["light"].negligible
    one = start(tested, HIGH, 9.0, "light")
    assert one
    assert one.slot == QUIET
    assert tested.in_flight == 1


def test_a_single_class_is_never_negligible() -> None:
    tested = limiter()
    serve(tested, 0.0, 0.0, number=10)
    tested.close_period(9.0)
    assert not tested.work_classes[""].negligible


def test_the_view_shows_at_most_sixteen_classes_by_traffic() -> None:
    tested = limiter()
    for number in range(20):
        serve(tested, 0.0, 0.0, f"{number}", number + 1)
    tested.close_period(2.0)
    shown = tested.view(2.0).work_classes
    assert [one.name for one in shown] == [f"{number}" for number in range(19, 3, -1)]
    assert (shown[0].in_flight, shown[0].mean_s) == (0, 0.0)
    assert shown[0].rate_rps == pytest.approx(0.4 * 20 / 2.0)
