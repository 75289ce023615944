"""A counting breaker has the same states as an enforcing one, and rejects no call."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerMode, BreakerView, GuardPermit, Outcome
from tests.resilience.oracle import drawn

REQUESTS = st.tuples(st.just("request"), st.just(0.0))
WAITS = st.tuples(st.just("wait"), st.sampled_from(drawn.SPANS_S))
ENDS = st.tuples(st.sampled_from(Outcome), st.integers(0, 4).map(float))


def shape(view: BreakerView) -> BreakerView:
    """Return the common part of the two breakers."""
    return replace(view, metrics_only=False, calls=0, rejected={}, would_reject=0)


@given(rules=drawn.rules(), events=st.lists(st.one_of(REQUESTS, REQUESTS, ENDS, ENDS, WAITS), max_size=60))
def test_the_shadow_is_the_breaker_itself(rules: BreakerSettings, events: list[tuple[str, float]]) -> None:
    now, rejected = 0.0, 0
    shadow = Breaker("it", rules.model_copy(update={"mode": BreakerMode.METRICS_ONLY}))
    strict = Breaker("it", rules.model_copy(update={"mode": BreakerMode.ENFORCE}))
    calls: list[tuple[GuardPermit, GuardPermit | None]] = []
    for what, figure in events:
        if what == "wait":
            now += figure
        elif what == "request":
            assert shadow.rejection(now) is None
            mine, other = shadow.allow(now), strict.allow(now)
            assert isinstance(mine, GuardPermit)
            rejected += not isinstance(other, GuardPermit)
            calls.insert(0, (mine, other if isinstance(other, GuardPermit) else None))
        elif calls:
            mine, its = calls[int(figure) % len(calls)]
            shadow.record(mine, Outcome(what), now)
            if its is not None:
                strict.record(its, Outcome(what), now)
        assert shape(shadow.view(now)) == shape(strict.view(now))
        assert shadow.would_reject == rejected
        assert not shadow.view(now).rejected
