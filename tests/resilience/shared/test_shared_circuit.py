"""Guards on a shared store: load of a closed one on the store, and agreement of two."""

from __future__ import annotations

import asyncio

import pytest

from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.store.breakers import sync
from autoglm_throttle.store.breakers.sync import RedisBreakerStore
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.types import BreakerCause, BreakerState, GuardPermit, GuardRejection, Outcome
from tests.resilience.shared.conftest import Made
from tests.resilience.shared.fleets import PATIENCE_S
from tests.store.polling import until
from tests.store.server import RedisServer

pytestmark = pytest.mark.server

SCRIPTS = ("cmdstat_eval", "cmdstat_evalsha", "cmdstat_publish")


def circuit(store: RedisBreakerStore, name: str = "a", open_s: float = 0.05) -> GuardState:
    return GuardState(name, BreakerSettings(failures=2, open_s=open_s, trial_lease_s=600.0), store=store)


def passed(one: GuardState) -> GuardPermit:
    found = one.allow()
    assert isinstance(found, GuardPermit), found
    return found


def fails(one: GuardState, times: int = 2) -> None:
    for _ in range(times):
        one.record(passed(one), Outcome.FAILURE)


def tried(one: GuardState) -> GuardPermit:
    """The trial, once it is time for it."""
    found: list[GuardPermit] = []

    def requested() -> bool:
        answer = one.allow()
        if isinstance(answer, GuardPermit):
            found.append(answer)
        return bool(found)

    until(requested, PATIENCE_S, "a trial")
    return found[0]


def test_closed_guard_sends_nothing_to_the_store(
    made: Made, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "READ_INTERVAL_S", 3600.0)
    store = made(redis_server.url)
    one = circuit(store)
    one.record(passed(one), Outcome.SUCCESS)
    until(lambda: not store.state.has_work(), PATIENCE_S, "all is read")
    calls, before = store.script.calls, redis_server.info("commandstats")

    async def calls_it() -> None:
        for _ in range(500):
            found = await one.allow_async()
            assert isinstance(found, GuardPermit)
            one.record(found, Outcome.SUCCESS)

    for number in range(500):
        one.record(passed(one), Outcome.FAILURE if number % 2 else Outcome.SUCCESS)
    asyncio.run(calls_it())
    after = redis_server.info("commandstats")
    assert store.script.calls == calls
    assert {name: after.get(name) for name in SCRIPTS} == {name: before.get(name) for name in SCRIPTS}


def test_store_calls_of_an_opening_and_a_probe(
    made: Made, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "READ_INTERVAL_S", 3600.0)
    store = made(redis_server.url)
    one = circuit(store)
    passed(one)
    until(lambda: not store.state.has_work(), PATIENCE_S, "all is read")
    calls = store.script.calls
    fails(one)
    until(lambda: not store.state.has_work(), PATIENCE_S, "it is told")
    assert store.script.calls == calls + 1
    trial = tried(one)
    assert trial.fence
    one.record(trial, Outcome.SUCCESS)
    until(lambda: not store.state.has_work(), PATIENCE_S, "it is told")
    assert store.script.calls <= calls + 4, "an opening, one or two questions, an end"
    assert one.state() is BreakerState.CLOSED


def test_two_guards_open_try_and_close_together(made: Made, redis_url: str) -> None:
    here, there = circuit(made(redis_url)), circuit(made(redis_url))
    assert isinstance(there.allow(), GuardPermit)
    for _ in range(3):
        fails(here)
        until(lambda: there.state() is not BreakerState.CLOSED, PATIENCE_S, "it is open there")
        trial = tried(here)
        assert isinstance(there.allow(), GuardRejection)
        here.record(trial, Outcome.FAILURE)
        assert here.state() is not BreakerState.CLOSED
        trial = tried(there)
        assert isinstance(here.allow(), GuardRejection)
        there.record(trial, Outcome.SUCCESS)
        until(lambda: here.state() is BreakerState.CLOSED, PATIENCE_S, "it is closed here")


def test_shared_guard_opens_by_a_rate_as_a_local_one(made: Made, redis_url: str) -> None:
    rules, clock = BreakerSettings(failure_rate=0.5), ManualClock()
    there = GuardState("a", rules, store=made(redis_url))
    passed(there)
    here, local = (GuardState("a", rules, clock=clock, store=store) for store in (made(redis_url), None))
    for number in range(20):
        for one in (here, local):
            assert one.state() is BreakerState.CLOSED
            one.record(passed(one), Outcome.FAILURE if number < 10 else Outcome.SUCCESS)
        clock.advance(0.4)
    assert here.view().cause is local.view().cause is BreakerCause.FAILURE_RATE
    until(lambda: there.state() is not BreakerState.CLOSED, PATIENCE_S, "it is open there")


def test_operator_state_applies_everywhere_to_late_results_too(made: Made, redis_url: str) -> None:
    here, there = circuit(made(redis_url)), circuit(made(redis_url))
    under_way = passed(there)
    here.breaker.operate(BreakerEvent.FORCE)
    until(lambda: there.state() is BreakerState.FORCED_OPEN, PATIENCE_S, "it is forced open")
    there.record(under_way, Outcome.FAILURE)
    fresh = circuit(made(redis_url, listens=False))
    rejected = fresh.allow()
    assert isinstance(rejected, GuardRejection)
    assert rejected.state is BreakerState.FORCED_OPEN
    there.breaker.operate(BreakerEvent.RESET)
    until(lambda: {one.state() for one in (here, fresh)} == {BreakerState.CLOSED}, PATIENCE_S, "it is reset")


def test_abandoned_probe_is_returned_at_once(made: Made, redis_url: str) -> None:
    here, there = circuit(made(redis_url)), circuit(made(redis_url))
    passed(there)
    fails(here)
    until(lambda: there.state() is not BreakerState.CLOSED, PATIENCE_S, "it is open there")
    here.record(tried(here), Outcome.NEUTRAL)
    there.record(tried(there), Outcome.SUCCESS)  # long before the lease ends
    until(lambda: here.state() is BreakerState.CLOSED, PATIENCE_S, "it is closed here")


def test_without_the_store_a_guard_goes_on_by_itself(made: Made, own_server: RedisServer) -> None:
    one = circuit(made(own_server.url))
    passed(one)
    own_server.kill()
    fails(one)
    assert one.state() is not BreakerState.CLOSED
    trial = tried(one)
    assert not trial.fence
    one.record(trial, Outcome.SUCCESS)
    assert one.state() is BreakerState.CLOSED
