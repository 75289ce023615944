"""The metrics of calls that leave the process."""

from __future__ import annotations

import pytest

from autoglm_throttle.observe import METRICS
from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.testing import throttle_for_tests
from autoglm_throttle.types import BreakerState, DegradationLevel, GuardRejected
from tests.observe.scraping import GUARDS, loaded, scraped, states, value

NAMES = [spec.name for spec in METRICS if spec.name.startswith((PREFIX + "breaker_", PREFIX + "degra"))]


def test_without_guards_nothing_is_exported_of_them() -> None:
    assert len(NAMES) == 8
    families = scraped(loaded())
    assert not [name for name in NAMES if families[name].samples]


def test_the_state_that_callers_see_is_the_one_that_is_1() -> None:
    throttle = loaded(guards=GUARDS)
    for state in BreakerState:
        reported = value(throttle, "breaker_state", breaker="vector-db", state=state.value)
        assert reported == float(state is BreakerState.HALF_OPEN)
    assert states(throttle, "degradation_level") == {
        level.label: float(level is DegradationLevel.STALE) for level in DegradationLevel
    }


@pytest.mark.parametrize(
    ("name", "labels", "count"),
    [
        ("breaker_transitions_total", {"state": "open"}, 2),
        ("breaker_calls_total", {}, 501),
        ("breaker_rejected_total", {"cause": "failures"}, 31),
        ("breaker_rejected_total", {"cause": "trial"}, 2),
        ("breaker_would_reject_total", {}, 6),
        ("breaker_stale_results_total", {}, 3),
    ],
)
def test_each_count_is_exported_under_its_name(name: str, labels: dict[str, str], count: int) -> None:
    assert value(loaded(guards=GUARDS), name, breaker="vector-db", **labels) == count


def test_degraded_responses_are_exported_by_fallback_and_cause() -> None:
    throttle = loaded(guards=GUARDS)
    assert value(throttle, "degraded_total", guard="vector-db", fallback="stale", cause="failures") == 9
    assert value(throttle, "degraded_total", guard="vector-db", fallback="shed", cause="load") == 4


def test_real_breaker_is_exported_from_call_to_rejection() -> None:
    throttle = throttle_for_tests()
    for _ in range(5):
        with pytest.raises(ConnectionError), throttle.guard("db"):
            raise ConnectionError
    with pytest.raises(GuardRejected), throttle.guard("db"):
        pytest.fail("an open breaker let a call through")
    assert value(throttle, "breaker_state", breaker="db", state="open") == 1.0
    assert value(throttle, "breaker_calls_total", breaker="db") == 5
    assert value(throttle, "breaker_rejected_total", breaker="db", cause="failures") == 1
    assert value(throttle, "breaker_transitions_total", breaker="db", state="open") == 1
