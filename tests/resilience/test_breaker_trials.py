"""After an opening: the wait, the probe calls, and the ramp."""

from __future__ import annotations

import pytest

from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    BreakerTransition,
    GuardPermit,
    GuardRejection,
    Outcome,
    SlowCallMode,
)
from tests.resilience.breaking import BEGAN, called, opened, ramping, taken

OK, FAIL, SLOW, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.SLOW, Outcome.NEUTRAL
DUE = BEGAN + 10
NO_TRIAL = GuardRejection("it", BreakerState.HALF_OPEN, BreakerCause.TRIAL, 0.0)


def test_rejects_until_the_last_instant_then_admits_one() -> None:
    core = opened()
    rejected = core.allow(DUE - 0.125)
    assert (
        rejected
        == core.rejection(DUE - 0.125)
        == GuardRejection("it", BreakerState.OPEN, BreakerCause.FAILURES, 0.125)
    )
    assert core.rejection(DUE) is None
    assert core.state(DUE) is BreakerState.HALF_OPEN
    assert core.machine.drain() == [], "nobody has asked"
    assert core.allow(DUE) == GuardPermit(2, 1)
    assert core.allow(DUE) == core.rejection(DUE) == NO_TRIAL
    assert core.machine.drain() == [
        BreakerTransition("it", BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerCause.TRIAL, DUE, 2, 0.0, 0)
    ]
    view = core.view(DUE)
    assert (view.probes, view.in_flight, view.probe_successes, view.cause) == (1, 1, 0, BreakerCause.TRIAL)


@pytest.mark.parametrize("outcome", [FAIL, SLOW])
@pytest.mark.parametrize("slow_is", SlowCallMode)
def test_failed_or_slow_probe_opens_for_the_full_period(outcome: Outcome, slow_is: SlowCallMode) -> None:
    core = opened(slow_is=slow_is, backoff=2.0)
    called(core, outcome, DUE + 3)
    assert core.allow(DUE + 3) == GuardRejection("it", BreakerState.OPEN, BreakerCause.TRIAL, 20.0)
    view = core.view(DUE + 3)
    assert (view.rounds, view.opened_s, view.probes) == (1, DUE + 3, 0)


def test_successful_probe_closes() -> None:
    core = opened()
    called(core, OK, DUE)
    assert [(notified.after, notified.cause) for notified in core.machine.drain()] == [
        (BreakerState.HALF_OPEN, BreakerCause.TRIAL),
        (BreakerState.CLOSED, BreakerCause.TRIAL),
    ]
    assert core.view(DUE).opened_s is None


def test_neutral_probe_frees_its_slot() -> None:
    core = opened()
    called(core, NEUTRAL, DUE, times=20)
    view = core.view(DUE)
    assert (view.machine, view.probes, view.probe_successes, view.stale_results) == (
        BreakerState.HALF_OPEN,
        0,
        0,
        0,
    )


def test_all_probe_slots_are_used_once_per_success() -> None:
    core = opened(half_open_max=3)
    first, *_ = (taken(core, DUE) for _ in range(3))
    assert core.allow(DUE) == NO_TRIAL
    core.record(first, OK, DUE)
    view = core.view(DUE)
    assert (view.probe_successes, view.probes) == (1, 2)
    assert core.allow(DUE) == NO_TRIAL
    core.record(first, OK, DUE)
    assert (core.view(DUE).probe_successes, core.stale_results) == (1, 1), "told twice"


def test_with_a_threshold_the_places_are_those_at_a_time() -> None:
    core = opened(half_open_max=2, success_threshold=3)
    for won in range(3):
        assert core.view(DUE).probe_successes == won
        called(core, OK, DUE)
    assert core.state(DUE) is BreakerState.CLOSED


def test_a_pass_without_a_place_decides_nothing() -> None:
    core = opened()
    taken(core, DUE)
    core.record(GuardPermit(core.generation), OK, DUE)
    core.record(GuardPermit(core.generation), FAIL, DUE)
    assert (core.state(DUE), core.stale_results) == (BreakerState.HALF_OPEN, 2)


def test_hung_probe_costs_one_lease() -> None:
    core = opened(trial_lease_s=30.0)
    hung = taken(core, DUE)
    assert core.allow(DUE + 29.875) == NO_TRIAL
    assert core.rejection(DUE + 30) is None
    assert core.view(DUE + 30).probes == 1, "until somebody asks"
    other = taken(core, DUE + 30)
    core.record(hung, FAIL, DUE + 31)
    assert (core.state(DUE + 31), core.stale_results) == (BreakerState.HALF_OPEN, 1)
    core.record(other, OK, DUE + 31)
    assert core.state(DUE + 31) is BreakerState.CLOSED


def test_late_probe_counts_if_no_call_came_meanwhile() -> None:
    core = opened(trial_lease_s=30.0)
    late = taken(core, DUE)
    core.record(late, OK, DUE + 500)
    assert core.state(DUE + 500) is BreakerState.CLOSED


@pytest.mark.parametrize(
    ("rounds", "wait_s"), [(0, 10.0), (1, 20.0), (2, 40.0), (3, 50.0), (4, 50.0), (5, 50.0)]
)
def test_each_round_waits_longer(rounds: int, wait_s: float) -> None:
    core, now = opened(backoff=2.0, open_max_s=50.0), BEGAN
    for _ in range(rounds):
        now += core.view(now).retry_after_s
        called(core, FAIL, now)
    view = core.view(now)
    assert (view.rounds, view.retry_after_s) == (rounds, wait_s)


def test_a_closing_ends_the_rounds() -> None:
    core = opened(backoff=2.0)
    called(core, FAIL, DUE)
    called(core, OK, DUE + 20)
    called(core, FAIL, DUE + 21)
    assert core.view(DUE + 21).retry_after_s == 10.0


def test_probe_of_an_older_generation_is_stale() -> None:
    core = opened(half_open_max=2)
    first, second = taken(core, DUE), taken(core, DUE)
    core.record(first, FAIL, DUE)
    core.record(second, OK, DUE)
    assert (core.state(DUE), core.stale_results) == (BreakerState.OPEN, 1)


def test_in_flight_limit_binds_probes() -> None:
    core = opened(half_open_max=3, max_in_flight=2)
    assert [taken(core, DUE).serial for _ in range(2)] == [2, 3]
    assert core.view(DUE).in_flight == 2
    assert isinstance(core.allow(DUE), GuardRejection)


def test_ramp_starts_after_the_probes_and_runs_to_its_end() -> None:
    core = opened(ramp=(0.25, 0.5), ramp_step_s=5.0)
    called(core, OK, DUE)
    rejected = GuardRejection("it", BreakerState.RAMPING, BreakerCause.RAMP, 0.0)
    assert core.rejection(DUE) == rejected
    assert [core.allow(DUE) for _ in range(3)] == [rejected] * 3
    assert core.rejection(DUE) is None
    shared = [core.fast.permit]
    called(core, OK, DUE)
    assert [core.allow(DUE + 5), core.allow(DUE + 5)] == [rejected, GuardPermit(3)]
    core.record(GuardPermit(3), OK, DUE + 5)
    assert core.rejection(DUE + 9.875) == rejected
    assert core.rejection(DUE + 10) is None
    assert core.allow(DUE + 10) == GuardPermit(4)
    assert [(notified.after, notified.cause, notified.at_s) for notified in core.machine.drain()] == [
        (BreakerState.HALF_OPEN, BreakerCause.TRIAL, DUE),
        (BreakerState.RAMPING, BreakerCause.TRIAL, DUE),
        (BreakerState.CLOSED, BreakerCause.RAMP, DUE + 10),
    ]
    assert [*shared, core.fast.permit] == [None, GuardPermit(4)]


@pytest.mark.parametrize("outcome", [SLOW, NEUTRAL])
def test_only_a_success_ends_a_step(outcome: Outcome) -> None:
    core = ramping(ramp=(0.5,), slow_is=SlowCallMode.SEPARATE)
    core.allow(DUE)
    called(core, outcome, DUE)
    assert core.rejection(DUE + 100) is not None


def test_an_opening_out_of_a_ramp_is_a_further_round() -> None:
    core = ramping(ramp=(0.5,), backoff=2.0)
    core.allow(DUE)
    called(core, FAIL, DUE)
    view = core.view(DUE)
    assert (view.machine, view.cause, view.rounds, view.retry_after_s) == (
        BreakerState.OPEN,
        BreakerCause.FAILURES,
        1,
        20.0,
    )


def test_ramp_starts_with_the_successful_probe() -> None:
    core = opened(ramp=(0.5,), ramp_step_s=5.0)
    called(core, OK, DUE + 90)
    core.allow(DUE + 90)
    called(core, OK, DUE + 90)
    assert core.rejection(DUE + 94) is not None


def test_ramp_bounds_calls_in_flight_and_waits_for_them() -> None:
    core = ramping(ramp=(0.5,), max_in_flight=1, ramp_step_s=5.0)
    assert core.allow(DUE) == GuardRejection("it", BreakerState.RAMPING, BreakerCause.RAMP, 0.0)
    called(core, OK, DUE)
    core.allow(DUE)
    held = taken(core, DUE)
    assert core.rejection(DUE + 5) == GuardRejection("it", BreakerState.RAMPING, BreakerCause.IN_FLIGHT, 0.0)
    assert core.allow(DUE + 5) == GuardRejection("it", BreakerState.RAMPING, BreakerCause.IN_FLIGHT, 0.0)
    core.record(held, NEUTRAL, DUE + 5)
    assert taken(core, DUE + 5) == GuardPermit(4, held.serial + 1)
    assert core.state(DUE + 5) is BreakerState.CLOSED
