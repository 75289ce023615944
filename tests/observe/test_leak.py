"""The leak test: on services with a known truth, and on series that are no leak."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from autoglm_throttle.observe.leak import LeakTest
from benchmarks import models
from benchmarks.models import MB, kept_by_allocator, service_of

SEEDS = range(12)
SERVICES = [service_of(seed) for seed in SEEDS]
STEPS = range(1, 721)
HOUR_H = 60.0


def found_with(added: Callable[[int], float], *, cached: bool = False) -> list[float]:
    """Test the memory of all services with some bytes added at each step; MB a minute."""
    found = []
    for loads, used in SERVICES:
        total = [value + added(step) for value, step in zip(used, STEPS, strict=True)]
        slope = models.tested(loads, kept_by_allocator(total) if cached else total)
        assert slope is not None
        found.append(slope / HOUR_H / MB)
    return found


def slopes(mb_per_minute: float, *, cached: bool = False) -> list[float]:
    """Test the memory of all services with a leak; MB a minute."""
    return found_with(lambda step: mb_per_minute * MB * step / 12, cached=cached)


@pytest.mark.parametrize("cached", [False, True])
def test_memory_that_only_follows_the_load_is_no_leak(*, cached: bool) -> None:
    assert [slope for slope in slopes(0, cached=cached) if slope] == []


def test_a_leak_below_the_load_is_found() -> None:
    found = slopes(50)
    assert found == pytest.approx([50.0] * len(found), rel=0.3)


def test_a_leak_behind_a_caching_allocator_is_found() -> None:
    found = [slope for slope in slopes(200, cached=True) if slope]
    assert len(found) >= len(SEEDS) - 1
    assert found == pytest.approx([200.0] * len(found), rel=0.5)


@pytest.mark.parametrize(
    "shape",
    [
        lambda step: 0.0,
        lambda step: 10_000 * MB * (step > 200),  # a second model was loaded
        lambda step: -1000 * MB * step / 720,
        lambda step: 10_000 * MB * (1 - math.exp(-step / 60)),  # a cache is full after a quarter of an hour
    ],
)
def test_other_shapes_are_no_leak(shape: Callable[[int], float]) -> None:
    used = [40_000 * MB + shape(step) for step in STEPS]
    assert models.tested([7] * 720, used) == 0.0
    wavy = [value + 50 * MB * (step % 5) for value, step in zip(used, STEPS, strict=True)]
    assert models.tested([7] * 720, wavy) == 0.0


def test_a_cache_that_fills_is_no_leak_even_if_it_takes_long() -> None:
    found = found_with(lambda step: 10_000 * MB * (1 - math.exp(-step / 180)))  # time constant 15 min
    assert sum(map(bool, found)) <= 2


def test_one_large_allocation_is_no_leak() -> None:
    assert sum(map(bool, found_with(lambda step: 20_000 * MB * (step > 480), cached=True))) <= 1


def test_few_rises_are_no_evidence() -> None:
    assert models.tested([0] * 720, [40_000 * MB + 1000 * MB * (step // 120) for step in STEPS]) == 0.0
    assert models.tested([0] * 720, [40_000 * MB + 1000 * MB * (step // 60) for step in STEPS])


def test_memory_that_grows_with_the_load_alone_is_no_leak() -> None:
    loads = [step // 36 + step % 3 for step in STEPS]
    assert models.tested(loads, [40_000 * MB + 300 * MB * load for load in loads]) == 0.0


def test_growth_without_load_is_a_leak() -> None:
    assert models.tested([0] * 720, [step * MB for step in STEPS]) == pytest.approx(720 * MB, rel=0.01)
    wavy = [step * MB + 100 * MB * (step % 2) for step in STEPS]
    assert models.tested([0] * 720, wavy) == pytest.approx(720 * MB, rel=0.01)


def test_forty_five_minutes_are_needed() -> None:
    test = LeakTest()
    for second in range(0, 45 * 60, 5):
        test.step(second, second * MB, 0)
    assert test.bytes_per_hour is None
    test.step(45 * 60, 2700 * MB, 0)
    assert test.bytes_per_hour == pytest.approx(3600 * MB, rel=0.01)


def test_the_window_is_an_hour() -> None:
    test = LeakTest()
    for second in range(0, 3600, 5):
        test.step(second, second * MB, 0)
    for second in range(3600, 3600 + 50 * 60, 5):
        test.step(second, 3600 * MB, 0)
    assert test.bytes_per_hour == 0.0


def test_a_series_that_ended_has_no_result() -> None:
    test = LeakTest()
    for second in range(0, 3600, 5):
        test.step(second, second * MB, 0)
    assert test.bytes_per_hour
    test.step(3700, None, 0)
    test.step(3700, 1.0, None)
    for minute in range(62, 80):
        test.step(minute * 60, None, 0)
    assert test.bytes_per_hour is None
