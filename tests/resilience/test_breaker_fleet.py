"""A breaker among those of other processes: leases for trials, and states that others have found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.types import (
    BreakerCause,
    BreakerMode,
    BreakerState,
    BreakerTransition,
    GuardPermit,
    GuardRejection,
    Outcome,
    ProbeLease,
    RemoteBreakerState,
)
from tests.resilience.breaking import BEGAN, breaker, called, opened, ramping, taken

OK, FAIL, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL
DUE = BEGAN + 10
REQUEST = GuardRejection("it", BreakerState.HALF_OPEN, BreakerCause.TRIAL, 0.0, lease_wanted=True)
WAIT = GuardRejection("it", BreakerState.HALF_OPEN, BreakerCause.TRIAL, 0.0)


def leased(**rules: object) -> Breaker:
    core = opened(**rules)
    core.slots.lease_required = True
    return core


def test_one_caller_at_a_time_queries_the_fleet() -> None:
    core = leased()
    assert core.rejection(DUE) == REQUEST
    assert core.state(DUE) is BreakerState.HALF_OPEN
    answers = [core.allow(DUE + ticks / 128) for ticks in (0, 0, 1, 6, 7, 8)]
    assert answers == [REQUEST, WAIT, WAIT, WAIT, REQUEST, WAIT]
    assert core.rejection(DUE + 8 / 128) == WAIT
    assert core.allow(DUE - 5) == REQUEST, "the clock stepped back"
    assert [notified.after for notified in core.machine.drain()] == [BreakerState.HALF_OPEN]
    assert core.view(DUE).shared


def test_granted_probe_is_a_probe() -> None:
    core = leased()
    core.allow(DUE)
    trial = core.grant_probe(ProbeLease(fence=77, version=3), DUE)
    assert trial == GuardPermit(2, 1, 77)
    assert core.allow(DUE + 1) == WAIT, "the only place is taken, so nobody asks"
    assert (core.view(DUE).probes, core.fast.calls) == (1, 2)
    core.record(trial, OK, DUE)
    assert core.state(DUE) is BreakerState.CLOSED


def test_failed_fleet_probe_opens_this_process_at_once() -> None:
    core = leased()
    trial = core.grant_probe(ProbeLease(7, 3), DUE)
    assert isinstance(trial, GuardPermit)
    core.record(trial, FAIL, DUE + 1)
    assert core.allow(DUE + 1) == GuardRejection("it", BreakerState.OPEN, BreakerCause.TRIAL, 10.0)


def test_grant_to_an_expired_open_breaker_starts_probes() -> None:
    core = leased(backoff=2.0)
    assert core.grant_probe(ProbeLease(7, 3, rounds=2), DUE) == GuardPermit(2, 1, 7)
    (notified,) = core.machine.drain()
    assert (notified.after, notified.cause, notified.at_s, notified.rounds) == (
        BreakerState.HALF_OPEN,
        BreakerCause.TRIAL,
        DUE,
        2,
    )
    assert core.grant_probe(ProbeLease(8, 3, rounds=0), DUE) == GuardPermit(2, 2, 8), (
        "the fleet knows how many there may be"
    )
    assert core.view(DUE).rounds == 2


def test_fleet_counts_the_successes_of_a_round() -> None:
    core = leased(half_open_max=2)
    trial = core.grant_probe(ProbeLease(7, 3), DUE)
    assert isinstance(trial, GuardPermit)
    core.record(trial, OK, DUE)
    core.grant_probe(ProbeLease(8, 3), DUE)
    assert core.allow(DUE) == REQUEST


def test_grant_frees_slots_of_hung_probes() -> None:
    core = leased(trial_lease_s=5.0)
    core.grant_probe(ProbeLease(7, 3), DUE)
    core.grant_probe(ProbeLease(8, 3), DUE + 5)
    assert core.view(DUE + 5).probes == 1


def test_result_sent_by_its_lease_is_not_sent_again() -> None:
    core = leased()
    trial = core.grant_probe(ProbeLease(7, version=9), DUE)
    assert isinstance(trial, GuardPermit)
    core.adopt(RemoteBreakerState(9, BreakerState.HALF_OPEN), DUE)
    core.record(trial, OK, DUE)
    assert (core.state(DUE), core.stale_results) == (BreakerState.CLOSED, 0)
    core = leased()
    core.adopt(RemoteBreakerState(20, BreakerState.HALF_OPEN), DUE)
    core.grant_probe(ProbeLease(7, version=9), DUE)
    core.adopt(RemoteBreakerState(19, BreakerState.CLOSED), DUE)
    assert core.state(DUE) is BreakerState.HALF_OPEN, "an older lease makes no older news new"


def closed(core: Breaker) -> None:
    core.adopt(RemoteBreakerState(5, BreakerState.CLOSED), DUE)


def reopened(core: Breaker) -> None:
    core.adopt(RemoteBreakerState(5, BreakerState.OPEN, wait_s=4.0), DUE)


@pytest.mark.parametrize(
    ("meanwhile", "answer"),
    [
        (closed, GuardPermit(3)),
        (reopened, GuardRejection("it", BreakerState.OPEN, BreakerCause.REMOTE, 4.0)),
        (
            lambda core: core.operate(BreakerEvent.FORCE, DUE),
            GuardRejection("it", BreakerState.FORCED_OPEN, BreakerCause.OPERATOR, 10.0),
        ),
        (lambda core: core.operate(BreakerEvent.DISABLE, DUE), GuardPermit(3)),
    ],
)
def test_expired_lease_makes_no_probe(
    meanwhile: Callable[[Breaker], None], answer: GuardPermit | GuardRejection
) -> None:
    core = leased()
    assert core.allow(DUE) == REQUEST
    meanwhile(core)
    assert core.grant_probe(ProbeLease(7, 4), DUE) == answer


def test_probe_is_stale_once_the_fleet_has_moved_on() -> None:
    core = leased()
    trial = core.grant_probe(ProbeLease(7, 4), DUE)
    assert isinstance(trial, GuardPermit)
    core.adopt(RemoteBreakerState(5, BreakerState.OPEN, wait_s=4.0), DUE)
    core.record(trial, OK, DUE)
    assert (core.state(DUE), core.stale_results) == (BreakerState.OPEN, 1)


def test_probes_are_local_while_the_fleet_is_unavailable() -> None:
    core = leased()
    assert core.allow(DUE) == REQUEST
    core.slots.lease_required = False
    assert core.allow(DUE) == GuardPermit(2, 1)


def test_remote_opening_opens_here_for_the_rest_of_it() -> None:
    core = breaker(backoff=2.0)
    early = taken(core, BEGAN)
    core.adopt(
        RemoteBreakerState(1, BreakerState.OPEN, wait_s=3.5, rounds=2, cause=BreakerCause.FAILURE_RATE),
        BEGAN + 1,
    )
    notified = BreakerTransition(
        "it", BreakerState.CLOSED, BreakerState.OPEN, BreakerCause.REMOTE, BEGAN + 1, 1, 3.5, 2
    )
    assert core.machine.drain() == [notified]
    assert core.allow(BEGAN + 2) == GuardRejection("it", BreakerState.OPEN, BreakerCause.REMOTE, 2.5)
    core.record(early, FAIL, BEGAN + 2)
    assert core.stale_results == 1
    called(core, FAIL, BEGAN + 4.5)
    assert core.view(BEGAN + 4.5).retry_after_s == 80.0


def test_open_breaker_adopts_the_duration_and_keeps_its_cause() -> None:
    core = opened()
    core.adopt(RemoteBreakerState(1, BreakerState.OPEN, wait_s=3.0, rounds=1), BEGAN + 4)
    assert core.allow(BEGAN + 4) == GuardRejection("it", BreakerState.OPEN, BreakerCause.FAILURES, 3.0)
    assert (core.machine.drain(), core.view(BEGAN).rounds) == ([], 1)


@pytest.mark.parametrize("version", [4, 5])
def test_older_versions_are_ignored(version: int) -> None:
    core = opened()
    core.adopt(RemoteBreakerState(5, BreakerState.OPEN, wait_s=9.0), BEGAN)
    view = core.view(BEGAN)
    core.adopt(RemoteBreakerState(version, BreakerState.CLOSED), BEGAN)
    core.adopt(RemoteBreakerState(version, BreakerState.FORCED_OPEN), BEGAN)
    assert core.view(BEGAN) == view
    core.adopt(RemoteBreakerState(6, BreakerState.CLOSED), BEGAN)
    assert core.state(BEGAN) is BreakerState.CLOSED


def test_a_first_version_may_be_zero() -> None:
    core = breaker()
    core.adopt(RemoteBreakerState(0, BreakerState.DISABLED), BEGAN)
    assert core.state(BEGAN) is BreakerState.DISABLED


@pytest.mark.parametrize("ramp", [(), (0.5,)])
def test_a_closing_elsewhere_is_one_here_by_the_own_ramp(ramp: tuple[float, ...]) -> None:
    for start in (BEGAN, DUE):  # open, and half-open
        core = opened(ramp=ramp)
        core.allow(start)
        core.adopt(RemoteBreakerState(1, BreakerState.CLOSED), start)
        assert core.view(start).machine is (BreakerState.RAMPING if ramp else BreakerState.CLOSED)
        assert core.view(start).cause is BreakerCause.REMOTE


def test_closed_breaker_stays_closed() -> None:
    core = breaker(ramp=(0.5,))
    called(core, FAIL, BEGAN, times=2)
    core.adopt(RemoteBreakerState(1, BreakerState.CLOSED, rounds=3), BEGAN)
    view = core.view(BEGAN)
    assert (view.streak, view.generation, view.rounds) == (2, 0, 0)
    core.adopt(RemoteBreakerState(1, BreakerState.OPEN, wait_s=3.0), BEGAN)
    assert core.state(BEGAN) is BreakerState.CLOSED, "the version was noted"
    core = ramping(ramp=(0.5,))
    core.allow(DUE)
    core.adopt(RemoteBreakerState(1, BreakerState.CLOSED), DUE)
    assert isinstance(core.allow(DUE), GuardPermit), "every second call, not the first of a new ramp"


def test_a_reset_elsewhere_closes_without_a_ramp_and_forgets() -> None:
    for core in (opened(ramp=(0.5,)), ramping(ramp=(0.5,)), breaker()):
        called(core, NEUTRAL, DUE + 1) if core.fast.permit else None
        generation = core.generation
        core.adopt(RemoteBreakerState(1, BreakerState.CLOSED, cause=BreakerCause.OPERATOR), DUE + 1)
        assert (core.state(DUE + 1), core.generation) == (BreakerState.CLOSED, generation + 1)


def test_remote_probes_make_it_half_open_here() -> None:
    core = breaker()
    core.adopt(RemoteBreakerState(1, BreakerState.HALF_OPEN, rounds=1), BEGAN)
    assert core.state(BEGAN) is BreakerState.HALF_OPEN
    (notified,) = core.machine.drain()
    assert (notified.cause, notified.rounds) == (BreakerCause.REMOTE, 1)
    taken(core, BEGAN)
    core.adopt(RemoteBreakerState(2, BreakerState.HALF_OPEN), BEGAN)
    assert (core.view(BEGAN).probes, core.view(BEGAN).cause) == (0, BreakerCause.REMOTE), (
        "those of another round"
    )


@pytest.mark.parametrize("state", [BreakerState.FORCED_OPEN, BreakerState.DISABLED])
def test_remote_operator_state_applies_here(state: BreakerState) -> None:
    core = breaker(mode=BreakerMode.METRICS_ONLY)
    core.adopt(RemoteBreakerState(1, state), BEGAN)
    view = core.view(BEGAN)
    assert (view.machine, view.metrics_only, view.cause) == (state, False, BreakerCause.REMOTE)
    if state is BreakerState.FORCED_OPEN:
        assert core.allow(BEGAN) == GuardRejection("it", state, BreakerCause.OPERATOR, 10.0)


@pytest.mark.parametrize(
    "remote",
    [
        RemoteBreakerState(2, BreakerState.CLOSED),
        RemoteBreakerState(2, BreakerState.OPEN, wait_s=3.0),
        RemoteBreakerState(2, BreakerState.HALF_OPEN),
    ],
)
@pytest.mark.parametrize("state", [BreakerState.FORCED_OPEN, BreakerState.DISABLED])
def test_adopted_state_ends_with_a_newer_one(remote: RemoteBreakerState, state: BreakerState) -> None:
    core = breaker(ramp=(0.5,))
    core.adopt(RemoteBreakerState(1, state), BEGAN)
    core.adopt(remote, BEGAN)
    assert core.state(BEGAN) is remote.state, "the reset in between may be lost; and it lets no ramp begin"


@pytest.mark.parametrize(
    "remote", [RemoteBreakerState(5, BreakerState.CLOSED), RemoteBreakerState(5, BreakerState.OPEN, 3.0)]
)
@pytest.mark.parametrize("command", [BreakerEvent.FORCE, BreakerEvent.DISABLE])
def test_local_operator_state_yields_only_to_operators(
    remote: RemoteBreakerState, command: BreakerEvent
) -> None:
    core = breaker()
    core.operate(command, BEGAN)
    view = core.view(BEGAN)
    core.adopt(remote, BEGAN)
    assert core.view(BEGAN) == view
    core.adopt(RemoteBreakerState(4, BreakerState.FORCED_OPEN), BEGAN)
    assert core.state(BEGAN) is BreakerState.FORCED_OPEN, "the version of what was not adopted is not noted"
    core.adopt(remote, BEGAN)
    assert core.state(BEGAN) is remote.state, "the fleet knew the word, so it has been taken back"


def test_remote_reset_lifts_a_local_operator_state() -> None:
    core = breaker()
    core.operate(BreakerEvent.FORCE, BEGAN)
    core.adopt(RemoteBreakerState(1, BreakerState.CLOSED, cause=BreakerCause.OPERATOR), BEGAN)
    assert core.state(BEGAN) is BreakerState.CLOSED
    core.adopt(RemoteBreakerState(2, BreakerState.OPEN, 3.0), BEGAN)
    assert core.state(BEGAN) is BreakerState.OPEN, "nothing is decided here any more"


def test_later_local_command_replaces_the_former() -> None:
    core = breaker()
    core.operate(BreakerEvent.FORCE, BEGAN)
    core.operate(BreakerEvent.RESET, BEGAN)
    core.adopt(RemoteBreakerState(1, BreakerState.OPEN, 3.0), BEGAN)
    assert core.state(BEGAN) is BreakerState.OPEN


def test_own_command_returned_by_the_fleet_stays_own() -> None:
    core = breaker()
    core.operate(BreakerEvent.FORCE, BEGAN)
    core.machine.drain()
    core.adopt(RemoteBreakerState(1, BreakerState.FORCED_OPEN, cause=BreakerCause.OPERATOR), BEGAN)
    assert (core.view(BEGAN).cause, core.machine.drain()) == (BreakerCause.OPERATOR, [])


def test_metrics_only_follows_the_fleet_and_keeps_counting() -> None:
    core = breaker(mode=BreakerMode.METRICS_ONLY)
    for version, (state, cause) in enumerate(
        [(BreakerState.OPEN, BreakerCause.TRIAL), (BreakerState.CLOSED, BreakerCause.OPERATOR)]
    ):
        core.adopt(RemoteBreakerState(version, state, 3.0, cause=cause), BEGAN)
        view = core.view(BEGAN)
        assert (view.machine, view.metrics_only) == (state, True)
