"""Numbers as people read them, and where they stand on an axis."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.report.page import axes, units

AMOUNTS = st.floats(1e-6, 1e9)


@pytest.mark.parametrize(
    ("duration_s", "told"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.00042, "0.42 ms"),
        (0.0184, "18.4 ms"),
        (0.2049, "205 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1 s"),
        (1.234, "1.23 s"),
        (99.97, "100 s"),
        (1234.0, "1,234 s"),
    ],
)
def test_durations(duration_s: float | None, told: str) -> None:
    assert units.seconds(duration_s) == told


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        (None, "–"),
        (0.0, "0 %"),
        (0.0004, "< 0.1 %"),
        (0.047, "4.7 %"),
        (0.4752, "47.5 %"),
        (0.9912, "99.12 %"),
        (0.9999, "> 99.9 %"),
        (1.0, "100 %"),
        (1.25, "125 %"),
    ],
)
def test_ratios(ratio: float | None, told: str) -> None:
    assert units.share(ratio) == told


@given(st.floats(0.0, 1.0, exclude_min=True, exclude_max=True))
def test_small_shares_are_not_0_and_large_ones_not_100_percent(ratio: float) -> None:
    assert units.share(ratio) not in {"0 %", "100 %"}


def test_everything_else() -> None:
    assert units.count(12345.0) == "12,345"
    assert [units.rate(rps) for rps in (None, 0.0, 0.25, 9.96, 850.0)] == [
        "–",
        "0/s",
        "0.2/s",
        "10.0/s",
        "850/s",
    ]
    assert [units.clock(at_s) for at_s in (0, 12.5, 120, 150, 3600, 7325)] == [
        *("0 s", "12.5 s", "120 s", "2:30", "1 h", "2:02:05")
    ]
    assert [units.size(number) for number in (12.0, 2048.0, 5e6, 3e9)] == [
        "12 B",
        "2 KiB",
        "4.77 MiB",
        "2.79 GiB",
    ]
    assert [units.brief(number) for number in (999_999.0, 2.5e6)] == ["999,999", "2.5 M"]
    assert units.power_of_ten(0.00001) == "0.001 %"
    told = [units.value(*one) for one in ((None, "s"), (0.5, "s"), (0.5, "ratio"), (0.5, "rps"))]
    assert told == ["no data", "500 ms", "50 %", "0.5/s"]


@given(AMOUNTS)
def test_linear_axis_fits_the_maximum_closely(most: float) -> None:
    axis = axes.linear(most, str)
    assert 0.45 < axis.place(most) <= 1.0 + 1e-9
    assert axis.place(0.0) == 0.0
    assert 2 <= len(axis.ticks) <= 6
    assert [place for place, _ in axis.ticks] == pytest.approx(
        [axis.place(float(says)) for _, says in axis.ticks]
    )


def test_a_linear_axis_names_round_numbers() -> None:
    assert [says for _, says in axes.linear(850.0, units.count).ticks] == ["0", "250", "500", "750", "1,000"]
    assert [says for _, says in axes.linear(1.0, units.share).ticks] == [
        "0 %",
        "25 %",
        "50 %",
        "75 %",
        "100 %",
    ]
    assert [says for _, says in axes.linear(0.0, str).ticks] == ["0.0", "0.25"]


@given(st.lists(AMOUNTS, max_size=5))
def test_logarithmic_axis_covers_whole_decades(numbers: list[float]) -> None:
    axis = axes.logarithmic(numbers, str)
    assert all(-1e-9 <= axis.place(number) <= 1.0 + 1e-9 for number in numbers)
    assert axis.ticks[0][0] == 0.0
    assert axis.ticks[-1][0] == 1.0
    ends = [float(says) for _, says in axis.ticks]
    assert [later / earlier for earlier, later in pairwise(ends)] == pytest.approx([10.0] * (len(ends) - 1))


def test_values_below_a_logarithmic_axis_are_at_its_origin() -> None:
    assert axes.logarithmic([0.01, 1.0], str).place(0.0) == 0.0


@given(st.floats(0.5, 1e6), st.integers(2, 8))
def test_an_axis_of_time_ends_with_the_run_and_is_not_crowded(length_s: float, ticks: int) -> None:
    axis = axes.time(length_s, str, ticks=ticks)
    assert axis.place(length_s) == 1.0
    assert len(axis.ticks) <= ticks + 1
    assert all(0.0 <= place <= 1.0 + 1e-6 for place, _ in axis.ticks)


def test_time_axis_uses_natural_steps() -> None:
    assert [says for _, says in axes.time(60, units.clock).ticks] == [f"{ten} s" for ten in range(0, 70, 10)]
    assert [says for _, says in axes.time(600, units.clock).ticks][1:3] == ["120 s", "4:00"]
    assert [place for place, _ in axes.time(20 * 86400.0, str).ticks] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


def test_bytes_have_ticks_that_are_round_in_their_own_unit() -> None:
    ticks = axes.linear(80.0 * 1024**2, units.size, power=1024).ticks
    assert [says for _, says in ticks] == ["0 B", "20 MiB", "40 MiB", "60 MiB", "80 MiB"]
    assert axes.linear(0.0, units.size, power=1024).ticks[0] == (0.0, "0 B")


def test_singular_is_used_for_one() -> None:
    assert [units.many(number, "request") for number in (0, 1, 2_000)] == [
        "0 requests",
        "1 request",
        "2,000 requests",
    ]
    assert units.many(2, "process", "processes") == "2 processes"
