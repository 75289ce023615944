"""A cluster, and a primary that fails over."""

from __future__ import annotations

import pytest

from autoglm_throttle.types import BreakerCause, BreakerState, ProbeLease
from tests.resilience.shared.conftest import Made
from tests.resilience.shared.fleets import ONE, PATIENCE_S, Diary, watched
from tests.store.cluster import Cluster3
from tests.store.polling import until
from tests.store.sentinel import SentinelPair

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_cluster_spreads_guards_and_every_process_receives_all(
    made: Made, redis_cluster: Cluster3, redis_prefix: str
) -> None:
    here, there = made(redis_cluster.url), made(redis_cluster.url)
    names = [f"guard {number}" for number in range(20)]
    diaries = [watched(there, name) for name in names]
    for name, diary in zip(names, diaries, strict=True):
        here.subscribe(name, lambda remote: None)
        here.report_open(name, 0.2, 0, BreakerCause.FAILURES)
        diary.reads(BreakerState.OPEN)
    found = [node.command("KEYS", f"{redis_prefix}:*") for node in redis_cluster.nodes]
    assert all(found), "each node has some"
    until(lambda: isinstance(here.acquire(names[0], ONE), ProbeLease), PATIENCE_S, "a trial")
    fresh = made(redis_cluster.url, listens=False)
    fresh.subscribe(names[0], lambda remote: None)
    until(
        lambda: (state := fresh.read_state(names[0])) and state.state is BreakerState.HALF_OPEN,
        PATIENCE_S,
        "it is read",
    )
    assert (here.script.failures, there.script.failures) == (0, 0)


def test_a_failover_is_followed_with_all_that_was_known(made: Made, own_sentinel: SentinelPair) -> None:
    here, there = made(own_sentinel.url), made(own_sentinel.url)
    watched(here)
    diary = watched(there)
    here.report_operator_state("a", BreakerState.FORCED_OPEN)
    diary.reads(BreakerState.FORCED_OPEN)
    own_sentinel.primary.command("WAIT", 1, 1000)
    own_sentinel.primary.kill()
    until(own_sentinel.failed_over, PATIENCE_S, "a new primary")
    until(
        lambda: here.is_up and here.subscriber.is_listening and there.subscriber.is_listening,
        PATIENCE_S,
        "both are back",
    )
    here.report_operator_state("a", BreakerState.CLOSED)
    diary.reads(BreakerState.FORCED_OPEN, BreakerState.CLOSED)
    fresh, found = made(own_sentinel.url), Diary()
    fresh.subscribe("a", found.changed)
    found.reads(BreakerState.CLOSED)
