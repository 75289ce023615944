"""A forked child has a store of its own, beside the one that it inherited and never uses."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable

import pytest

from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    Outcome,
    ProbeLease,
    ProbeRequest,
    RemoteBreakerState,
)
from tests.resilience.shared.conftest import Made
from tests.resilience.shared.fleets import PATIENCE_S, watched
from tests.store.polling import until

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

LONG = ProbeRequest(half_open_max=1, successes_needed=1, limits_concurrent=False, lease_s=600.0)


def in_child(run_event: Callable[[], None]) -> None:
    """Do something in a child and wait for its end."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            run_event()
            status = 0
        except BaseException:  # noqa: BLE001 - a child must not go on with the parent's tests
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_child_reads_the_state_receives_and_sends(made: Made, redis_url: str) -> None:
    store, other = made(redis_url), made(redis_url)
    diary, elsewhere = watched(store), watched(other)
    other.report_open("a", 60.0, 0, BreakerCause.FAILURES)
    diary.reads(BreakerState.OPEN)

    def child() -> None:
        own = made(redis_url, listens=False)
        own.subscribe("a", lambda remote: None)
        assert not own.is_running, "the hook of a fork starts no thread"
        known = own.read_state("a")
        assert isinstance(known, RemoteBreakerState)
        assert known.state is BreakerState.OPEN
        until(lambda: own.subscriber.is_listening, PATIENCE_S, "it listens")
        own.report_operator_state("a", BreakerState.DISABLED)
        until(lambda: not own.state.pending, PATIENCE_S, "it is sent")

    in_child(child)
    elsewhere.reads(BreakerState.DISABLED)
    diary.reads(BreakerState.OPEN, BreakerState.DISABLED)
    assert (store.script.failures, store.subscriber.failures) == (0, 0), "its connections are untouched"


def test_probe_of_the_parent_is_unknown_to_the_child(made: Made, redis_url: str) -> None:
    store = made(redis_url)
    watched(store)
    lease = store.acquire("a", LONG)
    assert isinstance(lease, ProbeLease)

    def child() -> None:
        own = made(redis_url, listens=False)
        own.report_probe("a", lease, Outcome.FAILURE, 1, 60.0)
        assert not own.is_running
        assert not own.state.pending
        rejected = own.acquire("a", LONG)
        assert isinstance(rejected, RemoteBreakerState)
        assert rejected.state is BreakerState.HALF_OPEN

    in_child(child)
    store.report_probe("a", lease, Outcome.SUCCESS, 1, 1.0)
    until(lambda: not store.state.pending, PATIENCE_S, "it is sent")
    answer = store.acquire("a", LONG)
    assert isinstance(answer, RemoteBreakerState)
    assert answer.state is BreakerState.CLOSED


def test_fork_amid_traffic_leaves_the_child_a_free_store(made: Made, redis_url: str) -> None:
    """Threads that hold a lock, send or wait at that moment do so in the parent alone."""
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
        own = made(redis_url, listens=False)
        diary = watched(own, name)
        own.report_operator_state(name, BreakerState.DISABLED)
        own.stop(PATIENCE_S)
        assert diary.states == []
        assert (found := own.read_state("a")) is None or found.state in BreakerState

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        for _ in range(10):
            with store.state.lock:
                in_child(child)
    finally:
        over.set()
        thread.join(PATIENCE_S)
    assert store.is_running
    assert store.is_up
