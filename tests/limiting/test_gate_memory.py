"""How many requests in flight the memory allows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.gate_memory import MemoryCap


def cap(*learnt: tuple[float, int], idle: float = 0.40) -> MemoryCap:
    tested = MemoryCap(0.92)
    tested.learn(idle, 0, untouched=True)
    for ratio, in_flight in learnt:
        tested.learn(ratio, in_flight, untouched=False)
    return tested


@pytest.mark.parametrize(
    ("ratio", "in_flight", "requests"),
    [
        (0.60, 10, 0.52 * 10 / 0.20),
        (0.92, 26, 26.0),
        (1.00, 30, 26.0),  # too many already
        (0.60, 4, 0.52 * 4 / 0.20),
        (0.60, 3, math.inf),  # so few tell little
        (0.421, 10, 0.52 * 10 / 0.021),
        (0.42, 10, math.inf),  # so small a rise tells little
        (0.99, 1, math.inf),
    ],
)
def test_the_share_of_a_request_is_learnt(ratio: float, in_flight: int, requests: float) -> None:
    assert cap((ratio, in_flight)).requests == pytest.approx(requests)


def test_one_request_is_always_let_in() -> None:
    tested = MemoryCap(0.5)
    tested.learn(0.44, 0, untouched=True)
    tested.learn(1.0, 4, untouched=False)
    assert tested.requests == 1.0


def test_a_cap_stays_while_there_is_nothing_to_learn_and_moves_when_there_is() -> None:
    tested = cap((0.60, 10), (0.41, 1))
    assert tested.requests == pytest.approx(26.0)
    tested.learn(0.60, 20, untouched=False)
    assert tested.requests == pytest.approx(52.0)


def test_the_idle_fill_is_the_lowest_seen() -> None:
    tested = cap((0.30, 1), (0.50, 10))
    assert tested.requests == pytest.approx(0.62 * 10 / 0.20)


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
        tested.learn(ratio, 0, untouched=True)
    tested.learn(0.68, 8, untouched=False)
    assert tested.requests == pytest.approx(32.0)


@given(
    idle=st.floats(0.0, 0.86),
    each=st.floats(0.001, 0.2),
    loads=st.lists(st.integers(0, 100), min_size=1, max_size=20),
)
def test_of_a_linear_service_the_truth_is_learnt(idle: float, each: float, loads: list[int]) -> None:
    tested = cap(*((idle + each * load, load) for load in loads), idle=idle)
    truth = max(1.0, (0.92 - idle) / each)
    assert tested.requests == pytest.approx(truth) or math.isinf(tested.requests)
    assert math.isfinite(tested.requests) or all(load < 4 or load * each <= 0.021 for load in loads)
