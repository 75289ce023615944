"""Which part of a recording is played, and how fast."""

from __future__ import annotations

import hashlib
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.replay import Selection

TIMES = st.lists(st.integers(0, 10_000_000), min_size=1, max_size=40).map(
    lambda ticks: [tick / 1000.0 for tick in sorted(ticks)]
)
"""Milliseconds of up to 10 000 s."""


def test_without_a_cut_requests_come_as_they_came() -> None:
    assert list(Selection().offsets([7.0, 7.5, 9.0])) == [0.0, 0.5, 2.0]


@given(TIMES, st.floats(0.01, 100.0))
def test_speed_divides_every_time(times: list[float], speed: float) -> None:
    offsets = Selection(speed=speed).offsets(times)
    assert list(offsets) == pytest.approx([(t - times[0]) / speed for t in times], abs=1e-9)


@given(TIMES, st.floats(0.1, 10_000.0), st.integers(1, 4))
def test_a_rate_is_the_mean_rate_of_the_loops(times: list[float], rate_rps: float, loops: int) -> None:
    offsets = Selection(rate_rps=rate_rps, loops=loops).offsets(times)
    assert len(offsets) == loops * len(times)
    if loops > 1:
        begins = offsets[:: len(times)]
        for earlier, later in pairwise(begins):
            assert later - earlier == pytest.approx(len(times) / rate_rps, rel=1e-9)


@given(TIMES, st.floats(0.1, 100.0), st.integers(2, 5))
def test_a_loop_starts_one_mean_gap_after_the_last_ended(
    times: list[float], speed: float, loops: int
) -> None:
    if times[0] == times[-1]:
        with pytest.raises(TrafficError, match="give a rate"):
            Selection(speed=speed, loops=loops).offsets(times)
        return
    offsets = Selection(speed=speed, loops=loops).offsets(times)
    mean_gap = (times[-1] - times[0]) / (len(times) - 1) / speed
    count = len(times)
    assert len(offsets) == loops * count
    assert offsets[count] - offsets[count - 1] == pytest.approx(mean_gap, rel=1e-6, abs=1e-9)
    assert [at - offsets[count] for at in offsets[count : 2 * count]] == pytest.approx(
        list(offsets[:count]), abs=1e-6
    )
    assert list(offsets) == sorted(offsets)


@given(TIMES, st.floats(0.001, 1000.0))
def test_no_gap_is_longer_than_allowed_and_no_other_changes(times: list[float], max_gap_s: float) -> None:
    offsets = Selection(max_gap_s=max_gap_s).offsets(times)
    for (earlier, later), (before, after) in zip(pairwise(offsets), pairwise(times), strict=True):
        assert later - earlier == pytest.approx(min(after - before, max_gap_s), abs=1e-6)


def test_gaps_are_shortened_before_they_are_played_faster() -> None:
    assert list(Selection(max_gap_s=4.0, speed=2.0).offsets([0.0, 100.0, 101.0])) == [0.0, 2.0, 2.5]


@given(TIMES, st.floats(0.5, 50.0))
def test_forever_ends_with_the_duration(times: list[float], duration_s: float) -> None:
    offsets = Selection(rate_rps=20.0, loops=None, duration_s=duration_s).offsets(times)
    assert offsets[0] == 0.0
    assert offsets[-1] < duration_s
    period_s = len(times) / 20.0
    complete = math.floor(duration_s / period_s * (1 - 1e-12))
    assert len(offsets) >= complete * len(times)


def test_a_duration_ends_a_single_loop_too() -> None:
    assert list(Selection(duration_s=2.0).offsets([0.0, 1.0, 2.0, 3.0])) == [0.0, 1.0]


def test_a_loop_in_no_time_needs_a_rate() -> None:
    with pytest.raises(TrafficError, match="give a rate"):
        Selection(loops=2).offsets([1.0, 1.0])
    assert list(Selection(loops=2, rate_rps=4.0).offsets([1.0, 1.0])) == [0.0, 0.0, 0.5, 0.5]
    assert list(Selection(loops=3, rate_rps=4.0).offsets([1.0])) == [0.0, 0.25, 0.5]


@pytest.mark.parametrize(
    ("cut", "times", "words"),
    [
        (Selection(), [], "nothing to replay"),
        (Selection(), [1.0, 0.5], "must not fall"),
        (Selection(loops=50_000_001, rate_rps=1.0), [1.0], "50000001 requests"),
    ],
)
def test_impossible_selection_is_rejected(cut: Selection, times: list[float], words: str) -> None:
    with pytest.raises(TrafficError, match=words):
        cut.offsets(times)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"speed": 0.0}, "speed must be"),
        ({"speed": math.nan}, "speed must be"),
        ({"rate_rps": -1.0}, "rate must be"),
        ({"duration_s": math.inf}, "duration must be"),
        ({"max_gap_s": 0.0}, "max_gap must be"),
        ({"sample": 0.0}, "sample must be"),
        ({"sample": 1.5}, "sample must be"),
        ({"loops": 0}, "loops must be"),
        ({"loops": None}, "forever needs a duration"),
        ({"speed": 2.0, "rate_rps": 5.0}, "cannot both"),
        ({"from_s": -1.0}, "interval"),
        ({"from_s": 5.0, "to_s": 5.0}, "interval"),
        ({"to_s": math.nan}, "interval"),
    ],
)
def test_bad_numbers_are_rejected(wrong: dict[str, float | int | None], words: str) -> None:
    with pytest.raises(TrafficError, match=words):
        Selection(**wrong)  # type: ignore[arg-type]


def test_all_problems_are_listed_together() -> None:
    with pytest.raises(TrafficError, match=r"speed must .*; sample must .*; loops must"):
        Selection(speed=-1.0, sample=2.0, loops=0)


def test_the_interval_holds_its_beginning_and_not_its_end() -> None:
    cut = Selection(from_s=2.0, to_s=4.0)
    assert [t for t in (1.9, 2.0, 3.9, 4.0) if cut.includes(t, "", 0)] == [2.0, 3.9]


@given(st.text(max_size=20), st.integers(0, 10**6), st.floats(0.01, 0.99))
def test_client_is_sampled_with_all_its_requests(client: str, serial: int, sample: float) -> None:
    cut = Selection(sample=sample)
    kept = {cut.includes(t_s, client, serial + n * bool(client)) for n, t_s in enumerate((0.0, 5.0, 9.0))}
    assert len(kept) == 1


def test_sample_applies_to_a_sampled_recording() -> None:
    digits = (hashlib.sha256(b"%d" % n).hexdigest()[:16] for n in range(8000))
    recorded = [client for client in digits if int(client[:8], 16) / 2**32 < 0.25]
    kept = sum(Selection(sample=0.25).includes(0.0, client, 0) for client in recorded)
    assert 0.2 < kept / len(recorded) < 0.3


@pytest.mark.parametrize("client", ["user-%d", ""])
def test_a_sample_keeps_about_its_share(client: str) -> None:
    kept = sum(Selection(sample=0.25).includes(0.0, client % n if client else "", n) for n in range(4000))
    assert 850 < kept < 1150  # five sigma of 4000 draws at 0.25 are 137
