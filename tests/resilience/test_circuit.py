"""One guard of one process: admission, records, observers, faults."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from autoglm_throttle.resilience.classify import OutcomeClassifier
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerMode,
    BreakerState,
    BreakerTransition,
    GuardRejected,
    GuardRejection,
    Outcome,
)
from tests.resilience.tripping import (
    Clocked,
    RecordedTransitions,
    Shedding,
    fail,
    half_open,
    opened,
    passed,
    rejected,
)

SUCCESS, FAILURE, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL


def test_calls_go_through_and_are_counted() -> None:
    circuit = Clocked()
    assert circuit.allow() is circuit.allow()
    assert circuit.view().calls == 2


def test_failure_opens_and_its_text_is_kept() -> None:
    circuit = Clocked()
    circuit.record(passed(circuit.allow()), FAILURE, ValueError("no such index"))
    rejection = rejected(circuit.allow())
    assert (rejection.state, rejection.cause, rejection.retry_after_s) == (
        BreakerState.OPEN,
        BreakerCause.FAILURES,
        10.0,
    )
    assert rejection.last_failure == "ValueError: no such index"


def test_recorded_failure_keeps_no_frames_alive() -> None:
    class Held:
        pass

    circuit = Clocked()

    def failing() -> weakref.ref[Held]:
        held = Held()
        try:
            int("held by a traceback")
        except ValueError as error:
            circuit.settle(passed(circuit.allow()), error, raised=True)
        return weakref.ref(held)

    held = failing()
    gc.collect()
    assert held() is None


def test_only_failures_leave_a_text() -> None:
    circuit = Clocked()
    circuit.record(passed(circuit.allow()), NEUTRAL, ValueError("no evidence"))
    assert circuit.view().last_failure == ""


# Refusals without the lock


def test_open_guard_rejects_without_the_lock() -> None:
    circuit = opened()
    circuit.block()  # nobody has been refused yet: the breaker has to be asked
    rejected(circuit.allow())
    circuit.clock.advance(2.5)
    with pytest.raises(GuardRejected) as caught:
        circuit.block()
    error = caught.value
    assert error.retry_after_s == 7.5
    assert error.rejection == GuardRejection("db", BreakerState.OPEN, BreakerCause.FAILURES, 7.5, "it fails")
    assert error.rejection is error.rejection
    assert (error.name, error.last_failure) == ("db", "it fails")
    assert str(error) == "db is open (failures), try again in 7.5 s, last failure it fails"


def test_fast_rejection_behaves_like_other_exceptions() -> None:
    known = GuardRejection("db", BreakerState.OPEN, BreakerCause.FAILURES, 7.5)
    error = GuardRejected(known, 2.0)
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (
            other.rejection
            == error.rejection
            == GuardRejection("db", BreakerState.OPEN, BreakerCause.FAILURES, 2.0)
        )


def test_fast_rejections_are_counted_with_the_others() -> None:
    circuit = opened()
    for _ in range(2):
        rejected(circuit.allow())
        for _ in range(3):
            with pytest.raises(GuardRejected):
                circuit.block()
    assert circuit.view().rejected == {BreakerCause.FAILURES: 8}


def test_expired_open_period_consults_the_breaker() -> None:
    circuit = opened()
    rejected(circuit.allow())
    circuit.clock.advance(9.9995)
    circuit.block()
    assert rejected(circuit.allow()).retry_after_s == pytest.approx(0.0005)
    circuit.clock.advance(10.0)
    circuit.block()
    passed(circuit.allow())


@pytest.mark.parametrize(
    "command",
    [BreakerEvent.RESET, BreakerEvent.DISABLE, BreakerEvent.METRICS_ONLY, BreakerEvent.FORCE],
)
def test_operator_command_ends_fast_rejections(command: BreakerEvent) -> None:
    circuit = opened()
    rejected(circuit.allow())
    circuit.breaker.operate(command)
    circuit.block()


def test_a_clock_that_steps_back_is_the_breakers_business() -> None:
    now = [1000.0]
    circuit = GuardState("db", BreakerSettings(failures=1), clock=lambda: now[0])
    fail(circuit)
    rejected(circuit.allow())
    now[0] -= 100.0
    circuit.block()
    assert rejected(circuit.allow()).retry_after_s == 10.0


def test_a_circuit_that_others_may_answer_for_is_never_quick() -> None:
    circuit = opened()
    rejected(circuit.allow())
    circuit.attach(Shedding(None))
    circuit.block()


# Shedding


def test_shed_feature_is_rejected_before_the_breaker() -> None:
    circuit = Clocked()
    direct = [circuit.fast.is_direct]
    shed = GuardRejection("db", BreakerState.CLOSED, BreakerCause.SHED, 3.0)
    circuit.attach(Shedding(shed))
    direct.append(circuit.fast.is_direct)
    assert circuit.allow(sheds=True) is shed
    assert circuit.view().calls == 0
    circuit.attach(Shedding(None))
    passed(circuit.allow(sheds=True))
    circuit.attach(None)
    direct.append(circuit.fast.is_direct)
    passed(circuit.allow(sheds=True))
    assert direct == [True, False, True]


# Observers


def test_transitions_are_reported_once_in_order() -> None:
    notified = RecordedTransitions()
    circuit = half_open(on_transitions=notified)
    passed(circuit.allow())
    assert notified.states == [BreakerState.OPEN, BreakerState.HALF_OPEN]
    circuit.breaker.operate(BreakerEvent.RESET)
    circuit.breaker.operate(BreakerEvent.RESET)
    assert notified.states == [BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED]
    generations = [change.generation for change in notified.changes]
    assert generations == sorted(set(generations))


def test_raising_observer_is_logged_and_harmless(caplog: pytest.LogCaptureFixture) -> None:
    def notified(changes: Sequence[BreakerTransition]) -> None:
        raise RuntimeError("the observer's own")

    circuit = opened(on_transitions=notified)
    assert circuit.state() is BreakerState.OPEN
    circuit.breaker.operate(BreakerEvent.RESET)
    assert circuit.state() is BreakerState.CLOSED
    assert [(line.name, line.levelno) for line in caplog.records] == [("autoglm_throttle", logging.ERROR)] * 2
    assert "the observer's own" in caplog.text


def test_an_observer_may_use_the_circuit_that_it_observes() -> None:
    seen: list[tuple[BreakerState, BreakerState]] = []

    def notified(changes: Sequence[BreakerTransition]) -> None:
        for change in changes:
            seen.append((change.after, circuit.state()))
            if change.after is BreakerState.OPEN:
                circuit.breaker.operate(BreakerEvent.FORCE)
                seen.append((change.after, circuit.state()))

    circuit = Clocked(on_transitions=notified)
    fail(circuit)
    assert seen == [
        (BreakerState.OPEN, BreakerState.OPEN),
        (BreakerState.OPEN, BreakerState.FORCED_OPEN),
        (BreakerState.FORCED_OPEN, BreakerState.FORCED_OPEN),
    ]


def test_one_thread_delivers_for_all_and_in_order() -> None:
    busy, go_on, notified = threading.Event(), threading.Event(), RecordedTransitions()

    def slow(changes: Sequence[BreakerTransition]) -> None:
        notified(changes)
        if len(notified.changes) == 1:
            busy.set()
            assert go_on.wait(60)

    circuit = Clocked(on_transitions=slow)
    first = threading.Thread(target=fail, args=(circuit,))
    first.start()
    assert busy.wait(60)
    circuit.breaker.operate(BreakerEvent.RESET)
    circuit.breaker.operate(BreakerEvent.FORCE)
    assert notified.states == [BreakerState.OPEN]
    go_on.set()
    first.join(60)
    assert notified.states == [BreakerState.OPEN, BreakerState.CLOSED, BreakerState.FORCED_OPEN]


def test_no_observer_is_called_under_the_lock() -> None:
    circuit = Clocked(on_transitions=lambda _: others.append(request()))
    others: list[BreakerState] = []

    def request() -> BreakerState:
        found: list[BreakerState] = []
        thread = threading.Thread(target=lambda: found.append(circuit.state()))
        thread.start()
        thread.join(60)
        return found[0]

    fail(circuit)
    assert others == [BreakerState.OPEN]


# Operators and what there is to see


@pytest.mark.parametrize(
    ("command", "state"),
    [
        (BreakerEvent.FORCE, BreakerState.FORCED_OPEN),
        (BreakerEvent.DISABLE, BreakerState.DISABLED),
        (BreakerEvent.RESET, BreakerState.CLOSED),
    ],
)
def test_operator_state_lasts_until_the_next_command(command: BreakerEvent, state: BreakerState) -> None:
    circuit = opened()
    circuit.breaker.operate(command)
    circuit.clock.advance(1000.0)
    assert circuit.state() is circuit.view().state is state


def test_metrics_only_lets_all_through_and_counts() -> None:
    circuit = Clocked()
    circuit.breaker.operate(BreakerEvent.METRICS_ONLY)
    fail(circuit)
    passed(circuit.allow())
    assert circuit.view().would_reject == 1


def test_dependency_sets_its_retry_after() -> None:
    notified = RecordedTransitions()
    circuit = Clocked(on_transitions=notified)
    circuit.open_for(42.0)
    rejection = rejected(circuit.allow())
    assert (rejection.cause, rejection.retry_after_s) == (BreakerCause.RETRY_AFTER, 42.0)
    assert notified.states == [BreakerState.OPEN]


def test_rejection_query_has_no_effect() -> None:
    circuit = opened()
    before = circuit.view()
    assert rejected(circuit.rejection() or passed(circuit.allow())).retry_after_s == 10.0
    assert circuit.view() == before
    circuit.clock.advance(10.0)
    assert circuit.rejection() is None
    assert circuit.view().machine is BreakerState.OPEN


def test_idle_guard_may_be_evicted() -> None:
    circuit = Clocked(BreakerSettings(failures=2))
    idle = [circuit.is_idle]
    under_way = passed(circuit.allow())
    fail(circuit)
    idle.append(circuit.is_idle)
    circuit.record(under_way, SUCCESS)
    idle.append(circuit.is_idle)
    circuit.breaker.operate(BreakerEvent.METRICS_ONLY)
    idle.append(circuit.is_idle)
    assert idle == [True, False, True, False]


@pytest.mark.parametrize("mode", BreakerMode)
def test_idle_is_as_it_began(mode: BreakerMode) -> None:
    assert Clocked(BreakerSettings(mode=mode)).is_idle is (mode is not BreakerMode.DISABLED)


def test_open_or_busy_guard_is_not_idle() -> None:
    assert not opened().is_idle
    bounded = Clocked(BreakerSettings(max_in_flight=2))
    idle = [bounded.is_idle]
    under_way = passed(bounded.allow())
    idle.append(bounded.is_idle)
    bounded.record(under_way, NEUTRAL)
    idle.append(bounded.is_idle)
    assert idle == [True, False, True]


def test_nothing_keeps_a_circuit_alive() -> None:
    circuit = Clocked(on_transitions=RecordedTransitions())
    fail(circuit)
    rejected(circuit.allow())
    there = weakref.ref(circuit)
    del circuit
    gc.collect()
    assert there() is None


# Calls in the midst of a change


class Interrupting:
    """A clock that runs an action, once, while the breaker reads it: amid a change, under the lock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.action: Callable[[], object] | None = None

    def __call__(self) -> float:
        action, self.action = self.action, None
        if action is not None:
            action()
        return self.now_s


def interrupted_circuit(notified: RecordedTransitions) -> tuple[GuardState, Interrupting]:
    """A half-open circuit with two of three slots free, and its clock."""
    clock = Interrupting()
    rules = BreakerSettings(failures=1, half_open_max=3)
    circuit = GuardState("db", rules, clock=clock, on_transitions=notified)
    fail(circuit)
    clock.now_s += 10.0
    return circuit, clock


@pytest.mark.parametrize("outcome", [SUCCESS, FAILURE, NEUTRAL])
def test_result_amid_a_change_is_recorded_after_it(outcome: Outcome) -> None:
    notified = RecordedTransitions()
    circuit, clock = interrupted_circuit(notified)
    dropped = passed(circuit.allow())
    during: list[int] = []

    def settle() -> None:
        circuit.record(dropped, outcome)
        during.append(circuit.view().in_flight)

    clock.action = settle
    assert circuit.view().in_flight == 1
    assert during == [1]
    after = circuit.view()
    assert (after.in_flight, after.probe_successes) == (0, int(outcome is SUCCESS))
    opened_again = [BreakerState.OPEN] if outcome is FAILURE else []
    assert notified.states == [BreakerState.OPEN, BreakerState.HALF_OPEN, *opened_again]


def test_call_amid_a_change_is_rejected() -> None:
    circuit, clock = interrupted_circuit(RecordedTransitions())
    answers: list[object] = []
    clock.action = lambda: answers.append(circuit.allow())
    circuit.breaker.operate(BreakerEvent.RESET)
    assert answers == [GuardRejection("db", BreakerState.HALF_OPEN, BreakerCause.IN_FLIGHT, 0.0)]
    assert circuit.state() is BreakerState.CLOSED


def test_operator_command_amid_a_change_follows_it() -> None:
    notified = RecordedTransitions()
    circuit, clock = interrupted_circuit(notified)
    clock.action = partial(circuit.breaker.operate, BreakerEvent.FORCE)
    circuit.breaker.operate(BreakerEvent.RESET)
    assert notified.states[-2:] == [BreakerState.CLOSED, BreakerState.FORCED_OPEN]


def test_a_real_clock_is_the_default() -> None:
    circuit = GuardState("db", BreakerSettings(failures=1))
    fail(circuit)
    assert 9.0 < rejected(circuit.allow()).retry_after_s <= 10.0


def test_caller_classification_applies_without_a_classifier() -> None:
    assert Clocked().outcome_of(503, raised=False, default=FAILURE) is FAILURE
    speaking = Clocked(classifier=OutcomeClassifier(classify=lambda _: SUCCESS))
    assert speaking.outcome_of(503, raised=False, default=FAILURE) is SUCCESS
