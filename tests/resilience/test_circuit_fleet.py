"""A circuit in a fleet: its requests and reports to the store, and its work without the store."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import anyio
import pytest

from autoglm_throttle.events import LOG_INTERVAL_S
from autoglm_throttle.resilience.fleet_link import BreakerStore
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    GuardPermit,
    GuardRejected,
    GuardRejection,
    Outcome,
    ProbeLease,
    ProbeRequest,
    RemoteBreakerState,
)
from tests.loops import run
from tests.resilience.faces import drive
from tests.resilience.fake_store import FakeStore
from tests.resilience.tripping import Clocked, RecordedTransitions, fail, half_open, opened, passed, rejected

SUCCESS, FAILURE, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL
OPEN, HALF_OPEN, CLOSED = BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED

Enter = Callable[[Clocked], GuardPermit | GuardRejection]

ENTERS: list[Enter] = [lambda circuit: circuit.allow(), lambda circuit: drive(circuit.allow_async())]


@pytest.fixture(params=ENTERS, ids=["sync", "async"])
def enter(request: pytest.FixtureRequest) -> Enter:
    """The one and the other."""
    found: Enter = request.param
    return found


def in_fleet(store: FakeStore, rules: BreakerSettings | None = None) -> Clocked:
    """A circuit that has had the fleet's first word."""
    circuit = Clocked(rules, store=store)
    circuit.record(passed(circuit.allow()), SUCCESS)
    return circuit


def to_half_open(store: FakeStore, rules: BreakerSettings | None = None) -> Clocked:
    circuit = in_fleet(store, rules)
    fail(circuit)
    circuit.clock.advance(10.0)
    store.reports.clear()
    return circuit


def test_a_fake_store_is_a_store() -> None:
    store: BreakerStore = FakeStore()
    assert store.is_up


# The first word


def test_first_call_waits_for_the_first_fleet_state(enter: Enter) -> None:
    store = FakeStore(RemoteBreakerState(7, OPEN, wait_s=4.0))
    circuit = Clocked(store=store)
    assert not circuit.fast.is_direct
    rejection = rejected(enter(circuit))
    assert (rejection.cause, rejection.retry_after_s) == (BreakerCause.REMOTE, 4.0)
    rejected(enter(circuit))
    assert store.questions == 1


def test_first_call_passes_if_the_fleet_is_silent(enter: Enter) -> None:
    store = FakeStore(None)
    circuit = Clocked(store=store)
    passed(enter(circuit))
    passed(enter(circuit))
    assert store.questions == 1


@pytest.mark.parametrize("kind", ["decorator", "block", "async block"])
def test_no_fast_path_before_the_first_fleet_state(kind: str) -> None:
    store = FakeStore(RemoteBreakerState(7, OPEN, wait_s=4.0))
    circuit = Clocked(store=store)

    @Guard(circuit)
    def call() -> None:
        raise AssertionError("nobody may call")

    def block() -> None:
        with Guard(circuit):
            call()

    async def async_block() -> None:
        async with Guard(circuit):
            call()

    faces: dict[str, Callable[[], object]] = {
        "decorator": call,
        "block": block,
        "async block": lambda: drive(async_block()),
    }
    with pytest.raises(GuardRejected, match=r"db is open \(remote\)"):
        faces[kind]()


def test_closed_guard_sends_no_query() -> None:
    store = FakeStore()
    circuit = in_fleet(store)
    store.questions, store.reports = 0, []

    @Guard(circuit)
    async def call() -> int:
        return 1

    for _ in range(5):
        assert drive(call()) == 1
        with Guard(circuit):
            pass
        circuit.record(passed(circuit.allow()), SUCCESS)
    assert (store.questions, store.reports) == (0, [])


def test_cancelled_first_call_takes_nothing(backend: str) -> None:
    store = FakeStore(None)
    store.wait = anyio.sleep_forever
    circuit = Clocked(store=store)

    async def main() -> None:
        with anyio.move_on_after(0) as scope:
            await circuit.allow_async()
        assert scope.cancelled_caught

    run(backend, main)
    assert circuit.view().calls == 0
    passed(circuit.allow())


# Trials


def test_leased_probe_success_closes_here_and_is_sent(enter: Enter) -> None:
    store = FakeStore()
    circuit = to_half_open(
        store, BreakerSettings(failures=1, half_open_max=2, success_threshold=1, trial_lease_s=9.0)
    )
    store.replies = [ProbeLease(5, version=3)]
    trial = passed(enter(circuit))
    assert trial.fence == 5
    assert circuit.view().shared
    assert store.requested == [
        ProbeRequest(half_open_max=2, successes_needed=1, limits_concurrent=True, lease_s=9.0)
    ]
    circuit.record(trial, SUCCESS)
    assert circuit.state() is CLOSED
    assert store.reports == [("finished", "db", 5, SUCCESS, 1, 10.0)]


def test_failed_probe_is_sent_as_a_probe_result(enter: Enter) -> None:
    store = FakeStore()
    circuit = to_half_open(store, BreakerSettings(failures=1, backoff=2.0))
    store.replies = [ProbeLease(5, version=3, rounds=1)]
    circuit.record(passed(enter(circuit)), FAILURE, "it fails")
    assert circuit.state() is OPEN
    assert store.reports == [("finished", "db", 5, FAILURE, 1, 40.0)]


def test_neutral_probe_returns_its_lease(enter: Enter) -> None:
    store = FakeStore()
    circuit = to_half_open(store)
    store.replies = [ProbeLease(5, version=3)]
    circuit.record(passed(enter(circuit)), NEUTRAL)
    assert circuit.state() is HALF_OPEN
    assert store.reports == [("finished", "db", 5, NEUTRAL, 1, 10.0)]


def test_fleet_decides_about_late_probe_results() -> None:
    store = FakeStore()
    circuit = to_half_open(store)
    store.replies = [ProbeLease(5, version=3)]
    trial = passed(circuit.allow())
    circuit.breaker.operate(BreakerEvent.FORCE)
    circuit.record(trial, SUCCESS)
    circuit.record(trial, SUCCESS)
    assert circuit.state() is BreakerState.FORCED_OPEN
    assert store.reports == [
        ("operated", "db", BreakerState.FORCED_OPEN),
        ("finished", "db", 5, SUCCESS, 1, 10.0),
    ]


def test_one_caller_at_a_time_requests_a_lease(enter: Enter) -> None:
    store = FakeStore()
    circuit = to_half_open(store)
    store.replies = [RemoteBreakerState(3, HALF_OPEN)]
    rejected(enter(circuit))
    for _ in range(5):
        assert rejected(enter(circuit)).cause is BreakerCause.TRIAL
    assert len(store.requested) == 1
    circuit.clock.advance(0.0625)
    store.replies = [ProbeLease(6, version=3)]
    assert passed(enter(circuit)).fence == 6


@pytest.mark.parametrize(
    ("remote", "state"),
    [
        (RemoteBreakerState(9, OPEN, wait_s=4.0), OPEN),
        (RemoteBreakerState(9, HALF_OPEN), HALF_OPEN),
        (RemoteBreakerState(9, BreakerState.FORCED_OPEN), BreakerState.FORCED_OPEN),
    ],
)
def test_state_that_denies_a_lease_is_adopted(
    enter: Enter, remote: RemoteBreakerState, state: BreakerState
) -> None:
    store = FakeStore()
    circuit = to_half_open(store)
    store.replies = [remote]
    rejected(enter(circuit))
    assert circuit.state() is state
    assert len(store.requested) == 1
    assert store.reports == []


def test_query_to_a_closed_fleet_admits_the_call(enter: Enter) -> None:
    store = FakeStore()
    circuit = to_half_open(store)
    store.replies = [RemoteBreakerState(9, CLOSED)]
    assert passed(enter(circuit)) == GuardPermit(circuit.view().generation)
    assert circuit.state() is CLOSED


def test_a_lease_that_comes_after_a_change_is_given_back(enter: Enter) -> None:
    store = FakeStore()
    circuit = to_half_open(store)
    store.replies = [ProbeLease(5, version=3)]
    acquire = store.acquire

    def late(name: str, request: ProbeRequest) -> ProbeLease | RemoteBreakerState | None:
        circuit.breaker.operate(BreakerEvent.FORCE)
        return acquire(name, request)

    store.acquire = late  # type: ignore[method-assign]
    assert rejected(enter(circuit)).state is BreakerState.FORCED_OPEN
    assert ("finished", "db", 5, NEUTRAL, 1, 10.0) in store.reports


def test_cancelled_query_does_not_block_the_next(backend: str) -> None:
    store = FakeStore()
    circuit = to_half_open(store)
    store.wait = anyio.sleep_forever

    async def main() -> None:
        for face in (Guard(circuit).allow_async, Guard(circuit)(anyio.sleep_forever)):
            with anyio.move_on_after(0) as scope:
                await face()
            assert scope.cancelled_caught
            circuit.clock.advance(0.0625)

    run(backend, main)
    store.replies = [ProbeLease(5, version=3)]
    assert passed(circuit.allow()).fence == 5


# Without the store


def test_without_an_answer_local_rules_hold(enter: Enter) -> None:
    store = FakeStore()
    circuit = to_half_open(store)
    store.replies = [None]
    trial = passed(enter(circuit))
    assert trial.fence == 0
    assert not circuit.view().shared
    rejected(enter(circuit))
    assert len(store.requested) == 1
    circuit.record(trial, SUCCESS)
    assert circuit.state() is CLOSED


def test_missing_reply_makes_no_second_probe(enter: Enter) -> None:
    store = FakeStore()
    store.falls = False
    circuit = to_half_open(store)
    store.replies = [None]
    assert rejected(enter(circuit)).retry_after_s == 0.0
    assert circuit.view().probes == 0
    circuit.clock.advance(0.06)
    store.replies = [ProbeLease(8, version=4)]
    assert passed(enter(circuit)).fence == 8


def test_unavailable_store_gets_no_query(enter: Enter) -> None:
    store = FakeStore()
    circuit = to_half_open(store)
    store.is_up = False
    passed(enter(circuit))
    assert store.requested == []
    circuit.breaker.operate(BreakerEvent.RESET)
    fail(circuit)
    circuit.clock.advance(10.0)
    store.is_up = True
    store.replies = [ProbeLease(8, version=4)]
    assert passed(enter(circuit)).fence == 8


# News


def test_own_opening_is_sent_once() -> None:
    store = FakeStore()
    circuit = in_fleet(store)
    fail(circuit)
    assert store.reports == [("opened", "db", 10.0, 0, BreakerCause.FAILURES)]


def test_opening_by_retry_after_is_sent() -> None:
    store = FakeStore()
    in_fleet(store).open_for(42.0)
    assert store.reports == [("opened", "db", 42.0, 0, BreakerCause.RETRY_AFTER)]


@pytest.mark.parametrize("state", [OPEN, HALF_OPEN, BreakerState.FORCED_OPEN, BreakerState.DISABLED])
def test_fleet_update_is_adopted_and_not_sent_back(state: BreakerState) -> None:
    store, notified = FakeStore(), RecordedTransitions()
    circuit = Clocked(store=store, on_transitions=notified)
    store.push(RemoteBreakerState(4, state, wait_s=5.0))
    assert circuit.view().machine is state
    assert notified.states == [state]
    assert store.reports == []


def test_fleet_update_ends_a_fast_rejection() -> None:
    store = FakeStore()
    circuit = in_fleet(store)
    fail(circuit)
    rejected(circuit.allow())
    store.push(RemoteBreakerState(4, CLOSED))
    circuit.block()
    passed(circuit.allow())


@pytest.mark.parametrize(
    ("command", "state"),
    [
        (BreakerEvent.FORCE, BreakerState.FORCED_OPEN),
        (BreakerEvent.DISABLE, BreakerState.DISABLED),
        (BreakerEvent.RESET, CLOSED),
    ],
)
def test_operator_state_applies_to_the_fleet(command: BreakerEvent, state: BreakerState) -> None:
    store = FakeStore()
    circuit = in_fleet(store)
    for _ in range(2):
        circuit.breaker.operate(command)
    assert store.reports == [("operated", "db", state)] * 2


def test_metrics_only_is_each_process_own() -> None:
    store = FakeStore()
    in_fleet(store).breaker.operate(BreakerEvent.METRICS_ONLY)
    assert store.reports == []


def test_raising_store_is_harmless_and_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(FakeStore):
        def report_open(self, name: str, wait_s: float, rounds: int, cause: BreakerCause) -> None:
            raise RuntimeError("the store's own")

        def report_operator_state(self, name: str, state: BreakerState) -> None:
            raise RuntimeError("the store's own")

    circuit = in_fleet(Faulty())
    for _ in range(3):
        circuit.breaker.operate(BreakerEvent.RESET)
        fail(circuit)
        assert circuit.state() is OPEN
    circuit.clock.advance(LOG_INTERVAL_S)
    circuit.breaker.operate(BreakerEvent.RESET)
    assert caplog.messages == [
        "db: the store of breakers failed",
        "db: the store of breakers failed (5 more since the last line)",
    ]
    assert "the store's own" in caplog.text


def test_the_store_keeps_no_circuit_alive() -> None:
    store = FakeStore()
    circuit = in_fleet(store)
    there = weakref.ref(circuit)
    del circuit
    gc.collect()
    assert there() is None
    store.push(RemoteBreakerState(4, OPEN, wait_s=5.0))


def test_lease_for_an_open_period_that_is_over_starts_a_probe() -> None:
    class Reopening(FakeStore):
        """Brings the end of an open period of the fleet before the lease."""

        def acquire(self, name: str, request: ProbeRequest) -> ProbeLease | RemoteBreakerState | None:
            self.push(RemoteBreakerState(7, OPEN, wait_s=0.0))
            return super().acquire(name, request)

    store, notified = Reopening(), RecordedTransitions()
    circuit = Clocked(store=store, on_transitions=notified)
    fail(circuit)
    circuit.clock.advance(10.0)
    store.replies = [ProbeLease(5, version=8)]
    assert passed(circuit.allow()).fence == 5
    assert notified.states == [OPEN, HALF_OPEN, OPEN, HALF_OPEN]


def test_rebuilt_circuit_waits_for_its_fleet_without_leases() -> None:
    store, other = FakeStore(), FakeStore()
    circuit = to_half_open(store)
    store.replies = [ProbeLease(5, version=3)]
    trial = passed(circuit.allow())
    circuit.rebuild(other, None)
    assert not circuit.fast.is_direct
    assert other.watchers == {}
    circuit.record(trial, SUCCESS)
    assert store.reports == other.reports == []
    other.first = RemoteBreakerState(9, CLOSED)
    passed(circuit.allow())
    other.push(RemoteBreakerState(10, OPEN, wait_s=5.0))
    assert circuit.state() is OPEN


def test_a_circuit_of_its_own_is_not_shared() -> None:
    circuit = half_open()
    assert not circuit.view().shared
    assert passed(circuit.allow()).fence == 0
    assert opened().breaker.fleet is None
