"""The guaranteed share of mid and low."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.gate_share import BURST, BURST_S, Share


def test_it_grows_with_time_at_its_part_of_the_rate() -> None:
    tested = Share(0.03, 0.0)
    assert not tested.take(100.0, 0.0)
    assert not tested.take(100.0, 0.33)
    assert tested.take(100.0, 0.34)
    assert not tested.take(100.0, 0.66)
    assert tested.take(100.0, 0.68)


@pytest.mark.parametrize(("rate", "saved"), [(1000.0, 90), (100.0, 9), (20.0, 2), (1.0, 2)])
def test_so_much_is_saved_up(rate: float, saved: int) -> None:
    tested = Share(0.03, 0.0)
    assert sum(tested.take(rate, 1000.0) for _ in range(200)) == saved


def test_no_share_is_strict_priority() -> None:
    tested = Share(0.0, 0.0)
    assert not any(tested.take(1e6, float(second)) for second in range(1000))


@given(
    share=st.floats(0.0, 0.2),
    rates=st.lists(st.floats(0.1, 1000.0), min_size=1, max_size=30),
    gaps=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=300),
)
def test_no_flood_takes_more_than_its_share(share: float, rates: list[float], gaps: list[float]) -> None:
    tested, now, taken = Share(share, 0.0), 0.0, 0
    highest = max(rates) * share
    for step, gap in enumerate(gaps):
        now += gap
        taken += tested.take(rates[step % len(rates)], now)
        assert taken <= max(BURST, BURST_S * highest) + highest * now + 1e-6
