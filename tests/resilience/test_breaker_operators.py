"""Commands of operators, retry times of the dependency, and a breaker that only counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autoglm_throttle.resilience.breaker import UNRECORDED_PERMIT, Breaker
from autoglm_throttle.resilience.transitions import OPERATOR_STATES, BreakerEvent
from autoglm_throttle.types import (
    BreakerCause,
    BreakerMode,
    BreakerState,
    BreakerTransition,
    GuardPermit,
    GuardRejection,
    Outcome,
    RemoteBreakerState,
)
from tests.resilience.breaking import BEGAN, breaker, called, opened, ramping, taken

OK, FAIL, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL
DUE = BEGAN + 10
COMMANDS: list[tuple[BreakerEvent, BreakerState]] = [
    (BreakerEvent.FORCE, BreakerState.FORCED_OPEN),
    (BreakerEvent.DISABLE, BreakerState.DISABLED),
    (BreakerEvent.METRICS_ONLY, BreakerState.CLOSED),
    (BreakerEvent.RESET, BreakerState.CLOSED),
]


def test_forced_open_always_rejects() -> None:
    core = breaker(open_s=7.0)
    core.operate(BreakerEvent.FORCE, BEGAN + 1)
    rejected = GuardRejection("it", BreakerState.FORCED_OPEN, BreakerCause.OPERATOR, 7.0)
    assert core.allow(BEGAN + 1e9) == core.rejection(BEGAN + 1e9) == rejected
    assert core.view(BEGAN).retry_after_s == 7.0
    assert core.state(BEGAN + 1e9) is BreakerState.FORCED_OPEN
    notified = BreakerTransition(
        "it", BreakerState.CLOSED, BreakerState.FORCED_OPEN, BreakerCause.OPERATOR, BEGAN + 1, 1
    )
    assert core.machine.drain() == [notified]


def test_disabled_lets_all_through_and_counts_nothing() -> None:
    core = breaker(failures=1)
    core.operate(BreakerEvent.DISABLE, BEGAN)
    for _ in range(9):
        core.record(taken(core, BEGAN), FAIL, BEGAN)
    assert core.rejection(BEGAN) is None
    view = core.view(BEGAN)
    assert (view.machine, view.streak, view.calls, view.stale_results) == (BreakerState.DISABLED, 0, 0, 0)
    assert core.fast.permit is None


@pytest.mark.parametrize(("command", "state"), COMMANDS)
@pytest.mark.parametrize("before", [breaker, opened])
def test_operator_command_makes_calls_in_flight_stale(
    command: BreakerEvent, state: BreakerState, before: Callable[[], Breaker]
) -> None:
    core = before()
    called(core, NEUTRAL, DUE)
    early, generation = taken(core, DUE), core.generation
    core.operate(command, DUE)
    assert (core.state(DUE), core.generation) == (state, generation + 1)
    assert core.view(DUE).cause is BreakerCause.OPERATOR
    core.record(early, FAIL, DUE)
    assert (core.stale_results, core.view(DUE).streak) == (1, 0)


@pytest.mark.parametrize(("command", "state"), COMMANDS)
def test_operator_command_is_reported(command: BreakerEvent, state: BreakerState) -> None:
    core = opened()
    core.operate(command, BEGAN + 3)
    assert core.machine.drain() == [
        BreakerTransition("it", BreakerState.OPEN, state, BreakerCause.OPERATOR, BEGAN + 3, 2)
    ]


def test_a_reset_forgets_the_rounds_at_once() -> None:
    core = opened(backoff=2.0)
    called(core, FAIL, DUE)
    core.operate(BreakerEvent.RESET, DUE)
    assert core.view(DUE).rounds == 0
    assert core.fast.permit == GuardPermit(4)


@pytest.mark.parametrize("command", [BreakerEvent.FORCE, BreakerEvent.DISABLE])
def test_results_do_not_change_an_operator_state(command: BreakerEvent) -> None:
    core = breaker(failures=1)
    core.operate(command, BEGAN)
    state, generation = core.state(BEGAN), core.generation
    core.record(GuardPermit(generation), FAIL, BEGAN)
    core.record(GuardPermit(generation, 3), FAIL, BEGAN)
    core.open_for(30.0, BEGAN)
    assert (core.state(BEGAN), core.generation, core.stale_results) == (state, generation, 0)
    core.operate(BreakerEvent.RESET, BEGAN)
    assert core.state(BEGAN) is BreakerState.CLOSED


def test_operator_command_ends_metrics_only() -> None:
    for command, _ in COMMANDS:
        core = breaker()
        core.operate(BreakerEvent.METRICS_ONLY, BEGAN)
        assert core.view(BEGAN).metrics_only
        core.operate(command, BEGAN)
        assert core.view(BEGAN).metrics_only is (command is BreakerEvent.METRICS_ONLY)


def test_metrics_only_admits_calls_it_would_reject() -> None:
    core = breaker(failures=1, mode=BreakerMode.METRICS_ONLY)
    assert core.fast.permit is None
    assert taken(core, BEGAN) == GuardPermit(0)
    called(core, FAIL, BEGAN)
    assert core.state(BEGAN) is BreakerState.OPEN
    assert core.rejection(BEGAN) is None
    for outcome in (OK, FAIL):
        assert core.allow(BEGAN) is UNRECORDED_PERMIT
        core.record(UNRECORDED_PERMIT, outcome, BEGAN)
    view = core.view(BEGAN)
    assert (view.would_reject, view.rejected, view.calls) == (2, {}, 4)
    assert (view.stale_results, view.generation, view.machine) == (0, 1, BreakerState.OPEN)
    called(core, OK, DUE)
    assert core.state(DUE) is BreakerState.CLOSED
    assert core.fast.permit is None, "even closed every call is asked for"


def test_metrics_only_needs_no_lease_for_probes() -> None:
    core = opened(mode=BreakerMode.METRICS_ONLY)
    core.slots.lease_required = True
    assert taken(core, DUE).serial == 1
    assert core.allow(DUE) is UNRECORDED_PERMIT


@pytest.mark.parametrize(
    ("mode", "state", "watching"),
    [
        (BreakerMode.ENFORCE, BreakerState.CLOSED, False),
        (BreakerMode.METRICS_ONLY, BreakerState.CLOSED, True),
        (BreakerMode.DISABLED, BreakerState.DISABLED, False),
    ],
)
def test_how_it_begins(mode: BreakerMode, state: BreakerState, watching: bool) -> None:
    core = breaker(mode=mode)
    view = core.view(BEGAN)
    assert (view.machine, view.metrics_only, view.cause, view.generation) == (state, watching, None, 0)
    assert core.machine.drain() == []
    assert (core.fast.permit is not None) is (mode is BreakerMode.ENFORCE)


@pytest.mark.parametrize(
    ("requested_s", "open_max_s", "wait_s"),
    [
        (42.0, None, 42.0),
        (301.0, None, 300.0),
        (float("inf"), None, 300.0),
        (400.0, 350.0, 350.0),
        (42.0, 20.0, 20.0),
        (-1.0, None, 0.0),
        (float("nan"), None, 0.0),
        (1e-3, None, 1e-3),
    ],
)
def test_a_dependency_is_believed_within_reason(
    requested_s: float, open_max_s: float | None, wait_s: float
) -> None:
    core = breaker(open_max_s=open_max_s, backoff=2.0)
    core.open_for(requested_s, BEGAN)
    (notified,) = core.machine.drain()
    assert (notified.after, notified.cause, notified.retry_after_s) == (
        BreakerState.OPEN,
        BreakerCause.RETRY_AFTER,
        wait_s,
    )
    if wait_s:
        assert core.allow(BEGAN) == GuardRejection("it", BreakerState.OPEN, BreakerCause.RETRY_AFTER, wait_s)
    called(core, FAIL, BEGAN + wait_s)
    assert core.view(BEGAN).retry_after_s == (20.0 if open_max_s is None else min(20.0, open_max_s))


def test_the_later_of_two_moments_counts() -> None:
    core = opened()
    core.open_for(6.0, BEGAN + 4)
    assert (core.generation, core.view(BEGAN + 4).cause) == (1, BreakerCause.FAILURES), (
        "it is open until then anyway"
    )
    core.open_for(6.125, BEGAN + 4)
    assert core.allow(BEGAN + 4) == GuardRejection("it", BreakerState.OPEN, BreakerCause.RETRY_AFTER, 6.125)
    assert core.machine.drain() == [], "open it was"
    core.open_for(3.0, BEGAN + 40)
    assert core.view(BEGAN + 40).retry_after_s == 3.0


def test_requested_retry_after_continues_the_rounds() -> None:
    core = opened(backoff=2.0)
    taken(core, DUE)
    core.open_for(1.0, DUE)
    assert core.view(DUE).rounds == 1
    core.open_for(2.0, DUE)
    assert core.view(DUE).rounds == 1
    called(core, FAIL, DUE + 2)
    assert core.view(DUE + 2).retry_after_s == 40.0
    core = ramping(ramp=(0.5,))
    core.open_for(5.0, DUE)
    view = core.view(DUE)
    assert (view.state, view.rounds, view.cause) == (BreakerState.OPEN, 1, BreakerCause.RETRY_AFTER)


# Successors


def succeeded(core: Breaker) -> Breaker:
    """The breaker that replaces this one."""
    return Breaker(core.machine.name, core.settings, predecessor=core)


@pytest.mark.parametrize("failures", [1, 5])
def test_successor_is_closed_and_has_counted_nothing(failures: int) -> None:
    core = breaker(failures=failures)
    early = taken(core, BEGAN)
    called(core, Outcome.FAILURE, BEGAN, times=3 if failures == 5 else 1)
    generation = core.generation
    after = succeeded(core)
    assert after.view(BEGAN) == replace(breaker().view(BEGAN), generation=generation + 1)
    assert after.fast.permit == GuardPermit(generation + 1)
    after.record(early, Outcome.FAILURE, BEGAN)
    view = after.view(BEGAN)
    assert (view.streak, view.stale_results, after.machine.drain()) == (0, 1, [])


def test_probe_of_the_predecessor_is_stale() -> None:
    core = opened(half_open_max=2)
    probe = taken(core, DUE)
    after = succeeded(core)
    after.record(probe, Outcome.FAILURE, DUE)
    assert (after.state(DUE), after.view(DUE).in_flight) == (BreakerState.CLOSED, 0)
    bounded = breaker(max_in_flight=2)
    held = taken(bounded, BEGAN)
    after = succeeded(bounded)
    after.record(held, Outcome.FAILURE, BEGAN)
    assert (after.view(BEGAN).in_flight, after.view(BEGAN).streak) == (0, 0)


@pytest.mark.parametrize("mode", BreakerMode)
@pytest.mark.parametrize("command", [*dict(COMMANDS), None])
def test_command_of_an_operator_holds_for_the_successor(
    mode: BreakerMode, command: BreakerEvent | None
) -> None:
    core = breaker(mode=mode)
    if command is not None:
        core.operate(command, BEGAN)
    before, after = core.view(BEGAN), succeeded(core).view(BEGAN)
    assert (after.machine, after.metrics_only) == (before.machine, before.metrics_only)
    assert after.cause is (before.cause if before.machine in OPERATOR_STATES else None)


def test_operator_command_wins_over_the_fleet_after_succession() -> None:
    core = breaker()
    core.operate(BreakerEvent.FORCE, BEGAN)
    after = succeeded(core)
    after.adopt(RemoteBreakerState(7, BreakerState.CLOSED, cause=BreakerCause.TRIAL), BEGAN)
    assert after.state(BEGAN) is BreakerState.FORCED_OPEN
    after.adopt(RemoteBreakerState(8, BreakerState.CLOSED, cause=BreakerCause.OPERATOR), BEGAN)
    assert after.state(BEGAN) is BreakerState.CLOSED
