"""Curves, areas and steps of time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.report.page.curves import band, line, stacked, stairs
from autoglm_throttle.traffic.report.page.timeline import MAX_STEPS, Timeline, TimelineMark


def test_a_gap_lifts_the_pen_and_a_lone_point_is_a_dot() -> None:
    assert line([(0.0, 0.0), (0.5, 1.0), None, (1.0, 0.25)]) == "M0 1000h0L500 0M1000 750h0"
    assert line([None, None]) == ""


def test_stairs_are_level_between_edges() -> None:
    assert stairs([0.0, 0.5, 1.0], [0.2, 0.4]) == "M0 800h0L500 800L500 600L1000 600"


def test_a_band_goes_there_above_and_back_below() -> None:
    assert band([0.0, 1.0], [0.1], [0.9]) == "M0 100L1000 100L1000 900L0 900Z"


@given(st.lists(st.lists(st.integers(0, 99), min_size=3, max_size=3), max_size=5))
def test_stacked_areas_reach_their_sum(rows: list[list[int]]) -> None:
    piled = stacked(rows)
    assert len(piled) == len(rows)
    for (_, below), (above, _) in pairwise(piled):
        assert below == above
    if rows:
        assert piled[-1][1] == [sum(column) for column in zip(*rows, strict=True)]
        assert piled[0][0] == [0.0] * 3


@given(st.integers(1, 5000))
def test_every_second_is_in_one_step(seconds: int) -> None:
    steps = Timeline(seconds)
    assert steps.edges_s[0] == 0.0
    assert steps.edges_s[-1] == seconds
    assert len(steps.edges_s) - 1 == len(steps.names) == len(steps.middles_s) <= MAX_STEPS
    counts = steps.mean([6] * seconds)
    assert counts == [6.0] * len(steps.names)
    assert bool(steps.note) is (seconds > MAX_STEPS)


def test_step_shows_mean_counts_and_worst_latencies() -> None:
    steps = Timeline(2 * MAX_STEPS + 1)
    assert steps.step_s == 3
    assert steps.mean([1, 2, 6, 5])[:2] == [3.0, 5.0]
    assert steps.worst([0.1, None, 0.3, None, None, None, 0.2]) == [0.3, None, 0.2]
    assert steps.names[:2] == ["0 s", "3 s"]


def test_marks_are_the_segments() -> None:
    assert TimelineMark(0.0, 7.0, "calm") == TimelineMark(0.0, 7.0, "calm")
    with pytest.raises(AttributeError):
        Timeline(1).seconds = 2  # type: ignore[misc]
