"""Guards on a shared store: what a closed one costs the store, and how two of them agree."""

from __future__ import annotations

import asyncio

import pytest

from autoglm_throttle.model import Outcome, Pass, Refusal, State
from autoglm_throttle.resilience.circuit import Circuit
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.shared import teller
from autoglm_throttle.resilience.shared.redis_store import RedisBreakerStore
from tests.resilience.shared.conftest import Made
from tests.resilience.shared.fleets import PATIENCE_S
from tests.stores.polling import until
from tests.stores.server import RedisServer

pytestmark = pytest.mark.server

SCRIPTS = ("cmdstat_eval", "cmdstat_evalsha", "cmdstat_publish")


def circuit(store: RedisBreakerStore, name: str = "a", open_s: float = 0.05) -> Circuit:
    return Circuit(name, Rules(failures=2, open_s=open_s, trial_lease_s=600.0), store=store)


def passed(one: Circuit) -> Pass:
    found = one.enter()
    assert isinstance(found, Pass), found
    return found


def fails(one: Circuit, times: int = 2) -> None:
    for _ in range(times):
        one.leave(passed(one), Outcome.FAILURE)


def tried(one: Circuit) -> Pass:
    """The trial, once it is time for it."""
    found: list[Pass] = []

    def asked() -> bool:
        answer = one.enter()
        if isinstance(answer, Pass):
            found.append(answer)
        return bool(found)

    until(asked, PATIENCE_S, "a trial")
    return found[0]


def test_a_closed_guard_says_nothing_to_the_store(
    made: Made, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "READ_S", 3600.0)
    store = made(redis_server.url)
    one = circuit(store)
    one.leave(passed(one), Outcome.SUCCESS)
    until(lambda: not store._ledger.busy(), PATIENCE_S, "all is read")
    calls, before = store.calls, redis_server.info("commandstats")

    async def calls_it() -> None:
        for _ in range(500):
            found = await one.enter_async()
            assert isinstance(found, Pass)
            one.leave(found, Outcome.SUCCESS)

    for number in range(500):
        one.leave(passed(one), Outcome.FAILURE if number % 2 else Outcome.SUCCESS)
    asyncio.run(calls_it())
    after = redis_server.info("commandstats")
    assert store.calls == calls
    assert {name: after.get(name) for name in SCRIPTS} == {name: before.get(name) for name in SCRIPTS}


def test_what_an_opening_and_a_trial_cost_the_store(
    made: Made, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "READ_S", 3600.0)
    store = made(redis_server.url)
    one = circuit(store)
    passed(one)
    until(lambda: not store._ledger.busy(), PATIENCE_S, "all is read")
    calls = store.calls
    fails(one)
    until(lambda: not store._ledger.busy(), PATIENCE_S, "it is told")
    assert store.calls == calls + 1
    trial = tried(one)
    assert trial.fence
    one.leave(trial, Outcome.SUCCESS)
    until(lambda: not store._ledger.busy(), PATIENCE_S, "it is told")
    assert store.calls <= calls + 4, "an opening, one or two questions, an end"
    assert one.state() is State.CLOSED


def test_two_guards_open_try_and_close_together(made: Made, redis_url: str) -> None:
    here, there = circuit(made(redis_url)), circuit(made(redis_url))
    assert isinstance(there.enter(), Pass)
    for _ in range(3):
        fails(here)
        until(lambda: there.state() is not State.CLOSED, PATIENCE_S, "it is open there")
        trial = tried(here)
        assert isinstance(there.enter(), Refusal)
        here.leave(trial, Outcome.FAILURE)
        assert here.state() is not State.CLOSED
        trial = tried(there)
        assert isinstance(here.enter(), Refusal)
        there.leave(trial, Outcome.SUCCESS)
        until(lambda: here.state() is State.CLOSED, PATIENCE_S, "it is closed here")


def test_an_operator_is_heard_everywhere_and_late_results_count_nowhere(made: Made, redis_url: str) -> None:
    here, there = circuit(made(redis_url)), circuit(made(redis_url))
    under_way = passed(there)
    here.force_open()
    until(lambda: there.state() is State.FORCED_OPEN, PATIENCE_S, "it is forced open")
    there.leave(under_way, Outcome.FAILURE)
    fresh = circuit(made(redis_url, listens=False))
    refused = fresh.enter()
    assert isinstance(refused, Refusal)
    assert refused.state is State.FORCED_OPEN
    there.reset()
    until(lambda: {one.state() for one in (here, fresh)} == {State.CLOSED}, PATIENCE_S, "it is reset")


def test_a_trial_that_nobody_ends_well_goes_back_at_once(made: Made, redis_url: str) -> None:
    here, there = circuit(made(redis_url)), circuit(made(redis_url))
    passed(there)
    fails(here)
    until(lambda: there.state() is not State.CLOSED, PATIENCE_S, "it is open there")
    here.leave(tried(here), Outcome.NEUTRAL)
    there.leave(tried(there), Outcome.SUCCESS)  # long before the lease ends
    until(lambda: here.state() is State.CLOSED, PATIENCE_S, "it is closed here")


def test_without_the_store_a_guard_goes_on_by_itself(made: Made, own_server: RedisServer) -> None:
    one = circuit(made(own_server.url))
    passed(one)
    own_server.kill()
    fails(one)
    assert one.state() is not State.CLOSED
    trial = tried(one)
    assert not trial.fence
    one.leave(trial, Outcome.SUCCESS)
    assert one.state() is State.CLOSED
