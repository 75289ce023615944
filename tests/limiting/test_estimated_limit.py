"""What the limiter makes of a period: the next limit, with one worker and with several."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limiting.estimated_service import LONGEST_S, Ends, Service

# --- the limit ---


@pytest.mark.parametrize(
    ("limit", "mean_s", "limited", "expected"),
    [
        (64.0, 0.3, True, 65.0),  # 130/s x 0.5 s
        (64.0, 0.5, False, 64.0),
        (40.0, 0.3, True, 52.0),  # at most 30 % up: Little bounds the rate to 40 / 0.3 s
        (
            40.0,
            0.24,
            True,
            62.4,
        ),  # up to twice while latency is below half of the aim; 1.3 x twice what is filled
        (20.0, 0.1, True, 26.0),
        (200.0, 0.3, True, 200.0),  # answers are in time: few requests have just begun
        (200.0, 0.6, True, 140.0),  # late: at most 30 % down
    ],
)
def test_the_limit_goes_to_rate_times_budget_in_bounded_steps(
    limit: float, mean_s: float, limited: bool, expected: float
) -> None:
    assert Service().know(130.0, plain=0.1).learn(limit, limited=limited, mean_s=mean_s) == pytest.approx(
        expected
    )


@given(
    limit=st.floats(2.0, 500.0),
    done=st.integers(1, 2000),
    mean_s=st.floats(0.002, 5.0),
    lasted_s=st.floats(0.5, 2.0),
    unloaded_s=st.one_of(st.none(), st.floats(0.001, 3.0)),
)
def test_one_class_gives_the_formula_of_the_design(
    limit: float, done: int, mean_s: float, lasted_s: float, unloaded_s: float | None
) -> None:
    """min(1.3 x rate, limit / mean) x budget, of which a class fills half at least."""
    service = Service()
    service.classes[""].unloaded_s = unloaded_s
    got = service.learn(limit, done=done, mean_s=mean_s, lasted_s=lasted_s, limited=True, mean_in_flight=0.0)
    if unloaded_s is None:
        budget_s = max(0.5, min(2.0 * mean_s, 0.8), min(1.2 * mean_s, 1.2))
    else:
        budget_s = max(0.5, min(2.5 * unloaded_s, max(0.8, 1.25 * unloaded_s)))
    wanted = max(2.0, min(1.3 * done / lasted_s, limit / mean_s) * min(2.0 * mean_s, budget_s))
    up = 2.0 if mean_s < budget_s / 2 else 1.3
    down = 1.0 if mean_s <= budget_s else 0.7
    if not math.isclose(mean_s, budget_s) and not math.isclose(mean_s, budget_s / 2):
        assert got == pytest.approx(max(down * limit, min(wanted, up * limit)))


@pytest.mark.parametrize("cheap_rps", [200, 600, 2000])
def test_a_class_at_a_millisecond_raises_the_limit_by_no_more_than_twice_its_own_in_flight(
    cheap_rps: int,
) -> None:
    service = Service()
    limit = 20.0
    for _ in range(20):
        limit = service.learn(
            limit,
            ("gpu", 20, 0.5),
            ("cheap", cheap_rps // 2, 0.001),
            limited=True,
            mean_in_flight=20.0 + cheap_rps * 0.001,
        )
        assert limit <= 1.3 * (20.0 + 2.0 * cheap_rps * 0.001), (
            "40/s of 0.5 s, probed, and twice of the others"
        )
    alone, limit = Service().know(gpu=0.2), 20.0
    for _ in range(20):
        limit = alone.learn(limit, ("gpu", 20, 0.5), limited=True, mean_in_flight=20.0)
    assert limit <= 1.3 * 20.0


def test_what_is_wanted_falls_by_three_tenths_when_answers_are_late() -> None:
    service = Service().know(plain=0.1)
    assert service.learn(64.0, mean_s=0.4, limited=True) == pytest.approx(65.0)
    got = service.learn(65.0, done=25, mean_s=0.6, limited=True)
    assert got == pytest.approx(65.0 + 0.3 * (1.3 * 50 * 0.5 - 65.0))


def test_ends_of_negligible_requests_alone_say_nothing_of_the_rate() -> None:
    service = Service().know(40.0, gpu=0.5)
    service.learn(20.0, ("cheap", 50, 0.0), limited=True)
    assert service.classes["cheap"].negligible
    assert (service.tested.rate_rps, service.tested.measured) == (40.0, False)


def test_it_aims_no_lower_than_the_floor() -> None:
    service = Service(inflight_floor=5).know(1.0, plain=0.1)
    assert service.learn(6.0, done=1, limited=True, mean_s=0.6, mean_in_flight=1.0) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("limit", "peak", "mean_s", "expected"),
    [
        (64.0, 3, 0.51, 26.0),  # nobody has reached it, and 26 are what is finished in time
        (64.0, 60, 0.51, 42.0),  # three tenths below the most in flight, and no further
        (64.0, 60, 0.50, 64.0),  # not late
        (20.0, 18, 0.51, 20.0),  # a lower limit than is finished in time stays
        (1.0, 1, 0.51, 1.0),  # never raised, not even to the floor
    ],
)
def test_unreached_limit_is_lowered_when_responses_are_late(
    limit: float, peak: int, mean_s: float, expected: float
) -> None:
    service = Service().know(52.0, plain=0.1)
    assert service.learn(limit, mean_s=mean_s, peak=peak, done=10) == pytest.approx(expected)


def test_it_is_lowered_to_the_floor_while_no_rate_is_known() -> None:
    service = Service(inflight_floor=5).know(plain=0.1)
    assert service.learn(done=1, mean_s=1.0, mean_in_flight=0.0, peak=1) == pytest.approx(5.0)


def test_nothing_is_lowered_below_the_limit_by_an_objective_nobody_knows() -> None:
    service = Service(slo_s=None)
    assert service.learn(done=10, mean_s=9.0, peak=3) == 64.0
    for _ in range(5):
        service.classes[""].add_easy(0.1)
    assert service.learn(done=10, mean_s=9.0, peak=3) < 64.0


def test_an_idle_time_lowers_nothing() -> None:
    service = Service().know(52.0)
    assert service.learn(lasted_s=2 * LONGEST_S + 0.01, done=10, mean_s=1.0, peak=3) == 64.0


def test_an_idle_time_proves_no_saturation() -> None:
    service = Service().know(130.0)
    assert service.learn(lasted_s=2 * LONGEST_S + 0.01, limited=True, mean_s=0.3) == 64.0
    assert not service.tested.measured
    service.learn(lasted_s=2 * LONGEST_S, limited=True, mean_s=0.3)
    assert service.tested.measured


@pytest.mark.parametrize(
    ("slo_s", "period_s", "longest"), [(2.0, 0.5, 2.0), (1.0, 0.5, 2.0), (60.0, 0.5, 60.0), (2.0, 3.0, 12.0)]
)
def test_the_longest_period(slo_s: float, period_s: float, longest: float) -> None:
    assert Service(slo_s=slo_s, period_s=period_s).tested.longest_s == longest


# --- several classes ---


def of_two_classes(long_in_flight: int, paused: int = 0, long_s: float = 5.0) -> float:
    service = Service(objectives={"short": 2.0, "long": 20.0}).know(short=0.01, long=5.0)
    limit = 8.0
    for _ in range(20):
        long = service.classes["long"]
        long.mean_s, long.in_flight, long.paused = long_s, long_in_flight, paused
        limit = service.learn(limit, ("short", 10, 0.01), mean_in_flight=5.0, limited=True)
    return limit


def test_long_requests_in_flight_raise_the_limit_though_none_completes_in_a_period() -> None:
    # Each allows a wait of 0.49 s beside its 5 s. The completions of the short ones alone allow half a slot.
    by_ends = 1.3 / 0.5 * 2 * 10 * 0.01
    for long_s, by_work in ((5.0, 20 * 5.49 / 5.0), (2.0, 20 * 2.0)):
        balance = 0.6 * by_ends + 0.4 * by_work
        assert of_two_classes(20, long_s=long_s) == pytest.approx(balance, rel=0.01)


def test_paused_requests_do_not_raise_the_limit() -> None:
    assert of_two_classes(60, paused=40) == of_two_classes(20)
    assert of_two_classes(20, paused=20) == of_two_classes(0) == 8.0


def test_late_answers_end_the_rise_by_requests_in_flight() -> None:
    service = Service(objectives={"short": 2.0, "long": 20.0}).know(short=0.01, long=5.0)
    service.classes["long"].mean_s, service.classes["long"].in_flight = 5.0, 20
    limit = service.learn(8.0, ("short", 10, 1.0), mean_in_flight=5.0, limited=True)
    assert limit < 8.0


# --- several workers ---


@pytest.mark.parametrize(
    ("workers", "arrived", "even"),
    [
        (1, 100, 0.0),
        (4, 100, 3.0),
        (4, 5, 0.08 * 10 * 0.5),  # a slow service is not flooded
        (4, 0, 0.0),
    ],
)
def test_a_constant_pulls_equal_shares_together(workers: int, arrived: int, even: float) -> None:
    service, limit = Service(workers).know(plain=0.1), 64.0
    for _ in range(40):
        limit = service.learn(limit, mean_s=0.3, limited=True, arrived=(arrived, 0, 0))
    assert limit == pytest.approx(65.0 + even)


@pytest.mark.parametrize(("workers", "aim_s"), [(1, 0.8), (4, 0.5)])
def test_several_workers_do_not_aim_at_twice_their_loaded_mean(workers: int, aim_s: float) -> None:
    # The worker with the longest mean would aim highest, grow, and lengthen the means of all.
    service = Service(workers)
    service.learn(mean_s=0.4, limited=True)
    service.learn(mean_s=0.4, limited=True)
    assert service.tested.aim_s == pytest.approx(aim_s)


@pytest.mark.parametrize(("workers", "floor"), [(1, 6.0), (3, 2.0), (16, 1.0)])
def test_workers_divide_the_floor(workers: int, floor: float) -> None:
    service = Service(workers, inflight_floor=6)
    assert service.learn(6.5, done=1, mean_s=9.0, mean_in_flight=0.0, peak=1) == pytest.approx(floor)


# --- whatever is counted ---

periods = st.fixed_dictionaries(
    {
        "lasted_s": st.floats(0.5, 30.0),
        "arrived": st.tuples(*[st.integers(0, 10**5)] * 3),
        "mean_in_flight": st.floats(0.0, 10**4),
        "peak": st.integers(0, 10**4),
        "limited": st.booleans(),
    }
)
ends = st.lists(
    st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 10**5), st.floats(0.0, 100.0)),
    max_size=3,
    unique_by=lambda one: one[0],
)


@given(
    counted=st.lists(st.tuples(periods, ends), max_size=20),
    start=st.integers(2, 1000),
    slo_s=st.one_of(st.none(), st.floats(0.01, 600.0)),
    workers=st.sampled_from([1, 4]),
)
def test_whatever_is_counted_all_figures_stay_sane(
    counted: list[tuple[dict[str, Any], list[Ends]]], start: int, slo_s: float | None, workers: int
) -> None:
    service, limit = Service(workers, slo_s=slo_s), float(start)
    tested = service.tested
    for counts, ended in counted:
        new = service.learn(limit, *(ended or [("", 0, 0.0)]), **counts)
        if counts["limited"]:
            assert limit * 0.7 - 1e-6 <= new <= limit * 2 + 1e-6
        else:
            assert 0.7 * min(limit, counts["peak"]) - 1e-6 <= new <= limit
        assert new == limit or any(number for _, number, _ in ended)
        limit = new
        assert tested.rate_rps is None or 0.0 < tested.rate_rps < math.inf
        assert 0.001 <= tested.latency_s <= 100.0
        assert 0.0 <= tested.max_wait_s(service.classes[""], slo_s) <= (slo_s or 2.0) / 4
        assert tested.aim_s >= (slo_s or 2.0) / 4 - 1e-9
        assert all(one.done == 0 and one.total_s == 0.0 for one in service.classes.all())
