"""The adaptive sampling interval, with time passed in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.interval import STEP_DELAY_S, AdaptiveInterval


def settled(load: float, interval_s: float = 1.0, max_s: float = 10.0) -> tuple[AdaptiveInterval, float]:
    """Build an interval adapted to this load, and the time."""
    pace = AdaptiveInterval(interval_s, max_s)
    for tick in range(100):
        pace.next(load, False, float(tick))
    return pace, 99.0


@pytest.mark.parametrize(
    ("load", "interval_s"),
    [
        (0.0, 10.0),
        (0.299, 10.0),
        (0.3, 5.0),
        (0.699, 5.0),
        (0.7, 1.0),
        (1.0, 1.0),
        (3.0, 1.0),
        (math.inf, 1.0),
    ],
)
def test_load_that_stays_decides(load: float, interval_s: float) -> None:
    pace, now = settled(load)
    assert pace.next(load, False, now) == interval_s
    assert pace.interval_s == 1.0, "the shortest stays what it is"


def test_slower_comes_one_step_in_thirty_seconds() -> None:
    pace = AdaptiveInterval(1.0, 10.0)
    listener = {now: pace.next(0.1, False, float(now)) for now in range(0, 95, 5)}
    assert listener == {now: 1.0 if now < 30 else 5.0 if now < 60 else 10.0 for now in range(0, 95, 5)}


@pytest.mark.parametrize(("load", "interval_s"), [(0.3, 5.0), (0.69, 5.0), (0.7, 1.0)])
def test_faster_comes_at_once(load: float, interval_s: float) -> None:
    pace, now = settled(0.1)
    assert pace.next(load, False, now) == interval_s


@pytest.mark.parametrize(("load", "urgent"), [(0.0, True), (None, False), (None, True), (math.nan, False)])
def test_urgent_or_unknown_is_the_shortest_at_once(load: float | None, urgent: bool) -> None:
    pace, now = settled(0.0)
    assert pace.next(load, urgent, now) == 1.0


def test_a_busy_moment_starts_the_staying_anew() -> None:
    pace = AdaptiveInterval(1.0, 10.0)
    pace.next(0.1, False, 0.0)
    pace.next(0.9, False, 29.0)
    pace.next(0.1, False, 30.0)
    assert pace.next(0.1, False, 59.9) == 1.0
    assert pace.next(0.1, False, 60.0) == 5.0


def test_quiet_and_quieter_count_as_one_staying() -> None:
    pace = AdaptiveInterval(1.0, 10.0)
    pace.next(0.5, False, 0.0)
    pace.next(0.1, False, 15.0)
    assert pace.next(0.5, False, 30.0) == 5.0
    assert pace.next(0.5, False, 90.0) == 5.0, "that is as slow as this load allows"


def test_a_long_silence_is_no_more_than_one_step() -> None:
    pace = AdaptiveInterval(1.0, 10.0)
    pace.next(0.0, False, 0.0)
    assert pace.next(0.0, False, 3600.0) == 5.0
    assert pace.next(0.0, False, 3600.1) == 5.0


@pytest.mark.parametrize(
    ("interval_s", "max_s", "steps"),
    [(2.0, 60.0, (20.0, 10.0, 2.0)), (1.0, 3.0, (3.0, 3.0, 1.0)), (1.0, 1.0, (1.0,) * 3)],
)
def test_steps_scale_with_the_interval_and_end_at_the_longest(
    interval_s: float, max_s: float, steps: tuple[float, ...]
) -> None:
    chosen = []
    for load in (0.1, 0.5, 0.9):
        pace, now = settled(load, interval_s, max_s)
        chosen.append(pace.next(load, False, now))
    assert tuple(chosen) == steps


@pytest.mark.parametrize(
    ("interval_s", "max_s"),
    [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (1.0, math.nan), (1.0, math.inf)],
)
def test_impossible_times_are_rejected(interval_s: float, max_s: float) -> None:
    with pytest.raises(ValueError, match="interval_s"):
        AdaptiveInterval(interval_s, max_s)


REPORTED = st.tuples(st.none() | st.floats(0.0, 2.0), st.booleans(), st.floats(0.0, 40.0))


def slowest(load: float | None, urgent: bool) -> float:
    """Return the longest multiple in the table."""
    if urgent or load is None or load >= 0.7:
        return 1.0
    return 5.0 if load >= 0.3 else 10.0


@given(st.floats(0.2, 20.0), st.floats(1.0, 30.0), st.lists(REPORTED, max_size=60))
def test_never_slower_than_the_table_and_never_slower_in_a_hurry(
    interval_s: float, stretch: float, report: list[tuple[float | None, bool, float]]
) -> None:
    pace = AdaptiveInterval(interval_s, interval_s * stretch)
    now = slower_at = -math.inf
    before = interval_s
    for load, urgent, after_s in report:
        now = (0.0 if now == -math.inf else now) + after_s
        chosen = pace.next(load, urgent, now)
        assert interval_s <= chosen <= min(interval_s * slowest(load, urgent), interval_s * stretch)
        if chosen > before:
            assert now - slower_at >= STEP_DELAY_S
            slower_at = now
        before = chosen
