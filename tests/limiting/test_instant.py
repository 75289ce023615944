"""Waits to an instant."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.decisions import seconds_until

instants = st.floats(0.0, 1e12)


@given(instant=instants, now=instants)
def test_request_after_retry_after_is_never_early(instant: float, now: float) -> None:
    wait = seconds_until(instant, now)
    assert wait >= 0.0
    assert now + wait >= instant
    assert wait == 0.0 or now + math.nextafter(math.nextafter(wait, 0.0), 0.0) <= instant


def test_a_difference_that_was_rounded_down_is_not_enough() -> None:
    instant, now = 0.5 + 2.0**-53, 2.0**-54
    assert now + (instant - now) < instant
    assert now + seconds_until(instant, now) >= instant


@pytest.mark.parametrize("now", [5.0, 5.1, math.inf])
def test_an_instant_that_has_come_needs_no_wait(now: float) -> None:
    assert seconds_until(5.0, now) == 0.0
