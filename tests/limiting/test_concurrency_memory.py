"""How many requests in flight the memory allows."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.memory_cap import MemoryCap

IDLE, EACH, TRUTH = 0.40, 0.02, 26.0
"""A service whose memory is at the target with 26 requests inside."""


def cap(*learnt: tuple[float, int], idle: float = IDLE) -> MemoryCap:
    tested = MemoryCap(0.92)
    tested.learn(idle, 0, 0, untouched=True)
    return learn(tested, *learnt)


def learn(tested: MemoryCap, *learnt: tuple[float, int], peak: int = 0) -> MemoryCap:
    for ratio, in_flight in learnt:
        tested.learn(ratio, in_flight, max(peak, in_flight), untouched=False)
    return tested


def following(*learnt: tuple[float, int]) -> MemoryCap:
    """A cap that has seen the fill fall when ten requests went."""
    tested = cap((0.60, 10), (IDLE, 0), *learnt)
    assert not keeps(tested)
    return tested


def keeps(tested: MemoryCap) -> bool:
    return tested.is_retained


# --- the share of a request ---


@pytest.mark.parametrize(
    ("ratio", "in_flight", "requests"),
    [
        (0.60, 10, 0.52 * 10 / 0.20),
        (0.92, 26, 26.0),
        (1.00, 30, 26.0),  # too many already
        (0.60, 4, 0.52 * 4 / 0.20),
        (0.44, 1, 0.52 * 1 / 0.04),
        (0.421, 10, 0.52 * 10 / 0.021),
        (0.42, 10, math.inf),  # so small a rise tells little
    ],
)
def test_the_share_of_a_request_is_learnt(ratio: float, in_flight: int, requests: float) -> None:
    assert cap((ratio, in_flight)).requests == pytest.approx(requests)


@pytest.mark.parametrize(("most", "requests"), [(1, 2.0), (2, 4.0), (3, 4.0), (4, 0.52 * 4 / 0.58)])
def test_few_requests_are_not_taken_for_the_maximum(most: int, requests: float) -> None:
    assert cap((0.98, most)).requests == pytest.approx(requests)


def test_one_request_is_always_let_in() -> None:
    tested = MemoryCap(0.5)
    tested.learn(0.44, 0, 0, untouched=True)
    assert learn(tested, (1.0, 4)).requests == 1.0


def test_fill_without_requests_is_no_measurement() -> None:
    assert cap((0.90, 0)).requests == math.inf


def test_the_idle_fill_is_the_lowest_seen() -> None:
    tested = cap((0.30, 1), (0.50, 10))
    assert tested.requests == pytest.approx(0.62 * 10 / 0.20)


def test_a_higher_idle_fill_leaves_what_was_learnt() -> None:
    tested = cap((0.60, 10))
    tested.learn(0.60, 0, 0, untouched=True)  # all have left without an answer
    assert tested.requests == pytest.approx(26.0)


def test_a_lower_idle_fill_corrects_what_was_learnt_before() -> None:
    tested = cap((0.60, 10), (0.30, 0))
    assert tested.requests == pytest.approx(0.62 * 10 / 0.30)


@pytest.mark.parametrize(("idle", "blind"), [(0.869, False), (0.871, True), (0.95, True)])
def test_an_engine_that_takes_memory_in_advance_has_no_cap(idle: float, blind: bool) -> None:
    tested = cap((0.99, 50), idle=idle)
    assert tested.blind is blind
    assert math.isinf(tested.requests) is blind


def test_memory_that_is_given_back_opens_the_eyes_again() -> None:
    tested = cap((0.95, 50), (0.50, 2), (0.60, 10), idle=0.95)
    assert not tested.blind
    assert tested.requests == pytest.approx(42.0)


def test_a_model_that_is_still_being_loaded_is_not_the_work_of_requests() -> None:
    tested = MemoryCap(0.92)
    for ratio in (0.02, 0.30, 0.60):
        tested.learn(ratio, 0, 0, untouched=True)
    assert learn(tested, (0.68, 8)).requests == pytest.approx(32.0)


@given(
    idle=st.floats(0.0, 0.86),
    each=st.floats(0.001, 0.2),
    loads=st.lists(st.integers(0, 100), min_size=1, max_size=20),
)
def test_of_a_linear_service_the_truth_is_learnt(idle: float, each: float, loads: list[int]) -> None:
    tested = cap(*((idle + each * load, load) for load in loads), idle=idle)
    most = max(loads)
    least = 1.0 if most >= 4 else 2.0 * min(2, most)
    truth = max(least, (0.92 - idle) / each)
    assert tested.requests == pytest.approx(truth) or math.isinf(tested.requests)
    assert math.isfinite(tested.requests) or all(load * each <= 0.021 for load in loads)


# --- a fill that follows the requests ---


def test_rising_fill_is_attributed_to_requests_in_flight() -> None:
    tested = following()
    assert learn(tested, (0.60, 6), peak=20).requests == pytest.approx(26.0), "as full as it was: no news"
    assert learn(tested, (0.57, 5), peak=20).requests == pytest.approx(0.52 * 5 / 0.17), "dearer requests"
    assert learn(tested, (0.60, 20)).requests == pytest.approx(52.0), "cheaper ones"


@pytest.mark.parametrize(("in_flight", "believed"), [(4, False), (5, True)])
def test_less_than_a_quarter_of_the_peak_is_no_measurement(in_flight: int, believed: bool) -> None:
    tested = following((0.80, 20))
    learn(tested, (0.70, in_flight))
    assert tested.requests == pytest.approx(0.52 * 5 / 0.30 if believed else 26.0)


def test_what_was_laid_to_too_many_is_laid_to_the_others_once_the_fill_falls() -> None:
    tested = learn(cap(), (0.48, 4), peak=20)
    assert tested.requests == pytest.approx(130.0)
    assert learn(tested, (0.46, 3)).requests == pytest.approx(130.0), "no clear fall"
    assert learn(tested, (0.45, 2)).requests == pytest.approx(0.52 * 4 / 0.08)


def test_unattributed_fill_is_dropped_when_it_falls() -> None:
    tested = learn(cap(), (0.60, 0), peak=20)
    assert tested.requests == pytest.approx(52.0)
    assert learn(tested, (0.50, 0)).requests == math.inf
    assert learn(tested, (0.45, 1)).requests == pytest.approx(0.52 / 0.05), "the next one tells"


# --- a fill that is kept ---


def test_an_allocator_that_keeps_its_memory_does_not_make_few_look_dear() -> None:
    tested = cap((0.92, 26))
    for few in (20, 11, 5, 2, 1, 0, 1, 26):
        assert learn(tested, (0.92, few)).requests == pytest.approx(26.0)
    assert keeps(tested)


def test_retained_fill_is_attributed_to_the_peak_in_flight() -> None:
    tested = learn(cap(), (0.80, 2), peak=20)
    assert tested.requests == pytest.approx(26.0)
    assert learn(tested, (0.80, 25)).requests == pytest.approx(0.52 * 25 / 0.40), "cheaper than thought"
    assert learn(tested, (1.00, 3)).requests == pytest.approx(0.52 * 25 / 0.60), "broken into pieces"


def test_memory_that_another_process_has_given_back_does_not_hide_that_the_rest_is_kept() -> None:
    tested = cap((0.92, 26), (0.70, 15))  # a worker beside this one was started anew
    assert not keeps(tested)
    assert tested.requests == pytest.approx(26.0)
    for few in (7, 3, 1, 7, 3):
        assert learn(tested, (0.70, few)).requests == pytest.approx(26.0)
    assert keeps(tested)
    assert learn(tested, (0.74, 5)).requests == pytest.approx(0.52 * 15 / 0.34), "growing, at few inside"


def test_earlier_requests_did_not_cause_a_retained_fill() -> None:
    tested = learn(following(), (0.60, 8), (0.60, 5), peak=20)
    assert keeps(tested)
    assert tested.requests == pytest.approx(26.0)
    assert learn(tested, (0.60, 12)).requests == pytest.approx(0.52 * 12 / 0.20)
    assert learn(tested, (0.50, 3)).requests == pytest.approx(0.52 * 12 / 0.20), "twelve were inside, surely"


def test_a_mistake_about_what_is_kept_costs_nothing_that_was_known() -> None:
    tested = learn(following(), (0.60, 20), (0.60, 10))
    assert keeps(tested)
    assert learn(tested, (0.50, 3)).requests == pytest.approx(52.0)
    assert not keeps(tested)


@pytest.mark.parametrize(("ratio", "left", "kept"), [(0.52, 5, True), (0.52, 6, False), (0.48, 1, False)])
def test_only_a_clear_rise_that_stays_when_half_have_gone_is_kept(
    ratio: float, left: int, kept: bool
) -> None:
    tested = following((0.50 if ratio > 0.5 else ratio, 10))
    learn(tested, (ratio, 11), (ratio, left))
    assert keeps(tested) is kept


@given(seed=st.integers(0, 10_000), follows=st.booleans(), each=st.sampled_from([0.005, EACH, 0.04]))
def test_under_any_load_the_cap_stays_near_the_truth(seed: int, follows: bool, each: float) -> None:
    """Calm and flooded in turn, the room as the cap says; nobody sees more than one fill in a second."""
    dice, tested, high = random.Random(seed), cap(), IDLE
    truth, peak = 0.52 / each, 0
    for second in range(120):
        flooded = second % 40 >= 30
        for _ in range(5):
            wanted = 200 if flooded else dice.randint(0, int(truth / 3))
            inside = int(min(wanted, tested.requests, truth * 1.1))
            peak, high = max(peak, inside), max(high, IDLE + each * inside)
        tested.learn(IDLE + each * inside if follows else high, inside, peak, untouched=False)
        peak = inside
        if second >= 31:
            assert 0.9 * truth - 1 <= tested.requests <= 1.15 * truth


def test_model_loaded_by_the_first_request_leaves_capacity() -> None:
    tested, inside = cap(idle=0.02), 1
    for _ in range(2):
        for _ in range(30):
            learn(tested, (0.58 + EACH * inside, inside))
            inside = int(tested.requests)
        assert inside >= 14, "17 would be at the target"
        for few in (7, 3, 2, 1, 2, 4, 1):
            learn(tested, (0.58 + EACH * few, few))
        assert tested.requests > 5
        inside = int(tested.requests)


def test_a_kept_memory_in_ever_more_pieces_does_not_end_at_one_request() -> None:
    tested = cap((0.80, 20))
    for step in range(200):
        learn(tested, (min(1.0, 0.80 + step / 400), 1 + step % 5))
    assert tested.requests == pytest.approx(0.52 * 20 / 0.60)


# --- a crash ---


def fail(
    tested: MemoryCap, in_flight: int, failures: int, now: float = 0.0, step_s: float = 0.0
) -> list[bool]:
    return [
        tested.record_failure(in_flight - 1 - number, now + number * step_s) for number in range(failures)
    ]


def test_half_of_the_requests_of_a_crash_may_be_in_flight_until_a_fill_is_read_under_load() -> None:
    tested = cap()
    assert fail(tested, 32, 32).count(True) == 1
    assert tested.requests == 16.0
    assert learn(tested, (IDLE, 0), (IDLE, 7)).requests == 16.0
    assert learn(tested, (0.56, 8)).requests == pytest.approx(TRUTH)


def test_a_crash_before_the_first_fill_counts_from_that_on() -> None:
    tested = MemoryCap(0.92)
    fail(tested, 32, 32)
    assert tested.requests == math.inf, "there may be no telemetry"
    assert learn(tested, (IDLE, 0)).requests == 16.0


@pytest.mark.parametrize(
    ("in_flight", "failures", "step_s"),
    [(32, 16, 0.0), (7, 7, 0.0), (32, 32, 0.051)],
    ids=["half of them", "few", "one after another"],
)
def test_other_failures_are_no_crash(in_flight: int, failures: int, step_s: float) -> None:
    tested = cap()
    assert not any(fail(tested, in_flight, failures, step_s=step_s))
    assert tested.requests == math.inf


def test_failures_while_the_service_is_down_count_as_the_same_crash() -> None:
    tested = cap()
    fail(tested, 32, 32)
    assert not any(tested.record_failure(number % 2, 0.02 * number) for number in range(500))
    assert tested.requests == 16.0


def test_a_crash_proves_a_higher_cap_wrong_and_no_lower_one() -> None:
    tested = cap((0.44, 10))
    assert tested.requests == pytest.approx(130.0)
    fail(tested, 32, 32)
    assert (tested.requests, keeps(tested)) == (16.0, False)
    assert not any(fail(tested, 16, 16, 9.0)), "its cap is not above"


def test_a_fill_that_stays_under_load_lifts_the_cap_of_a_crash() -> None:
    tested = cap()
    fail(tested, 32, 32)
    assert learn(tested, (IDLE, 8)).requests == math.inf


def test_memory_in_advance_has_no_crash() -> None:
    tested = cap(idle=0.9)
    assert not any(fail(tested, 32, 32))
