"""Time of a measurement: by counter, by timestamp, or by changes of other rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.scrape.freshness import FORGET_S, MOST_ROWS, DatedRow, RefreshDetector
from autoglm_throttle.types import GpuSample


def report(
    device: str = "GPU-a", load: float = 50.0, pulse: float | None = None, stamp_s: float | None = None
) -> DatedRow:
    sample = GpuSample(device=device, index=0, taken_at_s=0.0, source="dcgm:h", utilization_pct=load)
    return sample, pulse, stamp_s


def measured(rows: list[GpuSample]) -> list[float]:
    return [row.taken_at_s - row.age_s for row in rows]


@given(
    st.floats(1000.0, 1e7),
    st.lists(st.floats(0.01, 30.0), min_size=1, max_size=40),
    st.sampled_from([report(), report(pulse=5.0), report(stamp_s=99.0), report(pulse=5.0, stamp_s=99.0)]),
    st.floats(-1e5, 1e5),
)
def test_repeated_row_is_never_new(start: float, waits: list[float], row: DatedRow, wall_s: float) -> None:
    renewal, now, seen = RefreshDetector(), start, set()
    for wait in waits:
        (dated,) = renewal.date([row], now, wall_s + now)
        seen.update(measured([dated]))
        now += wait
    assert max(seen) - min(seen) <= 1e-9 * max(start, 1e5)
    assert dated.period_s is None


def test_idle_device_is_new_when_its_counter_moves() -> None:
    renewal = RefreshDetector()
    assert renewal.date([report(pulse=1.0)], 10.0, 0.0)[0].age_s == 0.0
    assert renewal.date([report(pulse=1.0)], 11.0, 0.0)[0].age_s == 1.0
    assert renewal.date([report(pulse=1.0, load=99.0)], 12.0, 0.0)[0].age_s == 2.0
    assert renewal.date([report(pulse=2.0)], 13.0, 0.0)[0].age_s == 0.0


def test_unchanged_device_is_old_among_changing_ones() -> None:
    renewal = RefreshDetector()
    for second in range(5):
        frozen, alive = renewal.date(
            [report(pulse=1.0), report("GPU-b", pulse=float(second))], 10.0 + second, 0.0
        )
        assert (frozen.age_s, alive.age_s) == (second, 0.0)


def test_instance_without_counter_is_as_new_as_others() -> None:
    renewal = RefreshDetector()
    renewal.date([report("a", 0.0), report("b", 80.0)], 10.0, 0.0)
    assert [row.age_s for row in renewal.date([report("a", 0.0), report("b", 80.0)], 11.0, 0.0)] == [
        1.0,
        1.0,
    ]
    assert [row.age_s for row in renewal.date([report("a", 0.0), report("b", 81.0)], 12.0, 0.0)] == [
        0.0,
        0.0,
    ]


def test_the_period_is_the_median_gap_between_changes() -> None:
    renewal = RefreshDetector()
    reported_of = []
    for second in range(200):
        (row,) = renewal.date([report(pulse=float((second + 13) // 30))], 1000.0 + second, 0.0)
        reported_of.append(row.period_s)
    assert reported_of[:77] == [None] * 77, "the first change is at 17, the first whole gaps end at 47 and 77"
    assert reported_of[77:] == [30.0] * 123


def test_changed_period_is_relearned_and_outliers_ignored() -> None:
    renewal, now, pulse = RefreshDetector(), 0.0, 0.0
    for gap in [30.0] * 10 + [200.0, 1.0] + [10.0] * 5:
        pulse += 1.0
        (row,) = renewal.date([report(pulse=pulse)], now, 0.0)
        now += gap
        if gap == 1.0:
            assert row.period_s == 30.0
    (row,) = renewal.date([report(pulse=pulse + 1.0)], now, 0.0)
    assert row.period_s == 10.0


def test_period_without_counters_is_that_of_changes() -> None:
    renewal = RefreshDetector()
    for number in range(5):
        (row,) = renewal.date([report(load=float(number))], 100.0 + 15.0 * number, 0.0)
    assert row.period_s == 15.0


@pytest.mark.parametrize(("stamp_s", "age_s"), [(1000.0, 20.0), (1020.0, 0.0), (1050.0, 0.0), (9000.0, 0.0)])
def test_timestamp_gives_age_unless_in_the_future(stamp_s: float, age_s: float) -> None:
    renewal = RefreshDetector()
    assert renewal.date([report(stamp_s=stamp_s)], 5.0, 1020.0)[0].age_s == age_s
    assert renewal.date([report(stamp_s=stamp_s)], 6.0, 1021.0)[0].age_s == age_s + 1.0


def test_a_step_of_the_wall_clock_makes_nothing_new() -> None:
    renewal = RefreshDetector()
    before = measured(renewal.date([report(stamp_s=1000.0)], 5.0, 1001.0))
    assert measured(renewal.date([report(stamp_s=1000.0)], 6.0, 90_000.0)) == before
    assert measured(renewal.date([report(stamp_s=1000.0)], 7.0, 3.0)) == before


def test_moving_timestamp_without_counter_is_not_new() -> None:
    renewal = RefreshDetector()
    for second in range(4):
        (row,) = renewal.date([report(pulse=7.0, stamp_s=1000.0 + second)], 50.0 + second, 1000.5 + second)
        assert row.age_s == 0.5 + second


def test_returned_unchanged_row_is_old_until_evicted() -> None:
    renewal = RefreshDetector()
    renewal.date([report(pulse=1.0)], 10.0, 0.0)
    renewal.date([], 20.0, 0.0)
    assert renewal.date([report(pulse=1.0)], 30.0, 0.0)[0].age_s == 20.0
    renewal.date([], 31.0 + FORGET_S, 0.0)
    assert renewal.date([report(pulse=1.0)], 32.0 + FORGET_S, 0.0)[0].age_s == 0.0


def test_source_with_changing_names_is_bounded() -> None:
    renewal = RefreshDetector()
    for second in range(3):
        renewal.date([report(f"{second}-{n}", pulse=1.0) for n in range(MOST_ROWS // 2)], 10.0 + second, 0.0)
    assert len(renewal._clocks) == MOST_ROWS
    (row,) = renewal.date([report("2-0", pulse=1.0)], 20.0, 0.0)
    assert row.age_s == 8.0, "those seen longest ago are forgotten"
