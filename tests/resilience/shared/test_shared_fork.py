"""A child of a fork speaks for itself, with threads and connections of its own."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable

import pytest

from autoglm_throttle.resilience.store import ProbeLease, ProbeRequest, RemoteBreakerState
from autoglm_throttle.store.breakers import redis_store
from autoglm_throttle.types import BreakerCause, BreakerState, Outcome
from tests.resilience.shared.conftest import Made
from tests.resilience.shared.fleets import PATIENCE_S, watched
from tests.store.polling import until

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

LONG = ProbeRequest(half_open_max=1, successes_needed=1, limits_concurrent=False, lease_s=600.0)


def in_child(does: Callable[[], None]) -> None:
    """Do something in a child and wait for its end."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            does()
            status = 0
        except BaseException:  # noqa: BLE001 - a child must not go on with the parent's tests
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_child_knows_the_state_receives_and_sends(made: Made, redis_url: str) -> None:
    store, other = made(redis_url), made(redis_url)
    diary, elsewhere = watched(store), watched(other)
    other.report_open("a", 60.0, 0, BreakerCause.FAILURES)
    diary.reads(BreakerState.OPEN)
    until(lambda: store.is_listening, PATIENCE_S, "it listens")
    connections = store._listener._connections

    def child() -> None:
        assert not store.is_running
        assert not store.is_listening
        assert store._listener._parent_connections == [connections], "the parent's sockets stay open"
        known = store.read_state("a")
        assert isinstance(known, RemoteBreakerState)
        assert known.state is BreakerState.OPEN
        until(lambda: store.is_listening, PATIENCE_S, "it listens")
        store.report_operator_state("a", BreakerState.DISABLED)
        until(lambda: not len(store._fleet_state.pending_writes), PATIENCE_S, "it is told")

    in_child(child)
    elsewhere.reads(BreakerState.DISABLED)
    diary.reads(BreakerState.OPEN, BreakerState.DISABLED)
    assert (store.failures, store._listener.failures) == (0, 0), "its connections are untouched"


def test_child_reset_works_without_a_fork(made: Made, redis_url: str) -> None:
    store = made(redis_url)
    diary = watched(store)
    store.report_open("a", 60.0, 0, BreakerCause.FAILURES)
    until(lambda: store._fleet_state.own_version("a"), PATIENCE_S, "it is told")
    store.stop(PATIENCE_S)
    store._pid = 0
    redis_store._after_fork_in_child()
    assert (store.is_running, store.is_listening, store._fleet_state.position("a")) == (
        False,
        False,
        (0, True),
    )
    assert store.read_state("a") is not None
    diary.reads(BreakerState.OPEN)


def test_probe_of_the_parent_is_unknown_to_the_child(made: Made, redis_url: str) -> None:
    store = made(redis_url)
    watched(store)
    lease = store.acquire("a", LONG)
    assert isinstance(lease, ProbeLease)

    def child() -> None:
        store.report_probe("a", lease, Outcome.FAILURE, 1, 60.0)
        assert not len(store._fleet_state.pending_writes)
        refused = store.acquire("a", LONG)
        assert isinstance(refused, RemoteBreakerState)
        assert refused.state is BreakerState.HALF_OPEN

    in_child(child)
    store.report_probe("a", lease, Outcome.SUCCESS, 1, 1.0)
    until(lambda: not len(store._fleet_state.pending_writes), PATIENCE_S, "it is told")
    answer = store.acquire("a", LONG)
    assert isinstance(answer, RemoteBreakerState)
    assert answer.state is BreakerState.CLOSED


def test_a_fork_in_the_midst_of_everything(made: Made, redis_url: str) -> None:
    """Whoever holds the lock, hands news over or waits at that moment does so in the parent alone."""
    store, other = made(redis_url), made(redis_url)
    watched(store)
    over = threading.Event()

    def traffic() -> None:
        while not over.is_set():
            store.acquire("a", LONG)
            other.report_operator_state("a", BreakerState.FORCED_OPEN)
            other.report_operator_state("a", BreakerState.CLOSED)

    def child() -> None:
        name = str(os.getpid())
        diary = watched(store, name)
        store.report_operator_state(name, BreakerState.DISABLED)
        store.stop(PATIENCE_S)
        assert diary.states == []
        assert (found := other.read_state("a")) is None or found.state in BreakerState

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        for _ in range(10):
            with store._fleet_state.lock:
                in_child(child)
    finally:
        over.set()
        thread.join(PATIENCE_S)
    store.reset_after_fork()
    assert store.is_running, "this is no child"
    assert store.is_up
