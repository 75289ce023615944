"""The clock that only the test moves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.testing import ManualClock


def test_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(5.0)
    assert (clock(), clock()) == (5.0, 5.0)
    assert clock.advance(1.5) == 6.5 == clock()
    assert repr(clock) == "ManualClock(6.5 s)"


@given(st.lists(st.floats(0, 1e6)))
def test_never_goes_back(steps: list[float]) -> None:
    clock = ManualClock()
    readings = [clock(), *(clock.advance(step) for step in steps)]
    assert readings == sorted(readings)


@pytest.mark.parametrize("step", [-1e-9, -math.inf, math.inf, math.nan])
def test_rejects_moves_of_no_monotonic_clock(step: float) -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="0 or more"):
        clock.advance(step)
    assert clock() == ManualClock()()
