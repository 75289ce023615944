"""The history of metric values, compared with naive computations on all values that were recorded."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.admission.counters import DURATION_BUCKETS_S
from autoglm_throttle.observe.series import History, Row, histogram_quantile

LABELS = {"load": (), "requests": ("priority", "reason"), "durations": ("priority",)}
EMPTY = [0.0] * (len(DURATION_BUCKETS_S) + 1)

HIGH, LOW = ("high", "ok"), ("low", "gpu")


def history(keep_s: float = 60.0) -> History:
    return History(LABELS, keep_s, 5.0)


def fed(loads: list[float | None], keep_s: float = 60.0) -> History:
    made = history(keep_s)
    for step, load in enumerate(loads):
        made.record(step * 5.0, 1000.0 + step * 5.0, [] if load is None else [("load", (), load)])
    return made


def counted(counts: list[float | None]) -> History:
    made = history()
    for step, count in enumerate(counts):
        made.record(step * 5.0, 0.0, [] if count is None else [("requests", HIGH, count)])
    return made


def histogram(*durations_s: float) -> list[float]:
    counts = EMPTY.copy()
    for duration_s in durations_s:
        counts[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1
    return counts


def test_known_values_of_a_window_are_those_that_are_not_gaps() -> None:
    made = fed([float(step) for step in range(16)])  # the ring has begun anew: the window is in two parts
    assert made.known("load", 30.0) == {(): [9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]}
    made.record(85.0, 0.0, [("load", (), 17.0)])
    assert made.known("load", 15.0) == {(): [14.0, 15.0, 17.0]}
    made.record(100.0, 0.0, [])
    assert made.known("load", 10.0) == {}


@given(st.lists(st.none() | st.floats(0.0, 1.0), max_size=40), st.integers(1, 12))
def test_values_are_the_newest_ones_with_their_gaps(loads: list[float | None], kept: int) -> None:
    made = fed(loads, kept * 5.0)
    expected = loads[-kept - 1 :]
    # A series that has only gaps is forgotten; its values are gaps all the same.
    assert made.values("load") == expected
    assert made.steps == len(expected)
    assert made.values("load", window_s=10.0) == expected[-3:]
    assert bool(made.series("load")) == any(load is not None for load in expected)


def test_an_empty_history_has_no_values() -> None:
    made = history()
    assert (made.steps, made.values("load"), made.last("load"), made.series("load")) == (0, [], {}, [])
    assert made.increase("requests", 60.0) == {}
    assert made.quantile(0.5, "durations", 60.0) is None
    assert made.quantiles(0.5, "durations", 60.0) == []
    assert made.now_s == -math.inf


def test_a_step_left_out_is_a_gap() -> None:
    made = fed([0.5])
    made.record(15.0, 1015.0, [("load", (), 0.75)])
    assert made.values("load") == [0.5, None, None, 0.75]
    assert (made.now_s, made.wall_s) == (15.0, 1015.0)


def test_a_pause_longer_than_the_history_empties_it() -> None:
    made = fed([0.5, 0.5])
    made.record(10_000.0, 0.0, [])
    assert made.values("load") == [None] * 13
    assert made.series("load") == []


def test_a_late_step_belongs_to_the_nearest_time() -> None:
    made = history()
    for now in (5.0, 11.5, 14.0, 20.1):
        made.record(now, 0.0, [("load", (), now)])
    assert made.values("load") == [5.0, 11.5, 14.0, 20.1]


def test_two_records_in_one_step_are_one() -> None:
    made = fed([0.5, 0.75])
    made.record(6.0, 0.0, [("requests", HIGH, 1.0), ("load", (), 0.25)])
    assert made.values("load") == [0.5, 0.25]
    assert made.values("requests", HIGH) == [None, 1.0]


def test_a_series_that_ended_long_ago_needs_no_memory() -> None:
    made = fed([0.5, 0.5])
    for step in range(2, 40):
        made.record(step * 5.0, 0.0, [])
    assert not made._rings["load"]


def test_labels_select_the_series() -> None:
    made = history()
    made.record(0.0, 0.0, [("requests", HIGH, 3.0), ("requests", LOW, 4.0)])
    assert made.series("requests") == [HIGH, LOW]
    assert made.series("requests", priority="low") == [LOW]
    assert made.series("requests", priority="low", reason="ok") == []
    assert made.last("requests", priority="high") == {HIGH: 3.0}
    assert made.values("requests", ("mid", "ok")) == [None]


def test_the_last_value_is_that_of_the_step_alone() -> None:
    made = fed([0.25, 0.5, None])
    assert made.last("load") == {}
    assert made.last("load", offset_s=5.0) == {(): 0.5}
    assert made.last("load", offset_s=500.0) == {}


counts_list = st.lists(st.none() | st.integers(0, 50), max_size=12)


@given(counts_list)
def test_increase_adds_up_what_was_counted(counts: list[float | None]) -> None:
    known = [count for count in counts[-7:] if count is not None]
    expected = sum(after - before if after >= before else after for before, after in pairwise(known))
    assert counted(counts).increase("requests", 30.0) == ({HIGH: expected} if len(known) > 1 else {})


@given(counts_list)
def test_rates_are_per_second_and_never_across_a_gap(counts: list[float | None]) -> None:
    found = counted(counts).rates("requests", HIGH)
    for (before, after), rate in zip(pairwise(counts), found, strict=True):
        if before is None or after is None:
            assert rate is None
        else:
            assert rate == (after - before if after >= before else after) / 5.0


def test_a_histogram_that_begins_anew_counts_from_zero() -> None:
    made = history()
    for step, durations in enumerate([[0.02, 0.02, 3.0], [0.02]]):
        made.record(step * 5.0, 0.0, [("durations", ("high",), histogram(*durations))])
    counts = made.counts("durations", 60.0)
    assert counts is not None
    assert sum(counts) == 1.0


def test_matching_histograms_are_added_up() -> None:
    made = history()
    for step in range(2):
        rows: list[Row] = [
            ("durations", (priority,), histogram(*[0.02] * (step * times)))
            for priority, times in (("high", 1), ("mid", 2), ("low", 4))
        ]
        made.record(step * 5.0, 0.0, rows)
    counts = made.counts("durations", 60.0)
    assert counts is not None
    assert sum(counts) == 7.0
    assert made.quantile(1.0, "durations", 60.0, priority="mid") == 0.025


def test_quantiles_follow_the_window_step_by_step() -> None:
    made, durations = history(), [[], [0.02], [0.02, 0.7], [0.02, 0.7], [0.02, 0.7]]
    for step, until in enumerate(durations):
        made.record(step * 5.0, 0.0, [("durations", ("high",), histogram(*until))])
    assert made.quantiles(1.0, "durations", 10.0) == [None, 0.025, 0.75, 0.75, None]
    assert made.quantile(1.0, "durations", 10.0, offset_s=15.0) == 0.025


@pytest.mark.parametrize(
    ("share", "durations_s", "expected"),
    [
        (0.5, [], None),
        (0.5, [0.003], 0.0025),  # the first bucket begins at 0
        (0.95, [1.5] * 100, 1.95),
        (0.5, [0.8, 1.5], 1.0),
        (0.75, [0.8, 1.5], 1.5),
        (0.99, [100.0], 60.0),  # the last finite edge
        (0.5, [0.02, 100.0, 100.0], 60.0),
    ],
)
def test_a_quantile_is_linear_inside_a_bucket(
    share: float, durations_s: list[float], expected: float | None
) -> None:
    assert histogram_quantile(share, histogram(*durations_s)) == pytest.approx(expected)
