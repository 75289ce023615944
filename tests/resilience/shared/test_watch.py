"""Updates of a breaker: only newer ones, and the state that a store has lost."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.store.breakers.protocol import StateWrite
from autoglm_throttle.store.breakers.state import FleetState, Subscription
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.types import BreakerCause, BreakerState, RemoteBreakerState
from tests.resilience.shared.fleets import Diary

OPEN = RemoteBreakerState(5, BreakerState.OPEN, wait_s=2.0, rounds=1, cause=BreakerCause.FAILURES)
CLOSED = RemoteBreakerState(9, BreakerState.CLOSED)


def fresh() -> Subscription:
    return Subscription(lambda remote: None)


def fleet() -> FleetState:
    return FleetState(lambda: None, ManualClock(0.0))


@given(st.lists(st.integers(1, 9), max_size=30))
def test_versions_only_rise_and_each_newer_one_is_delivered(received: list[int]) -> None:
    state, diary, rising = fleet(), Diary(), [0]
    state.subscribe("a", diary.changed)
    for version in received:
        state.publish("a", replace(CLOSED, version=version))
        if version > rising[-1]:
            rising.append(version)
    assert [remote.version for remote in diary.states] == rising[1:]
    assert state.version("a") == rising[-1]


def test_opening_during_a_delivery_is_based_on_an_older_state() -> None:
    state = fleet()

    def opens(remote: RemoteBreakerState) -> None:
        state.put_state(StateWrite("a", BreakerState.OPEN, 0, 9.0))

    state.subscribe("a", opens)
    state.publish("a", CLOSED)
    (write,) = state.take_work()[0]
    assert isinstance(write, StateWrite)
    assert (write.known_version, write.is_applied) == (9, False)
    state.put_state(StateWrite("a", BreakerState.OPEN, 0, 9.0))
    (write,) = state.take_work()[0]
    assert isinstance(write, StateWrite)
    assert write.is_applied


def test_only_a_pending_state_holds_updates_back() -> None:
    state, diary = fleet(), Diary()
    for name in ("a", "b"):
        state.subscribe(name, diary.changed)
    state.put(StateWrite("a", BreakerState.DISABLED, 0))
    state.publish("a", CLOSED)
    assert diary.states == []
    state.publish("b", CLOSED)
    assert diary.states == [CLOSED]


def test_recorded_version_is_known_and_no_update() -> None:
    state, diary = fleet(), Diary()
    state.subscribe("a", diary.changed)
    state.record_known("a", OPEN)
    state.publish("a", OPEN)
    assert (diary.states, state.version("a"), state.version("a", own=True)) == ([], 5, 0)


def test_an_open_period_goes_on() -> None:
    watch = fresh()
    assert watch.latest(0.0) is None
    watch.record(OPEN, 10.0)
    assert watch.latest(10.5) == replace(OPEN, wait_s=1.5)
    assert watch.latest(99.0) == replace(OPEN, wait_s=0.0)


@pytest.mark.parametrize(
    ("state", "again"),
    [
        (BreakerState.OPEN, StateWrite("a", BreakerState.OPEN, 5, 12.0, 1, BreakerCause.FAILURES)),
        (BreakerState.FORCED_OPEN, StateWrite("a", BreakerState.FORCED_OPEN, 5, is_restore=True)),
        (BreakerState.DISABLED, StateWrite("a", BreakerState.DISABLED, 5, is_restore=True)),
        (BreakerState.HALF_OPEN, None),
        (BreakerState.CLOSED, None),
    ],
)
def test_forgotten_state_is_restored(state: BreakerState, again: object) -> None:
    watch = fresh()
    assert watch.restore_write("a", 0.0) is None
    watch.record(replace(OPEN, state=state), 10.0)
    assert watch.restore_write("a", 10.0) == again


def test_expired_open_period_is_not_sent_again() -> None:
    watch = fresh()
    watch.record(OPEN, 10.0)
    assert watch.restore_write("a", 12.0) is None


def test_breaker_is_not_kept_alive() -> None:
    diary = Diary()
    watch = Subscription(diary.changed)
    assert watch.listener is not None
    watch.listener(OPEN)
    assert diary.states == [OPEN]
    del diary
    gc.collect()
    assert watch.listener is None
