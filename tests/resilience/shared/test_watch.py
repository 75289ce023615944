"""Updates of a breaker: only newer ones, delivered by one thread at a time."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.transitions import RemoteBreakerState
from autoglm_throttle.store.breakers.pending_writes import OpenMessage, OperatorCommand
from autoglm_throttle.store.breakers.subscription import Subscription
from autoglm_throttle.types import BreakerCause, BreakerState
from tests.resilience.shared.fleets import Diary

OPEN = RemoteBreakerState(5, BreakerState.OPEN, wait_s=2.0, rounds=1, cause=BreakerCause.FAILURES)


def fresh() -> Subscription:
    return Subscription("a", lambda remote: None)


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=30))
def test_versions_only_rise_and_the_newest_is_handed_over(received: list[tuple[int, bool]]) -> None:
    watch, handed, newest = fresh(), [0], 0
    for version, pauses in received:
        remote = RemoteBreakerState(version, BreakerState.CLOSED)
        begins = watch.receive(remote, 0.0)
        assert begins == (version > newest and not watch_is_busy(handed, newest))
        newest = max(newest, version)
        while not pauses and (update := watch.next_update(0.0)) is not None:
            handed.append(update.version)
    while (update := watch.next_update(0.0)) is not None:
        handed.append(update.version)
    assert handed == sorted(set(handed))
    assert handed[-1] == newest == watch.version


def watch_is_busy(handed: list[int], newest: int) -> bool:
    """The delivering thread has not yet delivered the newest update."""
    return handed[-1] != newest


def test_registration_returns_changes_made_meanwhile() -> None:
    watch = fresh()
    assert watch.receive(OPEN, 0.0)
    assert not watch.receive(replace(OPEN, version=6), 0.0), "somebody is at it"
    assert not watch.receive(replace(OPEN, version=7, state=BreakerState.CLOSED), 0.0)
    assert watch.next_update(0.0) == replace(OPEN, version=7, state=BreakerState.CLOSED)
    assert watch.is_delivering
    assert watch.next_update(0.0) is None
    assert not watch.is_delivering


def test_recorded_version_is_known_and_no_update() -> None:
    watch = fresh()
    assert watch.record(OPEN, 0.0)
    assert not watch.receive(OPEN, 0.0)
    assert watch.next_update(0.0) is None
    assert watch.version == 5


def test_an_open_period_goes_on() -> None:
    watch = fresh()
    assert watch.latest(0.0) is None
    watch.record(OPEN, 10.0)
    assert watch.latest(10.5) == replace(OPEN, wait_s=1.5)
    assert watch.latest(99.0) == replace(OPEN, wait_s=0.0)


@pytest.mark.parametrize(
    ("state", "again"),
    [
        (BreakerState.OPEN, OpenMessage("a", 12.0, 1, BreakerCause.FAILURES, 5)),
        (BreakerState.FORCED_OPEN, OperatorCommand("a", BreakerState.FORCED_OPEN, 5, is_restore=True)),
        (BreakerState.DISABLED, OperatorCommand("a", BreakerState.DISABLED, 5, is_restore=True)),
        (BreakerState.HALF_OPEN, None),
        (BreakerState.CLOSED, None),
    ],
)
def test_forgotten_state_restored_by_a_peer_is_no_update(state: BreakerState, again: object) -> None:
    watch = fresh()
    assert watch.restore_write(0.0) is None
    watch.record(replace(OPEN, state=state), 10.0)
    assert watch.restore_write(10.0) == again


def test_expired_open_period_is_not_sent_again() -> None:
    watch = fresh()
    watch.record(OPEN, 10.0)
    assert watch.restore_write(12.0) is None


def test_breaker_is_not_kept_alive() -> None:
    diary = Diary()
    watch = Subscription("a", diary.changed)
    assert watch.listener is not None
    watch.listener(OPEN)
    assert diary.states == [OPEN]
    del diary
    gc.collect()
    assert watch.listener is None


def test_method_without_weak_reference_is_held() -> None:
    class Slotted:
        __slots__ = ()

        def changed(self, remote: RemoteBreakerState) -> None:
            """Take it."""

    watch = Subscription("a", Slotted().changed)
    gc.collect()
    assert watch.listener is not None
