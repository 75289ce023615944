"""The table of moves, the machine that goes by it, and the page that is made from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autoglm_throttle.resilience.transitions import (
    OPERATOR_STATES,
    REOPENING_STATES,
    TRANSITION_ROWS,
    TRANSITIONS,
    BreakerEvent,
    BreakerStateMachine,
)
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerCause, BreakerState, BreakerTransition, RemoteBreakerState
from docs.generate.breaker_states import MEANINGS, states_page

PAGE = Path(__file__).parents[2] / "docs" / "breaker-states.md"
OPERATORS = {BreakerEvent.FORCE, BreakerEvent.DISABLE, BreakerEvent.RESET, BreakerEvent.METRICS_ONLY}
FLEET = {event for event in BreakerEvent if event.name.startswith("REMOTE")}
OWN = set(BreakerEvent) - OPERATORS - FLEET


def moves(event: BreakerEvent) -> dict[BreakerState, tuple[BreakerState, BreakerCause]]:
    return {state: (move.to, move.cause) for (state, each), move in TRANSITIONS.items() if each is event}


@pytest.mark.parametrize(
    ("event", "states", "to", "cause"),
    [
        (BreakerEvent.FAILURES, "closed ramping", BreakerState.OPEN, BreakerCause.FAILURES),
        (BreakerEvent.FAILURE_RATE, "closed ramping", BreakerState.OPEN, BreakerCause.FAILURE_RATE),
        (BreakerEvent.SLOW_RATE, "closed ramping", BreakerState.OPEN, BreakerCause.SLOW_RATE),
        (BreakerEvent.WAITED, "open", BreakerState.HALF_OPEN, BreakerCause.TRIAL),
        (BreakerEvent.PROBE_FAILED, "half_open", BreakerState.OPEN, BreakerCause.TRIAL),
        (BreakerEvent.PROBES_SUCCEEDED, "half_open", BreakerState.CLOSED, BreakerCause.TRIAL),
        (BreakerEvent.PROBES_SUCCEEDED_RAMP, "half_open", BreakerState.RAMPING, BreakerCause.TRIAL),
        (BreakerEvent.RAMP_DONE, "ramping", BreakerState.CLOSED, BreakerCause.RAMP),
        (
            BreakerEvent.RETRY_AFTER,
            "closed open half_open ramping",
            BreakerState.OPEN,
            BreakerCause.RETRY_AFTER,
        ),
        (BreakerEvent.FORCE, " ".join(BreakerState), BreakerState.FORCED_OPEN, BreakerCause.OPERATOR),
        (BreakerEvent.DISABLE, " ".join(BreakerState), BreakerState.DISABLED, BreakerCause.OPERATOR),
        (BreakerEvent.RESET, " ".join(BreakerState), BreakerState.CLOSED, BreakerCause.OPERATOR),
        (BreakerEvent.METRICS_ONLY, " ".join(BreakerState), BreakerState.CLOSED, BreakerCause.OPERATOR),
        (BreakerEvent.REMOTE_OPEN, " ".join(BreakerState), BreakerState.OPEN, BreakerCause.REMOTE),
        (BreakerEvent.REMOTE_HALF_OPEN, " ".join(BreakerState), BreakerState.HALF_OPEN, BreakerCause.REMOTE),
        (BreakerEvent.REMOTE_CLOSED, "open half_open", BreakerState.CLOSED, BreakerCause.REMOTE),
        (BreakerEvent.REMOTE_CLOSED_RAMP, "open half_open", BreakerState.RAMPING, BreakerCause.REMOTE),
        (BreakerEvent.REMOTE_FORCE, " ".join(BreakerState), BreakerState.FORCED_OPEN, BreakerCause.REMOTE),
        (BreakerEvent.REMOTE_DISABLE, " ".join(BreakerState), BreakerState.DISABLED, BreakerCause.REMOTE),
        (BreakerEvent.REMOTE_RESET, " ".join(BreakerState), BreakerState.CLOSED, BreakerCause.REMOTE),
    ],
)
def test_each_event_moves_these_states_and_no_other(
    event: BreakerEvent, states: str, to: BreakerState, cause: BreakerCause
) -> None:
    assert moves(event) == {BreakerState(state): (to, cause) for state in states.split()}


def test_each_event_has_one_row_and_each_state_a_way_in() -> None:
    assert [row.event for row in TRANSITION_ROWS] == list(dict.fromkeys(row.event for row in TRANSITION_ROWS))
    assert {row.event for row in TRANSITION_ROWS} == set(BreakerEvent)
    assert {move.to for move in TRANSITIONS.values()} == set(BreakerState)
    assert len(TRANSITIONS) == sum(len(row.states) for row in TRANSITION_ROWS)


def test_only_operators_leave_an_operator_state() -> None:
    assert {event for state, event in TRANSITIONS if state in OPERATOR_STATES} <= OPERATORS | FLEET
    assert set(OPERATOR_STATES) == {BreakerState.FORCED_OPEN, BreakerState.DISABLED}
    assert not {move.to for (_, event), move in TRANSITIONS.items() if event in OWN} & set(OPERATOR_STATES)


def test_half_open_ends_with_every_probe_result() -> None:
    ways = {
        move.to
        for (state, event), move in TRANSITIONS.items()
        if state is BreakerState.HALF_OPEN and event in OWN
    }
    assert ways == {BreakerState.CLOSED, BreakerState.RAMPING, BreakerState.OPEN}


def machine(state: BreakerState = BreakerState.CLOSED, **rules: float) -> BreakerStateMachine:
    it = BreakerStateMachine("it", BreakerSettings(**rules))  # type: ignore[arg-type]  # any column
    it.state = state
    return it


def test_missing_row_changes_nothing() -> None:
    it = machine()
    assert not it.transition(BreakerEvent.PROBES_SUCCEEDED, 1.0)
    assert (it.state, it.generation, it.cause, it.drain()) == (BreakerState.CLOSED, 0, None, [])


def test_transition_carries_all_its_fields() -> None:
    it = machine()
    assert it.transition(BreakerEvent.FAILURES, 7.0)
    assert it.drain() == [
        BreakerTransition(
            "it", BreakerState.CLOSED, BreakerState.OPEN, BreakerCause.FAILURES, 7.0, 1, 10.0, 0
        )
    ]
    assert it.transition(BreakerEvent.WAITED, 17.0)
    assert it.transition(BreakerEvent.PROBE_FAILED, 18.0)
    assert it.drain() == [
        BreakerTransition(
            "it", BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerCause.TRIAL, 17.0, 2, 0.0, 0
        ),
        BreakerTransition(
            "it", BreakerState.HALF_OPEN, BreakerState.OPEN, BreakerCause.TRIAL, 18.0, 3, 10.0, 1
        ),
    ]
    assert it.drain() == []


def test_transition_to_the_same_state_is_not_reported() -> None:
    it = machine()
    assert it.transition(BreakerEvent.RESET, 1.0)
    assert (it.generation, it.cause, it.drain()) == (1, BreakerCause.OPERATOR, [])


@pytest.mark.parametrize("before", BreakerState)
def test_reopening_counts_a_further_round(before: BreakerState) -> None:
    it = machine(before)
    it.rounds = 4
    it.transition(BreakerEvent.REMOTE_OPEN, 1.0)
    kept = {BreakerState.OPEN: 4, BreakerState.HALF_OPEN: 5, BreakerState.RAMPING: 5}
    assert it.rounds == kept.get(before, 0)
    assert set(REOPENING_STATES) == {BreakerState.HALF_OPEN, BreakerState.RAMPING}


def test_rounds_counted_elsewhere_set_the_wait() -> None:
    it = machine(backoff=2.0)
    it.transition(BreakerEvent.FAILURES, 1.0, rounds=2)
    assert (it.rounds, it.wait_s) == (2, 40.0)
    it.transition(BreakerEvent.WAITED, 41.0, rounds=0)
    assert it.rounds == 0


def test_a_wait_can_be_given_once() -> None:
    it = machine()
    it.transition(BreakerEvent.REMOTE_OPEN, 1.0, wait_s=0.0)
    assert (it.wait_s, it.cause, it.rejection_cause) == (0.0, BreakerCause.REMOTE, BreakerCause.REMOTE)
    (notified,) = it.drain()
    assert (notified.cause, notified.retry_after_s) == (BreakerCause.REMOTE, 0.0)
    it.transition(BreakerEvent.FAILURES, 1.0)
    it.transition(BreakerEvent.WAITED, 2.0)
    it.transition(BreakerEvent.PROBE_FAILED, 2.0)
    assert it.wait_s == 10.0


def test_the_opening_is_remembered_until_it_has_closed() -> None:
    it = machine()
    remembered = [it.opened_s]
    for event in (
        BreakerEvent.FAILURES,
        BreakerEvent.WAITED,
        BreakerEvent.PROBES_SUCCEEDED_RAMP,
        BreakerEvent.RAMP_DONE,
    ):
        it.transition(event, 10.0 + len(remembered))
        remembered.append(it.opened_s)
    assert remembered == [None, 11.0, 11.0, 11.0, None]


def test_calls_are_blocked_by_an_opening_or_an_operator() -> None:
    it = machine()
    found = [(it.cause, it.rejection_cause)]
    for event in (BreakerEvent.FAILURE_RATE, BreakerEvent.REMOTE_FORCE):
        it.transition(event, 1.0)
        found.append((it.cause, it.rejection_cause))
    assert found == [
        (None, BreakerCause.OPERATOR),
        (BreakerCause.FAILURE_RATE, BreakerCause.FAILURE_RATE),
        (BreakerCause.REMOTE, BreakerCause.OPERATOR),
    ]


@pytest.mark.parametrize(
    ("now", "left_s", "seen", "retry_after_s"),
    [
        (0.0, 10.0, BreakerState.OPEN, 10.0),
        (1.0, 10.0, BreakerState.OPEN, 10.0),
        (4.5, 6.5, BreakerState.OPEN, 6.5),
        (11.0, 0.0, BreakerState.HALF_OPEN, 0.0),
        (12.0, -1.0, BreakerState.HALF_OPEN, 0.0),
    ],
)
def test_how_long_it_stays_open(now: float, left_s: float, seen: BreakerState, retry_after_s: float) -> None:
    it = machine()
    assert it.remaining_s(1.0) == 0.0
    it.transition(BreakerEvent.FAILURES, 1.0)
    assert (it.remaining_s(now), it.visible_state(now), it.retry_after_s(now)) == (
        left_s,
        seen,
        retry_after_s,
    )
    assert it.state is BreakerState.OPEN


def test_retry_time_exists_only_while_all_calls_are_rejected() -> None:
    it = machine()
    it.transition(BreakerEvent.FAILURES, 1.0)
    it.transition(BreakerEvent.WAITED, 11.0)
    assert (it.retry_after_s(5.0), it.visible_state(5.0)) == (0.0, BreakerState.HALF_OPEN)
    it.transition(BreakerEvent.FORCE, 12.0)
    assert it.retry_after_s(500.0) == 10.0


@pytest.mark.parametrize(
    ("remote", "state", "ramp", "event"),
    [
        (RemoteBreakerState(1, BreakerState.OPEN), BreakerState.CLOSED, (), BreakerEvent.REMOTE_OPEN),
        (
            RemoteBreakerState(1, BreakerState.HALF_OPEN),
            BreakerState.CLOSED,
            (),
            BreakerEvent.REMOTE_HALF_OPEN,
        ),
        (RemoteBreakerState(1, BreakerState.FORCED_OPEN), BreakerState.CLOSED, (), BreakerEvent.REMOTE_FORCE),
        (RemoteBreakerState(1, BreakerState.DISABLED), BreakerState.CLOSED, (), BreakerEvent.REMOTE_DISABLE),
        (RemoteBreakerState(1, BreakerState.CLOSED), BreakerState.OPEN, (), BreakerEvent.REMOTE_CLOSED),
        (
            RemoteBreakerState(1, BreakerState.CLOSED),
            BreakerState.OPEN,
            (0.5,),
            BreakerEvent.REMOTE_CLOSED_RAMP,
        ),
        (
            RemoteBreakerState(1, BreakerState.CLOSED, cause=BreakerCause.OPERATOR),
            BreakerState.OPEN,
            (0.5,),
            BreakerEvent.REMOTE_RESET,
        ),
        (
            RemoteBreakerState(1, BreakerState.CLOSED),
            BreakerState.FORCED_OPEN,
            (0.5,),
            BreakerEvent.REMOTE_RESET,
        ),
        (RemoteBreakerState(1, BreakerState.CLOSED), BreakerState.DISABLED, (), BreakerEvent.REMOTE_RESET),
    ],
)
def test_states_of_the_fleet(
    remote: RemoteBreakerState, state: BreakerState, ramp: tuple[float, ...], event: BreakerEvent
) -> None:
    it = BreakerStateMachine("it", BreakerSettings(ramp=ramp))
    it.state = state
    assert it.remote_event(remote) is event


def test_the_page_is_up_to_date() -> None:
    command = [sys.executable, "-m", "docs.generate.breaker_states"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PAGE.parents[1])
    assert made.stdout == PAGE.read_text("utf-8"), f"run: {' '.join(command[1:])} > docs/breaker-states.md"


def test_the_page_is_made_from_the_table() -> None:
    assert states_page() == PAGE.read_text("utf-8")


def test_the_page_names_every_state_and_every_row_once() -> None:
    page = states_page()
    assert list(MEANINGS) == list(BreakerState)
    for state, (call, result) in MEANINGS.items():
        assert page.count(f"\n| `{state}` | {call} | {result} |") == 1
    for row in TRANSITION_ROWS:
        states = ", ".join(f"`{state}`" for state in row.states)
        reports = "any state" if set(row.states) == set(BreakerState) else states
        assert page.count(f"\n| {row.event} | {reports} | `{row.to}` | `{row.cause}` |") == 1


def arrows(lines: str) -> set[tuple[str, ...]]:
    return {tuple(line.strip().split(": ")[0].split(" --> ")) for line in lines.splitlines() if ": " in line}


def test_diagram_draws_transitions_inside_and_across_the_frame() -> None:
    inside, outside = states_page().split("```")[1].split("\n    }\n")
    assert arrows(inside) == {
        (state, move.to) for (state, event), move in TRANSITIONS.items() if event in OWN
    }
    assert arrows(outside) == {
        *(
            ("automatic", to) for to in OPERATOR_STATES
        ),  # and none back into the frame: mermaid cannot draw it
        *(
            (before, to)
            for before in OPERATOR_STATES
            for to in (*OPERATOR_STATES, BreakerState.CLOSED)
            if before is not to
        ),
    }
