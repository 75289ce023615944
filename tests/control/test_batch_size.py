"""The model of a batch's duration against the line it was made from, and the target that follows it."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.batch_size import (
    DECREASE,
    MODEL_BATCHES,
    OUT_OF_MEMORY_HOLD_S,
    WARM_UP_BATCHES,
    WINDOW_BATCHES,
    WINDOW_S,
    BatchSize,
    DurationModel,
)

SLO_S = 1.0
costs = st.lists(st.floats(0.5, 64.0), min_size=2, max_size=80)
durations = st.lists(st.tuples(st.floats(0.5, 64.0), st.floats(0.0, 10.0)), min_size=1, max_size=80)


def fitted(*batches: tuple[float, float]) -> DurationModel:
    model = DurationModel()
    for cost, duration_s in ((1.0, 99.0),) * WARM_UP_BATCHES + batches:
        model.record(cost, duration_s)
    return model


def sized(*batches: tuple[float, float], max_cost: float = 32.0) -> BatchSize:
    """Make a size that has seen its warm-up and its first window, which ends with these batches."""
    size = BatchSize(SLO_S, max_cost, wait_s=0.0)
    for cost, duration_s in ((1.0, 0.1),) * (WINDOW_BATCHES - len(batches)) + batches:
        size.record(cost, duration_s, [0.1], 0.0)
    return size


def window(
    size: BatchSize, latency_s: float, now: float = 10.0, cost: float = math.inf, **state: object
) -> None:
    """Record a window of equal batches, full ones unless a cost is given."""
    for _ in range(WINDOW_BATCHES):
        size.record(min(cost, size.target), 0.1, [latency_s], now, **state)  # type: ignore[arg-type]


@given(costs=costs, per_cost_s=st.floats(0.0, 0.1), fixed_s=st.floats(0.001, 1.0))
def test_durations_on_a_line_are_predicted(costs: list[float], per_cost_s: float, fixed_s: float) -> None:
    model = fitted(*((cost, per_cost_s * cost + fixed_s) for cost in costs))
    for cost in costs[-MODEL_BATCHES:]:
        assert model.predict(cost) == pytest.approx(per_cost_s * cost + fixed_s, rel=1e-4)
        assert model.predict_upper(cost) == pytest.approx(model.predict(cost), rel=1e-3)


@given(batches=durations)
def test_both_numbers_are_never_below_0(batches: list[tuple[float, float]]) -> None:
    model = fitted(*batches)
    assert model.per_cost_s >= 0.0
    assert model.fixed_s >= 0.0
    assert model.margin >= 1.0
    recent = batches[-MODEL_BATCHES:]
    mean = sum(Fraction(took) for _, took in recent) / len(recent)
    assert model.predict(sum(cost for cost, _ in recent) / len(recent)) == pytest.approx(
        float(mean), abs=1e-9
    )


@given(batches=durations, within_s=st.floats(0.0, 10.0))
def test_largest_cost_within_a_time_is_predicted_to_take_it(
    batches: list[tuple[float, float]], within_s: float
) -> None:
    model = fitted(*batches)
    largest = model.largest_within(within_s)
    if largest == 0.0:
        assert model.fixed_s >= within_s
    elif largest < 1e9:
        assert model.predict(largest) == pytest.approx(within_s, abs=1e-6)


def test_equal_costs_take_the_shortest_batch_as_the_fixed_part() -> None:
    model = fitted((4.0, 0.2), (4.0, 0.3), (4.0, 0.4))
    assert model.fixed_s == pytest.approx(0.2)
    assert model.per_cost_s == pytest.approx(0.1 / 4)


def test_any_cost_fits_if_it_plays_no_part() -> None:
    assert fitted((1.0, 0.2), (8.0, 0.2)).largest_within(0.3) == math.inf


def test_batches_without_duration_have_no_margin() -> None:
    assert fitted((1.0, 0.0), (2.0, 0.0)).predict_upper(9.0) == 0.0


def test_first_batches_are_not_in_the_model() -> None:
    assert fitted().largest_cost == 0.0
    assert fitted().predict(9.0) == 0.0


def test_target_follows_the_model_to_twice_the_largest_batch() -> None:
    size = BatchSize(SLO_S, 32.0, wait_s=0.05)
    targets = []
    for cost in (1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 16.0):
        size.record(cost, 0.03 * cost + 0.1, [0.1], 0.0)
        targets.append(size.target)
    # (0.8 * 1.0 - 0.05 - 0.1) / 0.03 is the largest cost that the objective allows.
    assert targets == pytest.approx([1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 0.65 / 0.03])


def test_missed_objective_shrinks_the_target() -> None:
    size = sized((8.0, 0.1), (16.0, 0.1))
    before = size.target
    window(size, latency_s=1.01)
    assert size.target == pytest.approx(DECREASE * before)
    assert size.p95_s == 1.01


def test_first_window_never_shrinks_the_target() -> None:
    size = BatchSize(SLO_S, 32.0, wait_s=0.0)
    window(size, latency_s=9.0, now=0.0)
    assert (size.p95_s, size.target) == (9.0, 32.0)


def test_one_slow_item_in_twenty_is_no_miss() -> None:
    size = sized((16.0, 0.1))
    before = size.target
    for _ in range(WINDOW_BATCHES):
        size.record(size.target, 0.1, [0.5] * 19 + [5.0], 10.0)
    assert size.target >= before


@pytest.mark.parametrize(("growth", "added"), [(1.0, 1.0), (2.0, 2.0), (0.0, 0.0)])
def test_full_batches_grow_the_target(growth: float, added: float) -> None:
    size = sized(max_cost=20.0)
    window(size, latency_s=2.0)
    before = size.target
    window(size, latency_s=0.5, growth=growth)
    assert size.target == pytest.approx(before + added)
    assert before < 20.0  # above, the step is a share


def test_large_targets_grow_by_a_share() -> None:
    size = sized((500.0, 0.1), max_cost=1000.0)
    window(size, latency_s=2.0)
    before = size.target
    window(size, latency_s=0.5)
    assert size.target == pytest.approx(1.05 * before)


def test_batches_that_are_not_full_leave_the_target() -> None:
    size = sized((16.0, 0.1))
    window(size, latency_s=2.0)
    before = size.target
    window(size, latency_s=0.5, cost=2.0)
    assert size.target == before


def test_window_ends_after_a_second() -> None:
    size = sized((16.0, 0.1))
    before = size.target
    size.record(4.0, 0.1, [3.0], 10.0)
    size.record(4.0, 0.1, [3.0], 10.0 + 0.85 * WINDOW_S)
    assert size.target == before
    size.record(4.0, 0.1, [3.0], 10.0 + 0.95 * WINDOW_S)
    assert size.target < before


def test_full_memory_shrinks_the_target_at_once() -> None:
    size = sized((16.0, 0.1))
    before = size.target
    size.record(4.0, 0.1, [0.1], 10.0, is_memory_full=True)
    assert size.target == pytest.approx(DECREASE * before)


def test_lack_of_memory_halves_the_target_for_a_minute() -> None:
    size = sized((16.0, 0.1))
    before = size.target
    size.record_out_of_memory(10.0)
    window(size, latency_s=0.1, now=10.0 + OUT_OF_MEMORY_HOLD_S - 0.1)
    assert size.target == before / 2
    window(size, latency_s=0.1, now=10.0 + OUT_OF_MEMORY_HOLD_S)
    assert size.target > before / 2


def test_target_stays_between_one_and_the_largest_cost() -> None:
    size = sized((1.0, 5.0), (2.0, 99.0))
    assert size.target == 1.0
    size = sized((8.0, 0.01), (16.0, 0.01), (32.0, 0.01), max_cost=20.0)
    window(size, latency_s=0.1)
    assert size.target == 20.0
