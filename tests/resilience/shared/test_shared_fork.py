"""A child of a fork speaks for itself, with threads and connections of its own."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable

import pytest

from autoglm_throttle.model import Cause, Outcome, State
from autoglm_throttle.resilience.shared import redis_store
from autoglm_throttle.resilience.store import Ask, Lease, Remote
from tests.resilience.shared.conftest import Made
from tests.resilience.shared.fleets import PATIENCE_S, watched
from tests.stores.polling import until

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

LONG = Ask(half_open_max=1, need=1, threshold=False, lease_s=600.0)


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


def test_a_child_knows_the_state_hears_and_is_heard(made: Made, redis_url: str) -> None:
    store, other = made(redis_url), made(redis_url)
    diary, elsewhere = watched(store), watched(other)
    other.opened("a", 60.0, 0, Cause.FAILURES)
    diary.reads(State.OPEN)

    def child() -> None:
        assert not store.running
        assert not store.listening
        known = store.known("a")
        assert isinstance(known, Remote)
        assert known.state is State.OPEN
        until(lambda: store.listening, PATIENCE_S, "it listens")
        store.operated("a", State.DISABLED)
        until(lambda: not len(store._ledger.outbox), PATIENCE_S, "it is told")

    in_child(child)
    elsewhere.reads(State.DISABLED)
    diary.reads(State.OPEN, State.DISABLED)
    assert (store.failures, store._push.failures) == (0, 0), "its connections are untouched"


def test_what_a_child_does_first_can_be_seen_without_one(made: Made, redis_url: str) -> None:
    store = made(redis_url)
    diary = watched(store)
    store.opened("a", 60.0, 0, Cause.FAILURES)
    until(lambda: store._ledger.own("a"), PATIENCE_S, "it is told")
    store.stop(PATIENCE_S)
    store._pid = 0
    redis_store._after_fork_in_child()
    assert (store.running, store.listening, store._ledger.position("a")) == (False, False, (0, True))
    assert store.known("a") is not None
    diary.reads(State.OPEN)


def test_a_trial_of_the_parent_is_none_of_the_childs(made: Made, redis_url: str) -> None:
    store = made(redis_url)
    watched(store)
    lease = store.acquire("a", LONG)
    assert isinstance(lease, Lease)

    def child() -> None:
        store.finished("a", lease, Outcome.FAILURE, 1, 60.0)
        assert not len(store._ledger.outbox)
        refused = store.acquire("a", LONG)
        assert isinstance(refused, Remote)
        assert refused.state is State.HALF_OPEN

    in_child(child)
    store.finished("a", lease, Outcome.SUCCESS, 1, 1.0)
    until(lambda: not len(store._ledger.outbox), PATIENCE_S, "it is told")
    answer = store.acquire("a", LONG)
    assert isinstance(answer, Remote)
    assert answer.state is State.CLOSED


def test_a_fork_in_the_midst_of_everything(made: Made, redis_url: str) -> None:
    """Whoever holds the lock, hands news over or waits at that moment does so in the parent alone."""
    store, other = made(redis_url), made(redis_url)
    watched(store)
    over = threading.Event()

    def traffic() -> None:
        while not over.is_set():
            store.acquire("a", LONG)
            other.operated("a", State.FORCED_OPEN)
            other.operated("a", State.CLOSED)

    def child() -> None:
        name = str(os.getpid())
        diary = watched(store, name)
        store.operated(name, State.DISABLED)
        store.stop(PATIENCE_S)
        assert diary.states == []
        assert (found := other.known("a")) is None or found.state in State

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        for _ in range(10):
            with store._ledger.lock:
                in_child(child)
    finally:
        over.set()
        thread.join(PATIENCE_S)
    store.forget()
    assert store.running, "this is no child"
    assert store.up
