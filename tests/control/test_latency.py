"""The percentile from a histogram against the percentile from the durations themselves."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.latency import (
    EXPIRE_AFTER_S,
    MIN_REQUESTS,
    REACHABLE_FOR_S,
    LatencyPercentile,
)

EDGES = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)


class Counted:
    """A histogram that grows, and the percentile that follows it."""

    def __init__(self, edges: tuple[float, ...] = EDGES) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.p95 = LatencyPercentile(edges)

    def finish(self, durations: Iterable[float], now: float = 0.0) -> float | None:
        """So many more have finished; an edge belongs to the bucket below it."""
        for duration in durations:
            self.counts[bisect.bisect_left(self.edges, duration)] += 1
        return self.p95.update(self.counts, now)


@given(
    edges=st.lists(st.floats(0.001, 50.0), min_size=1, max_size=12, unique=True).map(sorted),
    durations=st.lists(st.floats(0.0, 60.0), min_size=MIN_REQUESTS, max_size=120),
)
def test_the_error_is_smaller_than_the_bucket(edges: list[float], durations: list[float]) -> None:
    reported = Counted(tuple(edges)).finish(durations)
    exact = sorted(durations)[math.ceil(len(durations) * 19 / 20) - 1]
    assert reported is not None
    above = bisect.bisect_left(edges, exact)
    if above == len(edges):
        assert reported == edges[-1]
    else:
        low_s, high_s = ([0.0, *edges][above], edges[above])
        assert low_s - 1e-12 <= reported <= high_s + 1e-12


@given(count=st.integers(MIN_REQUESTS, 5000))
def test_no_rounding_moves_it_across_a_rank(count: int) -> None:
    rank = -(-19 * count // 20)
    durations = [0.05] * (rank - 1) + [4.0] * (count - rank + 1)
    reported = Counted().finish(durations)
    assert reported is not None
    assert reported > 2.0
    assert Counted().finish([0.05] * rank + [4.0] * (count - rank)) == pytest.approx(0.1, abs=0.01)


def test_within_a_bucket_they_count_as_evenly_spread() -> None:
    assert Counted().finish([0.7] * 20) == 0.5 + 0.5 * 0.95
    assert Counted().finish([0.7] * 10 + [1.5] * 10) == 1.0 + 1.0 * 0.9


def test_nothing_is_known_of_fewer_than_twenty() -> None:
    counted = Counted()
    assert counted.finish([]) is None
    assert counted.finish([1.5] * 19) is None
    assert counted.finish([1.5]) == 1.0 + 0.95


def test_only_the_newest_looks_that_hold_twenty_count() -> None:
    counted = Counted()
    assert counted.finish([4.0] * 100) == 2.0 + 3.0 * 0.95
    assert counted.finish([0.05] * 15) == 2.0 + 3.0 * (0.95 * 115 - 15) / 100
    assert counted.finish([0.05] * 4) == 2.0 + 3.0 * (0.95 * 119 - 19) / 100
    assert counted.finish([0.05]) == pytest.approx(0.095), "fifteen, four and one are enough"
    assert counted.finish([0.3] * 20) == 0.25 + 0.25 * 0.95


def test_as_few_looks_as_possible_are_kept() -> None:
    counted = Counted()
    for _ in range(100):
        counted.finish([0.3])
        counted.finish([])
    assert len(counted.p95.snapshots) == MIN_REQUESTS + 1


def test_without_an_end_for_long_nothing_is_known_any_more() -> None:
    counted = Counted()
    reported = counted.finish([4.0] * 40, now=100.0)
    assert counted.finish([], now=100.0 + EXPIRE_AFTER_S) == reported
    assert counted.finish([], now=100.1 + EXPIRE_AFTER_S) is None
    assert counted.finish([0.05] * 19, now=200.0) is None, "what was forgotten does not count again"
    assert counted.finish([0.05], now=201.0) == pytest.approx(0.095)


def test_a_count_that_went_back_began_anew() -> None:
    counted = Counted()
    counted.finish([4.0] * 40)
    counted.finish([4.0] * 40)
    counted.counts = [0] * len(counted.counts)
    assert counted.finish([0.05] * 19) is None
    assert counted.finish([0.05]) == pytest.approx(0.095)


def test_more_in_all_but_fewer_of_one_began_anew_too() -> None:
    counted = Counted()
    counted.finish([4.0] * 20)
    counted.finish([4.0] * 20)
    counted.counts = [0] * len(counted.counts)
    assert counted.finish([0.05] * 60) == pytest.approx(0.095)


def test_an_objective_is_in_reach_for_ten_minutes_after_it_was_met() -> None:
    latency = LatencyPercentile([1.0])

    def was_met(p95_s: float | None, now: float) -> bool:
        latency._value_s = p95_s
        return latency.was_met(2.0, now)

    assert not was_met(None, 0.0)
    assert not was_met(8.0, 1.0), "never met"
    assert was_met(2.0, 2.0)
    assert was_met(8.0, 2.0 + REACHABLE_FOR_S)
    assert not was_met(8.0, 2.1 + REACHABLE_FOR_S)
    assert was_met(1.0, 3.0 + REACHABLE_FOR_S)
    assert was_met(None, 4.0 + REACHABLE_FOR_S)
