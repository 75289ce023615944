"""A closed breaker: its counts, the conditions of opening, and views without side effects."""

from __future__ import annotations

import random
from typing import Any

import pytest

from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    BreakerTransition,
    GuardPermit,
    GuardRejection,
    Outcome,
    SlowCallMode,
    TripRule,
)
from tests.resilience.breaking import BEGAN, breaker, called, opened, taken

OK, FAIL, SLOW, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.SLOW, Outcome.NEUTRAL
RATES = frozenset({TripRule.FAILURE_RATE, TripRule.SLOW_RATE})


def after(outcomes: list[Outcome], **rules: Any) -> Breaker:
    core = breaker(**rules)
    for outcome in outcomes:
        called(core, outcome, BEGAN)
    return core


def test_as_many_failures_in_a_row_as_are_allowed_open_it() -> None:
    core = after([FAIL] * 4)
    assert core.state(BEGAN) is BreakerState.CLOSED
    core.record_failure_text("TimeoutError: it took too long")
    called(core, FAIL, BEGAN + 1)
    assert core.machine.drain() == [
        BreakerTransition(
            "it", BreakerState.CLOSED, BreakerState.OPEN, BreakerCause.FAILURES, BEGAN + 1, 1, 10.0, 0
        )
    ]
    last = "TimeoutError: it took too long"
    assert core.allow(BEGAN + 3.5) == GuardRejection(
        "it", BreakerState.OPEN, BreakerCause.FAILURES, 7.5, last
    )
    assert core.allow(BEGAN) == GuardRejection("it", BreakerState.OPEN, BreakerCause.FAILURES, 10.0, last), (
        "the clock stepped back"
    )


@pytest.mark.parametrize(
    ("outcomes", "slow_is", "streak"),
    [
        ([FAIL, FAIL], SlowCallMode.FAILURE, 2),
        ([FAIL, NEUTRAL, FAIL], SlowCallMode.FAILURE, 2),
        ([FAIL, OK, FAIL], SlowCallMode.FAILURE, 1),
        ([FAIL, SLOW], SlowCallMode.FAILURE, 2),
        ([FAIL, SLOW], SlowCallMode.SEPARATE, 0),
        ([FAIL, FAIL], SlowCallMode.SEPARATE, 2),
    ],
)
def test_a_streak(outcomes: list[Outcome], slow_is: SlowCallMode, streak: int) -> None:
    core = after(outcomes, slow_is=slow_is)
    view = core.view(BEGAN)
    assert view.streak == streak
    assert (view.window_calls, view.window_failures, view.window_slow) == (0, 0, 0)
    assert core.fast.success_is_noop is (streak == 0)


@pytest.mark.parametrize(
    ("waits", "streak"), [((10.0,), 2), ((10.125,), 1), ((6.0, 6.0), 1), ((5.0, 5.0), 3)]
)
def test_a_streak_that_began_too_long_ago_begins_anew(waits: tuple[float, ...], streak: int) -> None:
    core, now = breaker(failure_window_s=10.0), BEGAN
    called(core, FAIL, now)
    for wait_s in waits:
        now += wait_s
        called(core, FAIL, now)
    assert core.view(now).streak == streak


def test_a_streak_without_a_window_lasts_for_ever() -> None:
    core = breaker()
    called(core, FAIL, BEGAN)
    called(core, FAIL, BEGAN + 1e9)
    assert core.view(BEGAN).streak == 2


@pytest.mark.parametrize(
    ("outcomes", "rules", "cause"),
    [
        ([OK] * 5 + [FAIL] * 5, {"trip": {TripRule.FAILURE_RATE}}, BreakerCause.FAILURE_RATE),
        ([OK] * 6 + [FAIL] * 4, {"trip": {TripRule.FAILURE_RATE}}, None),
        ([FAIL] * 9, {"trip": {TripRule.FAILURE_RATE}}, None),
        ([FAIL] * 9 + [OK], {"trip": {TripRule.FAILURE_RATE}}, BreakerCause.FAILURE_RATE),
        ([FAIL] * 10, {"trip": {TripRule.SLOW_RATE}}, None),
        ([SLOW] * 5 + [OK] * 5, {"trip": {TripRule.SLOW_RATE}}, BreakerCause.SLOW_RATE),
        ([SLOW] * 4 + [OK] * 6, {"trip": {TripRule.SLOW_RATE}}, None),
        ([SLOW] * 5 + [OK] * 5, {"trip": {TripRule.FAILURE_RATE}}, BreakerCause.FAILURE_RATE),
        ([SLOW] * 9 + [OK], {"trip": {TripRule.FAILURE_RATE}, "slow_is": SlowCallMode.SEPARATE}, None),
        ([SLOW] * 5 + [OK] * 5, {"trip": RATES}, BreakerCause.FAILURE_RATE),
        ([SLOW] * 5 + [OK] * 5, {"trip": RATES, "slow_is": SlowCallMode.SEPARATE}, BreakerCause.SLOW_RATE),
        ([FAIL] * 5, {"trip": set(TripRule)}, BreakerCause.FAILURES),
        ([FAIL] * 5, {"trip": RATES}, None),
        (
            [OK, FAIL, FAIL] * 3 + [OK],
            {"trip": {TripRule.FAILURE_RATE}, "failure_rate": 0.6},
            BreakerCause.FAILURE_RATE,
        ),
        ([OK, FAIL, FAIL] * 3 + [OK], {"trip": {TripRule.FAILURE_RATE}, "failure_rate": 0.601}, None),
    ],
)
def test_opening_conditions(
    outcomes: list[Outcome], rules: dict[str, Any], cause: BreakerCause | None
) -> None:
    core = breaker(min_calls=10, **rules | {"trip": frozenset(rules["trip"])})
    for outcome in outcomes:
        assert core.view(BEGAN).machine is BreakerState.CLOSED, "no earlier"
        called(core, outcome, BEGAN)
    assert core.view(BEGAN).cause is cause
    assert (core.state(BEGAN) is BreakerState.OPEN) is (cause is not None)


@pytest.mark.parametrize(
    ("rules", "errors", "answered"),
    [
        ({"failure_rate": 0.5}, 0.1, 0.90),
        ({"failure_rate": 0.5}, 0.3, 0.70),
        ({"failure_rate": 0.5}, 0.6, 0.0),
        ({}, 0.3, 0.19),
    ],
)
def test_rate_alone_opens_at_that_share_of_failures(
    rules: dict[str, Any], errors: float, answered: float
) -> None:
    """100 calls per second: below the rate a caller gets what the dependency answers, above it nothing."""
    core, chance, answers, now = breaker(**rules), random.Random(1), 0, BEGAN
    for _ in range(60_000):
        now += 0.01
        if isinstance(permit := core.allow(now), GuardPermit):
            failed = chance.random() < errors
            answers += not failed
            core.record(permit, FAIL if failed else OK, now)
    assert answers / 60_000 == pytest.approx(answered, abs=0.01)


def test_configured_window_counts() -> None:
    rules = {
        "trip": RATES,
        "window": 3,
        "min_calls": 3,
        "slow_is": SlowCallMode.SEPARATE,
        "failure_rate": 1.0,
    }
    core = after([FAIL, OK, SLOW, OK], **rules)
    view = core.view(BEGAN)
    assert (view.window_calls, view.window_failures, view.window_slow) == (3, 0, 1)
    core = after([FAIL, SLOW], trip=RATES, window_s=5.0)
    assert [core.view(BEGAN + wait).window_calls for wait in (4.0, 5.0)] == [2, 0]
    called(core, NEUTRAL, BEGAN)
    assert core.view(BEGAN).window_calls == 2


def test_an_opening_forgets_streak_and_window() -> None:
    core = after([FAIL] * 5, trip=frozenset(TripRule))
    view = core.view(BEGAN)
    assert (view.machine, view.streak, view.window_calls) == (BreakerState.OPEN, 0, 0)


def test_shared_permit_exists_while_no_check_is_needed() -> None:
    core = breaker()
    assert core.allow(BEGAN) is core.fast.permit
    assert core.fast.calls == 1
    seen = [(core.fast.permit, core.fast.success_is_noop)]
    for outcome, times, now in ((FAIL, 4, BEGAN), (FAIL, 1, BEGAN), (OK, 1, BEGAN + 10)):
        called(core, outcome, now, times)
        seen.append((core.fast.permit, core.fast.success_is_noop))
    assert seen == [(GuardPermit(0), True), (GuardPermit(0), False), (None, True), (GuardPermit(3), True)]


def test_success_has_an_effect_while_a_window_counts_it() -> None:
    core = breaker(trip=frozenset({TripRule.FAILURE_RATE}))
    assert not core.fast.success_is_noop
    called(core, OK, BEGAN)
    assert not core.fast.success_is_noop


def test_a_success_makes_it_clean_again() -> None:
    core = after([FAIL, OK])
    assert core.fast.success_is_noop


def test_result_of_an_earlier_generation_is_only_counted() -> None:
    core = breaker(failures=1)
    late = taken(core, BEGAN)
    called(core, FAIL, BEGAN)
    before = core.view(BEGAN + 3)
    for outcome in Outcome:
        core.record(late, outcome, BEGAN + 3)
    view = core.view(BEGAN + 3)
    assert view.stale_results == core.stale_results == 4
    assert (view.state, view.retry_after_s, view.generation) == (BreakerState.OPEN, 7.0, before.generation)


@pytest.mark.parametrize("foreign", [GuardPermit(0, 7), GuardPermit(1), GuardPermit(17, 3)])
def test_a_pass_that_this_breaker_never_gave_is_none(foreign: GuardPermit) -> None:
    core = breaker(failures=1)
    core.record(foreign, FAIL, BEGAN)
    core.record(foreign, FAIL, BEGAN)
    assert (core.state(BEGAN), core.stale_results) == (BreakerState.CLOSED, 2)


def test_an_open_breaker_has_given_no_pass() -> None:
    core = opened()
    core.record(GuardPermit(core.generation), OK, BEGAN)
    core.record(GuardPermit(core.generation), OK, BEGAN)
    assert (core.state(BEGAN), core.stale_results) == (BreakerState.OPEN, 2)


def test_rejections_are_counted_by_cause() -> None:
    core = opened(half_open_max=1)
    for now in (BEGAN + 1, BEGAN + 2, BEGAN + 10, BEGAN + 11):
        core.allow(now)
    assert core.view(BEGAN).rejected == {BreakerCause.FAILURES: 2, BreakerCause.TRIAL: 1}
    assert core.fast.calls == 2, "the failure and the trial"


def test_failure_text_is_limited_to_one_line() -> None:
    core = breaker()
    core.record_failure_text("E" * 500)
    assert core.view(BEGAN).last_failure == "E" * 200


def test_calls_in_flight_are_bounded_and_each_has_its_own_pass() -> None:
    core = breaker(max_in_flight=2, failures=1)
    assert core.fast.permit is None
    first, second = taken(core, BEGAN), taken(core, BEGAN)
    assert (first, second) == (GuardPermit(0, 1), GuardPermit(0, 2))
    rejected = GuardRejection("it", BreakerState.CLOSED, BreakerCause.IN_FLIGHT, 0.0)
    assert core.rejection(BEGAN) == rejected
    assert core.allow(BEGAN) == rejected
    assert (core.view(BEGAN).in_flight, core.view(BEGAN).probes) == (2, 0)
    core.record(first, NEUTRAL, BEGAN)
    assert core.rejection(BEGAN) is None
    assert taken(core, BEGAN) == GuardPermit(0, 3)
    core.record(first, FAIL, BEGAN)
    assert (core.stale_results, core.state(BEGAN)) == (1, BreakerState.CLOSED), "told twice"
    core.record(second, FAIL, BEGAN)
    assert core.state(BEGAN) is BreakerState.OPEN
    assert core.view(BEGAN).in_flight == 1  # the third


def test_unreported_call_keeps_its_slot_in_the_next_state() -> None:
    core = breaker(max_in_flight=2)
    dropped = taken(core, BEGAN)
    core.operate(BreakerEvent.RESET, BEGAN + 1)
    assert core.view(BEGAN + 1).in_flight == 1
    assert taken(core, BEGAN + 1).serial == 2
    core.record(dropped, FAIL, BEGAN + 2)
    assert (core.stale_results, core.view(BEGAN + 2).in_flight) == (1, 1)


def test_rejection_cannot_be_changed() -> None:
    made = GuardRejection("it", BreakerState.OPEN, BreakerCause.FAILURES, 1.5, "E", True)
    with pytest.raises(AttributeError):
        made.name = "another"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del made.name
