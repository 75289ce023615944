"""The search for the greatest rate."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.peak import TOLERANCE, TRIES, Peak, PeakResult, find_peak

HOLDS, FAILS, INVALID, ABORTED = PeakResult.HOLDS, PeakResult.FAILS, PeakResult.INVALID, PeakResult.ABORTED


@given(
    low=st.floats(1.0, 1000.0),
    times=st.floats(1.05, 1000.0),
    share=st.floats(0.0, 1.0),
)
def test_a_capacity_between_the_bounds_is_found(low: float, times: float, share: float) -> None:
    capacity = low * times**share
    peak = find_peak(lambda rate: HOLDS if rate <= capacity else FAILS, low, low * times)
    assert peak.result is HOLDS
    assert peak.holds_rps is not None
    assert peak.holds_rps <= capacity
    assert all(low <= rate <= low * times for rate, _ in peak.trials)
    rates = [rate for rate, _ in peak.trials]
    assert len(set(rates)) == len(rates) <= 2 + math.ceil(math.log2(math.log(times) / math.log(1.01)) + 2)
    if capacity < low * times:
        assert peak.fails_rps is not None
        # A rate has three digits: what is left may be one step of the last of them.
        assert (
            peak.fails_rps <= peak.holds_rps * (1.0 + TOLERANCE) or peak.fails_rps <= peak.holds_rps * 1.0101
        )
        assert peak.fails_rps > capacity
    else:
        assert peak.fails_rps is None


def test_the_tolerance_decides_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    def trial(rate: float) -> PeakResult:
        return HOLDS if rate <= 640 else FAILS

    fine = find_peak(trial, 100, 5000)
    monkeypatch.setattr("autoglm_throttle.traffic.peak.TOLERANCE", 0.5)
    coarse = find_peak(trial, 100, 5000)
    assert len(coarse.trials) < len(fine.trials)
    assert fine.text == f"the objectives hold at {fine.holds_rps:g}/s and fail at {fine.fails_rps:g}/s"


def test_rates_of_three_digits_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoglm_throttle.traffic.peak.TOLERANCE", 0.001)
    peak = find_peak(lambda rate: HOLDS if rate <= 100 else FAILS, 100, 101)
    assert [rate for rate, _ in peak.trials] == [100, 101]
    assert (peak.holds_rps, peak.fails_rps) == (100, 101)


def test_even_the_least_rate_may_fail() -> None:
    peak = find_peak(lambda rate: FAILS, 10, 1000)
    assert list(peak.trials) == [(10, FAILS)]
    assert (peak.result, peak.holds_rps) == (FAILS, None)
    assert peak.text == "the objectives do not hold even at 10/s"


def test_the_greatest_rate_may_hold() -> None:
    peak = find_peak(lambda rate: HOLDS, 10, 1000)
    assert [rate for rate, _ in peak.trials] == [10, 1000]
    assert (peak.result, peak.holds_rps, peak.fails_rps) == (HOLDS, 1000, None)
    assert peak.text == "the objectives hold at 1000/s, the highest rate to try"


def test_invalid_trial_is_repeated() -> None:
    said = iter([INVALID, HOLDS, INVALID, INVALID, HOLDS])
    peak = find_peak(lambda rate: next(said), 10, 1000)
    assert [rate for rate, _ in peak.trials] == [10, 10, 1000, 1000, 1000]
    assert peak.result is HOLDS


@pytest.mark.parametrize(
    ("before", "known"),
    [
        ([], "no rate was measured"),
        ([HOLDS], "the objectives hold at 10/s"),
        ([HOLDS, FAILS], "the objectives hold at 10/s and fail at 1000/s"),
    ],
)
def test_a_generator_that_cannot_ends_the_search(before: list[PeakResult], known: str) -> None:
    said = iter([*before, *[INVALID] * TRIES])
    peak = find_peak(lambda rate: next(said), 10, 1000)
    assert peak.result is INVALID
    rate = (10, 1000, 100)[len(before)]
    assert peak.text == f"the generator could not reach {rate}/s in {TRIES} tries; {known}"
    assert next(said, None) is None


def test_stopped_trial_stops_the_search() -> None:
    said = iter([HOLDS, FAILS, ABORTED])
    peak = find_peak(lambda rate: next(said), 10, 1000)
    assert peak.result is ABORTED
    assert peak.text == "stopped before the end; the objectives hold at 10/s and fail at 1000/s"


def test_rate_above_a_failed_one_is_not_the_peak() -> None:
    peak = Peak(((10, HOLDS), (50, FAILS), (100, HOLDS)))
    assert peak.holds_rps == 10


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2, 1), (1, 1), (-1, 1), (1, math.inf), (math.nan, 1)])
def test_bounds_must_rise(low: float, high: float) -> None:
    with pytest.raises(TrafficError, match="bounds"):
        find_peak(lambda rate: HOLDS, low, high)
