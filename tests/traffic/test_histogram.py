"""Percentiles are never better than the truth, and hardly worse."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.histogram import Histogram, percentiles_of, rank

durations = st.lists(st.floats(min_value=0.0, max_value=3600.0), min_size=1, max_size=60)


def recorded(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


@given(durations, st.floats(min_value=0.001, max_value=1.0))
def test_percentile_is_at_most_one_128th_too_high(values: list[float], share: float) -> None:
    truth = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    told = recorded(values).percentile(share)
    assert told is not None
    assert truth <= told <= truth * (1 + 1 / 128) + 1e-6 + 1e-12


@given(durations, durations, durations)
def test_merging_is_associative_and_equals_recording_all(
    a: list[float], b: list[float], c: list[float]
) -> None:
    left = Histogram.of([Histogram.of([recorded(a), recorded(b)]), recorded(c)])
    right = Histogram.of([recorded(a), Histogram.of([recorded(b), recorded(c)])])
    whole = recorded(a + b + c)
    assert left.pairs() == right.pairs() == whole.pairs()
    assert left.max_s == right.max_s == whole.max_s == max(a + b + c)
    assert whole.count == len(a + b + c)


def test_nothing_recorded_has_no_percentile() -> None:
    assert Histogram().percentile(0.5) is None
    assert Histogram().percentiles((0.5, 0.9)) == [None, None]
    assert Histogram().mean_s is None
    assert Histogram().max_s == 0.0


@given(st.lists(st.just(math.nan) | st.floats(min_value=-1.0, max_value=3600.0), max_size=60))
def test_recording_all_is_recording_each_that_is_known(values: list[float]) -> None:
    each = recorded([value for value in values if not math.isnan(value)])
    at_once = Histogram()
    at_once.record_all(values)
    assert (at_once.pairs(), at_once.max_s, at_once.mean_s) == (each.pairs(), each.max_s, each.mean_s)


@given(durations)
def test_the_mean_is_at_most_a_microsecond_below_the_truth(values: list[float]) -> None:
    told = recorded(values).mean_s
    truth = math.fsum(values) / len(values)
    assert told is not None
    assert truth - 1e-6 - 1e-9 <= told <= truth + 1e-9


@given(durations, durations)
def test_the_mean_of_merged_histograms_is_that_of_all(a: list[float], b: list[float]) -> None:
    assert Histogram.of([recorded(a), recorded(b)]).mean_s == recorded(a + b).mean_s


@given(durations, st.lists(st.floats(min_value=0.001, max_value=1.0), max_size=5))
def test_several_percentiles_are_those_taken_one_by_one(values: list[float], shares: list[float]) -> None:
    histogram = recorded(values)
    assert histogram.percentiles(shares) == [histogram.percentile(share) for share in shares]


@given(durations)
def test_percentiles_come_back_from_the_pairs(values: list[float]) -> None:
    histogram = recorded(values)
    pairs = [list(pair) for pair in histogram.pairs()]
    assert percentiles_of(pairs, histogram.max_s, (0.5, 0.99)) == histogram.percentiles((0.5, 0.99))


def test_a_clock_that_stepped_back_counts_as_zero() -> None:
    histogram = recorded([-1.0])
    assert histogram.pairs() == [(0, 1)]
    assert histogram.percentile(1.0) == 0.0


@pytest.mark.parametrize(("micros", "edge"), [(255, 255), (256, 256), (257, 256), (511, 510), (513, 512)])
def test_values_are_rounded_down_to_eight_binary_digits(micros: int, edge: int) -> None:
    assert recorded([micros / 1e6 + 1e-9]).pairs() == [(edge, 1)]


@given(st.integers(1, 99_999), st.integers(1, 10**7))
def test_a_rank_is_that_of_the_share_as_it_is_written(thousandths: int, count: int) -> None:
    assert rank(thousandths / 100_000, count) == math.ceil(Fraction(thousandths, 100_000) * count)


def test_decimal_shares_select_the_exact_rank() -> None:
    histogram = Histogram()
    histogram.record_all([float(seconds) for seconds in range(1, 101)])
    for percent in (7, 14, 28, 55, 56):
        least = histogram.percentile(percent / 100)
        assert least is not None
        assert percent <= least < percent + 1
