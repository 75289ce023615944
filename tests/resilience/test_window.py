"""The windows beside a list of all results, counted again each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.outcomes import BUCKETS, OutcomeCounts, ResultWindow

results = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40)
eighths = st.integers(0, 80).map(lambda eighth: eighth / 8)


def counted(some: list[tuple[bool, bool]]) -> OutcomeCounts:
    return len(some), sum(failed for failed, _ in some), sum(slow for _, slow in some)


@given(size=st.integers(1, 8), some=results)
def test_the_last_so_many_calls(size: int, some: list[tuple[bool, bool]]) -> None:
    window = ResultWindow(size, 1.0)
    assert window.counts(0.0) == (0, 0, 0)
    for number, (failed, slow) in enumerate(some, 1):
        held = counted(some[max(0, number - size) : number])
        assert window.add(failed, slow, 0.0) == held
        assert window.counts(1e9) == held


@given(
    steps=st.lists(st.tuples(eighths, st.booleans(), st.booleans()), max_size=40), length=st.integers(1, 4)
)
def test_a_result_counts_for_nine_to_ten_tenths_of_the_time(
    steps: list[tuple[float, bool, bool]], length: int
) -> None:
    length_s, now = length * 2.5, 1000.0
    window, seen = ResultWindow(None, length_s), list[tuple[float, bool, bool]]()
    for wait_s, failed, slow in steps:
        now += wait_s
        seen.append((now, failed, slow))
        added = window.add(failed, slow, now)
        assert added == window.counts(now)
        surely = counted([(f, s) for at, f, s in seen if now - at <= 0.9 * length_s])
        perhaps = counted([(f, s) for at, f, s in seen if now - at < length_s])
        for low, count, high in zip(surely, added, perhaps, strict=True):
            assert low <= count <= high


@pytest.mark.parametrize(("now", "calls"), [(0.0, 2), (9.0, 2), (9.875, 2), (10.0, 0), (11.0, 0)])
def test_a_sum_counts_for_the_whole_window_from_its_first_result(now: float, calls: int) -> None:
    window = ResultWindow(None, 10.0)
    window.add(True, False, 0.0)
    window.add(False, True, 0.75)
    assert window.counts(now) == (calls, calls // 2, calls // 2)


def test_sum_starts_each_tenth_and_lasts_for_the_window() -> None:
    window = ResultWindow(None, 10.0)
    for now in (0.0, 0.9375, 1.0, 1.5):
        window.add(True, False, now)
    assert window.counts(9.9375)[0] == 4
    assert window.counts(10.9375)[0] == 2
    assert window.counts(11.0)[0] == 0
    assert window.add(False, False, 10.0) == (3, 2, 0), "what is over is dropped when something is added"
    assert window.counts(0.0)[0] == 3


def test_there_are_never_more_sums_than_tenths() -> None:
    window = ResultWindow(None, 10.0)
    for eighth in range(800):
        window.add(False, False, eighth / 8)
        assert len(window.buckets) <= BUCKETS == 10


def test_a_clock_that_steps_back_loses_nothing() -> None:
    window = ResultWindow(None, 10.0)
    window.add(True, False, 100.0)
    assert window.add(True, True, 40.0) == (2, 2, 1)
    assert window.counts(40.0) == (2, 2, 1)
    assert window.counts(109.875) == (2, 2, 1)
    assert window.counts(110.0) == (0, 0, 0)
