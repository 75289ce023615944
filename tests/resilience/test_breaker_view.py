"""Looking at a breaker: all there is to see, in a line and in full, without touching it."""

from __future__ import annotations

from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    BreakerView,
    GuardPermit,
    Outcome,
    RemoteBreakerState,
    SlowCallMode,
    TripRule,
)
from tests.resilience.breaking import BEGAN, breaker, called, opened, taken

OK, FAIL, SLOW = Outcome.SUCCESS, Outcome.FAILURE, Outcome.SLOW
DUE = BEGAN + 10
RATES = frozenset({TripRule.FAILURE_RATE, TripRule.SLOW_RATE})


def test_a_view_has_everything() -> None:
    core = opened(half_open_max=2, backoff=2.0)
    late = taken(core, DUE)
    core.record_failure_text("E: e")
    called(core, FAIL, DUE)
    core.record(late, OK, DUE)
    core.allow(DUE + 1)
    core.classifier_errors = 4
    core.slots.lease_required = True
    assert core.view(DUE + 5) == BreakerView(
        name="it",
        state=BreakerState.OPEN,
        machine=BreakerState.OPEN,
        metrics_only=False,
        cause=BreakerCause.TRIAL,
        generation=3,
        streak=0,
        window_calls=0,
        window_failures=0,
        window_slow=0,
        probes=0,
        probe_successes=0,
        rounds=1,
        opened_s=DUE,
        retry_after_s=15.0,
        in_flight=0,
        calls=3,
        rejected={BreakerCause.TRIAL: 1},
        would_reject=0,
        stale_results=1,
        classifier_errors=4,
        last_failure="E: e",
        shared=True,
    )
    assert core.view(DUE + 20).state is BreakerState.HALF_OPEN
    assert core.view(DUE + 20).machine is BreakerState.OPEN


def test_a_new_breaker_has_counted_nothing() -> None:
    assert breaker().view(BEGAN) == BreakerView(
        name="it",
        state=BreakerState.CLOSED,
        machine=BreakerState.CLOSED,
        metrics_only=False,
        cause=None,
        generation=0,
        streak=0,
        window_calls=0,
        window_failures=0,
        window_slow=0,
        probes=0,
        probe_successes=0,
        rounds=0,
        opened_s=None,
        retry_after_s=0.0,
        in_flight=0,
    )


def window() -> Breaker:
    core = breaker(trip=RATES, slow_is=SlowCallMode.SEPARATE)
    called(core, FAIL, BEGAN)
    called(core, SLOW, BEGAN)
    called(core, FAIL, BEGAN, times=2)
    return core


def by_rate() -> Breaker:
    core = breaker(trip=RATES, min_calls=10)
    called(core, OK, BEGAN, times=4)
    called(core, FAIL, BEGAN, times=6)
    return core


def by_slowness() -> Breaker:
    core = breaker(trip=RATES, min_calls=10, slow_is=SlowCallMode.SEPARATE)
    called(core, SLOW, BEGAN, times=10)
    return core


def due() -> Breaker:
    core = opened()
    core.record(GuardPermit(0), OK, DUE)
    return core


def half_way() -> Breaker:
    core = opened(half_open_max=3)
    first, _ = taken(core, DUE), taken(core, DUE)
    core.record(first, OK, DUE)
    return core


def full() -> Breaker:
    core = breaker(max_in_flight=3)
    taken(core, BEGAN)
    return core


def elsewhere() -> Breaker:
    core = breaker()
    core.adopt(RemoteBreakerState(1, BreakerState.OPEN, 7.25, rounds=1), BEGAN)
    return core


def after_stale_results() -> Breaker:
    core = breaker(failures=1)
    early = taken(core, BEGAN)
    called(core, FAIL, BEGAN)
    for _ in range(3):
        core.record(early, OK, BEGAN + 2.75)
    return core


def closed_again() -> Breaker:
    core = opened()
    called(core, FAIL, DUE)
    called(core, OK, DUE + 10)
    return core


def forced() -> Breaker:
    core = breaker()
    core.operate(BreakerEvent.FORCE, BEGAN)
    return core
