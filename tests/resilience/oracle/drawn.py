"""Rules and times by chance. All times are eighths of a second, so that sums and differences are exact."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerMode, SlowCallMode, TripRule

TICK_S = 0.125

TRIPS = (
    *[frozenset({TripRule.CONSECUTIVE})] * 4,
    *[frozenset({TripRule.FAILURE_RATE})] * 2,
    *(frozenset(trips) for size in (1, 2, 3) for trips in combinations(TripRule, size)),
)
"""Every combination, those that see one rule alone more often."""
MODES = (*[BreakerMode.ENFORCE] * 6, BreakerMode.METRICS_ONLY, BreakerMode.DISABLED)
RAMPS = ((), (), (0.125, 0.5), (0.25,), (0.5, 0.75), (0.375, 0.625))
WINDOWS: tuple[dict[str, Any], ...] = ({"window": 4}, {"window_s": 1.25}, {"window_s": 2.5}, {})
SPANS_S = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 30.0)
STEPS_BACK_S = (0.125, 1.0, 5.0, 60.0)


def plain() -> st.SearchStrategy[BreakerSettings]:
    """As most users have them."""
    return st.builds(
        BreakerSettings,
        failures=st.integers(2, 4),
        open_s=st.just(1.0),
        backoff=st.sampled_from([1.0, 2.0]),
        half_open_max=st.integers(1, 2),
        trial_lease_s=st.just(2.0),
    )


def ramping() -> st.SearchStrategy[BreakerSettings]:
    """With several steps of a ramp, and easily opened."""
    return st.builds(
        BreakerSettings,
        failures=st.just(1),
        open_s=st.just(1.0),
        ramp=st.sampled_from([ramp for ramp in RAMPS if len(ramp) > 1]),
        ramp_step_s=st.sampled_from([0.5, 1.0]),
        max_in_flight=st.sampled_from([0, 3]),
    )


@st.composite
def windowed(draw: st.DrawFn) -> BreakerSettings:
    """By rates alone."""
    return BreakerSettings(
        trip=draw(st.sampled_from([frozenset({TripRule.FAILURE_RATE}), frozenset({TripRule.SLOW_RATE})])),
        **draw(st.sampled_from(WINDOWS)),
        min_calls=draw(st.integers(2, 4)),
        slow_is=draw(st.sampled_from(SlowCallMode)),
    )


@st.composite
def rules(draw: st.DrawFn) -> BreakerSettings:
    """Draw any rules that the settings accept."""
    open_s = draw(st.sampled_from([0.5, 1.0, 4.0]))
    min_calls = draw(st.integers(1, 6))
    trip = draw(st.sampled_from([None, *TRIPS]))
    shares: dict[str, Any] = {
        rate: draw(st.sampled_from([0.5, 0.5, 1.0, 0.3]))
        for rate in ("failure_rate", "slow_rate")
        if trip is None or rate in trip
    }
    windows: st.SearchStrategy[dict[str, Any]] = st.one_of(
        st.integers(min_calls, 6).map(lambda window: {"window": window}),
        st.sampled_from([{"window_s": 1.25}, {"window_s": 2.5}, {}]),
    )
    return BreakerSettings(
        failures=draw(st.integers(1, 4)),
        open_s=open_s,
        open_max_s=draw(st.sampled_from([None, None, open_s, open_s * 3])),
        backoff=draw(st.sampled_from([1.0, 2.0, 3.0])),
        half_open_max=draw(st.integers(1, 3)),
        success_threshold=draw(st.sampled_from([None, None, 1, 2, 4])),
        timeout_s=draw(st.sampled_from([None, 0.5])),
        trial_lease_s=draw(st.sampled_from([None, 0.5, 2.0, 2.0])),
        trip=trip,
        failure_window_s=draw(st.sampled_from([None, None, 0.5, 2.0])),
        **draw(windows),
        min_calls=min_calls,
        **shares,
        slow_is=draw(st.sampled_from(SlowCallMode)),
        ramp=draw(st.sampled_from(RAMPS)),
        ramp_step_s=draw(st.sampled_from([0.5, 1.0])),
        max_in_flight=draw(st.sampled_from([0, 0, 0, 0, 1, 3])),
        mode=draw(st.sampled_from(MODES)),
    )
