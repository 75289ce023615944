"""The bound of calls in flight: each call has a lease, and a change of state forgets none of them."""

from __future__ import annotations

import pytest

from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.resilience.half_open import CALL_LEASE_S
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerCause, BreakerState, GuardPermit, GuardRejection, Outcome


def breaker_with(**values: float) -> Breaker:
    return Breaker("db", BreakerSettings(max_in_flight=2, failures=1, **values))  # type: ignore[arg-type]


def permitted(breaker: Breaker, now: float) -> GuardPermit:
    answer = breaker.allow(now)
    assert isinstance(answer, GuardPermit)
    return answer


def rejected_cause(breaker: Breaker, now: float) -> BreakerCause:
    expected, answer = breaker.rejection(now), breaker.allow(now)
    assert isinstance(answer, GuardRejection)
    assert answer == expected
    return answer.cause


@pytest.mark.parametrize(
    ("values", "lease_s"),
    [({}, CALL_LEASE_S), ({"trial_lease_s": 50.0}, 50.0), ({"timeout_s": 500.0}, 1500.0)],
)
def test_call_without_result_loses_its_slot(values: dict[str, float], lease_s: float) -> None:
    """FIELD 9: calls that never returned were counted for ever; refused 30 days later."""
    breaker = breaker_with(**values)
    permits = [permitted(breaker, float(now)) for now in (0, 1)]
    assert rejected_cause(breaker, lease_s - 0.1) is BreakerCause.IN_FLIGHT
    assert breaker.view(lease_s).in_flight == 1
    assert breaker.rejection(lease_s) is None
    permitted(breaker, lease_s)
    assert rejected_cause(breaker, lease_s) is BreakerCause.IN_FLIGHT
    breaker.record(permits[0], Outcome.SUCCESS, lease_s)
    assert breaker.view(lease_s).stale_results == 1
    assert rejected_cause(breaker, lease_s) is BreakerCause.IN_FLIGHT


def test_changes_of_state_keep_the_count() -> None:
    """FIELD 9: three calls at once with a bound of two, since each change of state forgot the others."""
    breaker = breaker_with(open_s=10.0)
    first, second = permitted(breaker, 0.0), permitted(breaker, 0.0)
    breaker.record(first, Outcome.FAILURE, 1.0)
    assert breaker.state(1.0) is BreakerState.OPEN
    assert breaker.view(1.0).in_flight == 1
    probe = permitted(breaker, 11.0)
    assert (breaker.view(11.0).in_flight, breaker.view(11.0).probes) == (2, 1)
    breaker.record(probe, Outcome.SUCCESS, 12.0)
    assert breaker.state(12.0) is BreakerState.CLOSED
    permitted(breaker, 12.0)
    assert rejected_cause(breaker, 12.0) is BreakerCause.IN_FLIGHT
    breaker.record(second, Outcome.FAILURE, 13.0)  # of an earlier generation: only its slot counts
    assert breaker.state(13.0) is BreakerState.CLOSED
    permitted(breaker, 13.0)


def test_probe_needs_a_slot_too() -> None:
    breaker = breaker_with(open_s=10.0)
    permits = [permitted(breaker, 0.0), permitted(breaker, 0.0)]
    breaker.open_for(10.0, 0.0)
    assert rejected_cause(breaker, 10.0) is BreakerCause.IN_FLIGHT
    breaker.record(permits[0], Outcome.NEUTRAL, 10.0)
    permitted(breaker, 10.0)


def test_operators_keep_the_count() -> None:
    breaker = breaker_with()
    permits = [permitted(breaker, 0.0), permitted(breaker, 0.0)]
    breaker.operate(BreakerEvent.RESET, 1.0)
    assert rejected_cause(breaker, 1.0) is BreakerCause.IN_FLIGHT
    for permit in permits:
        breaker.record(permit, Outcome.SUCCESS, 2.0)
        breaker.record(permit, Outcome.SUCCESS, 2.0)
    assert breaker.view(2.0).in_flight == 0
